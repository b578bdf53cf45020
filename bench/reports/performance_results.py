"""Reads a work folder of bench/experiments/performance.sh."""

import json
import os
import re

SHAPE = re.compile(r"^(\S+: \d+ x \d+ x \d+) +method +depth +us/layer")
MACHINE = re.compile(r"the machine reads ([\d.]+) GB/s")
FOUND = re.compile(
    r"retrieval, ns per token and KV head: full product ([\d.]+)  sign ([\d.]+) \(scores ([\d.]+)\): ([\d.]+)x  quest ([\d.]+): ([\d.]+)x"
)


class Attention:
    """One line of bench_attention."""

    def __init__(self, shape, machine, fields):
        self.shape, self.machine = shape, machine
        self.method, self.depth = fields[0], int(fields[1])
        self.us, self.f16_us, self.faster, self.mb, self.rate, self.of_machine = (float(x) for x in fields[2:8])


class Results:
    def __init__(self, folder):
        self.folder = folder
        self.tiers = []  # tiers in the names of files, "best" first
        self.kernels = {}  # tier: "avx512"
        self.attention = {}  # (tier, shape, method, depth): Attention
        for tier in ("best", "avx2"):
            self.read_attention(tier)
        self.decode = self.rows("decode.json")
        self.keys = [self.rows(f"keys-{fill}.json") for fill in ("random", "text")]
        self.prefill = [self.rows(f"prefill-{layers}.json") for layers in (1, 2)]
        self.sealing = {tier: self.read_sealing(tier) for tier in self.tiers}  # tier: {(shape, method): us per layer}
        self.retrieval = {tier: self.read_retrieval(tier) for tier in self.tiers}  # tier: {shape: numbers}
        lines = (self.text("machine.txt") or "\n0\n0").split("\n")
        self.processor, self.ghz, self.threads = lines[0], float(lines[1] or 0) / 1000, int(lines[2] or 0)
        self.layers = int(self.text("layers.txt") or 0)

    def text(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()

    def rows(self, name):
        text = self.text(name)
        return json.loads(text) if text else []

    def read_attention(self, tier):
        names = [n for n in os.listdir(self.folder) if re.fullmatch(rf"attention-{tier}-\d+\.txt", n)]
        for name in sorted(names):
            shape = machine = None
            for line in self.text(name).split("\n"):
                if match := re.search(r", (\w+) kernels", line):
                    self.kernels[tier] = match[1]
                if match := SHAPE.match(line):
                    shape = match[1]
                elif match := MACHINE.search(line):
                    machine = float(match[1])
                elif shape and len(fields := line.split()) == 8 and fields[1].isdigit():
                    a = Attention(shape, machine, fields)
                    self.attention[tier, shape, a.method, a.depth] = a
        if names:
            self.tiers.append(tier)

    def read_sealing(self, tier):
        found = {}
        for line in (self.text(f"sealing-{tier}.txt") or "").split("\n"):
            if match := re.match(r"(\S+: \d+ x \d+ x \d+) +(\S+) +([\d.]+)$", line):
                found[match[1], match[2]] = float(match[3])
        return found

    def read_retrieval(self, tier):
        found, shape = {}, None
        for line in (self.text(f"retrieval-{tier}.txt") or "").split("\n"):
            if match := re.match(r"(\S+: \d+ x \d+ x \d+), \d+ tokens", line):
                shape = match[1]
            elif match := FOUND.search(line):
                found[shape] = dict(zip(("full", "sign", "scores", "faster", "quest", "quest_faster"), map(float, match.groups())))
        return found

    # ---- Queries

    def of(self, key):
        """Shapes and depths sorted, or methods in the order in which they were measured."""
        at = {"shape": 1, "method": 2, "depth": 3}[key]
        return sorted({k[at] for k in self.attention}) if key != "method" else list(dict.fromkeys(k[2] for k in self.attention))

    def deepest_usual(self):
        """32768 if it was measured, else the largest depth."""
        depths = self.of("depth")
        return 32768 if 32768 in depths else depths[-1]


def plain(method):
    """The name that bench_attention gives to a row of `terse bench`."""
    match = re.fullmatch(r"(\S+), reading (\S+)", method)
    return f"{match[1]}/{match[2]}" if match else method
