"""Formats figures, names of methods, paragraphs and tables of the pages below docs/reports."""

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


def mib(x):
    return f"{x / 2**20:.1f}"


def name_of(method):
    """The name of a method in a page: antkv keeps anchors unless told otherwise."""
    name, *words = method.split(":")
    words = ["with a profile" if word == "profile" else word for word in words]
    return ", ".join([f"{name}, 1% anchors" if name.startswith("antkv") else name, *words])


def replace_block(path, maker, name, text):
    """Puts text between a page's markers <!-- MAKER --> and <!-- end of NAME -->, which stand there once each."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    begin, end = f"<!-- {maker} -->\n", f"\n<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{path} has no markers of the table {name}")
    before, rest = page.split(begin)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + begin + text + end + rest.split(end)[1])
