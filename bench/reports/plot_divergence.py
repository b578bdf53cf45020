#!/usr/bin/env python3
"""Draws divergence against resident bits per value, a panel for each model, from points {model: [(method, bits, divergence)]} that
the pages write:

    plot_divergence.py POINTS.json OUTPUT.svg OUTPUT.png"""

import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from plot_style import FAMILIES, GREY, bits_axis, draw_family  # noqa: E402

OF_FAMILY = {"antkv": "AnTKV, 1% anchors", "cq": "CQ", "million": "MILLION", "kivi": "KIVI", "commvq": "CommVQ", "selfindex": "Self-Indexing"}
OF_FAMILY |= {"quest": "Quest", "snapkv": "SnapKV", "mat": "MAT", "streaming": "StreamingLLM", "q4_0": "q4_0", "q8_0": "q8_0"}
LEAST = 1e-5  # divergence: less is drawn as this
COLUMNS = 3


def family_of(method):
    name = method.split("-")[0]
    if name == "terse":
        return "terse, with a profile" if method.endswith(":profile") else "terse"
    return OF_FAMILY.get(name)


def families(points):
    found = {}
    for method, bits, divergence in points:
        if family_of(method):
            found.setdefault(family_of(method), []).append((bits, max(divergence, LEAST)))
    return found


def draw(models):
    columns = min(COLUMNS, len(models))
    rows = -(-len(models) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(max(6, 4.2 * columns), 0.8 + 4 * rows), dpi=100, sharey=True, squeeze=False)
    handles = {}
    for axes in grid.flat[len(models) :]:
        axes.remove()
    for axes, (model, points) in zip(grid.flat, models.items()):
        bits_axis(axes)
        axes.set_yscale("log")
        axes.set_xlim(0.33, 32)
        axes.set_title(model, fontsize=10, color="#222222", loc="left")
        axes.set_xlabel("resident bits per value", color=GREY)
        for name, at in families(points).items():
            handles[name] = draw_family(axes, name, at)
    for first in grid[:, 0]:
        first.set_ylabel("mean KL divergence from f16, nats", color=GREY)
    known = [name for name in FAMILIES if name in handles]
    figure.tight_layout(w_pad=1.6, rect=(0, 0.8 / (0.8 + 4 * rows), 1, 1))
    figure.legend([handles[name] for name in known], known, loc="lower center", ncol=max(4, 2 * columns), frameon=False, fontsize=9)
    return figure


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: plot_divergence.py POINTS.json OUTPUT.svg OUTPUT.png")
    with open(sys.argv[1], encoding="utf-8") as file:
        models = json.load(file)
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "terse"})
    figure = draw(models)
    figure.savefig(sys.argv[2], metadata={"Date": None})
    figure.savefig(sys.argv[3], metadata={"Software": None})


if __name__ == "__main__":
    main()
