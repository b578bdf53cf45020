"""docs/reports/equal-terms.md: each method as its paper has it, then with one ingredient changed at a time, then as terse has it. All of a model by the
same windows of text, codebooks from the same tokens, every resident byte counted."""

from page_common import HEAD, PAIRS, Difference, cells, done, how, learning, not_measured, perplexity, say, sizes, stamp, table, without_profile
from report_text import digits
from quality_measurements import Book, learned, name_of_model, order_of_models

SIZE = (8192, 1)  # the first half is longer than the 2,052 tokens that terse-N waits for
FISHER = ("--weighting", "part", "--power", "2", "--text-labels")  # squared gradients of the loss against the text
PAPER = ("--kv-first-tokens", "0")  # no paper but StreamingLLM's and Self-Indexing's has exact first tokens; the window of 128 is theirs, or practice
ANCHORS = ("--anchors", "1%", "--anchor-score", "l1")
SQUARED = ("--anchors", "1%")


class Row:
    def __init__(self, label, method, arguments, learns=None):
        """learns: (method, options) of the codebook."""
        self.label, self.arguments, self.learns = label, ("--kv", method, *arguments), learns


class Family:
    """The first row is the paper's form, the last terse's; the others change one thing of the first."""

    def __init__(self, name, paper, rows):
        self.name, self.paper, self.rows = name, paper, rows


def antkv(bits):
    vq, own = f"cq-{bits}", f"antkv-{bits}"
    fisher = (vq, FISHER)
    rows = [
        Row("paper", vq, (*PAPER, *ANCHORS), fisher),
        Row("no anchors", vq, PAPER, fisher),
        Row("anchors by squared errors", vq, (*PAPER, *SQUARED), fisher),
        Row("no weights", vq, (*PAPER, *ANCHORS), (vq, ())),
        Row("weights of the whole head", vq, (*PAPER, *ANCHORS), (vq, ("--weighting", "head", "--power", "2", "--text-labels"))),
        Row("weights to the power 1", vq, (*PAPER, *ANCHORS), (vq, ("--weighting", "part", "--power", "1", "--text-labels"))),
        Row("weights by drawn labels", vq, (*PAPER, *ANCHORS), (vq, ("--weighting", "part", "--power", "2"))),
        Row("gain", own, (*PAPER, *ANCHORS), (own, FISHER)),
        Row("gain and mean", own, (*PAPER, *ANCHORS), (own, (*FISHER, "--mean", "subtract"))),
        Row("first 4 tokens exact", vq, ANCHORS, fisher),
        Row("no window", vq, (*PAPER, *ANCHORS, "--kv-tail-tokens", "0"), fisher),
        Row("terse", own, (), (own, ())),
    ]
    return Family(
        f"AnTKV, {bits} bit{'s' if bits > 1 else ''}",
        "Centroids of keys before rotation and of values, weighted by squared gradients of the loss against the text per sub-vector (the paper leaves norm and power "
        "open), 1 % of a prompt's tokens exact by attention times the L1 error, a window of 128 (the paper gives none).",
        rows,
    )


def cq(bits):
    vq = f"cq-{bits}"
    rows = [
        Row("paper", vq, (*PAPER, "--kv-tail-tokens", "0"), (vq, FISHER)),
        Row("no weights", vq, (*PAPER, "--kv-tail-tokens", "0"), (vq, ())),
        Row("window of 128", vq, PAPER, (vq, FISHER)),
        Row("first 4 tokens exact", vq, ("--kv-tail-tokens", "0"), (vq, FISHER)),
        Row("terse", vq, (), (vq, ())),
    ]
    return Family(f"CQ, {bits} bit{'s' if bits > 1 else ''}", "Centroids weighted by the Fisher information (squared gradients per coupled group); neither window nor exact tokens.", rows)


