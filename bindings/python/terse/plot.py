"""Draws measurements: divergence against bits, speed against depth, what `terse tune` found. Needs matplotlib (pip install matplotlib)."""
from __future__ import annotations

from itertools import groupby
from typing import Any, Mapping, Sequence

import matplotlib.pyplot as plt

from .measures import Divergence, Speed


def divergence_against_bits(rows: Sequence[Divergence], axes: Any = None) -> Any:
    """Draws the mean KL divergence of methods (terse.kl_divergence), with its standard error, against the bits of a value that their caches took.

    Args:
        axes: matplotlib axes to draw on; None: those of a new figure.

    Returns:
        The axes. A divergence of 0 (the base itself) has no place on the logarithmic axis and is left out.
    """
    axes = axes or plt.figure().subplots()
    shown = [row for row in rows if row.mean > 0]
    for family, members in groupby(sorted(shown, key=lambda row: (_family(row.kv), row.cache.bits_per_value)), lambda row: _family(row.kv)):
        group = list(members)
        bits = [row.cache.bits_per_value for row in group]
        axes.errorbar(bits, [row.mean for row in group], [row.error for row in group], marker="o", capsize=2, label=family)
    for row in shown:
        axes.annotate(row.kv, (row.cache.bits_per_value, row.mean), textcoords="offset points", xytext=(5, 4), fontsize="small")
    axes.set_yscale("log")
    axes.set_xlabel("bits per value of the cache, every resident byte counted")
    axes.set_ylabel("KL divergence of the next token, nats")
    axes.grid(alpha=0.3)
    return axes


def speed_against_depth(rows: Sequence[Speed], axes: Any = None) -> Any:
    """Draws how fast methods write behind so many tokens (terse.speed): a line for each method.

    Args:
        axes: matplotlib axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    axes = axes or plt.figure().subplots()
    for kv in dict.fromkeys(row.kv for row in rows):
        line = sorted((row.depth, row.tokens_per_second) for row in rows if row.kv == kv)
        axes.plot([depth for depth, _ in line], [speed for _, speed in line], marker="o", label=kv)
    axes.set_xlabel("tokens in the cache")
    axes.set_ylabel("tokens written a second")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return axes


def tuned(report: Mapping[str, Any], axes: Any = None) -> Any:
    """Draws what `terse tune -o json` printed: divergence against bits, the front joined by a line, and the pick.

    Args:
        report: the command's output, read by json.load.
        axes: matplotlib axes to draw on; None: those of a new figure.

    Returns:
        The axes. f16 itself has no place on the logarithmic axis and is left out, as is what was not measured.
    """
    axes = axes or plt.figure().subplots()
    shown = [row for row in report["rows"] if row.get("divergence", 0) > 0]
    front = [row for row in shown if row["choice"] in ("front", "pick")]
    axes.plot([row["bits_per_value"] for row in front], [row["divergence"] for row in front], color="tab:blue", label="front")
    for row in shown:
        color = "tab:red" if row["choice"] == "pick" else "tab:blue" if row in front else "tab:gray"
        place = row["bits_per_value"], row["divergence"]
        axes.errorbar(*place, row["error"], marker="o", capsize=2, color=color)
        name = f"{row['kv']}, {row['speed_over_f16']:.2g}x" if "speed_over_f16" in row else row["kv"]
        axes.annotate(name, place, textcoords="offset points", xytext=(5, 4), fontsize="small", color=color)
    axes.axhline(report["allowed_divergence"], color="tab:red", linestyle="--")
    axes.set_yscale("log")
    axes.set_xlabel(f"bits per value of a cache of {report['context']} tokens")
    axes.set_ylabel("KL divergence of the next token, nats")
    axes.set_title(report["model"])
    axes.grid(alpha=0.3)
    return axes


def _family(kv: str) -> str:
    """Returns "terse" for "terse-3": methods of a family are joined by a line."""
    return kv.split("-")[0]
