#!/usr/bin/env python3
"""Sends SIGINT and SIGTERM to commands at random moments and counts how they end (docs/reports/reliability.md).

    bench/experiments/reliability_signals.py build/bin/terse [TRIALS] [SEED]

A command may have ended before; else it ends by the signal, or with 130 or 143, as a shell says it, and the server with 0. No more than one line is on
standard error but for progress, and no part of a file is left. Anything else is printed, and the exit status is 1.
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

TEXT, MODEL = "tests/fixtures/wiki_excerpt.txt", "tests/fixtures/models/llama.gguf"
PATIENCE = 60  # seconds
COMMANDS = {
    "run, a long prompt": (3, "run -f data/demo.txt -n 4 --save-state {folder}/state"),
    "run, a long reply": (3, "run -p The -n 4000 --kv streaming-64"),
    "perplexity": (3, f"perplexity -f {TEXT} -c 256 --kl-divergence-base {{folder}}/base"),
    "calibrate": (2, f"calibrate -m {MODEL} -f {TEXT} -c 100 --chunks 40 --kv antkv-1 -o {{folder}}/book"),
    "bench": (3, "bench -p 512 -n 16 -r 3"),
    "serve": (2, "serve --port 0 --state-dir {folder}"),
}


def trial(terse, command, longest, number, folder):
    """The exit status, the seconds from the signal to the end, and what was wrong."""
    arguments = [terse] + command.format(folder=folder).split()
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        process.wait(random.random() * longest)
    except subprocess.TimeoutExpired:
        pass
    process.send_signal(number)
    begin = time.monotonic()
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, PATIENCE, f"did not end within {PATIENCE} s"
    seconds, status = time.monotonic() - begin, process.returncode
    wrong = "" if status in (0, 128 + number, -number) else f"exit {status}"
    serves = "serve" in arguments
    lines = [line for line in said.replace("\r", "\n").split("\n") if line and not re.search(r"%|^\w+ \d", line)]
    if not serves and len(lines) > 1:
        wrong += f" said {lines}"
    if [name for name in os.listdir(folder) if name.endswith((".part", ".tmp"))]:
        wrong += f" left {os.listdir(folder)}"
    return status, seconds, wrong


def main():
    terse, trials = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    random.seed(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    bad = total = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(XDG_CACHE_HOME=folder, OMP_WAIT_POLICY="passive")
        for name, (longest, command) in COMMANDS.items():
            ends, slowest = {}, 0
            for i in range(trials):
                status, seconds, wrong = trial(terse, command, longest, (signal.SIGINT, signal.SIGTERM)[i % 2], folder)
                ends[status] = ends.get(status, 0) + 1
                slowest = max(slowest, seconds)
                total += 1
                if wrong:
                    bad += 1
                    print(f"{name}: {wrong}", file=sys.stderr)
            print(f"{name}: {trials} signals, exits {dict(sorted(ends.items(), key=str))}, the slowest {slowest * 1000:.0f} ms")
    print(f"{total} signals, {bad} ends that are wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
