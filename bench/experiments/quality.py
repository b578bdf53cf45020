#!/usr/bin/env python3
"""Makes pages of quality below docs/reports, each whole: learns, measures and writes. Needs the programs terse, questions, endless, recall,
commvq_tables, value_codes and bench_commvq of one build, and Python alone.

    quality.py PAGE[,PAGE...] run report -m MODEL.gguf [-m ...] -f wiki.test.raw [--jobs N] [-t N] [--devices cuda,cpu] [--work FOLDER]

Pages, each a module of bench/reports, whose head says what it measures:
    real-models   every method: divergence, perplexity, memory, planted facts; the README's table with --readme
    equal-terms   each method as its paper has it, and with single ingredients of terse's, on equal terms
    anchors       what anchors are worth, which tokens they are, and methods that evict beside each other
    endless       methods that evict, token by token
    domains       codebooks learned on prose, source code and documents, on all three
    fidelity      every method at every rate, as a cache is used and as the papers measure; methods that choose tokens, and recall of their indexes
    commvq        choices behind CommVQ's codes: how a value's code is found, and the error of the tables of keys

Steps:
    run     a line of JSON for each measurement in FOLDER/measurements.jsonl, codebooks below FOLDER/codebooks. Base files, some GB, lie in --scratch
    report  the page. Give the options of the run: they say what is looked for
    list    what the run would measure

A run goes on where it was stopped: what FOLDER/*.jsonl has of this commit is not measured again, whatever device or machine it comes from, so that the
files of several machines can be put side by side. --minutes ends a run in time; what was under way is lost. What failed is tried again. The commit
is the one that `terse --version` names; a program that was built while files differed from its commit, or that knows none, is refused, and a page is of
one commit."""

import argparse
import importlib
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.join(HERE, "..", "..")
sys.path[:0] = [HERE, os.path.join(PROJECT, "bench", "reports")]
from quality_measurements import WINDOWS, Refused, Results, Store  # noqa: E402
from quality_runner import Failed, OutOfTime, Runner, name_of  # noqa: E402
from quality_texts import make_texts  # noqa: E402

PAGES = ("real-models", "equal-terms", "anchors", "endless", "domains", "other-texts", "free-running", "fidelity", "commvq")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("pages", type=names, metavar="PAGE", help=f"one or several of {', '.join(PAGES)}")
    parser.add_argument("steps", nargs="+", choices=("run", "report", "list"), metavar="STEP", help="run, report, list")
    parser.add_argument("--terse", default=os.path.join(PROJECT, "build", "bin", "terse"), help="the program; the others lie beside it")
    parser.add_argument("-m", "--model", dest="models", action="append", default=[], help="a GGUF file; may come several times")
    parser.add_argument("-f", "--file", help="text to score: the test split of WikiText")
    parser.add_argument("--work", default=os.path.join(PROJECT, "build", "quality"), help="folder of results and codebooks")
    parser.add_argument("--scratch", help="folder of base files and texts; without it the folder of --work")
    parser.add_argument("--docs", default=os.path.join(PROJECT, "docs", "reports"), help="folder of the page")
    parser.add_argument("--readme", help="the README, to put the table of real-models into")
    parser.add_argument("--commit", help="of the page, where the folder has lines of several")
    parser.add_argument("--devices", type=names, default=["cpu"], help="cuda, cpu or both")
    parser.add_argument("--only", help="a regular expression: rows whose names have it, for trials")
    parser.add_argument("-c", "--context", type=int, help="tokens of a window; without it the page's own number")
    parser.add_argument("--chunks", type=int, help="windows, the same of all methods; without it the page's own number")
    parser.add_argument("--questions", type=numbers, default=[4096, 16384], help="lengths in tokens; those over 8192 for Qwen2.5 alone")
    parser.add_argument("--windows", type=int, default=WINDOWS, help="of 2,048 tokens, from which every codebook is learned")
    parser.add_argument("--encoder-steps", type=int, default=1500, help="of the paper's encoder of values, on the page commvq; the paper trains it for 100,000 or more")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which the run ends")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that one command may take")
    parser.add_argument("-t", "--threads", type=int, default=2, help="of each command")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="commands on the processor at a time")
    parser.add_argument("--gpu-jobs", type=int, default=2, help="commands on each GPU at a time")
    options = parser.parse_args()
    options.scratch = options.scratch or options.work
    unknown = set(options.pages) - set(PAGES)
    if unknown:
        parser.error(f"there is no page {', '.join(unknown)}: use {', '.join(PAGES)}")
    if not options.models:
        parser.error("give -m MODEL.gguf")
    if set(options.devices) - {"cuda", "cpu"}:
        parser.error("--devices takes cuda, cpu or cuda,cpu")
    if "run" in options.steps:
        if not options.file:
            parser.error("run needs -f TEXT")
        for path in [*options.models, options.terse, options.file]:
            if not os.path.exists(path):
                parser.error(f"there is no {path}")
    return options


def measurements_of(page, options):
    wanted = page.measurements(options)
    return [m for m in wanted if not options.only or re.search(options.only, m.name())]


def with_matplotlib():
    """A Python that has it: Debian's own, where another comes first."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode == 0:
            return python
    raise Refused("the plot needs matplotlib: install Debian's python3-matplotlib")


def report(name, page, options):
    results = Results(Store(options.work), measurements_of(page, options), options.commit)
    path = os.path.join(options.docs, name + ".md")
    text = page.write(results, options)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    for plot in getattr(page, "plots", lambda *_: [])(results, options):
        subprocess.run([with_matplotlib(), *plot], check=True)
    missing = results.missing()
    for why, names in missing.items():
        print(f"quality.py: {len(names)} of {name} not measured, as {names[0]}: {why}", file=sys.stderr)


def main():
    options = parse()
    options.model_names = [name_of(path) for path in options.models]
    pages = {name: importlib.import_module("page_" + name.replace("-", "_")) for name in options.pages}
    try:
        if "list" in options.steps:
            print(*[m.name() for page in pages.values() for m in measurements_of(page, options)], sep="\n")
        if "run" in options.steps:
            options.texts = make_texts(options.file, options.scratch)
            Runner(options, Store(options.work)).run([m for page in pages.values() for m in measurements_of(page, options)])
        if "report" in options.steps:
            for name, page in pages.items():
                report(name, page, options)
    except (Failed, OutOfTime, Refused, ValueError) as error:
        sys.exit(f"quality.py: {error or 'time is over before anything began'}")


if __name__ == "__main__":
    main()
