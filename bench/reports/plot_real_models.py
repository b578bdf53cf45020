#!/usr/bin/env python3
"""Draws divergence against resident bits per value, a panel for each model, from the results of bench/experiments/real_models.py:

    plot_real_models.py FOLDER OUTPUT.svg OUTPUT.png"""

import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from plot_style import FAMILIES, GREY, bits_axis, draw_family  # noqa: E402
from real_models_results import Refused, Results, name_of_model  # noqa: E402

OF_FAMILY = {"antkv": "AnTKV, 1% anchors", "cq": "CQ", "million": "MILLION", "kivi": "KIVI", "commvq": "CommVQ", "selfindex": "Self-Indexing"}
OF_FAMILY |= {"quest": "Quest", "snapkv": "SnapKV", "mat": "MAT", "streaming": "StreamingLLM", "q4_0": "q4_0", "q8_0": "q8_0"}
LEAST = 1e-5  # divergence: less is drawn as this


def family_of(method):
    name = method.split("-")[0]
    if name == "terse":
        return "terse, with a profile" if method.endswith(":profile") else "terse"
    return OF_FAMILY.get(name)


def families(results, model):
    found = {}
    for method in results.methods:
        p = results.measured(model, method, "perplexity")
        if p and family_of(method):
            found.setdefault(family_of(method), []).append((p["bits"], max(p["kld"], LEAST)))
    return found


def draw(results):
    columns = len(results.models)
    figure, grid = plt.subplots(1, columns, figsize=(max(6, 4.2 * columns), 4.8), dpi=100, sharey=True, squeeze=False)
    handles = {}
    for axes, model in zip(grid[0], results.models):
        bits_axis(axes)
        axes.set_yscale("log")
        axes.set_xlim(0.33, 32)
        axes.set_title(name_of_model(model), fontsize=10, color="#222222", loc="left")
        axes.set_xlabel("resident bits per value", color=GREY)
        for name, at in families(results, model).items():
            handles[name] = draw_family(axes, name, at)
    grid[0][0].set_ylabel("mean KL divergence from f16, nats", color=GREY)
    known = [name for name in FAMILIES if name in handles]
    figure.tight_layout(w_pad=1.6, rect=(0, 0.16, 1, 1))
    figure.legend([handles[name] for name in known], known, loc="lower center", ncol=max(4, 2 * columns), frameon=False, fontsize=9)
    return figure


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: plot_real_models.py FOLDER OUTPUT.svg OUTPUT.png")
    try:
        results = Results(sys.argv[1])
    except Refused as why:
        sys.exit(f"plot_real_models.py: {why}")
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "terse"})
    figure = draw(results)
    figure.savefig(sys.argv[2], metadata={"Date": None})
    figure.savefig(sys.argv[3], metadata={"Software": None})


if __name__ == "__main__":
    main()
