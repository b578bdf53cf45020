"""What the pages of quality are made of: measurements, and the lines of JSON that hold their results.

A measurement is named by all that decides its result, so that two pages that ask for the same share it, and a run that was stopped goes on. A line
holds the measurement, the commit of the program that made it (terse --version), and its figures, or "failed" and why. Lines are read from every
*.jsonl of a folder: those of several machines are brought together by putting their files side by side."""

import json
import os
import re
import subprocess
from dataclasses import dataclass

# Names of the files that scripts/get-model.sh fetches, and of two made for the project, in the pages' order. Others come after them by their files' names.
MODELS = {
    "smollm2-135m-instruct-q4_1": "SmolLM2-135M-Instruct",
    "qwen2.5-coder-0.5b-instruct-q4_k_m": "Qwen2.5-Coder-0.5B-Instruct",
    "gemma-3-270m-q4_k_m": "Gemma 3 270M",
    "lab-27m-q8_0": "lab-27m",
    "lab-27m-f16": "lab-27m",
    "lab-27m-sink-f16": "lab-27m-sink",
}

WINDOWS = 16  # of 2,048 tokens, from which every codebook is learned: as many as are told of CQ


class Refused(Exception):
    """No page can be made: says why and what to do."""


@dataclass(frozen=True)
class Book:
    """What `terse calibrate` learns: the method's name, more of its options, the text's name (None: the built-in one) and its windows of 2,048 tokens."""

    method: str
    windows: int
    options: tuple = ()
    text: str | None = None

    def name(self):
        words = [self.method, *(o.lstrip("-") for o in self.options), *([f"of {self.text}"] if self.text else []), f"{self.windows} windows"]
        return " ".join(words)


@dataclass(frozen=True)
class Measurement:
    """`kind` is perplexity or free_running (arguments of terse perplexity), questions (of build/bin/questions), endless (of build/bin/endless), places (of terse run),
    recall (of build/bin/recall), key_tables (of build/bin/commvq_tables), value_codes (of build/bin/value_codes), attention_times
    (of build/bin/bench_commvq, which takes no model) or learned (of the book alone). `size` is (context, windows) of perplexity and recall, (tokens,) of
    questions and places, (context, windows, tokens that are written) of free_running, (window, windows, step) of endless, (windows to learn from, KV heads) of key_tables, the same and the steps of the encoder of
    value_codes, and depths in tokens of attention_times."""

    kind: str
    model: str
    arguments: tuple = ()
    book: Book | None = None
    text: str | None = None
    size: tuple = ()

    def identity(self):
        book = self.book and [self.book.method, self.book.windows, list(self.book.options), self.book.text]
        return json.dumps([self.kind, self.model, list(self.arguments), book, self.text, list(self.size)])

    def name(self):
        where = [f"on {self.text}", "x".join(map(str, self.size))] if self.text else []
        return " ".join([self.model, self.kind, *self.arguments, *([f"({self.book.name()})"] if self.book else []), *where])


def learned(model, book):
    return Measurement("learned", model, (), book)


UNKNOWN = "unknown"  # where a program was built outside a repository


def commit_in(terse):
    """The commit that a program was built of, by what it says of itself."""
    said = subprocess.run([terse, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^commit (\S+)$", said, re.MULTILINE)
    return found[1] if found else UNKNOWN


def is_clean(commit):
    return commit != UNKNOWN and not commit.endswith("-dirty")


class Store:
    """The lines of a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = []
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if name.endswith(".jsonl"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    self.lines += [self.parse(line, name) for line in file if line.endswith("\n")]  # what lacks its end was cut off
        self.lines = [line for line in self.lines if line]

    @staticmethod
    def parse(line, name):
        try:
            return json.loads(line)
        except ValueError:
            raise Refused(f"{name} has a line that is no JSON: remove it, and measure again what it was") from None

    def add(self, line):
        self.lines.append(line)
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "measurements.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def best(self, commit):
        """{identity: line} of a commit: the GPU's before the processor's, later ones before earlier ones, and what failed last."""
        found = {}
        for line in self.lines:
            before = found.get(line["identity"])
            rank = lambda one: (not one.get("failed"), one.get("device") == "cuda")  # noqa: E731
            if line["commit"] == commit and (not before or rank(line) >= rank(before)):
                found[line["identity"]] = line
        return found


class Results:
    """What a page reads: the lines of its measurements, all of one commit and of the same texts."""

    def __init__(self, store, measurements, commit=None):
        wanted = {m.identity() for m in measurements}
        commits = sorted({line["commit"] for line in store.lines if line["identity"] in wanted and commit in (None, line["commit"])})
        if not commits:
            raise Refused(f"{store.folder} has no lines of this page{f' of commit {commit}' if commit else ''}: run it first, with the same options")
        if len(commits) > 1:
            raise Refused(f"{store.folder} has lines of this page of several commits, {', '.join(commits)}: name one with --commit")
        self.commit = commits[0]
        if not is_clean(self.commit):
            raise Refused(f"the program was built while files differed from its commit ({self.commit}): commit, build and measure again")
        self.measurements = list(dict.fromkeys(measurements))
        self.found = {identity: line for identity, line in store.best(self.commit).items() if identity in wanted}
        texts = {}
        for line in self.found.values():
            for name, text in line.get("texts", {}).items():
                if texts.setdefault(name, text) != text:
                    raise Refused(f"{store.folder} has lines of several texts called {name}: {texts[name]} and {text}")

    def get(self, measurement):
        """The line, or None where it is not there or failed."""
        line = self.found.get(measurement.identity())
        return line if line and not line.get("failed") else None

    def why_not(self, measurement):
        return self.found.get(measurement.identity(), {}).get("failed", "not run yet")

    def missing(self):
        """{reason: names} of what there are no figures of."""
        reasons = {}
        for m in self.measurements:
            if not self.get(m):
                reasons.setdefault(self.why_not(m), []).append(m.name())
        return reasons

    def machines(self):
        return sorted({line["machine"] for line in self.found.values()})


def order_of_models(names):
    known = [m for m in MODELS if m in names]
    return known + sorted(set(names) - set(known))


def name_of_model(model):
    return MODELS.get(model, model)
