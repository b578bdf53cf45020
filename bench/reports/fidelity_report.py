#!/usr/bin/env python3
"""Writes docs/reports/fidelity.md from a work folder of build/bin/fidelity:

    fidelity_report.py FOLDER OUTPUT.md

Every figure in the page is computed here from measurements in FOLDER, but for three kinds of constants, which the page labels as such: the aims (TARGETS), the
results of a simulation that is not part of this repository (SIMULATION), and those of llama.cpp's tool (LLAMA_CPP). Rows and sections without measurements are left
out. FOLDER/commit.txt, which fidelity.sh writes, says what was measured."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fidelity_choose import choose  # noqa: E402
from fidelity_commvq import commvq  # noqa: E402
from fidelity_results import BLOCK, Difference, Results, commit_of, compare  # noqa: E402
from fidelity_text import DIFFERENCE_HEAD, difference_cells, digits, mib, name_of, paragraphs, table, with_error  # noqa: E402

LENGTHS = (4096, 8192, 16384, 32000)
BITS = ("4", "2", "1", "0.75", "0.375")

MAIN = (
    ["f16", "q8_0", "q4_0", "kivi-4", "kivi-2"]
    + [f"terse-{b}" for b in ("4", "3", "2", "1", "0.5")]
    + [f"cq-{b}" for b in BITS]
    + [f"antkv-{b}:anchors=0%" for b in BITS]
    + [f"antkv-{b}" for b in BITS]
    + ["commvq-2", "commvq-2:anchors=1%", "commvq-1", "commvq-1:anchors=1%"]
    + ["million-4", "million-3", "million-2"]
)

# Aims: upper bounds of the perplexity ratio to f16 in the default protocol.
TARGETS = {"antkv-4": 1.008, "antkv-2": 1.07, "antkv-1": 1.20, "antkv-0.75": 1.15, "antkv-0.375": 1.19, "commvq-2": 1.03, "commvq-1": 1.12, "million-4": 1.02}

# Constants: results of a simulation in single precision on the same model and text (2 windows, codebooks of 98,304 tokens, 8 to 15 rounds of k-means), a
# program that was written before terse and is not part of this repository. (run, protocol): perplexity ratio, mean divergence, median, 99.9%, same top-1 in %.
SIMULATION = {
    ("q4_0", "paper"): (1.0121, 0.00785, 0.00448, 0.135, 93.8),
    ("q4_0", "default"): (1.0046, 0.00243, 0.00082, 0.068, 96.4),
    ("cq-4", "paper"): (1.0115, 0.00906, 0.00425, 0.298, 93.6),
    ("cq-4", "default"): (1.0079, 0.00430, 0.00106, 0.205, 96.1),
    ("antkv-4", "paper"): (1.0123, 0.00975, 0.00382, 0.483, 93.4),
    ("antkv-4", "default"): (1.0099, 0.00516, 0.00097, 0.314, 95.7),
    ("million-4", "paper"): (1.0370, 0.03484, 0.02179, 0.628, 87.1),
    ("cq-2", "paper"): (1.1235, 0.0983, 0.0435, 2.79, 80.1),
    ("cq-2", "default"): (1.0738, 0.0464, 0.0106, 2.16, 88.1),
    ("antkv-2:anchors=0%", "paper"): (1.1127, 0.0963, 0.0417, 2.84, 80.2),
    ("antkv-2", "default"): (1.0770, 0.0463, 0.0088, 2.44, 88.6),
    ("million-2", "paper"): (1.2366, 0.2055, 0.1182, 3.35, 70.7),
    ("cq-1", "paper"): (1.4131, 0.3507, 0.1590, 5.56, 64.7),
    ("cq-1", "default"): (1.2128, 0.1601, 0.0325, 4.72, 78.9),
    ("antkv-1:anchors=0%", "paper"): (1.4705, 0.3583, 0.1469, 6.76, 64.4),
    ("antkv-1", "paper"): (1.4612, 0.3465, 0.1320, 6.96, 65.7),
    ("antkv-1", "default"): (1.2242, 0.1542, 0.0252, 5.28, 80.8),
    ("cq-0.75", "paper"): (1.2857, 0.2738, 0.1090, 6.38, 69.6),
    ("antkv-0.75", "default"): (1.1507, 0.1227, 0.0188, 5.31, 83.3),
    ("cq-0.375", "paper"): (1.3991, 0.3608, 0.1421, 7.10, 65.7),
    ("antkv-0.375", "paper"): (1.4184, 0.3560, 0.1233, 7.70, 67.4),
    ("antkv-0.375", "default"): (1.1986, 0.1543, 0.0217, 6.79, 81.9),
}

# Constants: llama.cpp's perplexity tool on the same model, text and context, 4 windows; every query reads quantized keys and values, which it rotates by a
# Hadamard matrix first, as terse does not. Ratio, divergence, median, 99.9%, same top-1.
LLAMA_CPP_HOW = "llama-perplexity of commit 34af94cd9 on the processor, -fa on -c 8192 --chunks 4 --kl-divergence, -ctk and -ctv of that type"
LLAMA_CPP = {"q8_0": (1.00044, 0.000032, 0.000020, 0.00057, 99.63), "q4_0": (1.0111, 0.00696, 0.0041, 0.135, 94.12)}

ANCHORS = [("0%", ":anchors=0%"), ("1%", ""), ("2%", ":anchors=2%"), ("5%", ":anchors=5%"), ("10%", ":anchors=10%")]
NBITS = [("4", "million-32x4"), ("6", "million-32x6"), ("8", "million-2"), ("10", "million-32x10"), ("12", "million-3")]

# Claims: text, and pairs (name, the run that should be better, the other run).
DIRECTIONS = [
    (
        "1% of anchors against none, at 1 bit and below",
        [(f"antkv-{b}", f"antkv-{b}", f"antkv-{b}:anchors=0%") for b in BITS[2:]],
    ),
    (
        "More anchors never hurt",
        [
            (f"antkv-{b}, {more} against {less}", f"antkv-{b}{m}", f"antkv-{b}{s}")
            for b in BITS[2:]
            for (less, s), (more, m) in zip(ANCHORS, ANCHORS[1:])
        ],
    ),
    (
        "Gradient weights in learning against none, without anchors",
        [(f"antkv-{b}", f"antkv-{b}:anchors=0%", f"antkv-{b}:anchors=0%:codebook=antkv-{b}-none") for b in BITS[:4]]
        + [("antkv-0.375", "antkv-0.375:anchors=0%", "cq-0.375")],
    ),
    (
        "A gain for each row against none, same width and bits, no weights, no anchors",
        [(f"antkv-{b} against cq-{b}", f"antkv-{b}:anchors=0%:codebook=antkv-{b}-none", f"cq-{b}") for b in BITS[:4]],
    ),
    (
        "Keys before rotation against after, same width and bits, no weights, no anchors",
        [("pairs of channels, 256 centroids", "cq-4", "million-4"), ("4 channels, 256 centroids", "cq-2", "million-2")],
    ),
    (
        "More bits per code are better (million, 32 parts of a head)",
        [(f"{b} bits against {a}", y, x) for (a, x), (b, y) in zip(NBITS, NBITS[1:])],
    ),
    (
        "Codebooks of their own for every layer and KV head against one for the model",
        [(m, m, f"{m}:codebook={m}-shared") for m in ("million-4", "million-2", "antkv-1")],
    ),
    (
        "CommVQ against others of as many bits, without anchors",
        [(f"commvq-{b} against {other}", f"commvq-{b}", other + tail) for b in "21" for other, tail in ((f"antkv-{b}", ":anchors=0%"), (f"cq-{b}", ""))]
        + [("commvq-2 against million-2", "commvq-2", "million-2"), ("commvq-2 against kivi-2, which has a third more", "commvq-2", "kivi-2")],
    ),
    (
        "CommVQ with 1% of anchors against CommVQ alone",
        [(f"commvq-{b}", f"commvq-{b}:anchors=1%", f"commvq-{b}") for b in "21"],
    ),
    (
        "CommVQ with 1% of anchors against AnTKV with as many",
        [(f"commvq-{b} against antkv-{b}", f"commvq-{b}:anchors=1%", f"antkv-{b}") for b in "21"],
    ),
    (
        "A window of 128 exact tokens against none",
        [(m, m, f"{m}:tail=0") for m in ("q4_0", "antkv-4", "antkv-1", "antkv-0.375", "million-4", "million-2")],
    ),
]

# Labels of codebooks antkv-BITS-LABEL, which are learned with weights other than the method's own.
WEIGHTINGS = ["none", "part-1", "part-2", "head-1", "head-2"]


class Report:
    def __init__(self, results):
        self.r = results
        self.text = []

    def say(self, text):
        self.text.extend(paragraphs(text))

    def positions(self, run, protocol):
        return self.r.positions(run, protocol)

    # ---- What was measured

    def introduction(self):
        s = self.r.setup
        windows = max((len(self.positions(run, "default").windows) for run in self.r.runs("default")), default=0)
        lines = {run: self.positions(run, "default").line for run in self.r.runs("default")}
        learned = {run.split(":")[0]: line["codebook_tokens"] for run, line in lines.items() if "corpus" in line}
        corpus = next((line["corpus"] for line in lines.values() if "corpus" in line), "")
        self.say(
            f"""
