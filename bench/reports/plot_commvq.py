#!/usr/bin/env python3
"""Draws the remaining error of keys by number of rounds (CommVQ, figure 4), from a work folder of bench/experiments/fidelity.sh:

    plot_commvq.py FOLDER OUTPUT.svg OUTPUT.png

One curve for each group size. For the largest group, single heads are grey, and the rounds that make 1 and 2 bits are marked."""

import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fidelity_commvq import fits_of  # noqa: E402
from plot_style import GREY, style  # noqa: E402

COLOURS = ("#c1440e", "#6a3d9a", "#2e7d32", "#0b6e99")
MARKED = (11, 21)


def shape_axes(axes):
    style(axes)
    axes.set_yscale("log")
    ticks = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{t:g}" for t in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("bits per value of a key; each point adds a round", color=GREY)
    axes.set_ylabel("squared error, as a share of the keys' variance", color=GREY)


def draw(axes, fit, colour, at, offset):
    """Draws the curve of a fit, with its name beside the point of round `at`."""
    rounds = range(1, len(fit.held[0]) + 1)
    x = [fit.bits(r) for r in rounds]
    y = [fit.mean(fit.held, r) for r in rounds]
    axes.plot(x, y, color=colour, linewidth=1.4, marker=".", markersize=4, zorder=3)
    name = f"{fit.pairs} pairs, {fit.entries} entries"
    axes.annotate(name, (x[at - 1], y[at - 1]), xytext=offset, textcoords="offset points", color=colour, fontsize=9, va="center")


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: plot_commvq.py FOLDER OUTPUT.svg OUTPUT.png")
    with open(os.path.join(sys.argv[1], "commvq_tables.json"), encoding="utf-8") as file:
        fits = fits_of(file.read())
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "terse"})
    figure, axes = plt.subplots(figsize=(6.4, 4.4), dpi=100)
    shape_axes(axes)
    last = fits[-1]
    for head in last.held:
        axes.plot([last.bits(r + 1) for r in range(len(head))], head, color="#bbbbbb", linewidth=0.7, zorder=1)
    for fit, colour in zip(fits, COLOURS):
        middle = 2 * len(fit.held[0]) // 3
        draw(axes, fit, colour, middle if fit is last else len(fit.held[0]), (8, 10 if fit in (last, fits[0]) else -2))
    for rounds in MARKED:
        if rounds <= len(last.held[0]):
            at = (last.bits(rounds), last.mean(last.held, rounds))
            axes.plot(*at, color=COLOURS[len(fits) - 1], marker="o", markersize=8, zorder=4)
            axes.annotate(f"{rounds} rounds", at, xytext=(-4, -14), textcoords="offset points", color="#222222", ha="right", fontsize=9)
    axes.set_title("Remaining error of keys by number of rounds, on held-out text; grey: single heads", fontsize=10, color="#222222", loc="left")
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})
    figure.savefig(sys.argv[3], metadata={"Software": None})


if __name__ == "__main__":
    main()