def million(bits):
    name = f"million-{bits}"
    rows = [
        Row("paper", name, PAPER, (name, ("--shared",))),
        Row("codebooks of each layer and KV head", name, PAPER, (name, ())),
        Row("weights", name, PAPER, (name, ("--shared", *FISHER))),
        Row("first 4 tokens exact", name, (), (name, ("--shared",))),
        Row("terse", name, (), (name, ())),
    ]
    return Family(f"MILLION, {bits} bits", "One codebook of keys and one of values for the whole model, without weights; a window of 128.", rows)


def commvq(bits):
    name = f"commvq-{bits}"
    plain = ("--weighting", "none", "--mean", "none")
    rows = [
        Row("paper, but for its encoder", name, PAPER, (name, plain)),
        Row("weights", name, PAPER, (name, ("--mean", "none"))),
        Row("mean", name, PAPER, (name, ("--weighting", "none"))),
        Row("first 4 tokens exact", name, (), (name, plain)),
        Row("terse", name, (), (name, ())),
    ]
    return Family(
        f"CommVQ, {bits} bit{'s' if bits > 1 else ''}",
        "Tables that commute with RoPE, rows normalized by their size alone, no weights; a window of 128. The paper finds a value's code by a trained network, which the "
        "command does not have ([an experiment has](commvq.md#values-a-search-instead-of-an-encoder)): all rows search.",
        rows,
    )


def plain_family(name, method, paper, rows=()):
    return Family(name, paper, [Row("paper", method, PAPER), *rows, Row("terse", method, ())])


FAMILIES = (
    antkv(2),
    antkv(1),
    cq(2),
    cq(1),
    million(4),
    million(2),
    commvq(2),
    commvq(1),
    plain_family("KIVI, 2 bits", "kivi-2", "Keys by channel, values by token; a window of 128.", (Row("no window", "kivi-2", (*PAPER, "--kv-tail-tokens", "0")),)),
    plain_family("q4_0", "q4_0", "llama.cpp's blocks of 32, here with a window of 128.", (Row("no window", "q4_0", (*PAPER, "--kv-tail-tokens", "0")),)),
    Family(
        "terse-N",
        "No paper; *bare* has neither window nor exact first tokens.",
        [Row(f"{name}, {label}", name, arguments) for name in ("terse-2", "terse-1") for label, arguments in (("bare", (*PAPER, "--kv-tail-tokens", "0")), ("window of 128", PAPER), ("terse", ()))],
    ),
)


def book_of(row, options):
    return Book(row.learns[0], options.windows, row.learns[1]) if row.learns else None


def of(row, model, options):
    return perplexity(model, (*row.arguments, *without_profile(row.arguments[1])), options, SIZE, book_of(row, options))


def rows():
    return [row for family in FAMILIES for row in family.rows]


def f16(model, options):
    return perplexity(model, ("--kv", "f16"), options, SIZE)


def books(model, options):
    return list(dict.fromkeys(learned(model, book_of(row, options)) for row in rows() if row.learns))


def measurements(options):
    found = []
    for model in options.model_names:
        found += [m for m in books(model, options) if "commvq" in m.book.method]  # take longest
        found += [f16(model, options), *(of(row, model, options) for row in rows()), *books(model, options)]
    return found


def family_table(results, family, models, options):
    """A row for each form; of each model bits, KLD, and the difference from the first row."""
    lines = []
    for row in family.rows:
        found = [results.get(of(row, model, options)) for model in models]
        first = [results.get(of(family.rows[0], model, options)) for model in models]
        if not any(found):
            continue
        line = [row.label]
        for a, b in zip(found, first):
            line += [*cells(a)[:2], cells(a)[3]] if a else ["", "", ""]
            if not a or not b or row is family.rows[0] or family.name == "terse-N":
                line.append("")
            else:
                line.append(f"{Difference(a, b).text()} {Difference(a, b).verdict()}")
        lines.append(line)
    head = ["form"]
    for model in models:
        head += [f"{name_of_model(model)}: bits", "KLD", "ratio", "KLD less the first row's"]
    return table(head, lines, (0, *(4 * (i + 1) for i in range(len(models)))))


