#!/usr/bin/env python3
"""Draws the remaining error of keys by number of rounds (CommVQ, figure 4), from curves [{name, bits of each round, mean errors, errors of heads}] that
page_commvq.py writes:

    plot_commvq.py CURVES.json OUTPUT.svg OUTPUT.png

One curve for each group size. For the largest group single heads are grey."""

import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from plot_style import GREY, style  # noqa: E402

COLOURS = ("#c1440e", "#6a3d9a", "#2e7d32", "#0b6e99")


def shape_axes(axes):
    style(axes)
    axes.set_yscale("log")
    ticks = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{t:g}" for t in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("bits per value of a key; each point adds a round", color=GREY)
    axes.set_ylabel("squared error, as a share of the keys' variance", color=GREY)


def draw(axes, curve, colour, at, offset):
    """Draws a curve, with its name beside the point of round `at`."""
    x, y = curve["bits"], curve["mean"]
    axes.plot(x, y, color=colour, linewidth=1.4, marker=".", markersize=4, zorder=3)
    axes.annotate(curve["name"], (x[at - 1], y[at - 1]), xytext=offset, textcoords="offset points", color=colour, fontsize=9, va="center")


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: plot_commvq.py CURVES.json OUTPUT.svg OUTPUT.png")
    with open(sys.argv[1], encoding="utf-8") as file:
        curves = json.load(file)
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "terse"})
    figure, axes = plt.subplots(figsize=(6.4, 4.4), dpi=100)
    shape_axes(axes)
    last = curves[-1]
    for head in last["heads"]:
        axes.plot(last["bits"], head, color="#bbbbbb", linewidth=0.7, zorder=1)
    for curve, colour in zip(curves, COLOURS):
        rounds = len(curve["bits"])
        draw(axes, curve, colour, max(1, 2 * rounds // 3) if curve is last else rounds, (8, 10 if curve in (last, curves[0]) else -2))
    axes.set_title("Error of keys that remains, on held-out text; grey: single heads", fontsize=10, color="#222222", loc="left")
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})
    figure.savefig(sys.argv[3], metadata={"Software": None})


if __name__ == "__main__":
    main()
