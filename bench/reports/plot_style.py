"""The style that all plots share."""

from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

# Colour, marker, filled: the same in every plot.
FAMILIES = {
    "terse": ("#b3123f", "o", True),
    "terse, with a profile": ("#b3123f", "o", False),
    "AnTKV, 1% anchors": ("#0b6e99", "o", True),
    "CQ": ("#6a3d9a", "s", False),
    "MILLION": ("#c1440e", "^", True),
    "KIVI": ("#2e7d32", "v", False),
    "CommVQ": ("#a8780a", "P", True),
    "q4_0": ("#3a3a3a", "D", True),
    "q8_0": ("#3a3a3a", "D", True),
    "Self-Indexing": ("#d0628f", "*", True),
    "Quest": ("#7a8b99", "X", True),
    "SnapKV": ("#17a2a2", "p", True),
    "MAT": ("#8c6d46", "h", True),
    "StreamingLLM": ("#8c6d46", "<", False),
}

GREY = "#555555"


def style(axes):
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, length=3, which="both")


def bits_axis(axes):
    style(axes)
    axes.set_xscale("log", base=2)
    ticks = (0.5, 1, 2, 4, 8)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{t:g}" for t in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0.33, 16)


def draw_family(axes, name, at):
    """Points (bits, value), joined in order of bits. Returns what a legend needs."""
    colour, marker, filled = FAMILIES[name]
    x, y = zip(*sorted(at))
    axes.plot(x, y, color=colour, linewidth=1.2, alpha=0.55, zorder=2, linestyle="-" if filled else (0, (3, 2)))
    face = colour if filled else "white"
    return axes.plot(x, y, color=colour, linestyle="none", marker=marker, markersize=6, markerfacecolor=face, markeredgewidth=1.3, zorder=3, label=name)[0]
