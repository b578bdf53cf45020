"""The section "Selecting tokens" of docs/reports/fidelity.md: methods that read or keep selected tokens (Self-Indexing, Yang et al. 2026; Quest; SnapKV) and
other caches read by Self-Indexing's index. Fidelity, the ablations of the paper's table 5, and the recall of each index."""

import json

import numpy as np
from fidelity_commvq import read, share_of_f16
from fidelity_deep import deep
from fidelity_results import Difference, compare, interval
from fidelity_text import DIFFERENCE_HEAD, difference_cells, digits, percent, table

LENGTHS = (4096, 8192, 16384, 32000)

# (method, what a step reads of the prompt, run, the same cache read whole or None)
ROWS = [
    ("f16", "all", "f16", None),
    ("selfindex-16", "7.5 % and 64", "selfindex-16", "f16"),
    ("selfindex-2", "7.5 % and 64", "selfindex-2", "selfindex-2:read=100%"),
    ("quest", "7.5 %", "quest-160:read=7.5%", "f16"),
    ("snapkv", "keeps 7.5 %", "snapkv-307", None),
    ("selfindex-16", "96 and 64", "selfindex-16:read=96", "f16"),
    ("selfindex-2", "96 and 64", "selfindex-2:read=96", "selfindex-2:read=100%"),
    ("quest", "160", "quest-160", "f16"),
    ("snapkv", "keeps 160", "snapkv-160", None),
    ("selfindex-16, no exact tokens", "7.5 %", "selfindex-16:anchors=0%", "f16"),
    ("selfindex-2, no exact tokens", "7.5 %", "selfindex-2:anchors=0%", "selfindex-2:anchors=0%:read=100%"),
    ("selfindex-2, no exact tokens", "160", "selfindex-2:read=160:anchors=0%", "selfindex-2:anchors=0%:read=100%"),
    ("selfindex-16, retrieval by signs alone", "7.5 % and 64", "selfindex-16:index=signs", "f16"),
    ("selfindex-2, retrieval by signs alone", "7.5 % and 64", "selfindex-2:index=signs", "selfindex-2:read=100%"),
    ("kivi-2, 64 anchors", "7.5 % and 64", "kivi-2:read=7.5%:anchors=64", "kivi-2"),
    ("q4_0", "7.5 %", "q4_0:read=7.5%", "q4_0"),
    ("million-4", "7.5 %", "million-4:read=7.5%", "million-4"),
    ("antkv-2, 1% anchors", "7.5 % and 1 %", "antkv-2:read=7.5%", "antkv-2"),
    ("commvq-2", "7.5 %", "commvq-2:read=7.5%", "commvq-2"),
]
# SnapKV's budget is a number of tokens, so 7.5 % is another run for each prompt length.
SNAPKV = {4096: "snapkv-307", 8192: "snapkv-614", 16384: "snapkv-1228", 32000: "snapkv-2400"}

# Claims, in the form of DIRECTIONS in fidelity_report.py.
CLAIMS = [
    (
        "Table 5: signs kept in quantization against none (KIVI's 2 bits)",
        [
            ("7.5 % and 64 exact", "selfindex-2", "kivi-2:read=7.5%:anchors=64"),
            ("all read, none exact", "selfindex-2:anchors=0%:read=100%", "kivi-2"),
        ],
    ),
    (
        "Table 5: retrieval by centroids against signs alone",
        [("2 bits", "selfindex-2", "selfindex-2:index=signs"), ("16 bits", "selfindex-16", "selfindex-16:index=signs")],
    ),
    (
        "Table 5: 64 exact tokens against none",
        [
            ("2 bits, 64 more are read", "selfindex-2", "selfindex-2:anchors=0%"),
            ("2 bits, 160 in all", "selfindex-2:read=96", "selfindex-2:read=160:anchors=0%"),
            ("16 bits, 64 more are read", "selfindex-16", "selfindex-16:anchors=0%"),
        ],
    ),
    (
        "Self-Indexing against Quest",
        [
            ("16 bits, 7.5 % without exact tokens", "selfindex-16:anchors=0%", "quest-160:read=7.5%"),
            ("16 bits, 160", "selfindex-16:read=96", "quest-160"),
            ("2 bits, 160", "selfindex-2:read=96", "quest-160"),
        ],
    ),
    (
        "Self-Indexing against SnapKV",
        [
            ("16 bits, 7.5 % without exact tokens", "selfindex-16:anchors=0%", "snapkv-307"),
            ("16 bits, 160", "selfindex-16:read=96", "snapkv-160"),
            ("2 bits, 160", "selfindex-2:read=96", "snapkv-160"),
        ],
    ),
]

