"""docs/reports/fidelity.md: every method at every rate in two protocols: as a cache is used, and as the papers measure perplexity, where every token reads
codes; codes of fewer and of more bits; methods that choose the tokens that a step reads, and how many of the best tokens their indexes find."""

from page_common import HEAD, PAIRS, Difference, cells, divergence_plot, done, how, learning, marked, not_measured, on_processor, perplexity, say, sizes, stamp
from page_real_models import SIZE, arguments_of, book_of
from quality_measurements import Measurement, learned, name_of_model, order_of_models
from quality_texts import PROSE
from report_text import digits, name_of, table, with_error

# In groups, each with its rates from many bits to few. Names are those of page_real_models.
FAMILIES = (
    ("f16", "q8_0", "q4_0", "kivi-4", "kivi-2"),
    ("terse-4", "terse-3", "terse-2", "terse-1", "terse-0.5"),
    tuple(f"terse-{n}:profile" for n in ("4", "3", "2", "1", "0.5")),
    tuple(f"cq-{n}" for n in ("4", "2", "1", "0.75", "0.375")),
    tuple(f"antkv-{n}" for n in ("4", "2", "1", "0.75", "0.375")),
    ("million-4", "million-3", "million-2"),
    ("commvq-2", "commvq-1"),
)
METHODS = tuple(method for family in FAMILIES for method in family)

# In the papers' protocol: codes of 4, 2 and 1 bits, and the two rates of other numbers that the papers make most of. A GPU has all of these but antkv's,
# whose anchors it does not choose there.
PAPER = ("q4_0", "kivi-4", "kivi-2", "terse-4:profile", "terse-2:profile", "terse-1:profile", "cq-4", "cq-2", "cq-1")
PAPER += ("antkv-4", "antkv-2", "antkv-1", "antkv-0.375", "million-4", "million-3", "million-2", "commvq-2", "commvq-1")

PARTS = 32  # of a row, each with a code of so many bits:
BITS_PER_CODE = (4, 6, 8, 10)

CHOOSE = 512  # tokens of a prompt that a step reads, or that are kept
EXACT = 64  # of them by Self-Indexing, which ranks them by attention
# (label, what a step reads of the prompt, method, arguments, the method that reads all of the same cache)
CHOICES = (
    ("selfindex-2", "7.5 % and 64", "selfindex-2", (), "selfindex-2, whole"),
    ("selfindex-2, no exact tokens", "7.5 %", "selfindex-2", ("--anchors", "0%"), None),
    ("selfindex-2 of 512", "448 and 64", "selfindex-2", ("--top-k-tokens", str(CHOOSE - EXACT)), "selfindex-2, whole"),
    ("selfindex-2, whole", "all", "selfindex-2", ("--top-k-tokens", "100%"), None),
    ("selfindex-16", "7.5 % and 64", "selfindex-16", (), "f16"),
    ("selfindex-16 of 512", "448 and 64", "selfindex-16", ("--top-k-tokens", str(CHOOSE - EXACT)), "f16"),
    ("quest-512", "512", f"quest-{CHOOSE}", (), "f16"),
    ("quest, 7.5 %", "7.5 %", f"quest-{CHOOSE}", ("--top-k-tokens", "7.5%"), "f16"),
    ("snapkv-512", "512, the others are dropped", f"snapkv-{CHOOSE}", (), "f16"),
    ("kivi-2 by its signs", "7.5 % and 64", "kivi-2", ("--top-k-tokens", "7.5%", "--anchors", str(EXACT)), "kivi-2"),
    ("q4_0 by its signs", "7.5 %", "q4_0", ("--top-k-tokens", "7.5%"), "q4_0"),
    ("million-4 by its signs", "7.5 %", "million-4", ("--top-k-tokens", "7.5%"), "million-4"),
    ("commvq-2 by its signs", "7.5 %", "commvq-2", ("--top-k-tokens", "7.5%"), "commvq-2"),
)

