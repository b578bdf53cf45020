"""docs/reports/anchors.md: what anchors are worth: how many, chosen how, beside exact first tokens or in their place, where they lie; and of methods that
evict what MAT's anchors are worth, beside StreamingLLM and SnapKV of the same bytes."""

from page_common import PAIRS, Difference, cells, done, how, learning, marked, not_measured, perplexity, say, sizes, stamp, table, without_profile
from quality_measurements import Book, Measurement, learned, name_of_model, order_of_models
from quality_texts import PROSE

SIZE = (8192, 1)  # the first half is longer than the 2,052 tokens that terse-N waits for
CODES = ("antkv-1", "kivi-2", "terse-1")
SHARES = (0.25, 1, 2, 4)
FIRST = 4
MAT_ANCHORS = (16, 64, 256, 1024)


def context(options):
    return options.context or SIZE[0]


def book_of(method, options):
    return Book(method, options.windows) if method.startswith("antkv") else None


def anchors(share, score="squared"):
    words = ("--anchors", f"{share:g}%")
    return words if score == "squared" else (*words, "--anchor-score", score)


def in_place(share, options):
    """First tokens that take as many bytes as the first 4 and so many anchors."""
    return ("--anchors", "0%", "--kv-first-tokens", str(FIRST + round(context(options) // 2 * share / 100)))


NONE = ("--anchors", "0%")
NO_FIRST = ("--kv-first-tokens", "0")


def forms(options):
    """(label, arguments, the label of the row that it is compared with)"""
    rows = [("none", NONE, None)]
    rows += [(f"{s:g} %", anchors(s), "none") for s in SHARES]
    for share in (1, 4):
        rows += [
            (f"{share} %, L1 errors", anchors(share, "l1"), f"{share} %"),
            (f"{share} %, random", anchors(share, "random"), "none"),
            (f"{share} % more first tokens instead", in_place(share, options), "none"),
        ]
    rows += [("none, no first tokens", (*NONE, *NO_FIRST), "none"), ("1 %, no first tokens", (*anchors(1), *NO_FIRST), "none, no first tokens")]
    rows += [("1 %, L1 errors, no first tokens", (*anchors(1, "l1"), *NO_FIRST), "none, no first tokens")]
    return rows


def paper_forms():
    rows = [("none", NONE, None), ("1 %", anchors(1), "none"), ("4 %", anchors(4), "none")]
    return rows + [("none, no first tokens", (*NONE, *NO_FIRST), "none"), ("1 %, no first tokens", (*anchors(1), *NO_FIRST), "none, no first tokens")]


def of(model, method, arguments, options, paper=False):
    more = ("--paper",) if paper else ()
    return perplexity(model, ("--kv", method, *arguments, *without_profile(method), *more), options, SIZE, book_of(method, options))


def places_of(model, method, options):
    return Measurement("places", model, ("--kv", method, *anchors(1), *without_profile(method)), book_of(method, options), PROSE, (context(options),))


def evicting(options):
    """(label, arguments) of methods that keep as many bytes at the end of a window."""
    half = context(options) // 2
    n = half + half // 8  # snapkv's of the prompt, and all behind it
    rows = [(f"streaming-{n}", ("--kv", f"streaming-{n}"))]
    rows += [(f"mat-{n}, {b} anchors", ("--kv", f"mat-{n}", "--mat-anchors", str(b))) for b in MAT_ANCHORS if b < n]
    rows += [(f"mat-{n}, 64 anchors, all layers", ("--kv", f"mat-{n}", "--mat-anchors", "64", "--mat-shallow", "0"))]
    return [*rows, (f"snapkv-{n - half}", ("--kv", f"snapkv-{n - half}"))]


def measurements(options):
    found = []
    for model in options.model_names:
        found.append(perplexity(model, ("--kv", "f16"), options, SIZE))
        for method in CODES:
            found += [of(model, method, arguments, options) for _, arguments, _ in forms(options)]
            if not method.startswith("terse"):
                found += [of(model, method, arguments, options, True) for _, arguments, _ in paper_forms()]
        found += [places_of(model, method, options) for method in CODES]
        found += [perplexity(model, arguments, options, SIZE) for _, arguments in evicting(options)]
        found.append(learned(model, Book("antkv-1", options.windows)))
    return found


def compared(lines, rows):
    """Table rows of [label, cells of each model], where lines[label] is a list by model."""
    result, every = [], [line for of_models in lines.values() for line in of_models]
    for label, _, other in rows:
        row = [label]
        for i, line in enumerate(lines[label]):
            row += marked(cells(line)[:2], line, every) if line else ["", ""]
            against = lines[other][i] if other else None
            if line and against:
                d = Difference(line, against)
                row.append(f"{line['kld'] / against['kld']:.3f}, {d.verdict()}")
            else:
                row.append("")
        result.append(row if any(lines[label]) else None)
    return [row for row in result if row]


def heads(models, last):
    return [cell for model in models for cell in (f"{name_of_model(model)}: bits", "KLD", last)]


def code_tables(parts, results, models, options):
    for method in CODES:
        rows = forms(options)
        lines = {label: [results.get(of(m, method, arguments, options)) for m in models] for label, arguments, _ in rows}
        found = compared(lines, rows)
        if not found:
            continue
        say(parts, f"### {method}")
        parts.append(table(["anchors of a prompt", *heads(models, "times the row it is compared with")], found, (0, *(3 * (i + 1) for i in range(len(models))))))
        parts.append(sentences(lines, models))
        say(parts, stamp(results))


def sentences(lines, models):
    """What decides it, of each model: what 1 % of anchors are worth beside the first tokens, in their place, and beside random ones."""
    found = []
    for i, model in enumerate(models):
        get = lambda label: lines[label][i]  # noqa: E731
        if not all(get(label) for label in ("none", "1 %", "1 %, random", "none, no first tokens", "1 %, no first tokens")):
            continue
        beside, instead = get("1 %")["kld"] / get("none")["kld"], get("1 %, no first tokens")["kld"] / get("none, no first tokens")["kld"]
        first = get("none")["kld"] / get("none, no first tokens")["kld"]
        chance = Difference(get("1 %"), get("1 %, random")).verdict("better than", "worse than").replace("undecided", "not decidedly better than")
        found.append(
            f"- {name_of_model(model)}: 1 % of anchors take the divergence to {beside:.3f} of what it is with the first {FIRST} tokens exact, and to {instead:.3f} without these; "
            f"the first {FIRST} tokens alone take it to {first:.3f}. Anchors chosen by score are {chance} random ones."
        )
    return "\n".join(found) + "\n\n" if found else ""


def paper_tables(parts, results, models, options):
    for method in CODES:
        rows = paper_forms()
        lines = {label: [results.get(of(m, method, arguments, options, True)) for m in models] for label, arguments, _ in rows}
        found = compared(lines, rows)
        if found:
            say(parts, f"### {method}, every token reads codes")
            parts.append(table(["anchors", *heads(models, "times the row it is compared with")], found, (0, *(3 * (i + 1) for i in range(len(models))))))
            say(parts, stamp(results))


def places(parts, results, models, options):
    for model in models:
        rows = []
        for method in CODES:
            line = results.get(places_of(model, method, options))
            if not line:
                continue
            of_heads, n = line["anchors"]["heads"], line["kv_heads"]
            for layer in range(len(of_heads) // n):
                of_layer = of_heads[layer * n : (layer + 1) * n]
                means = [100 * sum(head[i] for head in of_layer) / n for i in range(4)]
                most = [100 * max(head[i] for head in of_layer) for i in range(2)]
                rows.append([method, str(layer), *(f"{x:.0f}" for x in (*means, *most))])
        if rows:
            say(parts, f"### {name_of_model(model)}")
            head = ["codes", "layer", "early, keys", "early, values", "common, keys", "common, values", "early keys, most of a KV head", "early values, most of a KV head"]
            parts.append(table(head, rows))
            say(parts, stamp(results))


def evicted(parts, results, models, options):
    rows, found = evicting(options), []
    for label, arguments in rows:
        row = [label]
        for model in models:
            line = results.get(perplexity(model, arguments, options, SIZE))
            first = results.get(perplexity(model, rows[0][1], options, SIZE))
            row += [*cells(line)[:2], cells(line)[3]] if line else ["", "", ""]
            row.append(Difference(line, first).verdict() if line and first and label != rows[0][0] else "")
        if any(row[1:]):
            found.append(row)
    head = ["method"]
    for model in models:
        head += [f"{name_of_model(model)}: bits", "KLD", "ratio", "than streaming"]
    if found:
        parts.append(table(head, found, (0, *(4 * (i + 1) for i in range(len(models))))))
        say(parts, stamp(results))


def write(results, options):
    models = order_of_models(options.model_names)
    parts = []
    say(
        parts,
        f"""
# What anchors are worth

AnTKV keeps 1 % of a prompt's tokens exact, and MAT keeps some old tokens for their low logit to the first one: how much of either is worth it on models that
have attention sinks, and why. Generated by `bench/experiments/quality.py anchors` from commit {results.commit}; [how to repeat it](#how-to-repeat-it) is at the end.

{sizes(results, options, SIZE)}

{PAIRS}

## Anchors beside codes

Anchors are chosen in every layer and KV head, keys and values apart, by Anchor Score times squared error, times L1 error (AnTKV's theorem 3.1) or at random. terse keeps the first
{FIRST} tokens exact with every method that has codes; no paper of these has that. *More first tokens instead* are so many more exact first tokens as each side of a KV head would
have anchors (a GPU keeps rows of both sides of a token that is an anchor of either, hence the bits; a processor does not: rows measured there are marked *CPU*). The last column divides the divergence by that of the row without anchors, of rows with other errors by that of squared errors.
""",
    )
    code_tables(parts, results, models, options)
    say(parts, "## In the papers' protocol\n\nEvery token reads compressed keys and values, its own included (`terse perplexity --paper`), and no window is exact: errors near a query count, too.")
    paper_tables(parts, results, models, options)
    say(
        parts,
        f"""
## Where anchors lie

1 % of a prompt of about {context(options):,} tokens. *Early* are the anchors among the first 64 tokens, *common* those on tokens that are anchors in at least a fourth of all KV heads
of all layers, in percent of a layer's anchors, means over its KV heads. The first {FIRST} tokens are exact beside them. Spread evenly, {6400 / context(options):.1f} % would be early.
""",
    )
    places(parts, results, models, options)
    say(
        parts,
        """
## Methods that evict, with the same bytes at the end

The first half of a window is read exactly, then tokens are evicted, and with streaming and MAT again after each step: SnapKV holds its part of the prompt and every later token, so that
it has fewer tokens in the middle of the second half and as many at its end. MAT and StreamingLLM token by token, as their papers have them, are in [endless.md](endless.md).
""",
    )
    evicted(parts, results, models, options)
    learning(parts, results, models, lambda model: [learned(model, Book("antkv-1", options.windows))])
    not_measured(parts, results)
    how(parts, "anchors", options)
    return done(parts)
