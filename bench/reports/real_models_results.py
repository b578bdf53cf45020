"""Reads the folder of results of bench/experiments/real_models.py."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "experiments"))
from real_models_methods import METHODS  # noqa: E402

# Names of the files that scripts fetch, in the page's order. Others come after them by their files' names.
NAMES = {
    "smollm2-135m-instruct-q4_1": "SmolLM2-135M-Instruct",
    "qwen2.5-coder-0.5b-instruct-q4_k_m": "Qwen2.5-Coder-0.5B-Instruct",
    "gemma-3-270m-q4_k_m": "Gemma 3 270M",
}


class Refused(Exception):
    """The folder cannot become a page: says why and what to do."""


def read(folder):
    results = []
    for path, _, files in os.walk(folder):
        for name in sorted(files):
            if name.endswith(".json"):
                with open(os.path.join(path, name), encoding="utf-8") as file:
                    results.append(json.load(file))
    return results


def only(values, what, folder):
    """The one value that all results have."""
    found = sorted(set(values))
    if not found:
        raise Refused(f"{folder} holds no results of real_models.py")
    if len(found) > 1:
        raise Refused(f"{folder} holds results of more than one {what}: {'; '.join(found)}. Give a folder that holds those of one")
    return found[0]


class Results:
    def __init__(self, folder):
        self.all = read(folder)
        self.commit = only((r["commit"] for r in self.all), "commit", folder)
        if self.commit.endswith("+"):
            raise Refused(f"{folder} was measured while tracked files differed from commit {self.commit[:-1]}: commit first, then measure")
        self.setup = json.loads(only((json.dumps(r["setup"], sort_keys=True) for r in self.all), "setup", folder))
        self._of = {}
        for result in self.all:
            self._of.setdefault((result["model"], result["method"], result["part"]), []).append(result)
        known = list(NAMES)
        found = {r["model"] for r in self.all}
        self.models = [m for m in known if m in found] + sorted(found - set(known))
        self.methods = [m for m in METHODS if any(r["method"] == m for r in self.all)]

    def part(self, model, method, part):
        """Its result: of several the GPU's, and what was measured rather than what failed; None where there is none."""
        found = self._of.get((model, method, part), [])
        return min(found, key=lambda r: (bool(r.get("failed")), r["device"] != "cuda"), default=None)

    def measured(self, model, method, part):
        result = self.part(model, method, part)
        return result if result and not result.get("failed") else None

    def lengths(self, model):
        return sorted({int(r["part"].split("-")[1]) for r in self.all if r["model"] == model and r["part"] != "perplexity"})

    def missing(self):
        """(model, method, part) that others of the model have and this has not."""
        parts = {m: {r["part"] for r in self.all if r["model"] == m} for m in self.models}
        return [(m, x, p) for m in self.models for x in self.methods for p in sorted(parts[m]) if not self.part(m, x, p)]


def name_of_model(model):
    return NAMES.get(model, model)
