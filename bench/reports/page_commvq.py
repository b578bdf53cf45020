"""docs/reports/commvq.md: the choices behind CommVQ's codes: values by a search instead of the paper's network, keys by tables of few entries."""

import json
import os

from page_common import done, how, not_measured, say, stamp
from quality_measurements import Measurement, name_of_model, order_of_models
from quality_texts import LEARNED, PROSE
from report_text import digits, table

KEY_HEADS = 8
DEPTHS = (8192, 32768, 131072)
VALUE_HEADS = 2  # take a minute or two each with 1,500 steps of the encoder
LONGER_STEPS = (1500, 10000, 100000)  # of the encoder of one head; the paper's number is the last
LONGER_MODELS = 2  # are trained so long: the first ones

# The encodings of build/bin/value_codes, in its order, by the names that the page uses.
ENCODINGS = {
    "kivi-1": "KIVI's integers, 2 levels",
    "kivi-2": "KIVI's integers, 4 levels",
    "gain-shape": "gain-shape (AnTKV's)",
    "additive": "additive, the shipped search",
    "greedy": "additive, greedy",
    "search": "additive, the search by itself",
    "beam": "additive, beam of 8",
    "encoder": "additive, the paper's encoder",
    "its C": "the encoder's rows, by the shipped search",
}
SHOWN = [name for name in ENCODINGS if name != "search"]  # is that of "additive", without a page's packing


def keys_of(model, options):
    return Measurement("key_tables", model, (), None, PROSE, (options.windows, KEY_HEADS))


def values_of(model, options):
    return Measurement("value_codes", model, (), None, PROSE + LEARNED, (options.windows, VALUE_HEADS, options.encoder_steps))


def longer_of(model, steps, options):
    return Measurement("value_codes", model, (), None, PROSE + LEARNED, (options.windows, 1, steps))


def longer_models(options):
    return order_of_models(options.model_names)[:LONGER_MODELS]


TIMES = Measurement("attention_times", "no model", (), None, None, DEPTHS)


def measurements(options):
    longer = [longer_of(model, steps, options) for model in longer_models(options) for steps in LONGER_STEPS]
    return [TIMES, *longer, *(measure(model, options) for measure in (values_of, keys_of) for model in options.model_names)]


# ---- Values


def of_bits(line):
    """{name: [bits, error, weighted, attention, microseconds and times gain-shape's to encode, nanoseconds and times to read]} of each number of bits."""
    n = len(line["encodings"]) // 2
    return [{name: numbers for name, *numbers in part} for part in (line["encodings"][:n], line["encodings"][n:])]


def value_table(line):
    rows = []
    for encodings in of_bits(line):
        for name in SHOWN:
            if name in encodings:
                bits, plain, weighted, attention, _, encode, _, read = encodings[name]
                times = [f"{x:.2f}" if x == x and x > 0 else "" for x in (encode, read)]
                rows.append([ENCODINGS[name], f"{bits:.2f}", *(digits(x) for x in (plain, weighted, attention)), *times])
    return table(["values", "bits", "error", "weighted by gradients", "attention", "encoding, times gain-shape's", "reading"], rows)


def value_sentences(line):
    """What the search has over gain-shape, and what a beam search and the encoder would have over it, of each number of bits."""
    found = []
    for bits, encodings in enumerate(of_bits(line), 1):
        over = lambda a, b: encodings[a][3] / encodings[b][3]  # noqa: E731
        found.append(
            f"- {bits} bit{'s' if bits > 1 else ''}: the shipped search leaves {over('additive', 'gain-shape'):.2f} times gain-shape's error of attention, a beam of 8 "
            f"{over('beam', 'additive'):.2f} times the search's, the encoder {over('encoder', 'additive'):.2f} times."
        )
    return "\n".join(found) + "\n\n"


