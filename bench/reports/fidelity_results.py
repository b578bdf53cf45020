"""Reads a work folder of build/bin/fidelity (fidelity_store.h has its files) and computes statistics of it. Needs numpy."""

import copy
import json
import os
import sys

import numpy as np

BLOCK = 256  # positions: neighbouring positions are correlated, so standard errors are computed from means of blocks
RESAMPLES = 10000
SEED = 1


def bits_of_name(run):
    """ "antkv-0.75:anchors=0%" -> 0.75"""
    return float(run.split(":")[0].split("-")[1])


def commit_of(folder):
    """The commit that fidelity.sh notes; ends the program where there is none."""
    try:
        with open(os.path.join(folder, "commit.txt"), encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        sys.exit(f"{folder} says of no commit that its results are: make them by bench/experiments/fidelity.sh")


class Positions:
    """A run's scored positions in one protocol: columns [windows][positions], and the accounting of the last window's cache."""

    COLUMNS = ("kld", "nll", "delta", "same")  # as enum score_column

    def __init__(self, folder, lines):
        self.line = lines[-1]
        values = []
        for line in lines:
            path = os.path.join(folder, "values", line["values"])
            values.append(np.fromfile(path, "<f4").reshape(len(self.COLUMNS), line["positions"]))
        for i, name in enumerate(self.COLUMNS):
            setattr(self, name, np.array([v[i] for v in values], dtype=np.float64))
        self.windows = tuple(line["window"] for line in lines)
        self.bits = self.line["bits"]

    def only(self, windows):
        """A copy restricted to some of the windows."""
        restricted = copy.copy(self)
        at = [self.windows.index(w) for w in windows]
        for name in self.COLUMNS:
            setattr(restricted, name, getattr(self, name)[at])
        restricted.windows = tuple(windows)
        return restricted

    def blocks(self, column):
        """Means [blocks] over about BLOCK positions each; blocks do not cross windows."""
        x = getattr(self, column)
        parts = max(1, round(x.shape[1] / BLOCK))
        return np.concatenate([[part.mean() for part in np.array_split(row, parts)] for row in x])

    def mean(self, column):
        return getattr(self, column).mean()

    def error(self, column):
        """Standard error of the mean, from the means of blocks."""
        x = self.blocks(column)
        return x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else float("nan")

    def ratio(self):
        """Perplexity over the base's, and its standard error."""
        ratio = np.exp(self.mean("delta"))
        return ratio, ratio * self.error("delta")

    def quantile(self, fraction):
        return np.quantile(self.kld, fraction)


class Results:
    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "setup.json"), encoding="utf-8") as file:
            self.setup = json.load(file)
        perplexity = {}
        for line in self._lines("perplexity.jsonl"):
            perplexity.setdefault((line["run"], line["protocol"]), {})[line["window"]] = line
        self._positions = {key: [lines[w] for w in sorted(lines)] for key, lines in perplexity.items()}
        self._loaded = {}
        self.needles = {}
        for line in self._lines("needles.jsonl"):
            self.needles.setdefault(line["run"], {})[(line["length"], line["kind"], line["task"])] = line["right"]
        self.memory = {line["run"]: line for line in self._lines("memory.jsonl")}

    def _lines(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def runs(self, protocol):
        return [run for run, p in self._positions if p == protocol]

    def positions(self, run, protocol):
        """Positions, or None when that was not measured."""
        key = (run, protocol)
        if key not in self._positions:
            return None
        if key not in self._loaded:
            self._loaded[key] = Positions(self.folder, self._positions[key])
        return self._loaded[key]

    def share(self, run, length):
        """(right, all) of the retrieval tasks of one length."""
        right = [r for (n, _, _), r in self.needles.get(run, {}).items() if n == length]
        return sum(right), len(right)


def interval(differences):
    """The 95% interval of the mean, by bootstrap over the given values (means of blocks, or of prompts)."""
    x = np.asarray(differences)
    draws = np.random.default_rng(SEED).integers(0, len(x), (RESAMPLES, len(x)))
    return tuple(np.quantile(x[draws].mean(axis=1), (0.025, 0.975)))


class Difference:
    """`better` minus `worse` at the same positions, on the windows that both were measured on: mean divergence, and log of perplexity."""

    def __init__(self, better, worse):
        self.windows = [w for w in better.windows if w in worse.windows]
        better, worse = better.only(self.windows), worse.only(self.windows)
        self.kld = better.mean("kld") - worse.mean("kld")
        self.kld_interval = interval(better.blocks("kld") - worse.blocks("kld"))
        self.log_ratio = better.mean("delta") - worse.mean("delta")
        self.log_interval = interval(better.blocks("delta") - worse.blocks("delta"))

    def verdict(self):
        low, high = self.kld_interval
        return "holds" if high < 0 else "does not hold" if low > 0 else "undecided"


def compare(better, worse):
    """Their Difference, or None when no window was measured for both."""
    both = better and worse and set(better.windows) & set(worse.windows)
    return Difference(better, worse) if both else None