# (claim, row, the row that it is compared with): names of METHODS and PAPER, or labels of CHOICES.
DIRECTIONS = (
    ("CommVQ against others of as many bits", "commvq-2", "cq-2"),
    ("", "commvq-2", "antkv-2"),
    ("", "commvq-2", "million-2"),
    ("CommVQ against KIVI of a third more bits", "commvq-2", "kivi-2"),
    ("CommVQ at 1 bit", "commvq-1", "cq-1"),
    ("", "commvq-1", "antkv-1"),
    ("AnTKV (gain, weights, anchors) against CQ", "antkv-4", "cq-4"),
    ("", "antkv-2", "cq-2"),
    ("", "antkv-1", "cq-1"),
    ("terse-N against others of as many bits", "terse-4:profile", "q4_0"),
    ("", "terse-4:profile", "million-4"),
    ("", "terse-2:profile", "commvq-2"),
    ("", "terse-1:profile", "commvq-1"),
)
CHOICE_DIRECTIONS = (
    ("Self-Indexing against Quest, 512 tokens in half precision", "selfindex-16 of 512", "quest-512"),
    ("Self-Indexing against SnapKV, the same", "selfindex-16 of 512", "snapkv-512"),
    ("Quest against SnapKV, the same", "quest-512", "snapkv-512"),
    ("64 exact tokens against none", "selfindex-2", "selfindex-2, no exact tokens"),
    ("Signs kept in the codes against KIVI's 2 bits", "selfindex-2", "kivi-2 by its signs"),
)

# The selectors of bench/experiments/recall.c, by the names that the page uses.
SELECTORS = {
    "best": "the true best",
    "sign": "Self-Indexing's: centred, centroids of signs",
    "median": "the same about the median",
    "magnitudes": "centred, signs times their channel's mean magnitude",
    "signs": "centred, signs alone",
    "raw": "not centred, centroids of signs",
    "raw-signs": "not centred, signs alone",
    "kmeans": "centred, 20 rounds of k-means in place of one pass",
    "sign, pages of 16": "Self-Indexing's, whole pages of 16 tokens",
    "sign, pages of 64": "Self-Indexing's, whole pages of 64 tokens",
    "quest": "Quest's, pages of 16",
    "random": "at random",
}


def of(model, method, options, more=()):
    return perplexity(model, (*arguments_of(method), *more), options, SIZE, book_of(method, options))


def paper_of(model, method, options):
    return of(model, method, options, ("--paper",))


def parts_of(bits):
    return f"million-{PARTS}x{bits}"


def choice_of(model, label, options):
    """The measurement of a row of CHOICES, or of a method by its name alone."""
    method, arguments = next(((row[2], row[3]) for row in CHOICES if row[0] == label), (label, ()))
    return of(model, method, options, arguments)


def recall_of(model, options):
    return Measurement("recall", model, (), None, PROSE, (options.context or SIZE[0], options.chunks or SIZE[1]))


def books(model, options):
    names = (*METHODS, *(parts_of(bits) for bits in BITS_PER_CODE))
    return list(dict.fromkeys(learned(model, book_of(name, options)) for name in names if book_of(name, options)))


def measurements(options):
    found = [m for model in options.model_names for m in books(model, options)]  # take longest
    for model in options.model_names:
        found += [of(model, method, options) for method in METHODS]
        found += [paper_of(model, method, options) for method in PAPER]
        found += [of(model, parts_of(bits), options) for bits in BITS_PER_CODE]
        found += [choice_of(model, row[0], options) for row in CHOICES]
        found.append(recall_of(model, options))
    return found


# ---- Tables


def method_table(parts, results, model, options):
    rows, base = [], results.get(of(model, "f16", options))
    for method in METHODS:
        line = results.get(of(model, method, options))
        paper = results.get(paper_of(model, method, options)) if method in PAPER else None
        if line or paper:
            rows.append([name_of(method), *(cell for one in (line, paper) for cell in (marked(cells(one), one, [base]) if one else [""] * len(HEAD)))])
    if not rows:
        return
    say(parts, f"## {name_of_model(model)}")
    if base:
        say(parts, f"{model}.gguf. Perplexity with f16: {base['perplexity']:.3f} ± {base['perplexity_error']:.3f}.")
    parts.append(table(["method", *HEAD, f"paper: {HEAD[0]}", *HEAD[1:]], rows))
    say(parts, stamp(results))