# Fidelity

What each method's KV cache costs in quality and saves in memory. Generated by `bench/experiments/fidelity.sh`; [how to repeat it](#how-to-repeat-it)
is at the end.

{self.measured_at()}

Model: {s["model"]} with {s["weights"]} weights; the figures promise nothing of other models. Text: {s["text"]}, the first {windows} {"windows" if windows > 1 else "window"} of {s["context"]:,} tokens; the second half of each is
scored, {windows * (s["context"] - 1 - s["context"] // 2):,} positions in all.
"""
        )
        if learned:
            most = max(learned.values())
            fewer = {method: tokens for method, tokens in learned.items() if tokens < most}
            others = "; ".join(f"that of {method} from {tokens:,.0f}" for method, tokens in sorted(fewer.items()))
            self.say(f"Codebooks were learned from {most:,.0f} tokens of {corpus}{'; ' + others if others else ''}.")
            self.say(
                "Samples are weighted by gradients of the loss where the method says so: for AnTKV (`antkv-2` and below) and CommVQ by the squared norm, for "
                "`antkv-4` by the norm itself; per sub-vector for AnTKV, per head for CommVQ. CQ and MILLION learn without weights."
            )
        self.say(
            f"""
Two protocols:

- **default**, the way the cache is used: the first half of a window is prefilled exactly and sealed; the second half goes through the cache in
  decoding steps of {s["ubatch"]} tokens. Tokens of a step are exact among themselves; tokens older than the recent window of 128 are read compressed.
- **paper**, the way the papers measure perplexity: every token reads compressed keys and values, its own included, and there is no recent window.
  Anchors are selected over the whole window of text.

Everything is compared at the same positions with one base, an f16 cache in the default protocol, whose logits are kept in full.
*Ratio* is the perplexity over the base's. *KLD* is the Kullback-Leibler divergence of the next-token distribution from the base's, in nats. *Bits* are resident
bits per value after {s["context"]:,} tokens: codes, scales, anchors, recent window and tables, all bytes allocated. Codebooks are shared by all
sequences; their size in memory stands in a column of its own. ± is a standard error from means of {BLOCK} neighbouring positions.

![Divergence and perplexity against bits](fidelity.svg)
"""
        )

    def measured_at(self):
        return f"Measured at commit {commit_of(self.r.folder)}."

    def reference(self, source, key):
        """A figure of SIMULATION or LLAMA_CPP if it is of this model and context; else None."""
        same = self.r.setup["model"] == "lab-27m" and self.r.setup["weights"] == "F16" and self.r.setup["context"] == 8192
        return source.get(key) if same else None

    # ---- Tables

    def needle_cells(self, run):
        cells = []
        for length in LENGTHS:
            right, count = self.r.share(run, length)
            cells.append(f"{right}/{count}" if count else "")
        return cells

    def score_cells(self, p, error=True):
        ratio, ratio_error = p.ratio()
        return [
            with_error(ratio, ratio_error, 5) if error else f"{ratio:.4f}",
            with_error(p.mean("kld"), p.error("kld"), 7) if error else digits(p.mean("kld")),
            digits(p.quantile(0.5)),
            digits(p.quantile(0.99)),
            digits(p.quantile(0.999)),
            f"{100 * p.mean('same'):.1f}",
        ]

    SCORES = ["ratio", "KLD", "median", "99%", "99.9%", "same top-1 %"]

    def main_table(self):
        rows = []
        most = max(len(self.positions(run, "default").windows) for run in MAIN if self.positions(run, "default"))
        for run in MAIN:
            p = self.positions(run, "default")
            if p:
                fewer = f" ({len(p.windows)} windows)" if len(p.windows) < most else ""
                book = mib(p.line["codebook"]) if p.line["codebook"] else ""
                rows.append([name_of(run) + fewer, f"{p.bits:.2f}", book, *self.score_cells(p), *self.needle_cells(run)])
        tasks = {n: self.r.share("f16", n)[1] for n in LENGTHS}
        self.say("## Default protocol and retrieval")
        if any(tasks.values()):
            self.say(
                "The last columns count exact answers to retrieval tasks: a planted fact, one of 16 planted facts, or one line of a "
                "list of keys and values, a third of the tasks each. The prompt goes through one exact prefill; the answer, 10 to 25 tokens, "
                "is generated greedily through the cache and must match to the letter. Its first token comes from the prefill itself."
            )
        head = ["method", "bits", "codebook MiB", *self.SCORES, "4K", "8K", "16K", "32K"]
        self.text.append(table(head, rows))

    def paper_table(self):
        rows = []
        for run in MAIN:
            p = self.positions(run, "paper")
            if p:
                other = self.reference(SIMULATION, (run, "paper"))
                reference = [f"{other[0]:.4f}", digits(other[1]), digits(other[2]), digits(other[3]), f"{other[4]:.1f}"] if other else [""] * 5
                rows.append([name_of(run), f"{p.bits:.2f}", *self.score_cells(p), *reference])
        if not rows:
            return
        self.say("## Paper protocol")
        windows = len(self.positions([run for run in MAIN if self.positions(run, "paper")][0], "paper").windows)
        self.say(f"Measured on the first {windows} windows." if windows > 1 else "Measured on the first window alone.")
        if not any(row[-1] for row in rows):
            self.text.append(table(["method", "bits", *self.SCORES], [row[: 2 + len(self.SCORES)] for row in rows]))
            return
        self.say(
            "The columns on the right (*sim.*) are constants: results of a simulation in single precision, on 2 windows of the same text and with codebooks of "
            "98,304 tokens. That program was written before terse and is not part of this repository, so they cannot be repeated here. They are another measurement."
        )
        head = ["method", "bits", *self.SCORES, "sim. ratio", "sim. KLD", "sim. median", "sim. 99.9%", "sim. same %"]
        self.text.append(table(head, rows))
        rows = []
        for run in LLAMA_CPP:
            p, other = self.positions(run, "paper"), self.reference(LLAMA_CPP, run)
            if p and other:
                ratio, kld, median, tail, same = other
                rows.append([f"{run}, terse", *self.score_cells(p, error=False)])
                rows.append([f"{run}, llama.cpp", f"{ratio}", digits(kld), digits(median), "", digits(tail), f"{same}"])
        if rows:
            self.say(
                f"The rows of llama.cpp are constants, made by its own tool ({LLAMA_CPP_HOW}) on the first 4 windows; terse's are of the first {windows}. llama.cpp rotates quantized keys and values by a "
                "Hadamard matrix before it rounds them. Its base file cuts off log-probabilities more than 16 below the largest, which lowers the base's perplexity by 0.03 % and raises its ratios by as much."
            )
            self.text.append(table(["cache", *self.SCORES], rows))

    def targets(self):
        rows = []
        for run, target in TARGETS.items():
            p = self.positions(run, "default")
            if p:
                ratio = p.ratio()[0]
                sim = self.reference(SIMULATION, (run, "default"))
                verdict = "met" if ratio <= target else "missed"
                rows.append([name_of(run), f"{p.bits:.2f}", f"{ratio:.4f}", f"{target}", verdict, f"{sim[0]:.4f}" if sim else ""])
        if not rows:
            return
        self.say("## Aims")
        self.say("Perplexity over f16's in the default protocol, beside the aim (an upper bound, set beforehand) and, as constants, the results of a simulation that is not part of this repository.")
        self.text.append(table(["method", "bits", "ratio", "aim, at most", "", "simulation"], rows, (0, 4)))
        self.small_caches()

    def small_caches(self):
        for protocol in ("default", "paper"):
            q4 = self.positions("q4_0", protocol)
            others = [(run, self.positions(run, protocol)) for run in MAIN if run != "q4_0"]
            others = [(run, p) for run, p in others if p and p.bits <= 4.5]
            if not q4 or not others:
                continue
            run, best = min(others, key=lambda item: item[1].mean("kld"))
            d = Difference(best, q4)
            low, high = d.kld_interval
            word = "below" if d.verdict() == "holds" else "not below" if d.verdict() == "does not hold" else "not shown to be below"
            self.say(
                f"In the {protocol} protocol the least divergence at 4.5 resident bits or fewer is that of {name_of(run)}: {digits(best.mean('kld'))} at "
                f"{best.bits:.2f} bits. q4_0 has {digits(q4.mean('kld'))} at {q4.bits:.2f}. The former is {word} the latter (difference {digits(d.kld)}, "
                f"95 % interval {digits(low)} to {digits(high)})."
            )

    def directions(self):
        rows = []
        for claim, pairs in DIRECTIONS:
            for protocol in ("default", "paper"):
                for name, better, worse in pairs:
                    if protocol == "paper" and ":tail=" in worse:  # there is no window
                        continue
                    d = compare(self.positions(better, protocol), self.positions(worse, protocol))
                    if d:
                        rows.append([claim, name, protocol, *difference_cells(d)])
                        claim = ""
        if not rows:
            return
        self.say("## Directions")
        self.say(
            f"Each row is the first named minus the other at the same positions, so less than zero is better; in brackets the 95 % interval of the mean, by "
            f"bootstrap over blocks of {BLOCK} positions. A claim *holds* when the whole interval of the divergence lies below zero, *does not hold* "
            f"when it lies above, and is *undecided* otherwise. Perplexity in per cent."
        )
        self.text.append(table(["claim", "pair", "protocol", *DIFFERENCE_HEAD], rows, (0, 1, 2, 6)))

    def weightings(self):
        rows = []
        for bits in BITS:
            for protocol in ("default", "paper"):
                runs = [f"antkv-{bits}:anchors=0%:codebook=antkv-{bits}-{label}" for label in WEIGHTINGS]
                found = [p for p in (self.positions(run, protocol) for run in runs) if p]
                own = self.positions(f"antkv-{bits}:anchors=0%", protocol)
                if not found or not own:
                    continue
                rows += [[bits, p.line["weighting"], protocol, *self.score_cells(p)] for p in found]
                rows.append([bits, f"the method's own: {own.line['weighting']}", protocol, *self.score_cells(own)])
        if not rows:
            return
        self.say("## Weights of samples in learning")
        self.say(
            "antkv without anchors; only the weights in k-means differ. A weight is the norm of the loss's gradient with respect to the sub-vector, or "
            "to the whole row of the head, to a power (1 for `antkv-4`, 2 for the others)."
        )
        self.text.append(table(["bits", "weight", "protocol", *self.SCORES], rows, (0, 1, 2)))

    def memory(self):
        base = self.r.memory.get("f16")
        if not base:
            return
        rows = []
        for run, line in self.r.memory.items():
            grown = [line[peak] - line["before"] for peak in ("prefill_peak", "decode_peak")]
            row = [name_of(run), mib(line["predicted"]), mib(line["resident"]), mib(line["codebook"]), *map(mib, grown)]
            if run != "f16":
                row.append(mib(base["resident"] - line["resident"]))
                row += [mib(base[peak] - base["before"] - g) for peak, g in zip(("prefill_peak", "decode_peak"), grown)]
            rows.append(row + [""] * (9 - len(row)))
        self.say("## Real memory")
        self.say(
            f"One process for each method: an exact prefill and 32 decoded tokens, {base['tokens']:,.0f} in all. *Peak* is the largest resident size of the process "
            f"that the system counted (VmHWM), until the end of the prefill and while decoding, less what was resident before the session: text and "
            f"codebook. It holds the cache, the pages of the model, and the workspace of an exact prefill, which is the same for all methods but for anchor "
            f"selection. *Fall* is f16's figure less this method's: of the cache by the accounting, and of the peaks as measured. All in MiB."
        )
        head = ["method", "cache, predicted", "cache", "codebook", "peak in prefill", "peak in decoding", "fall of the cache"]
        self.text.append(table([*head, "of the first peak", "of the second"], rows))

    def how(self):
        self.say(
            """
## How to repeat it

    bench/experiments/fidelity.sh -m MODEL.gguf -f SCORED_TEXT

makes the codebooks (from the text in `data`), measures, and writes this page and the plot. Results stay in `build/fidelity`; existing results are not measured
again. Its ablations (steps `directions`, `weighting`, `memory`, `commvq`, `choose`, `deep` and `domains`, of which the script says more) add sections to the page.
`build/bin/fidelity --help` lists the options of the measuring program. The plot needs Debian's python3-matplotlib.
"""
        )

    def check(self):
        """Checks that an f16 cache gives the base's logits bit for bit, since the base is an f16 cache as well."""
        f16 = self.positions("f16", "default")
        if f16 and (f16.kld.any() or f16.delta.any()):
            sys.exit("fidelity_report.py: f16 differs from the base, which is f16 itself: the measurement is broken")

    def write(self):
        self.check()
        self.introduction()
        self.main_table()
        self.targets()
        self.paper_table()
        self.directions()
        self.weightings()
        self.memory()
        commvq(self)
        choose(self)
        self.how()
        return "".join(self.text).rstrip("\n") + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: fidelity_report.py FOLDER OUTPUT.md")
    text = Report(Results(sys.argv[1])).write()
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
