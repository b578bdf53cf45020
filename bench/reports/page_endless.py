"""docs/reports/endless.md: methods that keep a bounded number of tokens, token by token from the first one on, as StreamingLLM and MAT measure themselves:
perplexity with the number of MAT's anchors on a grid, and beside other rules of eviction; and memory over a text much longer than a model's context."""

from page_common import Difference, done, how, not_measured, say, stamp, table
from report_text import with_error
from quality_measurements import Measurement, name_of_model, order_of_models
from quality_texts import PROSE

SIZE = (4096, 1)
STEP = 1
GRID = (4, 16, 32, 64, 96)
KEPT = (256, 512)
LONG = (50000, 1, 64)  # window, windows, step: the first of the models reads it
LONG_METHODS = ("streaming-512", "mat-512")


def rows():
    found = ["f16"]
    for n in KEPT:
        found += [f"streaming-{n}", *(f"mat-{n}:anchors={b}" for b in GRID)]
        found += [f"mat-{n}:anchors=64:shallow=0", f"mat-{n}:anchors=64:leave=least", f"mat-{n}:anchors=64:leave=random"]
    return found


def of(model, method, options):
    size = (options.context or SIZE[0], options.chunks or SIZE[1], STEP)
    return Measurement("endless", model, ("--methods", method), None, PROSE, size)


def measurements(options):
    return [*long_of(options).values(), *(of(model, method, options) for method in rows() for model in options.model_names)]


def long_of(options):
    first = order_of_models(options.model_names)[0]
    return {method: Measurement("endless", first, ("--methods", method), None, PROSE, LONG) for method in LONG_METHODS}


def memory(parts, results, options):
    lines = {method: line for method, m in long_of(options).items() if (line := results.get(m))}
    if not lines:
        return
    say(
        parts,
        f"""
## Memory

{LONG[0]:,} tokens of the text read by {name_of_model(order_of_models(options.model_names)[0])} in steps of {LONG[2]}, which are exact among themselves: perplexity of each 10,000, MiB of the cache, and of
the process (VmRSS).
""",
    )
    rows = []
    for i, (tokens, *_) in enumerate(next(iter(lines.values()))["parts"]):
        rows.append([f"{tokens:,.0f}", *(f"{x:.{places}f}" for line in lines.values() for x, places in zip(line["parts"][i][1:], (1, 2, 1)))])
    head = ["tokens, to"]
    for method in lines:
        head += [f"{method}: perplexity", "cache", "process"]
    parts.append(table(head, rows, ()))
    say(parts, stamp(results))


def label(method):
    name, *words = method.split(":")
    says = {"anchors": "anchors", "shallow": "shallow layers"}
    more = [f"{w.split('=')[1]} {says[w.split('=')[0]]}" if w.split("=")[0] in says else f"evicts {w.split('=')[1]}" for w in words]
    return ", ".join([name, *more])


def against(line, other):
    """The difference of log perplexity in percent, and the verdict."""
    d = Difference(line, other, "nll")
    return f"{100 * d.mean:.2f} ± {100 * d.half:.2f}, {d.verdict()}"


def perplexities(parts, results, models, options):
    found = []
    for method in rows():
        row = [label(method)]
        streaming = "streaming-" + method.split(":")[0].split("-")[1] if method.startswith("mat") else None
        for model in models:
            line, other = results.get(of(model, method, options)), results.get(of(model, streaming, options)) if streaming else None
            row += [f"{line['resident'] / 2**20:.2f}", with_error(line["perplexity"], line["perplexity_error"], 3)] if line else ["", ""]
            row.append(against(line, other) if line and other else "")
        if any(row[1:]):
            found.append(row)
    head = ["method"]
    for model in models:
        head += [f"{name_of_model(model)}: MiB", "perplexity", "log perplexity less streaming's, %"]
    parts.append(table(head, found, (0, *(3 * (i + 1) for i in range(len(models))))))
    say(parts, stamp(results))


def best(parts, results, models, options):
    lines = []
    for model in models:
        for n in KEPT:
            streaming = results.get(of(model, f"streaming-{n}", options))
            grid = [(line["perplexity"], b, line) for b in GRID if (line := results.get(of(model, f"mat-{n}:anchors={b}", options)))]
            if streaming and grid:
                _, b, line = min(grid, key=lambda one: one[0])
                verdict = Difference(line, streaming, "nll").verdict("better than", "worse than")
                chance = results.get(of(model, f"mat-{n}:anchors=64:leave=random", options))
                own = results.get(of(model, f"mat-{n}:anchors=64", options))
                text = f"- {name_of_model(model)}, {n} tokens: of the grid {b} anchors are best, {verdict.replace('undecided', 'not decidedly better or worse than')} streaming-{n}"
                if chance and own:
                    rule = Difference(own, chance, "nll").verdict("better than", "worse than").replace("undecided", "not decidedly better or worse than")
                    text += f"; with 64 anchors, those of MAT's rule are {rule} random ones"
                lines.append(text + ".")
    if lines:
        say(parts, "The best of the grid is chosen on the text that it is measured on, as in the paper, which favours MAT:")
        parts.append("\n".join(lines) + "\n\n")


def write(results, options):
    models = order_of_models(options.model_names)
    window, windows = options.context or SIZE[0], options.chunks or SIZE[1]
    parts = []
    say(
        parts,
        f"""
# Text without end

Methods that keep a bounded number of tokens can write without end in constant memory: `streaming-N` (StreamingLLM: the first 4 tokens and the newest),
`mat-N` (MAT: anchor tokens and the newest), and either with the codes of any other method (`--kv q4_0 --evict mat-1024`). Generated by `bench/experiments/quality.py endless` from
commit {results.commit}; [how to repeat it](#how-to-repeat-it) is at the end.

## Perplexity, token by token

Of the text {windows} {"windows" if windows > 1 else "window"} of {window:,} tokens, each read from an empty cache, one token a step, and scored at every token. Positions are those in the cache, and one token is evicted after each step: a
query sees the N tokens that are kept and its own. MAT's paper evicts before it attends, so that its budget is N + 1 of these; which tokens are kept is the same. *anchors* are the tokens
beside the newest, the first one among them (the paper's beta). MAT evicts the candidate with the largest logit to the first token; *evicts least* is the opposite rule, *evicts random* none.
In the first two layers the first 4 tokens are kept instead, but where there are 0 shallow layers. Differences are of the same tokens, by means of blocks of 256, ± half of the 95 % interval. *MiB* are those
of the cache at the end.
""",
    )
    perplexities(parts, results, models, options)
    best(parts, results, models, options)
    memory(parts, results, options)
    say(
        parts,
        """
`terse run` generates one token a step; it reads a prompt in one exact prefill and evicts after it, by the same rule. `test_mat` holds the cache to MAT's definition, token by token.
""",
    )
    not_measured(parts, results)
    how(parts, "endless", options, learned_from="")
    return done(parts)
