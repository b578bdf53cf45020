"""The part of "Selecting tokens" in docs/reports/fidelity.md whose prompts take up almost the whole context, so that almost all tokens read are selected ones.
Run as a program, it prints its section:

    python3 bench/reports/fidelity_deep.py FOLDER
"""

import os
import sys

from fidelity_results import Results, compare
from fidelity_text import DIFFERENCE_HEAD, difference_cells, digits, table

# (method, what a step reads of the prompt, run)
ROWS = [
    ("f16", "all", "f16"),
    ("selfindex-2, read whole", "all", "selfindex-2:read=100%"),
    ("selfindex-16", "7.5 % and 64", "selfindex-16"),
    ("selfindex-2", "7.5 % and 64", "selfindex-2"),
    ("quest", "7.5 %", "quest-160:read=7.5%"),
    ("snapkv", "keeps 7.5 %", "snapkv-2304"),
    ("selfindex-16", "96 and 64", "selfindex-16:read=96"),
    ("selfindex-2", "96 and 64", "selfindex-2:read=96"),
    ("quest", "160", "quest-160"),
    ("snapkv", "keeps 160", "snapkv-160"),
]
PAIRS = [
    ("Self-Indexing against Quest, 16 bits, 7.5 %", "selfindex-16", "quest-160:read=7.5%"),
    ("the same with 160 in all", "selfindex-16:read=96", "quest-160"),
    ("Self-Indexing with 2 bits against Quest, 7.5 %", "selfindex-2", "quest-160:read=7.5%"),
    ("the same with 160 in all", "selfindex-2:read=96", "quest-160"),
    ("Self-Indexing with 2 bits against SnapKV, 7.5 %", "selfindex-2", "snapkv-2304"),
    ("the same with 160 in all", "selfindex-2:read=96", "snapkv-160"),
    ("2 bits against 16, 7.5 %", "selfindex-2", "selfindex-16"),
]


def section(results):
    """A list of paragraphs and tables; empty when nothing was measured."""
    at = {run: results.positions(run, "default") for _, _, run in ROWS}
    rows = []
    for name, reads, run in ROWS:
        p = at[run]
        if p:
            row = [name, reads, f"{p.bits:.2f}", str(len(p.windows)), "{:.4f} ± {:.4f}".format(*p.ratio()), digits(p.mean("kld"))]
            rows.append(row + [f"{100 * p.mean('same'):.1f}"])
    if len(rows) < 2:
        return []
    context, scored = results.setup["context"], results.setup["scored"]
    claims = []
    for name, better, worse in PAIRS:
        d = compare(at[better], at[worse])
        if d:
            claims.append([name, *difference_cells(d)])
    return [
        f"### With a prompt of {context - scored:,} tokens",
        f"Windows of {context:,} tokens: an exact prefill reads the first {context - scored:,}, decoding steps read the last {scored:,}, which are scored. "
        "Almost nothing of what a step reads is its own text, so that the effect of selection shows undiluted.",
        table(["method", "read", "bits", "windows", "ratio", "KLD", "same top-1 %"], rows, (0, 1)),
        "As above, the first named minus the other:",
        table(["pair", *DIFFERENCE_HEAD], claims, (0, 4)),
    ]


def deep(report):
    folder = os.path.join(report.r.folder, "deep")
    if os.path.exists(os.path.join(folder, "setup.json")):
        for part in section(Results(folder)):
            if part.startswith("|"):
                report.text.append(part)
            else:
                report.say(part)


if __name__ == "__main__":
    print("\n".join(section(Results(sys.argv[1]))))