def compared(rows):
    """Table rows of (words, pairs), where pairs are of each model a line and the line that it is compared with."""
    found = []
    for words, pairs in rows:
        differences = [Difference(*pair) if all(pair) else None for pair in pairs]
        if any(differences):
            found.append([*words, *(f"{d.text()} {d.verdict()}" if d else "" for d in differences)])
    return found


def directions(parts, results, models, options):
    rows = []
    for claim, a, b in DIRECTIONS:
        get = lambda measure, method: [results.get(measure(m, method, options)) for m in models]  # noqa: E731
        for protocol, measure in (("use", of), ("paper", paper_of)):
            rows.append(([claim, f"{name_of(a)} against {name_of(b)}", protocol], list(zip(get(measure, a), get(measure, b)))))
    found = compared(rows)
    if found:
        say(parts, f"## Directions\n\n{PAIRS} *Use* and *paper* are the two protocols.")
        parts.append(table(["claim", "pair", "protocol", *(f"KLD, {name_of_model(m)}" for m in models)], found, (0, 1, 2)))
        say(parts, stamp(results))


def bits_per_code(parts, results, models, options):
    rows = []
    for bits in BITS_PER_CODE:
        lines = [results.get(of(m, parts_of(bits), options)) for m in models]
        if any(lines):
            rows.append([parts_of(bits), *(cell for line in lines for cell in (cells(line)[:2] if line else ["", ""]))])
    if rows:
        say(
            parts,
            f"""
## Bits per code

MILLION with {PARTS} codes for the keys and values of a token and KV head, of 4 to 10 bits each: centroids of 2 channels where heads have 64, of 4 where they have 128, of 8 where they
have 256.
""",
        )
        parts.append(table(["method", *(cell for m in models for cell in (f"{name_of_model(m)}: bits", "KLD"))], rows))
        say(parts, stamp(results))


def choices(parts, results, models, options):
    rows = []
    for label, reads, *_, whole in CHOICES:
        lines = [results.get(choice_of(m, label, options)) for m in models]
        if not any(lines):
            continue
        row = [label, reads]
        for model, line in zip(models, lines):
            all_of_it = results.get(choice_of(model, whole, options)) if whole else None
            row += [f"{line['bits']:.2f}", with_error(line["kld"], line["kld_error"], 7)] if line else ["", ""]
            row.append(digits(all_of_it["kld"]) if all_of_it else "")
        rows.append(row)
    if not rows:
        return
    half = (options.context or SIZE[0]) // 2
    say(
        parts,
        f"""
## Choosing what a step reads

The prompt from which tokens are chosen is a window's first half, {half:,} tokens. Its second half goes through decoding steps, and what a sequence adds itself is always read, so that
towards a window's end most of what is read was not chosen. *And 64* are exact tokens of the prompt: those that rank highest by the attention of its last queries (selfindex), or anchors
(kivi-2). *By its signs* are other caches, read by Self-Indexing's index. SnapKV drops what it does not choose. *Whole* is the divergence of the same cache where a step reads all of it.
""",
    )
    head = ["method", "reads of the prompt", *(cell for m in models for cell in (f"{name_of_model(m)}: bits", "KLD", "whole"))]
    parts.append(table(head, rows, (0, 1)))
    pairs = [([claim], [tuple(results.get(choice_of(m, label, options)) for label in (a, b)) for m in models]) for claim, a, b in CHOICE_DIRECTIONS]
    found = compared(pairs)
    if found:
        say(parts, "Differences of KLD, the first named less the other:")
        parts.append(table(["claim", *(name_of_model(m) for m in models)], found))
    say(parts, stamp(results))


