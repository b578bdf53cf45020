"""The section "CommVQ" of docs/reports/fidelity.md (Li et al. 2025): fidelity at matched bits, the error of key tables (the paper's tables 9 and 10, figure 4),
time (table 5), other domains (table 6)."""

import json
import os

from fidelity_results import Difference, Results
from fidelity_text import digits, name_of, table

MATCHED = {
    "2": ["kivi-2", "million-2", "cq-2", "antkv-2:anchors=0%", "antkv-2", "commvq-2", "commvq-2:anchors=1%"],
    "1": ["cq-1", "antkv-1:anchors=0%", "antkv-1", "commvq-1", "commvq-1:anchors=1%"],
}
RETRIEVAL = {"commvq-2": 99, "commvq-1": 95}  # aims: lower bounds, in per cent, of the answers that f16 has right at 8192 tokens
LENGTHS = (4096, 8192, 16384)
DOMAINS = {"prose": "prose", "code": "source code", "list": "keys and values"}


def read(report, name):
    path = os.path.join(report.r.folder, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


# ---- At matched bits


def share_of_f16(report, run, length):
    """(right, f16's right, tasks) over the tasks that both runs answered."""
    ours, base = report.r.needles.get(run, {}), report.r.needles.get("f16", {})
    both = [key for key in ours if key in base and key[0] == length]
    return sum(ours[k] for k in both), sum(base[k] for k in both), len(both)


def matched(report):
    rows = []
    for bits, runs in MATCHED.items():
        for run in runs:
            p, paper = report.positions(run, "default"), report.positions(run, "paper")
            if not p:
                continue
            row = [name_of(run), f"{p.bits:.2f}", f"{p.line['codebook'] / 2**20:.1f}" if p.line["codebook"] else ""]
            row += [f"{p.ratio()[0]:.4f}", digits(p.mean("kld")), f"{100 * p.mean('same'):.1f}"]
            row += [f"{paper.bits:.2f}", f"{paper.ratio()[0]:.4f}", digits(paper.mean("kld"))] if paper else [""] * 3
            for length in LENGTHS:
                right, base, tasks = share_of_f16(report, run, length)
                row.append(f"{right} of {base}" if tasks else "")
            rows.append(row)
    if not any(row[0].startswith("commvq") for row in rows):
        return
    report.say("### At matched bits")
    report.say(
        "Methods of about as many bits: in the default protocol, in the papers' (on its own windows, see above), and in retrieval (right answers, "
        "of those that f16 has right at the same tasks)."
    )
    head = ["method", "bits", "codebook MiB", "ratio", "KLD", "same top-1 %", "paper: bits", "ratio", "KLD", "4K", "8K", "16K"]
    report.text.append(table(head, rows))
    said = []
    for run, least in RETRIEVAL.items():
        right, base, tasks = share_of_f16(report, run, 8192)
        if base:
            verdict = "met" if 100 * right >= least * base else "missed"
            said.append(f"{run} has {100 * right / base:.0f} % of f16's at 8K ({right} of {base}, {tasks} tasks; aim: {least} %, {verdict})")
    for run in RETRIEVAL:
        alone, anchored = (report.positions(r, "default") for r in (run, run + ":anchors=1%"))
        if alone and anchored:
            d = Difference(anchored, alone)
            said_of = f"1% of anchors take {anchored.bits - alone.bits:.2f} bits more in {run} and change its divergence by {digits(d.kld)}"
            report.say(f"{said_of} (95 % interval {digits(d.kld_interval[0])} to {digits(d.kld_interval[1])}) in the default protocol.")
    if said:
        report.say("Retrieval: " + "; ".join(said) + ". The aims for perplexity stand under [Aims](#aims).")


# ---- Error of key tables


class Fit:
    """Errors [heads][rounds] of one group size, on the keys learned from and on held-out keys."""

    def __init__(self, line):
        self.pairs, self.entries = line["pairs"], line["entries"]
        self.held = line["held_out"]
        self.learned = line["learned"]
        self.seconds = line.get("seconds")  # processor seconds to learn one head's tables

    def bits(self, rounds):
        return rounds * (self.entries.bit_length() - 1) / self.pairs

    def rounds_of_a_bit(self):
        return min(range(1, len(self.held[0]) + 1), key=lambda r: abs(self.bits(r) - 1))

    def mean(self, errors, rounds):
        return sum(head[rounds - 1] for head in errors) / len(errors)


def fits_of(text):
    return [Fit(line) for line in json.loads(text)["fits"] if line.get("held_out")]


def verdict(fit, rounds, former, former_rounds):
    falls = sum(a[rounds - 1] < b[former_rounds - 1] for a, b in zip(fit.held, former.held))
    word = "holds" if falls == len(fit.held) else "does not hold" if falls == 0 else "undecided"
    return f"{word} ({falls} of {len(fit.held)} heads)"


def table_rows(fits, rounds_of):
    rows, former = [], None
    for fit in fits:
        rounds = rounds_of(fit)
        row = [f"{fit.pairs}", f"{fit.entries}", f"{rounds}", f"{fit.bits(rounds):.3f}"]
        row += [digits(fit.mean(errors, rounds)) for errors in (fit.learned, fit.held)]
        rows.append(row + [verdict(fit, rounds, *former) if former else ""])
        former = (fit, rounds)
    return rows


def key_tables(report):
    text = read(report, "commvq_tables.json")
    if not text:
        return
    fits, about = fits_of(text), json.loads(text)
    report.say("### Key tables by themselves")
    report.say(
        f"The remaining squared error of keys, as a share of their variance (about their mean), over {len(about['heads'])} layers' KV heads: tables "
        f"learned from {about['samples']:,} keys, errors on these and on {about['test_samples']:,} of another text. A claim *holds* when the error on the "
        "other text is less than the row's above in every head."
    )
    head = ["pairs that share a code", "entries", "rounds", "bits", "error", "on another text", "less than above"]
    report.say("The larger the group the better, in one round (the paper's table 9):")
    report.text.append(table(head, table_rows(fits, lambda fit: 1), (6,)))
    report.say("and at 1 bit (table 10):")
    report.text.append(table(head, table_rows(fits, Fit.rounds_of_a_bit), (6,)))
    last = fits[-1]
    most = len(last.held[0])
    falls = sum(all(b < a for a, b in zip(h, h[1:])) for h in last.held)
    report.say(
        f"More rounds are better (figure 4): with {last.pairs} pairs the error falls with every one of {most} rounds in {falls} of {len(last.held)} heads, from "
        f"{digits(last.mean(last.held, 1))} to {digits(last.mean(last.held, most))}; each removes {100 * (1 - (last.mean(last.held, most) / last.mean(last.held, 1)) ** (1 / (most - 1))):.0f} % "
        "of what remains."
    )
    if last.seconds:
        report.say(f"Learning these {most} rounds took {last.mean(last.seconds, 1):.1f} seconds of a processor a head.")
    report.say("![Remaining error of keys by number of rounds](commvq-rounds.svg)")


# ---- Time


def ranges(rows, column, over=None):
    """ "at 8,192 tokens 6.3 to 9.8": the range of a column, or of its ratio to column `over`, for each depth."""
    said = []
    for tokens in sorted({row[2] for row in rows}):
        found = [row[column] / (row[over] if over else 1) for row in rows if row[2] == tokens]
        least, most = f"{min(found):.1f}", f"{max(found):.1f}"
        said.append(f"at {tokens:,} tokens {least}" + (f" to {most}" if most != least else ""))
    return ", ".join(said)


def attention(report):
    text = read(report, "commvq_attention.txt")
    if not text:
        return
    lines, rows = text.strip().split("\n"), []
    for line in lines[3:]:
        cells = line.split()
        shape, (method, tokens, *figures) = " ".join(cells[:-11]), cells[-11:]
        rows.append([shape, method, int(tokens), *(float(f) for f in figures[:1] + figures[5:])])
    report.say("### Time")
    report.say(
        f"`bench_commvq`: {lines[0]}. *Shipped*, in milliseconds: keys decoded in registers once for all queries of a KV head, values accumulated by code, "
        "nothing written to memory. The other columns are how many times as long each alternative takes: with *tables* of each query, the paper's way; when "
        "all keys and values are *decoded* into rows first, by the codec's own fast decoder, and read by matrix products; the same with keys *summed* as the "
        "formula says, from float tables, the paper's slow way; and in *f16*. The paper (table 5, a GPU) has 6.0, 8.4 and 9.6 for its way against the slow "
        f"one at 8K, 32K and 128K. Here the slow way takes, relative to the shipped one, {ranges(rows, 6)} times as long; relative to the paper's way, {ranges(rows, 6, 4)} times as long. "
        f"Tables of each query take {ranges(rows, 4)} times as long as what is shipped."
    )
    cells = [[shape, method, f"{tokens:,}", f"{ms:.2f}", *(f"{f:.2f}" for f in rest)] for shape, method, tokens, ms, *rest in rows]
    head = ["shape", "method", "tokens", "shipped, ms", "tables", "decoded", "summed", "f16"]
    report.text.append(table(head, cells, (0, 1)))


# ---- Domains


def domains(report):
    folder = os.path.join(report.r.folder, "domains")
    results = {d: Results(os.path.join(folder, "on-" + d)) for d in DOMAINS if os.path.exists(os.path.join(folder, "on-" + d, "setup.json"))}
    rows, place = [], None
    for method in ("commvq-1", "antkv-1"):
        for learned, name in DOMAINS.items():
            row = [method, name]
            for on in DOMAINS:
                run, own = (f"{method}:codebook={method}-{d}" for d in (learned, on))
                p = results[on].positions(run, "default") if on in results else None
                home = results[on].positions(own, "default") if on in results else None
                if p is None or home is None:
                    row += [""] * 2
                    continue
                place, context = p, results[on].setup["context"]
                row += [f"{digits(p.mean('kld'))} ({p.mean('kld') / home.mean('kld'):.2f})", f"{p.ratio()[0]:.3f}"]
            rows.append(row)
    if not place:
        return
    report.say("### Other texts than learned from")
    report.say(
        f"Codebooks learned from {place.line['codebook_tokens']:,.0f} tokens of one kind of text, in the default protocol on another text of each kind ({len(place.windows)} "
        f"{'windows' if len(place.windows) > 1 else 'window'} of {context:,} tokens): divergence, in brackets how many times that "
        "of the codebook learned on this kind, and perplexity over f16's. Prose is WikiText, source code the project's own, the third a list of random keys and "
        "values. The paper (table 6) measures perplexity alone and finds no more loss on code, mathematics and keys than on prose."
    )
    head = ["method", "learned on"]
    for name in DOMAINS.values():
        head += [f"{name}: KLD", "ratio"]
    report.text.append(table(head, rows, (0, 1)))


def commvq(report):
    before = len(report.text)
    for part in (matched, key_tables, attention, domains):
        part(report)
    if len(report.text) > before:
        report.text.insert(before, "## CommVQ\n\n")