# The selectors of bench/experiments/recall.c, by the names that the page uses.
SELECTORS = {
    "best": "the true best",
    "sign": "centred, centroids (the method's)",
    "median": "the same about the median",
    "magnitudes": "centred, signs times their channel's mean magnitude",
    "signs": "centred, signs alone",
    "raw": "not centred, centroids",
    "raw-signs": "not centred, signs alone",
    "kmeans": "centred, 20 rounds of k-means in place of one pass",
    "sign, pages of 16": "the method's, whole pages of 16 tokens",
    "sign, pages of 64": "the method's, whole KV pages of 64",
    "quest": "Quest, pages of 16",
    "random": "at random",
}
RECALL_CLAIMS = [
    ("Centring helps", "sign", "raw"),
    ("Centring helps signs alone", "signs", "raw-signs"),
    ("Centroids against signs alone", "sign", "signs"),
    ("Centroids against signs times magnitudes", "sign", "magnitudes"),
    ("The mean against the median", "sign", "median"),
    ("One pass against k-means", "sign", "kmeans"),
    ("Tokens against pages of 16", "sign", "sign, pages of 16"),
    ("Signs against Quest, both by pages of 16", "sign, pages of 16", "quest"),
]


# ---- Fidelity


def answers(report, run):
    cells = []
    for length in LENGTHS:
        right, base, tasks = share_of_f16(report, SNAPKV[length] if run == "snapkv-307" else run, length)
        cells.append(f"{right} of {base}" if tasks else "")
    return cells


def rows_of(report):
    rows = []
    for name, reads, run, whole in ROWS:
        p = report.positions(run, "default")
        if not p:
            continue
        all_of_it = report.positions(whole, "default") if whole else None
        both = [w for w in p.windows if all_of_it and w in all_of_it.windows]
        row = [name, reads, f"{p.bits:.2f}", str(len(p.windows)), f"{p.ratio()[0]:.4f}", digits(p.mean("kld"))]
        row += [f"{100 * p.mean('same'):.1f}", digits(all_of_it.only(both).mean("kld")) if both else ""]
        rows.append(row + answers(report, run))
    return rows


def fidelity(report):
    rows = rows_of(report)
    if len(rows) < 2:
        return
    context = report.r.setup["context"]
    report.say(
        f"In the default protocol a window's first half, {context // 2:,} tokens, is the prompt from which tokens are selected. Its second half goes through decoding "
        "steps, and the tokens that a sequence generates itself are always read: towards a window's end most of what is read was not selected, and the cost of selection is "
        "diluted by as much, for all methods alike. *Read* is what a step reads of the prompt. *And 64* are exact tokens: those that rank highest by the attention of the prompt's last "
        "32 queries (selfindex), or anchors. Quantized caches also read their recent window of 128 tokens, which caches in half precision do not have. SnapKV discards the rest of the prompt. *Read whole* is the divergence of the same cache when all of it is read. The last "
        "columns count right answers to the retrieval tasks, of those that f16 has right."
    )
    head = ["method", "read", "bits", "windows", "ratio", "KLD", "same top-1 %", "read whole", "4K", "8K", "16K", "32K"]
    report.text.append(table(head, rows, (0, 1)))
    close(report)


CLOSE = 0.01  # difference of log perplexity


def counted(n, what):
    return f"{n} {what}{'' if n == 1 else 's'}"