def recall(parts, results, models, options):
    lines = {m: line for m in models if (line := results.get(recall_of(m, options)))}
    if not lines:
        return
    tokens, prompts = options.context or SIZE[0], options.chunks or SIZE[1]
    say(
        parts,
        f"""
## Recall of indexes

In every layer that sees all tokens and every KV head each of the last 64 queries of a prompt of {tokens:,} tokens chooses 7.5 % of the tokens before it by an index ({prompts}
{'prompts' if prompts > 1 else 'prompt'} of each model; keys and queries in full precision). The first figure is the share of the true best tokens among them, by the mean product over the queries of a KV head; in
brackets the share of the attention that the chosen tokens have. Both in per cent.
""",
    )
    rows = []
    for selector, name in SELECTORS.items():
        shares = [line["indexes"][selector] for line in lines.values()]
        rows.append([name, *(f"{100 * found:.1f} ({100 * weight:.1f})" for found, weight, *_ in shares)])
    parts.append(table(["index", *(name_of_model(m) for m in lines)], rows))
    errors = [f"{name_of_model(m)}: " + ", ".join(f"{SELECTORS[s]} {line['indexes'][s][2]:.3f}" for s in SELECTORS if len(line["indexes"][s]) > 2) for m, line in lines.items()]
    say(parts, "Squared error of keys coded by an index's centroids, as a share of their variance:")
    parts.append("\n".join(f"- {text}" for text in errors) + "\n\n")
    say(parts, stamp(results))


def least(results, models, options):
    """Of each model, methods that no other beats in both bits and divergence."""
    lines = []
    for model in models:
        found = [(line["bits"], line["kld"], name_of(method)) for method in METHODS if (line := results.get(of(model, method, options)))]
        front = sorted(one for one in found if not any(o[0] <= one[0] and o[1] < one[1] for o in found))
        if front:
            lines.append(f"- {name_of_model(model)}: " + "; ".join(f"{name} ({bits:.2f} bits: {digits(kld)})" for bits, kld, name in front) + ".")
    return "\n".join(lines) + "\n\n"


def write(results, options):
    models = order_of_models(options.model_names)
    parts = []
    say(
        parts,
        f"""
# Fidelity

What each method's KV cache costs in quality and saves in memory, at every rate, as a cache is used and as the papers measure it. Generated by `bench/experiments/quality.py fidelity`
from commit {results.commit}; [how to repeat it](#how-to-repeat-it) is at the end. Planted facts and the methods that evict are on [real models](real-models.md), the papers' own forms and
single ingredients [on equal terms](equal-terms.md), anchors on [a page of their own](anchors.md).

{sizes(results, options, SIZE)}

Every codebook of a model is learned from the same tokens ([table](#what-was-learned)). Codebooks of 4,096 entries (cq-0.75, cq-0.375, antkv-0.75, antkv-0.375, million-3) have few samples for each.

![Divergence against bits](fidelity.svg)

Methods that no other beats in both bits and divergence, as a cache is used:
""",
    )
    parts.append(least(results, models, options))
    say(
        parts,
        """
## Paper protocol

The right half of each table is measured as the papers measure perplexity: every token reads compressed keys and values, its own included, no window of new tokens is exact, and the same
positions are scored (`terse perplexity --paper`). terse's first 4 tokens stay exact, and antkv's anchors are chosen from the whole window. The base is the same f16 cache, on the same device; rows that a processor measured, where a GPU measured the others, are marked *CPU*. Methods that
evict or choose tokens have no such protocol.
""",
    )
    for model in models:
        method_table(parts, results, model, options)
    directions(parts, results, models, options)
    bits_per_code(parts, results, models, options)
    choices(parts, results, models, options)
    recall(parts, results, models, options)
    learning(parts, results, models, lambda model: books(model, options))
    on_processor(parts, results)
    not_measured(parts, results)
    how(parts, "fidelity", options, " [--devices cuda,cpu]")
    say(parts, "The plot needs Debian's python3-matplotlib.")
    return done(parts)


def plots(results, options):
    points = {}
    for model in order_of_models(options.model_names):
        points[name_of_model(model)] = [(m, line["bits"], line["kld"]) for m in METHODS if (line := results.get(of(model, m, options)))]
    return [divergence_plot("fidelity", points, options)]