def values(parts, results, models, options):
    lines = {m: line for m in models if (line := results.get(values_of(m, options)))}
    if not lines:
        return
    say(
        parts,
        f"""
## Values: a search instead of an encoder

The paper trains a network that produces a value's code. Ways to find the code for the same kind of codebook are compared on real values, together with KIVI's asymmetric integers (the
paper's table 11) and AnTKV's gain-shape codes: {VALUE_HEADS} pairs of layer and KV head of each model, {2048 * options.windows:,} tokens to learn from. Errors are shares of the error that the mean alone leaves, on text from
which nothing was learned; *attention* is the error of a layer's output after the output projection. The two columns of times are of this run, in which other commands ran beside it: read
them as ratios, and roughly.

The encoder's bits count its weights in half precision, spread over 8,192 tokens; what its size adds to the bits of a value, an encoder of any error has to make up for. It was trained for
{options.encoder_steps:,} steps in these tables; [below](#the-encoder-trained-longer) for as many as the paper's. It remains as a reference in `tests/support/encoder.c`, its
gradients checked against central differences. No fast version of the beam search exists here.

A codebook belongs to one layer and KV head, where the paper has one for all heads of a layer: a page holds one KV head's values, and its codes must be readable without the others'.
""",
    )
    for model, line in lines.items():
        say(parts, f"### {name_of_model(model)}")
        parts.append(value_table(line))
        parts.append(value_sentences(line))
    longer(parts, results, options)
    say(parts, stamp(results))


def longer(parts, results, options):
    """The encoder by the number of steps, beside the shipped search."""
    rows, last = [], []
    for model in longer_models(options):
        for steps in LONGER_STEPS:
            line = results.get(longer_of(model, steps, options))
            if not line:
                continue
            row = [name_of_model(model), f"{steps:,}"]
            for encodings in of_bits(line):
                over = [[encodings[name][i] / encodings["additive"][i] for i in (1, 3)] for name in ("encoder", "its C")]
                row += [f"{plain:.2f}, {attention:.2f}" for plain, attention in over]
            rows.append(row)
            if steps == LONGER_STEPS[-1]:
                last += [(e["encoder"][3] / e["additive"][3], name_of_model(model), bits) for bits, e in enumerate(of_bits(line), 1)]
    if not rows:
        return
    verdict = ""
    if last:
        least, most = min(last), max(last)
        verdict = (
            f"Trained for {LONGER_STEPS[-1]:,} steps, the encoder leaves {least[0]:.2f} times the search's error of attention at best ({least[1]}, {least[2]} bit{'s' if least[2] > 1 else ''}), and "
            f"{most[0]:.2f} times at worst ({most[1]}, {most[2]} bit{'s' if most[2] > 1 else ''})."
        )
    say(parts, f"### The encoder, trained longer\n\nOne pair of layer and KV head. Errors over those of the shipped search: of the value, and of attention. {verdict}")
    head = ["model", "steps", "1 bit: encoder", "its rows, by the search", "2 bits: encoder", "its rows, by the search"]
    parts.append(table(head, rows, (0,)))


# ---- Keys


class Fit:
    """Errors [heads][rounds] of one group size, on the keys learned from and on held-out keys."""

    def __init__(self, line):
        self.pairs, self.entries = line["pairs"], line["entries"]
        self.learned, self.held, self.seconds = line["learned"], line["held_out"], line["seconds"]  # processor seconds to learn one head's tables

    def bits(self, rounds):
        return rounds * (self.entries.bit_length() - 1) / self.pairs

    def rounds_of_a_bit(self):
        return min(range(1, len(self.held[0]) + 1), key=lambda r: abs(self.bits(r) - 1))

    def mean(self, errors, rounds):
        return sum(head[rounds - 1] for head in errors) / len(errors)


def fits_of(line):
    return [Fit(fit) for fit in line["fits"] if fit.get("held_out")]  # a group size that does not divide a head has none


def verdict(fit, rounds, former, former_rounds):
    falls = sum(a[rounds - 1] < b[former_rounds - 1] for a, b in zip(fit.held, former.held))
    word = "holds" if falls == len(fit.held) else "does not hold" if falls == 0 else "undecided"
    return f"{word} ({falls} of {len(fit.held)} heads)"


