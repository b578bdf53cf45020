#!/usr/bin/env python3
"""Draws divergence and perplexity against resident bits per value, from a work folder of build/bin/fidelity:

    plot_fidelity.py FOLDER OUTPUT.svg OUTPUT.png

A column for each protocol that was measured, the default and the papers'; divergence above on a logarithmic axis, perplexity over f16's below on a linear one; a
point for each method."""

import math
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fidelity_results import Results  # noqa: E402
from plot_style import GREY, bits_axis, draw_family  # noqa: E402

BITS = ("4", "2", "1", "0.75", "0.375")
RATES = ("4", "3", "2", "1", "0.5")

# Name, runs joined by a line.
RUNS = [
    ("terse", [f"terse-{r}" for r in RATES]),
    ("terse, no profile", [f"terse-{r}:codebook=none" for r in RATES]),
    ("AnTKV, 1% anchors", [f"antkv-{b}" for b in BITS]),
    ("AnTKV, no anchors", [f"antkv-{b}:anchors=0%" for b in BITS]),
    ("CQ", [f"cq-{b}" for b in BITS]),
    ("MILLION", ["million-4", "million-3", "million-2"]),
    ("KIVI", ["kivi-4", "kivi-2"]),
    ("CommVQ", ["commvq-2", "commvq-1"]),
    ("q4_0", ["q4_0"]),
    ("q8_0", ["q8_0"]),
]

# Other engines' caches on the same model and kind of text, each against its own engine's f16, as published with their protocols in docs/reports/terse.md:
# name, protocol that comes nearest, colour, marker, points (bits, divergence, ratio).
OTHERS = [
    ("BeeLlama kvarn", "default", "#5f6b7a", "x", [(5.13, 0.0010, 0.999), (4.13, 0.0049, 1.001), (3.13, 0.0295, 1.018)]),
    ("llama.cpp", "paper", "#5f6b7a", "+", [(8.5, 0.000032, 1.00044), (4.5, 0.00696, 1.0111)]),
    ("turbo4", "paper", "#5f6b7a", "x", [(4.25, 0.0132, 1.0228)]),
]
PROTOCOLS = [("default", "Default protocol: exact prefill, window of 128"), ("paper", "Paper protocol: every token reads codes")]
DPI = 100


class Published:
    """A published point, with the functions of Positions that are drawn."""

    def __init__(self, divergence, ratio):
        self.divergence, self.over = divergence, ratio

    def mean(self, _column):
        return self.divergence

    def ratio(self):
        return self.over, 0


def points(results, runs, protocol, value):
    found = [results.positions(run, protocol) for run in runs]
    return [(p.bits, value(p)) for p in found if p is not None]


def draw(axes, results, protocol, value):
    """Returns (name, colour, points) of each family drawn."""
    drawn = []
    for name, runs in RUNS:
        at = sorted(points(results, runs, protocol, value))
        if at:
            drawn.append((name, draw_family(axes, name, at).get_color(), at))
    for name, of, colour, marker, at in OTHERS:
        if of == protocol:
            at = sorted((bits, value(Published(divergence, ratio))) for bits, divergence, ratio in at)
            axes.plot(*zip(*at), color=colour, linewidth=0.9, alpha=0.6, zorder=2, linestyle=(0, (1, 2)))
            axes.plot(*zip(*at), color=colour, linestyle="none", marker=marker, markersize=6, markeredgewidth=1.3, zorder=3)
            drawn.append((name, colour, at))
    return drawn


# ---- Labels. A label stands beside a point of its family, touches no point, line or other label, and is nearer to its own family's points than to
# those of another.


def boxes_meet(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def stretch(a, b, step=4):
    """Points on the line from a to b, `step` pixels apart."""
    n = max(1, int(max(abs(b[0] - a[0]), abs(b[1] - a[1])) / step))
    return [(a[0] + (b[0] - a[0]) * i / n, a[1] + (b[1] - a[1]) * i / n) for i in range(n + 1)]


def obstacles(axes, drawn):
    places = []
    for _, _, at in drawn:
        pixels = [tuple(axes.transData.transform(p)) for p in at]
        places += [(x - 5, y - 5, x + 5, y + 5) for x, y in pixels]
        for a, b in zip(pixels, pixels[1:]):
            places += [(x - 1, y - 1, x + 1, y + 1) for x, y in stretch(a, b)]
    return places


def candidates(pixels, width, height):
    """Yields (cost, box): boxes around each point of the family. Near boxes cost less, and so do the ends of the line."""
    for i, (x, y) in enumerate(pixels):
        inner = 0 if i in (0, len(pixels) - 1) else 6
        for distance in (7, 11, 16, 22, 30, 40, 52, 66):
            for dx, dy in ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1)):
                cx = x + dx * (distance + width / 2)
                cy = y + dy * (distance + height / 2)
                yield distance + inner + 2 * (dx == 0), (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)


