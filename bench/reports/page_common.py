"""What the pages of bench/experiments/quality.py share: comparisons in pairs, rows of figures, and the paragraphs that every page has."""

import json
import math
import os

from report_text import digits, mib, paragraphs, table, with_error
from quality_measurements import WINDOWS, Measurement, name_of_model, order_of_models
from quality_texts import PROSE

HEAD = ["bits", "KLD", "99.9 %", "ratio", "same top-1 %"]


def perplexity(model, arguments, options, size, book=None, text=PROSE):
    """A measurement by terse perplexity, of the page's size or that of -c and --chunks."""
    context, windows = options.context or size[0], options.chunks or size[1]
    return Measurement("perplexity", model, tuple(arguments), book, text, (context, windows))


def without_profile(method):
    """The arguments that keep terse-N from what was learned of the model; none for other methods."""
    return ("--codebook", "none") if method.startswith("terse") else ()


def cells(line):
    """The cells of a line under HEAD."""
    if line["kld"] == 0:
        return [f"{line['bits']:.2f}", "0", "0", "1", "100.0"]
    kld, ratio = with_error(line["kld"], line["kld_error"], 7), with_error(line["ratio"], line["ratio_error"], 4)
    return [f"{line['bits']:.2f}", kld, digits(line["kld_99.9"]), ratio, f"{line['same_top']:.1f}"]


def marked(cells, line, lines):
    """The cells of a line; its bits are marked where a processor measured it and a GPU others of the table, since their caches differ in size."""
    on_both = line["device"] == "cpu" and any(other and other["device"] != "cpu" for other in lines)
    return [f"{cells[0]} (CPU)", *cells[1:]] if on_both else cells


class Difference:
    """A mean of a minus b over blocks of the same positions, with its 95 % interval (Student's t over the blocks)."""

    def __init__(self, a, b, what="kld"):
        pairs = [x - y for x, y in zip(a["blocks"][what], b["blocks"][what], strict=True)]
        n = len(pairs)
        self.mean = sum(pairs) / n
        variance = sum((x - self.mean) ** 2 for x in pairs) / (n - 1) if n > 1 else math.inf
        freedom = max(n - 1, 1)
        # The quantile of t by its expansion about the normal one: within 1 % from 3 degrees of freedom on.
        quantile = 1.96 + 2.372 / freedom + 2.822 / freedom**2 + 2.556 / freedom**3 if freedom > 2 else 12.7
        self.half = quantile * math.sqrt(variance / n) if n > 1 else math.inf

    def verdict(self, less="better", more="worse"):
        if self.mean + self.half < 0:
            return less
        return more if self.mean - self.half > 0 else "undecided"

    def text(self):
        if math.isinf(self.half):
            return digits(self.mean)
        return f"{digits(self.mean)} ({digits(self.mean - self.half)} to {digits(self.mean + self.half)})"


def say(parts, text):
    parts += paragraphs(text)


def stamp(results):
    machines = "; ".join(results.machines())
    return f"Commit {results.commit}; {machines}."


PAIRS = """\
Differences are of the same positions, by means of blocks of 256; in brackets the 95 % interval of the mean. A row is *better* or *worse* than another where the
whole interval of the difference of KLD lies on one side of zero, else it is *undecided*."""


def about_models(options):
    """Sentences of what a reader has to know of the models that are measured."""
    names = [name_of_model(model) for model in order_of_models(options.model_names)]
    found = []
    if any(name.startswith("Gemma") for name in names):
        found.append("Layers with a sliding window (15 of Gemma's 18) hold their window alone with every method, f16 too, so that bits per value compare within a model.")
    if any(name.startswith("lab-27m") for name in names):
        found.append("lab-27m and lab-27m-sink, of 27 million parameters, were trained for this project: the built-in model, which has no attention sinks, and one that was taught to have them.")
    return " ".join(found)


def sizes(results, options, size):
    context, windows = options.context or size[0], options.chunks or size[1]
    scored = windows * (context - context // 2 - 1)
    return (
        f"Of the text {windows} {'windows' if windows > 1 else 'window'} of {context:,} tokens, the same in every row: the first half of each is read exactly and sealed, the second goes through "
        f"the cache in decoding steps of 64 tokens and is scored, {scored:,} positions in all. *KLD* is the mean Kullback-Leibler divergence of the next token's distribution from "
        f"that with an f16 cache, in nats, *99.9 %* its quantile, *ratio* the perplexity over f16's, ± a standard error. *Bits* per value are resident after {context:,} tokens, all bytes "
        "counted: codes, scales, exact tokens, window, tables; codebooks excepted, which all sequences share. " + about_models(options)
    )


def learning(parts, results, models, books):
    """The section of what was learned: `books` of every model."""
    rows = []
    for model in models:
        for m in books(model):
            line = results.get(m)
            if line:
                (tokens, text), (weights, effective) = line["learned"], line["weights"]
                options = " ".join([m.book.method, *m.book.options])
                where = {"cpu": "CPU", "cuda": "GPU"}[line["device"]]
                rows.append([name_of_model(model), options, f"{int(tokens):,}", text, weights, f"{int(effective):,}", where, f"{line['seconds']:,.0f}", mib(line["bytes"])])
    if rows:
        say(parts, "## What was learned\n\nBy `terse calibrate`; seconds are of several at a time. Files in MiB.")
        parts.append(table(["model", "codebook", "tokens", "of", "weights", "effective samples", "on", "seconds", "MiB"], rows, (0, 1, 3, 4, 6)))


def on_processor(parts, results):
    """The section of what the GPU refused and the processor measured instead."""
    reasons = {}
    for line in results.found.values():
        if line.get("refused"):
            method = " ".join(line["arguments"][1:]).removesuffix(" --codebook none")
            reasons.setdefault(line["refused"], {})[f"{method} ({name_of_model(line['model'])})"] = True
    if reasons:
        say(parts, "## What the GPU does not run yet")
        parts.append("\n".join(f"- {', '.join(names)}: {why}" for why, names in reasons.items()) + "\n\n")


def not_measured(parts, results):
    missing = results.missing()
    if missing:
        say(parts, "## Not measured")
        parts.append("\n".join(f"- {len(names)}, as {names[0]}: {why}" for why, names in missing.items()) + "\n\n")


LEARNED_FROM = "; codebooks are learned from its validation split, which the program has built in"


def how(parts, name, options, more="", learned_from=LEARNED_FROM):
    given = {"-c": options.context, "--chunks": options.chunks, "--windows": options.windows if options.windows != WINDOWS else None}
    sizes = "".join(f" {name} {value}" for name, value in given.items() if value)
    say(
        parts,
        f"""
## How to repeat it

    bench/experiments/quality.py {name} run report -m MODEL.gguf [-m ...] -f wiki.test.raw{sizes}{more}

The text is the test split of WikiText{learned_from}.
""",
    )


def divergence_plot(name, points, options):
    """The command that draws {model: [(method, bits, divergence)]}, which it leaves in a file, as the plot of a page."""
    path, page = os.path.join(options.work, name + ".points"), os.path.join(options.docs, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(points, file)
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot_divergence.py"), path, page + ".svg", page + ".png"]


def done(parts):
    return "".join(parts).rstrip("\n") + "\n"