def close(report):
    """The perplexity of 2 bits against 16."""
    said = []
    for reads, options in (("7.5 % and 64", ""), ("160 in all", ":read=96")):
        two, sixteen = (report.positions(method + options, "default") for method in ("selfindex-2", "selfindex-16"))
        if not two or not sixteen:
            continue
        d = Difference(two, sixteen)
        low, high = d.log_interval
        verdict = "holds" if high < CLOSE else "does not hold" if low > CLOSE else "undecided"
        said.append(f"with {reads}: {percent(d.log_ratio)} % (95 % interval {percent(low)} to {percent(high)}; {counted(len(d.windows), 'window')}), {verdict}")
    if said:
        report.say(
            f"Are 2 bits close to 16, that is, within {percent(CLOSE)} % of perplexity? selfindex-2 over selfindex-16, " + "; ".join(said) + ". In divergence "
            "they are further apart, since 2-bit codes diverge even when all of them are read. The paper (58.2 against 58.4 points on LongBench) measures tasks."
        )


def claims(report):
    rows = []
    for claim, pairs in CLAIMS:
        for name, better, worse in pairs:
            d = compare(report.positions(better, "default"), report.positions(worse, "default"))
            if d:
                rows.append([claim, name, *difference_cells(d)])
                claim = ""
    if not rows:
        return
    report.say("### The parts of Self-Indexing, and others")
    report.say(
        "As under [Directions](#directions): the first named minus the other. KIVI stands for quantization without signs; its keys have "
        "their scales by channel, not by token as in the paper's ablation. With the index beside them it takes as many bits as selfindex-2; read whole, "
        "without an index, half a bit less per value."
    )
    report.text.append(table(["claim", "pair", *DIFFERENCE_HEAD], rows, (0, 1, 5)))


# ---- Recall


LEAST = 3  # prompts, below which no interval is given


def with_interval(x):
    if len(x) < LEAST:
        return f"{np.mean(x):.3f}"
    low, high = interval(x)
    return f"{np.mean(x):.3f} ({low:.3f} to {high:.3f})"


def recall(report):
    text = read(report, "recall.jsonl")
    lines = [json.loads(line) for line in text.splitlines()] if text else []
    lengths = sorted({line["tokens"] for line in lines})
    if not lines:
        return
    at = {n: [line["selectors"] for line in lines if line["tokens"] == n] for n in lengths}
    report.say("### What an index finds")
    counts = " and ".join(f"{counted(len(at[n]), 'prompt')} of {n:,} tokens" for n in lengths)
    report.say(
        f"Keys and queries of the model on {counts} from the text's beginning: in every layer and KV head the last 64 queries look for {lines[0]['percent']:g} % of the tokens before "
        "them. *Recall* is the share of the true best tokens, by the mean of q.k over the queries of a KV head, that is among the selected; *weight* is the share of the "
        "attention to all of these tokens that the selected ones get. Means over layers, heads and queries; in brackets 95 % intervals, by bootstrap over prompts."
    )
    head = ["selection by"] + [f"{n:,}: {what}" for n in lengths for what in ("recall", "weight")]
    rows = [[name] + [with_interval([found[selector][i] for found in at[n]]) for n in lengths for i in (0, 1)] for selector, name in SELECTORS.items()]
    report.text.append(table(head, rows))
    rows = []
    for claim, better, worse in RECALL_CLAIMS:
        row = [claim]
        for n in lengths:
            d = [found[better][0] - found[worse][0] for found in at[n]]
            low, high = interval(d)
            verdict = "undecided" if len(d) < LEAST else "holds" if low > 0 else "does not hold" if high < 0 else "undecided"
            row += [f"{np.mean(d):.3f} ({low:.3f} to {high:.3f})", verdict]
        rows.append(row)
    report.say("Differences of recall within a prompt; a claim *holds* when the whole interval lies above zero:")
    report.text.append(table(["claim"] + [c for n in lengths for c in (f"{n:,}: difference", "verdict")], rows, (0, *range(2, 2 * len(lengths) + 1, 2))))
    errors = {selector: np.mean([found[selector][2] for line in at.values() for found in line]) for selector in ("sign", "kmeans", "magnitudes")}
    report.say(
        f"Of the squared norm of centred keys one pass leaves {percent(errors['sign'])} % as error, 20 rounds of k-means in each group of 4 channels, which give up signs, {percent(errors['kmeans'])} %, and "
        f"signs times their channel's mean magnitude {percent(errors['magnitudes'])} %."
    )


def choose(report):
    before = len(report.text)
    for part in (fidelity, claims, deep, recall):
        part(report)
    if len(report.text) > before:
        report.text.insert(before, "## Selecting tokens\n\n")