def gap(box, p):
    """The distance from a box to a point, and the nearest point of the box."""
    nearest = (min(max(p[0], box[0]), box[2]), min(max(p[1], box[1]), box[3]))
    return math.dist(nearest, p), nearest


def ambiguity(box, own, others):
    """The penalty of a box for being about as near to points of other families as to its own."""
    if not others:
        return 0
    return max(0, 24 + min(gap(box, p)[0] for p in own) - min(gap(box, p)[0] for p in others))


def label(figure, axes, drawn):
    renderer = figure.canvas.get_renderer()
    taken = obstacles(axes, drawn)
    frame = axes.get_window_extent(renderer)
    for name, colour, at in sorted(drawn, key=lambda item: len(item[2])):
        text = axes.text(0, 0, name, color=colour, fontsize=9, ha="center", va="center", zorder=4)
        size = text.get_window_extent(renderer)
        pixels = [tuple(axes.transData.transform(p)) for p in at]
        others = [tuple(axes.transData.transform(p)) for other, _, theirs in drawn if other != name for p in theirs]
        free = [
            (cost + ambiguity(box, pixels, others), box)
            for cost, box in candidates(pixels, size.width + 2, size.height)
            if box[0] >= frame.x0 + 3 and box[2] <= frame.x1 and box[1] >= frame.y0 + 3 and box[3] <= frame.y1
            and not any(boxes_meet(box, other) for other in taken)
        ]
        if not free:
            sys.exit(f"plot_fidelity.py: no free place for the label {name}")
        box = min(free)[1]
        middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        text.set_position(axes.transData.inverted().transform(middle))
        taken.append(box)
        lead(axes, box, pixels, colour)


def lead(axes, box, pixels, colour):
    """Draws a thin line from a distant label to the nearest point of its family."""
    (distance, start), end = min((gap(box, p), p) for p in pixels)
    if distance < 14:
        return
    inverse = axes.transData.inverted()
    (x0, y0), (x1, y1) = inverse.transform(start), inverse.transform(end)
    axes.plot([x0, x1], [y0, y1], color=colour, linewidth=0.7, alpha=0.7, zorder=1)


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: plot_fidelity.py FOLDER OUTPUT.svg OUTPUT.png")
    results = Results(sys.argv[1])
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "terse"})
    runs = [run for _, family in RUNS for run in family]
    measured = [each for each in PROTOCOLS if points(results, runs, each[0], lambda p: p.bits)]
    columns = len(measured) or sys.exit(f"{sys.argv[1]} holds no measurements")
    figure, grid = plt.subplots(2, columns, figsize=(4.5 * columns, 7.2), dpi=DPI, sharex=True, sharey="row", squeeze=False)
    drawn = {}
    for column, (protocol, title) in enumerate(measured):
        for row, value in enumerate((lambda p: p.mean("kld"), lambda p: p.ratio()[0])):
            axes = grid[row][column]
            bits_axis(axes)
            drawn[row, column] = draw(axes, results, protocol, value)
        grid[0][column].set_title(title, fontsize=10, color="#222222", loc="left")
        grid[1][column].set_xlabel("resident bits per value", color=GREY)
    grid[0][0].set_yscale("log")
    grid[0][0].set_ylabel("mean KL divergence from f16, nats", color=GREY)
    grid[1][0].set_ylabel("perplexity over f16's", color=GREY)
    figure.tight_layout(h_pad=1.6, w_pad=1.6)
    figure.canvas.draw()
    for (row, column), families in drawn.items():
        label(figure, grid[row][column], families)
    figure.savefig(sys.argv[2], metadata={"Date": None})
    figure.savefig(sys.argv[3], metadata={"Software": None})


if __name__ == "__main__":
    main()