def verdict(results, family, models, options):
    """Sentences: what the whole of terse's form changes, and which single change of the paper's form goes farthest."""
    sentences = []
    for model in models:
        lines = [results.get(of(row, model, options)) for row in family.rows]
        if not lines[0] or not lines[-1] or family.name == "terse-N":
            continue
        whole = Difference(lines[-1], lines[0])
        factor = lines[-1]["kld"] / lines[0]["kld"]
        text = f"{name_of_model(model)}: terse's form is {whole.verdict('nearer to f16 than', 'farther from f16 than') if whole.verdict() != 'undecided' else 'not decidedly nearer to f16 than'} the paper's, "
        text += f"{factor:.2f} times its KLD in {lines[-1]['bits'] / lines[0]['bits']:.2f} times its bits"
        singles = [(Difference(line, lines[0]), row, line) for row, line in zip(family.rows[1:-1], lines[1:-1]) if line]
        decided = [one for one in singles if one[0].verdict() == "better"]
        if decided:
            _, row, line = min(decided, key=lambda one: one[0].mean)
            text += f"; alone, *{row.label}* makes the most of it, {line['kld'] / lines[0]['kld']:.2f} times"
        else:
            text += "; no single change is better by itself"
        worse = [row.label for d, row, _ in singles if d.verdict() == "worse"]
        sentences.append(f"- {text}." + (f" Worse: {', '.join(worse)}." if worse else ""))
    return "\n".join(sentences) + "\n\n" if sentences else ""


def smallest(results, models, options):
    """Which methods no other beats in both bits and KLD, of the rows named terse and paper."""
    lines = []
    for model in models:
        found = [(line["bits"], line["kld"], f"{family.name}, {row.label}") for family in FAMILIES for row in family.rows if (line := results.get(of(row, model, options)))]
        front = sorted(one for one in found if not any(o[0] <= one[0] and o[1] < one[1] for o in found))
        lines.append([name_of_model(model), "; ".join(f"{name} ({bits:.2f}: {digits(kld)})" for bits, kld, name in front)])
    return table(["model", "rows with no other of fewer bits and less divergence (bits: KLD)"], lines, (0, 1))


def write(results, options):
    models = order_of_models(options.model_names)
    parts = []
    say(
        parts,
        f"""
# The methods as their papers have them, on equal terms

Each method as its paper has it, then with one thing changed at a time, then as terse has it: which ingredient makes the difference. Generated by
`bench/experiments/quality.py equal-terms` from commit {results.commit}; [how to repeat it](#how-to-repeat-it) is at the end.

{sizes(results, options, SIZE)}

Every codebook of a model is learned from the same tokens ([table](#what-was-learned)). All of them, the papers' forms too, leave out the first 4 tokens of each window in
learning, limit the weight of a sample and round centroids to a grid, as terse does: these three cannot be switched off.

{PAIRS}

MAT token by token, with its number of anchors on a grid, is in [endless.md](endless.md), what anchors are worth in [anchors.md](anchors.md).
""",
    )
    for family in FAMILIES:
        if not any(results.get(of(row, model, options)) for row in family.rows for model in models):
            continue
        say(parts, f"## {family.name}")
        say(parts, family.paper)
        parts.append(family_table(results, family, models, options))
        parts.append(verdict(results, family, models, options))
        say(parts, stamp(results))
    say(parts, "## What is worth choosing")
    parts.append(smallest(results, models, options))
    learning(parts, results, models, lambda model: books(model, options))
    say(parts, "Left out: CommVQ's trained encoder of values, which the command does not have; trellis and other codes of other programs, which were not run here.")
    not_measured(parts, results)
    how(parts, "equal-terms", options)
    return done(parts)
