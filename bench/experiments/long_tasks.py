#!/usr/bin/env python3
"""Tasks on long texts, by the method of the KV cache: several needles at once, variables, common and frequent words, arithmetic over facts, JSON, and
several turns about one text. long_tasks_maker.py says what they are.

    long_tasks.py run build/bin/terse -f TEXT -o RESULTS.jsonl [-m MODEL.gguf] [--kv f16,q4_0,terse-2] [--lengths 4096,8192] [--tasks 100]
                  [--kinds keys,values,...] [--parallel 8] [--options "--device cuda"]
    long_tasks.py table RESULTS.jsonl
    long_tasks.py write RESULTS.jsonl [RESULTS.jsonl ...] [--page docs/reports/long-tasks.md]

For each method and length a server is started, and asked each task as a chat, greedily, --parallel of them at the same time. The conversations about one
context follow each other, so that a method that keeps prefixes reads it once. A length is in tokens and has room for questions and replies. What
chooses tokens when a prompt has been read (snapkv, anchors) has seen the first question.

Each conversation becomes a line of RESULTS.jsonl as soon as it has ended: what was asked, the replies, the verdicts, the server's command and its commit. A run
that was interrupted goes on where it was: conversations whose lines are there, of the same command, commit, model and text, are not asked again. `table` and the
end of `run` print for each model and length the share that is right, with Wilson's 95 % interval, and the commands. `write` puts the same between the markers of
the page, from lines of one commit that was built with nothing changed. Exit status 1: a server did not start, a request failed, or lines are of several commits.

Python's standard library alone."""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reports")]
from long_tasks_maker import KINDS, TEXT_KINDS, Maker, judge  # noqa: E402
from quality_measurements import commit_in, is_clean, name_of_model, order_of_models  # noqa: E402
from quality_runner import name_of  # noqa: E402
from report_text import replace_block, table  # noqa: E402

# The rows of the tables, in order.
ROWS = {
    "keys": "keys: one code of 16",
    "frequent": "frequent: two of the three most frequent words",
    "common": "common: one of the three most common words",
    "values": "values: both numbers of a thing",
    "queries": "queries: three codes at once",
    "variables": "variables: copied one to another, twice",
    "sum": "sum of three numbers of the text",
    "json, valid": "json: valid",
    "json, right": "json: the right one of three codes",
    "turn 1": "turns: a code each, 1st",
    "turn 2": "2nd",
    "turn 3": "3rd",
    "turn 4": "4th",
}
PAGE = os.path.join(HERE, "..", "..", "docs", "reports", "long-tasks.md")

START = 600  # seconds that a server may take to load its model
REPLY = 3600  # and to answer


class Failed(Exception):
    """The server did not start or refused a request, or lines cannot make a page: says why."""


# ---- The server


class Server:
    def __init__(self, command):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.DEVNULL, stderr=self.log)
        begin = time.monotonic()
        while not (line := next((line for line in self.said() if line.startswith("http://")), None)):
            if self.process.poll() is not None or time.monotonic() - begin > START:
                self.stop()
                raise Failed(f"{shlex.join(command)} did not start: {(self.said() or ['it said nothing'])[-1]}")
            time.sleep(0.1)
        self.port = int(line.split(": ")[0].rsplit(":", 1)[1])

    def said(self):
        with open(f"/proc/self/fd/{self.log.fileno()}", encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)  # it lets replies end that are being written
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY)
        try:
            connection.request("POST", path, json.dumps(body))
            reply = connection.getresponse()
            value = json.loads(reply.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failed(f"{path}: {error}; the server said {(self.said() or ['nothing'])[-1]}") from None
        finally:
            connection.close()
        if reply.status != 200:
            raise Failed(f"{path}: {reply.status} {json.dumps(value)[:300]}")
        return value

    def count(self, text):
        return len(self.ask("/tokenize", {"content": text})["tokens"])


def converse(server, conversation):
    """Asks the turns one after another; returns what came of each."""
    messages, turns = list(conversation["before"]), []
    for i, turn in enumerate(conversation["turns"]):
        question = turn["question"] if i else f"{conversation['context']}\n\n{turn['question']}"
        messages.append({"role": "user", "content": question})
        reply = server.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": turn["tokens"]})
        text, usage = reply["choices"][0]["message"]["content"] or "", reply["usage"]
        messages.append({"role": "assistant", "content": text})
        right, valid = judge(turn["answer"], text)
        turns.append({"question": turn["question"], "answer": turn["answer"], "reply": text, "right": right, "valid": valid,
                      "prompt_tokens": usage["prompt_tokens"], "cached_tokens": usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)})
    return turns