def key_rows(fits, rounds_of):
    rows, former = [], None
    for fit in fits:
        rounds = rounds_of(fit)
        errors = [digits(fit.mean(errors, rounds)) for errors in (fit.learned, fit.held)]
        rows.append([f"{fit.pairs}", f"{fit.entries}", f"{rounds}", f"{fit.bits(rounds):.3f}", *errors, verdict(fit, rounds, *former) if former else ""])
        former = (fit, rounds)
    return rows


def more_rounds(fits):
    last = fits[-1]
    most = len(last.held[0])
    first, end = last.mean(last.held, 1), last.mean(last.held, most)
    falls = sum(all(b < a for a, b in zip(head, head[1:])) for head in last.held)
    return (
        f"More rounds are better (figure 4): with {last.pairs} pairs the error falls with every one of {most} rounds in {falls} of {len(last.held)} heads, from {digits(first)} to {digits(end)}; each "
        f"removes {100 * (1 - (end / first) ** (1 / (most - 1))):.0f} % of what remains. Learning these rounds took {last.mean(last.seconds, 1):.1f} seconds of a processor a head."
    )


def plotted(results, models, options):
    """The model whose curves are drawn: the first whose heads have groups of all sizes, else the first."""
    lines = {m: line for m in models if (line := results.get(keys_of(m, options)))}
    return max(lines, key=lambda m: len(fits_of(lines[m])), default=None)


def keys(parts, results, models, options):
    lines = {m: line for m in models if (line := results.get(keys_of(m, options)))}
    if not lines:
        return
    any_line = next(iter(lines.values()))
    say(
        parts,
        f"""
## Keys: tables of a few entries, many rounds

A key is a sum of complex numbers from tables of few entries, one from each of many rounds; pairs of channels share a code in groups. The remaining squared error of keys is given as a share
of their variance (about their mean), over {KEY_HEADS} layers' KV heads: tables learned from {any_line['samples']:,} keys, errors on these and on {any_line['test_samples']:,} of another text. *Holds* means that the error on the
other text is less than the row's above in every head. Groups that do not divide a head's pairs of channels have no row.
""",
    )
    head = ["pairs that share a code", "entries", "rounds", "bits", "error", "on another text", "less than above"]
    for model, line in lines.items():
        fits = fits_of(line)
        say(parts, f"### {name_of_model(model)}, keys\n\nThe larger the group the better, in one round (the paper's table 9):")
        parts.append(table(head, key_rows(fits, lambda fit: 1), (6,)))
        say(parts, "and at 1 bit (table 10):")
        parts.append(table(head, key_rows(fits, Fit.rounds_of_a_bit), (6,)))
        say(parts, more_rounds(fits))
    say(parts, f"![Remaining error of keys by number of rounds](commvq.svg)\n\nThe plot is of {name_of_model(plotted(results, models, options))}.\n\n{stamp(results)}")


# ---- Times


def span(rows, column, over=None):
    """The range of a column, or of its ratio to column `over`."""
    found = [row[column] / (row[over] if over else 1) for row in rows]
    return f"{min(found):.1f} to {max(found):.1f}"


