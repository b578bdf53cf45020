#!/usr/bin/env python3
"""Draws how fast methods decode, from a work folder of bench/experiments/performance.sh:

    plot_performance.py FOLDER OUTPUT.svg OUTPUT.png

The left panel has tokens per second of a whole model by method, with f16's as a line. The other panels, one for each shape, have the speed of a layer's attention
in multiples of f16's, a marker for each depth and targets as ticks."""

import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from performance_report import TARGETS  # noqa: E402
from performance_results import Results, plain  # noqa: E402
from plot_style import GREY, style  # noqa: E402

DARK, ACCENT, F16 = "#222222", "#0b6e99", "#c1440e"
DEPTHS = ("#9ecae1", "#4292c6", "#08306b")
MARKERS = ("o", "s", "D")


def name_rows(axes, names):
    style(axes)
    axes.set_yticks(range(len(names)), names, color=DARK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def draw_decode(axes, results):
    rows = results.decode
    name_rows(axes, [plain(row["kv"]) for row in rows])
    speeds = [row["tokens_per_second"] for row in rows]
    axes.barh(range(len(rows)), speeds, color=[F16 if plain(row["kv"]) == "f16" else ACCENT for row in rows], height=0.62, zorder=2)
    axes.axvline(speeds[0], color=F16, linewidth=1, linestyle=(0, (3, 2)), zorder=3)
    for i, speed in enumerate(speeds):
        axes.annotate(f"{speed:.1f}", (speed, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=GREY, zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
    axes.set_xlim(0, 1.12 * max(speeds))
    axes.set_xlabel("tokens per second, a whole step", color=GREY)
    depth = int(rows[0]["test"].split("d")[-1])
    axes.set_title(f"{rows[0]['model']}, {depth:,} tokens", fontsize=10, color=DARK, loc="left")


def draw_attention(axes, results, shape):
    tier = results.tiers[0]
    names = [m for m in results.of("method") if m != "f16"]
    name_rows(axes, names)
    axes.set_xscale("log", base=2)
    most = 1
    for depth, colour, marker in zip(results.of("depth"), DEPTHS[-len(results.of("depth")) :], MARKERS):
        at = [(results.attention[tier, shape, m, depth].faster, i) for i, m in enumerate(names) if (tier, shape, m, depth) in results.attention]
        if not at:
            continue
        x, y = zip(*at)
        most = max(most, *x)
        axes.plot(x, y, linestyle="none", marker=marker, markersize=5.5, color=colour, markeredgecolor="white", markeredgewidth=0.5, zorder=4, label=f"{depth:,} tokens")
    aims = [(TARGETS[m], i) for i, m in enumerate(names) if m in TARGETS]
    if aims:
        x, y = zip(*aims)
        axes.plot(x, y, linestyle="none", marker="|", markersize=13, markeredgewidth=1.6, color=F16, zorder=3, label="target")
    axes.axvline(1, color=F16, linewidth=1, linestyle=(0, (3, 2)), zorder=2)
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256) if t <= 2 * most]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{t:g}" for t in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("attention speed, multiples of f16's", color=GREY)
    axes.set_title(f"{shape.split(':')[0]} shape, one layer, {results.kernels[tier]}", fontsize=10, color=DARK, loc="left")


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: plot_performance.py FOLDER OUTPUT.svg OUTPUT.png")
    results = Results(sys.argv[1])
    shapes = results.of("shape") if results.attention else []
    panels = [lambda axes: draw_decode(axes, results)] if results.decode else []
    panels += [lambda axes, shape=shape: draw_attention(axes, results, shape) for shape in shapes]
    if not panels:
        sys.exit(f"{sys.argv[1]} holds no measurements")
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "terse"})
    figure, grid = plt.subplots(1, len(panels), figsize=(4.3 * len(panels), 5.6), dpi=100, squeeze=False)
    for axes, draw in zip(grid[0], panels):
        draw(axes)
    if shapes:
        grid[0][-1].legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="#dddddd", fontsize=8)
    figure.tight_layout(w_pad=1.6)
    figure.savefig(sys.argv[2], metadata={"Date": None})
    figure.savefig(sys.argv[3], metadata={"Software": None})


if __name__ == "__main__":
    main()