# ---- Results


def read_results(path):
    """The lines of the file; what an interruption left of the last one is cut off."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        os.truncate(path, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def key_of(line):
    return line["command"], line["commit"], line["text"], line["kind"], line["length"], line["number"]


def interval(right, n, z=1.96):
    """Wilson's interval (1927) of a share."""
    share, spread = right / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def rows_of(line):
    """What a conversation counts for: names of rows of the table, and whether it was right."""
    turns = line["turns"]
    if line["kind"] == "turns":
        yield from ((f"turn {i}", turn["right"]) for i, turn in enumerate(turns, 1))
    elif line["kind"] == "json":
        yield "json, valid", turns[0]["valid"]
        yield "json, right", turns[0]["right"]
    else:
        yield line["kind"], turns[0]["right"]


def counts_of(lines):
    """{(model, length): {method: {row: [right, of]}}}"""
    counts = {}
    for line in lines:
        of = counts.setdefault((line["model"], line["length"]), {}).setdefault(line["kv"], {})
        for row, right in rows_of(line):
            cell = of.setdefault(row, [0, 0])
            cell[0] += right
            cell[1] += 1
    return counts


def cell_of(right, n, most):
    """Per cent and interval; behind a comma the number of tasks, where others of the table have more."""
    low, high = interval(right, n)
    return f"{100 * right / n:.0f} ({100 * low:.0f} to {100 * high:.0f})" + (f", {n}" if n < most else "")


def tables_of(lines):
    """Markdown: a table for each model and length."""
    counts = counts_of(lines)
    models = order_of_models({model for model, _ in counts})
    parts = []
    for model, length in sorted(counts, key=lambda key: (models.index(key[0]), key[1])):
        methods = counts[model, length]
        most = max(n for rows in methods.values() for _, n in rows.values())
        rows = [[name, *(cell_of(*of[row], most) if row in of else "" for of in methods.values())] for row, name in ROWS.items()
                if any(row in of for of in methods.values())]
        parts.append(table([f"{name_of_model(model)}, {length:,} tokens, {most} of each", *(f"`{kv}`" for kv in methods)], rows))
    return "".join(parts)


def commands_of(lines):
    """What the servers were started by, models, methods and lengths left open."""
    counts = {}
    for line in lines:
        open_words = {line["kv"]: "METHOD", str(line["length"]): "LENGTH"}
        words = [os.path.basename(word) for word in shlex.split(line["command"])]
        command = " ".join("MODEL.gguf" if word.endswith(".gguf") else open_words.get(word, word) for word in words)
        counts[command] = counts.get(command, 0) + 1
    return "".join(f"`{command}` ({n:,} conversations)\n" for command, n in counts.items())


def print_tables(lines):
    print(f"\nPer cent that are right, and 95 % intervals\n\n{tables_of(lines)}Servers: {commands_of(lines)}", end="")


def write(asked):
    lines = [line for path in asked.results for line in read_results(path)]
    if len({key_of(line) for line in lines}) < len(lines):
        raise Failed("some conversations are there twice: give each file once")
    found = sorted({line["commit"] for line in lines})
    if len(found) != 1 or not is_clean(found[0]):
        raise Failed(f"the page is of one commit, built with nothing changed, and these lines are of {', '.join(found) or 'none'}")
    texts = ", ".join(sorted({line["text"] for line in lines}))
    head = f"Commit {found[0]}, from {texts}. Per cent that are right, with Wilson's 95 % interval:\n\n"
    replace_block(asked.page, "long_tasks.py tables", "tables", head + tables_of(lines) + "Servers: " + commands_of(lines).rstrip("\n"))
    print(f"{len(lines):,} conversations written into {os.path.relpath(asked.page)}")


# ---- Running


class Progress:
    """Counts conversations on a line of its own."""

    def __init__(self, title, done, wanted):
        self.title, self.done, self.new, self.right, self.wanted, self.begin = title, done, 0, 0, wanted, time.monotonic()
        self.show()

    def add(self, turns):
        self.done, self.new, self.right = self.done + 1, self.new + 1, self.right + all(turn["right"] for turn in turns)
        self.show()

    def show(self):
        each = (time.monotonic() - self.begin) / self.new if self.new else 0
        left = f", {self.right} of {self.new} right, {each:.1f} s each, {each * (self.wanted - self.done) / 60:.0f} min left" if self.new else ""
        print(f"\r{self.title}: {self.done} of {self.wanted}{left}   ", end="", file=sys.stderr, flush=True)

    def end(self):
        print(file=sys.stderr, flush=True)


