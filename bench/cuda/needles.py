#!/usr/bin/env python3
"""needles.py TERSE NEEDLES.jsonl OUT.json [--kv METHOD,...] [--device DEVICE] [--tasks N] [--beside OTHER.json]

Asks the built-in model the needle tasks of the file, greedily, the first N spread over it, and keeps the replies; with --beside says how many
are the same as another run's, of another device, to the last letter.
"""
import argparse, json, subprocess, tempfile

parser = argparse.ArgumentParser()
parser.add_argument("terse")
parser.add_argument("needles")
parser.add_argument("out")
parser.add_argument("--kv", default="f16,terse-2")
parser.add_argument("--device")
parser.add_argument("--tasks", type=int, default=64)
parser.add_argument("--beside")
options = parser.parse_args()

with open(options.needles) as file:
    tasks = [json.loads(line) for line in file]
tasks = [tasks[i * len(tasks) // options.tasks] for i in range(options.tasks)]
other = json.load(open(options.beside)) if options.beside else None
replies = {}
for method in options.kv.split(","):
    replies[method] = []
    right = same = 0
    for i, task in enumerate(tasks):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write(task["context"])
            text.flush()
            command = [options.terse, "run", "--chat", "-f", text.name, "-p", task["question"], "--temp", "0", "-n", "40", "--kv", method]
            if options.device:
                command += ["--device", options.device]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        reply = done.stdout.strip()
        replies[method].append(reply)
        right += task["answer"] in reply
        same += other is not None and other[method][i] == reply
    beside = f", {same} the same as {options.beside}" if other else ""
    print(f"{method}: {right} of {len(tasks)} right{beside}", flush=True)
    with open(options.out, "w") as file:
        json.dump(replies, file)