def times(parts, results):
    line = results.get(TIMES)
    say(
        parts,
        """
## Keys: decoded, not looked up

The paper makes a table for each query. Such a table has to be made for every query head and holds an entry for each pair of channels and round. The shipped kernels instead sum a page's codes
in registers, once for all queries of a KV head, and rotate the keys that come out. Both ways exist and give equal results (a test compares them), and are timed against the paper's naive
way, which writes every key and value out before it attends (`build/bin/bench_commvq`, processor time of one layer's attention for one token).
""",
    )
    if not line:
        return
    rows = []
    for tokens in DEPTHS:
        of_depth = [row for row in line["rows"] if row[5] == tokens]
        if of_depth:
            rows.append([f"{tokens:,}", *(span(of_depth, column) for column in (11, 12, 13)), span(of_depth, 6, 10)])
    shapes = list(dict.fromkeys(" x ".join(row[1:4]) for row in line["rows"]))
    say(parts, f"Times as long as the shipped way takes, over `commvq-1` and `commvq-2` and heads of {', '.join(shapes)} (queries, KV, channels), {line['kernels']} kernels:")
    head = ["tokens", "tables of each query, the paper's way", "decoded to rows, then products", "summed from float tables to rows, the paper's naive way", "the shipped way, over f16"]
    parts.append(table(head, rows, ()))
    naive = [row[9] / row[7] for row in line["rows"]]
    say(
        parts,
        f"The paper has its way 6.0, 8.4 and 9.6 times as fast as the naive one at these depths, on a GPU (table 5); here the naive way takes {min(naive):.1f} to {max(naive):.1f} times as long as "
        f"the paper's. {stamp(results)}",
    )


def write(results, options):
    models = order_of_models(options.model_names)
    parts = []
    say(
        parts,
        f"""
# CommVQ: the choices, measured

`commvq-2` and `commvq-1` store keys as sums of complex numbers that commute with RoPE (`src/backend/cpu/codec/`, tables learned by `src/train/em.c`) and values as sums of learned rows (rows
learned by `src/train/additive.c`). This page records why they are built as they are. Their quality beside other methods is in [fidelity.md](fidelity.md), with the paper's own choices changed
one at a time on [equal terms](equal-terms.md#commvq-2-bits), their speed in [performance.md](performance.md). Generated by `bench/experiments/quality.py commvq` from commit {results.commit};
[how to repeat it](#how-to-repeat-it) is at the end.
""",
    )
    values(parts, results, models, options)
    keys(parts, results, models, options)
    times(parts, results)
    say(
        parts,
        """
## Learning

Samples are weighted by the squared norm of the loss's gradient with respect to the head's key or value (`commvq-2` and `commvq-1` alike; `terse calibrate --weighting none` turns this off). The
paper has no such weights; [equal terms](equal-terms.md#commvq-2-bits) says what they are worth.

Each iteration of the expectation maximization (`em.c`) uses another part of the samples, and the last two use all of them. A fit of many rounds begins with those of fewer.

### Samples that outweigh all others

Caches keep the first 4 tokens of a sequence exact, yet as attention sinks these can have a large part of all squared gradients. They are left out, and weights are cut so that a fit, of `commvq` or
of `antkv`, keeps some effective samples for each entry or centroid, while nothing up to a few times the mean is cut (`EFFECTIVE_LEAST` and `WEIGHT_CUT_LEAST` of `src/train/calibrate.c`). How many
effective samples each codebook had stands on [the page of fidelity](fidelity.md#what-was-learned). What both are worth was measured once, against a build without them, which no longer exists: the
page of commit 907fcb6 has the figures.
""",
    )
    not_measured(parts, results)
    more = f" --encoder-steps {options.encoder_steps}" if options.encoder_steps != 1500 else ""
    how(parts, "commvq", options, more, learned_from="; tables and codes are learned from its validation split, in data")
    say(parts, "The plot needs Debian's python3-matplotlib.")
    return done(parts)


def plots(results, options):
    models = order_of_models(options.model_names)
    model = plotted(results, models, options)
    if not model:
        return []
    path, page = os.path.join(options.work, "commvq.curves"), os.path.join(options.docs, "commvq")
    curves = []
    for fit in fits_of(results.get(keys_of(model, options))):
        rounds = range(1, len(fit.held[0]) + 1)
        at = {"bits": [fit.bits(r) for r in rounds], "mean": [fit.mean(fit.held, r) for r in rounds], "heads": fit.held}
        curves.append({"name": f"{fit.pairs} pairs, {fit.entries} entries", **at})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(curves, file)
    return [[os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot_commvq.py"), path, page + ".svg", page + ".png"]]