def run_length(asked, kv, length, text, known, file):
    """Asks what is not known of a method and length."""
    kinds = asked.kinds.split(",")
    command = [asked.command, "serve", *(["-m", asked.m] if asked.m else []), "--kv", kv, "-c", str(length), "--parallel", str(asked.parallel),
               "--queue", str(4 * asked.parallel), *shlex.split(asked.options)]
    own = {"model": name_of(asked.m) if asked.m else "the built-in model", "kv": kv, "command": shlex.join(command), "commit": asked.commit,
           "text": os.path.basename(asked.f)}

    def is_known(kind, number):
        return key_of({**own, "kind": kind, "length": length, "number": number}) in known

    wanted = [(number, [kind for kind in group if kind in kinds and not is_known(kind, number)]) for number in range(asked.tasks)
              for group in (TEXT_KINDS, *[[kind] for kind in KINDS if kind not in TEXT_KINDS])]
    wanted = [(number, group) for number, group in wanted if group]
    if not wanted:
        return
    missing = sum(len(group) for _, group in wanted)
    progress = Progress(f"{own['model']}, {kv}, {length:,}", asked.tasks * len(kinds) - missing, asked.tasks * len(kinds))
    lock, stopped = threading.Lock(), threading.Event()

    def ask_group(maker, server, number, group):
        if stopped.is_set():
            return
        for conversation in maker.make(length, number, group):
            if stopped.is_set():
                return
            begin = time.monotonic()
            turns = converse(server, conversation)
            line = {**own, "kind": conversation["kind"], "length": length, "number": number, "seconds": round(time.monotonic() - begin, 3), "turns": turns}
            with lock:
                file.write(json.dumps(line) + "\n")
                file.flush()
                progress.add(turns)

    with contextlib.ExitStack() as stack:
        stack.callback(progress.end)
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(asked.parallel))
        server = Server(command)
        stack.callback(server.stop)
        stack.callback(stopped.set)  # where one has failed, and at Ctrl-C, nothing more is asked and the server does not go on for long
        maker = Maker(text, server.count)
        for done in concurrent.futures.as_completed([pool.submit(ask_group, maker, server, *group) for group in wanted]):
            done.result()


def run(asked):
    unknown = set(asked.kinds.split(",")) - set(KINDS)
    if unknown:
        sys.exit(f"long_tasks.py: there are no tasks {', '.join(sorted(unknown))}: use some of {', '.join(KINDS)}")
    with open(asked.f, encoding="utf-8") as file:
        text = file.read()
    asked.commit = commit_in(asked.command)
    known, failed = {key_of(line) for line in read_results(asked.o)}, 0
    with open(asked.o, "a", encoding="utf-8") as file:
        for kv in asked.kv.split(","):
            for length in map(int, asked.lengths.split(",")):
                try:
                    run_length(asked, kv, length, text, known, file)
                except (Failed, ValueError) as error:
                    print(f"long_tasks.py: {kv}, {length:,} tokens: {error}", file=sys.stderr, flush=True)
                    failed = 1
    print_tables(read_results(asked.o))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("run")
    step.add_argument("command")
    step.add_argument("-f", required=True, metavar="TEXT")
    step.add_argument("-o", required=True, metavar="RESULTS.jsonl")
    step.add_argument("-m", metavar="MODEL.gguf")
    step.add_argument("--kv", default="f16,q4_0,terse-4,terse-2")
    step.add_argument("--kinds", default=",".join(KINDS))
    step.add_argument("--lengths", default="4096,8192,16384,32768")
    step.add_argument("--tasks", type=int, default=100)
    step.add_argument("--parallel", type=int, default=8)
    step.add_argument("--options", default="")
    steps.add_parser("table").add_argument("results", metavar="RESULTS.jsonl")
    step = steps.add_parser("write")
    step.add_argument("results", nargs="+", metavar="RESULTS.jsonl")
    step.add_argument("--page", default=PAGE)
    asked = parser.parse_args()
    if asked.step == "table":
        return print_tables(read_results(asked.results))
    if asked.step == "write":
        try:
            return write(asked)
        except (Failed, OSError, ValueError) as error:
            sys.exit(f"long_tasks.py: {error}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as at Ctrl-C: the server is stopped
    try:
        sys.exit(run(asked))
    except KeyboardInterrupt:
        print(f"long_tasks.py: interrupted; the same command goes on with what {asked.o} has", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
