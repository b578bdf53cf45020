"""Formats figures, names of runs, paragraphs and tables for docs/reports/fidelity.md and docs/reports/performance.md."""

import textwrap


def paragraphs(text):
    """Wraps the paragraphs of `text`; lists, headings and code stay as they are."""
    for paragraph in text.strip("\n").split("\n\n"):
        plain = paragraph[0] not in "#-!| "
        yield (textwrap.fill(paragraph, 132, break_on_hyphens=False, break_long_words=False) if plain else paragraph) + "\n\n"


def table(head, rows, words=(0,)):
    """A Markdown table. Columns in `words` hold text and are aligned left, the others hold numbers."""
    align = ["---" if i in words else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, align, *rows]) + "\n\n"


def exponent(x):
    return int(f"{abs(x):.2e}".split("e")[1])


def digits(x):
    """Three significant digits; powers of ten below 1e-4."""
    return "0" if x == 0 else f"{x:.1e}" if abs(x) < 1e-4 else f"{x:.{max(0, 2 - exponent(x))}f}"


def with_error(x, error, most):
    """0.1234 ± 0.0056: two digits of the error and as many places of the value, `most` places at most."""
    if not error > 0:
        return f"{x:g}"
    places = min(most, max(0, 1 - exponent(error)))
    if round(error, places) == 0:
        return digits(x)
    return f"{x:.{places}f} ± {error:.{places}f}"


def percent(x):
    return f"{round(100 * x, 2) + 0:.2f}"


DIFFERENCE_HEAD = ["windows", "difference of KLD", "of log perplexity, %", "verdict"]


def difference_cells(d):
    """The cells of a Difference under DIFFERENCE_HEAD."""
    (k0, k1), (l0, l1) = d.kld_interval, d.log_interval
    kld = f"{digits(d.kld)} ({digits(k0)} to {digits(k1)})"
    return [str(len(d.windows)), kld, f"{percent(d.log_ratio)} ({percent(l0)} to {percent(l1)})", d.verdict()]


def mib(x):
    return f"{x / 2**20:.1f}"


def name_of(run):
    """The name of a run in the page."""
    method, *options = run.split(":")
    if method.startswith("terse") and "codebook=none" in options:
        options[options.index("codebook=none")] = "no profile"
    options = ["with a profile" if o == "profile" else o for o in options]
    anchors = [o.split("=")[1] for o in options if o.startswith("anchors=")]
    if anchors or method.startswith("antkv"):
        options = [o for o in options if not o.startswith("anchors=")]
        method += f", {anchors[0] if anchors else '1%'} anchors"
    return ", ".join([method, *options])
