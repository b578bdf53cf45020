#!/usr/bin/env python3
"""Measures the tables of docs/cuda.md and of its reports that programs of bench/cuda print, and writes them into these pages.

    speed.py run [PART...] --build build-cuda --lines speed.jsonl      on a machine with a GPU
    speed.py write speed.jsonl [FILE...] [--docs docs]

`run` needs the targets cuda_programs, terse_command, terse-cuda, make_model and bench_sealing_steps of a build of a commit with nothing changed. It keeps what each command printed, with the commit, the GPU, its driver and the date; it goes on where it was interrupted. `write` replaces what
stands between <!-- speed.py TABLE --> and <!-- end of TABLE --> in the pages, where a table was measured; text around it is written by hand.

Parts, and estimates of the GPU time that each takes, about a second for each method and shape of attention:

    attention     110 s   all methods and shapes that read all tokens
    pytorch        20 s   f16 by PyTorch, beside terse's own
    heads          10 s   both with 32 KV heads, as LLaMA-2-7B has them
    choice         40 s   steps that choose their tokens
    encode         15 s   pages encoded and decoded
    weights        30 s   products with weights
    anchors        15 s   anchors beside a prompt, and mat-N
    commvq         15 s   three ways to read CommVQ's pages
    million-tables 20 s   million-4's pages by tables of a query's products
    steps         170 s   whole steps of an 8B model, or 8 or 4 of its layers, which make_model makes
    small-steps    30 s   the same of a 0.5B model and of each model of -m
    papers        280 s   whole steps and prompts at the shapes of the papers, of models that make_model makes
    second-token   60 s   prompts and steps behind them at the shapes of Self-Indexing KVCache
    batches        60 s   whole steps of 1, 8 and 32 sequences with the papers' methods
    largest       200 s   batches and contexts that fill 80 GB, within a limit of the KV cache
    whole          50 s   batches without a limit, of a GPU of 140 GB
    prefill        30 s   a prompt's attention, beside PyTorch's
    sealing        40 s   steps with pages encoded beside them and within them
    divergence     90 s   methods on the GPU beside the processor, which takes most of that
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "experiments"), os.path.join(HERE, "..", "reports")]
from quality_runner import Failed, Runner  # noqa: E402
from report_text import replace_block, table  # noqa: E402

SCALAR = ["f16", "kivi-4", "terse-4", "terse-3", "terse-2", "terse-1"]
OTHER_SCALAR = ["q8_0", "q4_0", "kivi-2"]
LEARNED = ["million-4", "million-3", "million-2", "antkv-4", "antkv-2", "antkv-1", "commvq-2", "commvq-1"]
CHOOSING = ["selfindex-2@7.5", "quest@7.5", "f16@7.5", "q4_0@7.5", "terse-4@7.5", "terse-2@7.5", "terse-1@7.5"]
SHAPES = ["1x1024", "1x8192", "1x32768", "1x131072", "8x8192", "8x32768", "8x131072"]
CHOICE_SHAPES = ["1x32768", "1x131072", "8x32768", "8x131072", "10x16384"]
PAPER_SHAPES = ["1x8192", "1x32768", "8x32768", "1x131072", "8x131072"]
GOALS = {  # of best f16 over the method, in the order of PAPER_SHAPES but the first
    "million-4": (1.7, 3, 2.6, 3.2),
    "million-2": (2.1, 5, 3.7, 5.5),
    "antkv-4": (1.8, 2.8, 2.4, 3),
    "antkv-2": (2, 4, 3.2, 4.5),
    "antkv-1": (2, 4.5, 3.5, 5),
    "commvq-2": (0.8, 0.8, 1, 0.8),
    "commvq-1": (1, 1.2, 1.2, 1.2),
    "selfindex-2@7.5": (1.8, 6, 5, 9),
    "terse-2@7.5": (1.8, 6, 5, 9),
}
TERSE_GOALS = {  # the same in the order of SHAPES
    "terse-4": (0.8, 1.3, 1.9, 2.6, 2.3, 2.9, 3.2),
    "terse-3": (0.8, 1.35, 2.1, 3.1, 2.6, 3.5, 4.0),
    "terse-2": (0.85, 1.5, 2.6, 4.0, 3.3, 4.8, 5.5),
    "terse-1": (0.9, 1.7, 2.9, 5.2, 4.0, 7.0, 8.5),
}
ENCODED = ["f16", "q8_0", "q4_0", "kivi-4", "kivi-2", "terse-4", "terse-3", "terse-2", "terse-1", "million-4", "million-3", "million-2", "antkv-2", "antkv-1", "antkv-0.75", "antkv-0.375", "commvq-2", "commvq-1"]
WEIGHTS = ["F16", "BF16", "Q8_0", "Q6_K", "Q4_K", "Q4_0"]
STEP_METHODS = ["f16", "q4_0", "terse-4", "terse-2"]
BENCH = "terse bench -m {} --device cuda --allow-longer-context -o json"
MADE = {"8b-4-layers.gguf": ["8b", "q4_k", "8b-4-layers.gguf", "4"], "8b-8-layers.gguf": ["8b", "q4_k", "8b-8-layers.gguf", "8"], "8b.gguf": ["8b", "q4_k", "8b.gguf"], "7b.gguf": ["7b", "q4_k", "7b.gguf"], "0.5b.gguf": ["0.5b", "q4_0", "0.5b.gguf"]}  # by make_model
STEPS = [  # model, sequences, depths: as much as f16 holds in 80 GB
    ("8b-8-layers.gguf", 1, "8192,32768,131072"),
    ("8b-8-layers.gguf", 8, "8192,32768,131072"),
    ("8b-8-layers.gguf", 32, "8192,32768"),
    ("8b-4-layers.gguf", 32, "131072"),
    ("8b.gguf", 1, "8192,32768,131072"),
    ("8b.gguf", 8, "8192,32768"),
]
SMALL = ["0.5b.gguf"]
SMALL_DEPTHS = "4096,16384,32000"  # that the context of small models holds
MILLION = ["f16", "million-4", "million-3"]  # at the shape of LLaMA-2-7B, of which its paper has figures
MILLION_SHAPE = "1x32768/32"
SEALED = ["q4_0", "terse-2", "million-4"]
PAPERS = [  # the model and options of terse bench, in the order of the papers
    ("8b.gguf", "-p 131072 -n 0 -r 1 --kv f16,antkv-1"),
    *(("8b.gguf", f"-p 0 -n 64 -r 2 -d 1024 -np {n} --kv f16,antkv-1") for n in (1, 32, 128, 256)),  # 64: each sequence fills a page
    *(("8b.gguf", f"-p 0 -n 64 -r 1 -d 1024 -np {n} --kv antkv-1") for n in (512, 1024)),
    ("8b.gguf", "-p 0 -n 32 -r 1 -d 840000 --kv antkv-1,antkv-0.375"),
    ("7b.gguf", "-p 0 -n 32 -r 3 -d 1024,2048,4096,8192,16384,32768 --kv f16,kivi-4,million-4"),
    ("7b.gguf", "-p 0 -n 64 -r 2 -d 50000 --kv f16,streaming-256,mat-256,streaming-512,mat-512"),
    ("8b.gguf", "-p 0 -n 32 -r 1 -d 120000 --kv f16,commvq-2,commvq-1"),
    ("8b.gguf", "-p 0 -n 64 -r 1 -d 32768 -np 8 --kv f16,commvq-1"),
    ("8b.gguf", "-p 0 -n 64 -r 1 -d 32768 -np 128 --kv commvq-1"),
]
SECOND_TOKEN = [  # a prompt, and a step behind it
    *(("8b.gguf", f"-p {n} -n 0 -r 2 --kv f16,selfindex-2") for n in (8192, 16384, 32768, 65536)),
    ("8b.gguf", "-p 0 -n 32 -r 2 -d 8192,16384,32768,65536 --kv f16,selfindex-2"),
    ("8b.gguf", "-p 0 -n 32 -r 2 -d 16384 -np 10 --kv f16,selfindex-2"),
]
BATCHES = [("8b-8-layers.gguf", f"-p 0 -n 64 -r 2 -d 32768 -np {n} --kv f16,million-4,antkv-2,antkv-1,commvq-1,selfindex-2") for n in (1, 8, 32)]
LARGEST = [  # a GPU of 80 GB has room for 73 GiB of KV caches beside the weights
    ("8b.gguf", "-p 0 -n 4 -r 1 -d 1024 -np 500 --kv f16 --kv-budget 73G"),
    ("8b.gguf", "-p 0 -n 4 -r 1 -d 1024 -np 1600 --kv antkv-1 --kv-budget 73G"),
    ("8b.gguf", "-p 0 -n 16 -r 1 -d 1000000 --kv terse-2,terse-1"),
    ("8b.gguf", "-p 0 -n 8 -r 1 -d 6500000 --kv antkv-1 --kv-budget 73G"),
]
WHOLE = [
    ("8b.gguf", "-p 0 -n 4 -r 1 -d 1024 -np 900 --kv f16"),
    ("8b.gguf", "-p 0 -n 4 -r 1 -d 1024 -np 2800 --kv antkv-1"),
]


def of_steps(cells):
    rest = "-p 0 -n 64 -r 4 --codebook none --kv " + ",".join(STEP_METHODS)
    return [f"{BENCH.format(model)} {rest} -np {n} -d {depths}".split() for model, n, depths in cells]


def of_papers(benches):
    return [f"{BENCH.format(model)} --codebook random {rest}".split() for model, rest in benches]


# The commands of each part, by words; programs are those of the build.
PARTS = {
    "attention": [["bench_attend_cuda", m, *SHAPES, *(["10x16384"] if m == "f16" else [])] for m in SCALAR + OTHER_SCALAR + LEARNED],
    "pytorch": [["f16_attention.py", *SHAPES, "10x16384"]],
    "heads": [["bench_attend_cuda", *MILLION, MILLION_SHAPE], ["f16_attention.py", MILLION_SHAPE]],
    "choice": [["bench_attend_cuda", m, *CHOICE_SHAPES] for m in CHOOSING],
    "encode": [["bench_encode_cuda", m] for m in ENCODED],
    "weights": [["bench_weights_cuda", *WEIGHTS]],
    "anchors": [["bench_anchors_cuda"]],
    "commvq": [["bench_commvq_cuda"]],
    "million-tables": [["bench_million_tables_cuda"]],
    "steps": of_steps(STEPS),
    "small-steps": [],  # of_steps of SMALL and the models of -m
    "papers": of_papers(PAPERS),
    "second-token": of_papers(SECOND_TOKEN),
    "batches": of_papers(BATCHES),
    "largest": of_papers(LARGEST),
    "whole": of_papers(WHOLE),
    "prefill": [["prefill_attention.py"]],
    "sealing": [["bench_sealing_steps", "8b-8-layers.gguf", "32768", m, "cuda"] for m in SEALED],
    "divergence": [["divergence.py", "--chunks", "4", "--within", "1.02"]],
}


# ---- Measuring


def stamp_of(build):
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, driver = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split("\n")[0].split(", ")
    return {"commit": Runner.commit_of(os.path.join(build, "bin", "terse")), "gpu": gpu, "driver": driver}


def started(words, programs):
    """A command as it is started, and its standard input."""
    name, *rest = words
    if not name.endswith(".py"):
        return [os.path.join(programs, name), *rest], None
    script = [sys.executable, os.path.join(HERE, name)]
    if name == "f16_attention.py":  # it only needs to know the shapes
        return script, "".join(f"f16 {shape} 1 1\n" for shape in rest)
    if name == "prefill_attention.py":
        return [*script, os.path.join(programs, "bench_prefill_cuda")], None
    return [*script, os.path.join(programs, "terse"), os.path.join(HERE, "..", "..", "data", "wiki.valid.raw"), *rest], None


def printed_by(words, build):
    """What a command printed; raises Failed where it does not succeed."""
    programs = os.path.join(build, "bin")
    command, stdin = started(words, programs)
    for made in MADE.keys() & set(words):
        if not os.path.exists(made):
            subprocess.run([os.path.join(programs, "make_model"), *MADE[made]], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise Failed(f"{' '.join(words)} exited with {done.returncode}: {(done.stderr.strip() or 'it printed nothing').splitlines()[-1]}")
    return done.stdout


def read(paths):
    lines = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            lines += [json.loads(line) for line in file]
    return lines


def run(options):
    stamp = stamp_of(options.build)
    kept = read([options.lines]) if os.path.exists(options.lines) else []
    refuse_mixture(options.lines, [*kept, stamp])
    done = {(line["part"], line["command"]) for line in kept}
    commands = {**PARTS, "small-steps": of_steps([(model, 1, SMALL_DEPTHS) for model in SMALL + options.model])}
    failed = 0
    for part in options.parts or PARTS:
        for words in commands[part]:
            words = [os.path.relpath(w) if w.endswith(".gguf") else w for w in words]
            command = " ".join(words)
            if (part, command) in done:
                continue
            print(f"{part}: {command}", flush=True)
            try:
                printed = printed_by(words, options.build)
            except (Failed, OSError, subprocess.CalledProcessError) as error:
                print(f"speed.py: {error}", file=sys.stderr)
                failed += 1
                continue
            print(printed, end="", flush=True)
            line = {"part": part, "command": command, **stamp, "date": datetime.date.today().isoformat(), "printed": printed}
            kept.append(line)
            with open(options.lines + ".new", "w", encoding="utf-8") as file:
                file.writelines(json.dumps(one) + "\n" for one in kept)
            os.replace(options.lines + ".new", options.lines)
    return 1 if failed else 0


def refuse_mixture(what, lines):
    found = sorted({(line["commit"], line["gpu"], line["driver"]) for line in lines})
    if len(found) > 1:
        raise Failed(f"{what} would mix {' and '.join(', driver '.join([f'{c} on {g}', d]) for c, g, d in found)}: keep each in a file of its own")


# ---- Tables: each is a function of what was printed, by part, to (head, rows), or None where it was not measured


def times(text):
    """{(method, shape): microseconds} of bench_attend_cuda."""
    return {(m, shape): float(us) for m, shape, us in re.findall(r"^(\S+) (\d+x\d+(?:/\d+)?) (\S+) ", text, re.MULTILINE)}


def best_f16(text):
    return {shape: float(us) for shape, us in re.findall(r"^PyTorch (\d+x\d+(?:/\d+)?): (\S+) us", text, re.MULTILINE)}


def columns(shapes):
    return ["", *(shape.replace("x", " x ") for shape in shapes)]


def microseconds(us, keys):
    """Cells of a row, empty where there is no time."""
    return [f"{us[key]:.1f}" if key in us else "" for key in keys]


def of_goals(found):
    """How much of its goals a method reaches: `found` are pairs of a ratio and its goal."""
    parts = [100 * ratio / goal for ratio, goal in found]
    return f"{min(parts):.0f} to {max(parts):.0f} %" if parts else ""


def all_tokens(methods):
    def make(printed):
        us, best = times(printed["attention"]), best_f16(printed["pytorch"])
        with_goals = bool(TERSE_GOALS.keys() & set(methods))
        rows = [["PyTorch f16", *microseconds(best, SHAPES), *[""] * with_goals]] if "f16" in methods else []
        for m in methods:
            row = [m, *(f"{us[m, s]:.1f}" + (f" ({best[s] / us[m, s]:.2f})" if s in best else "") if (m, s) in us else "" for s in SHAPES)]
            found = [(best[s] / us[m, s], goal) for s, goal in zip(SHAPES, TERSE_GOALS.get(m, ())) if s in best and (m, s) in us]
            rows.append(row + [of_goals(found)] * with_goals)
        return [*columns(SHAPES), *["of the goals"] * with_goals], rows

    return make


def choosing(printed):
    us, whole, best = times(printed["choice"]), times(printed["attention"]), best_f16(printed["pytorch"])
    rows = [["PyTorch f16, all tokens", *microseconds(best, CHOICE_SHAPES)], ["f16, all tokens", *microseconds(whole, [("f16", s) for s in CHOICE_SHAPES])]]
    for m in CHOOSING:
        cells = [f"{us[m, s]:.1f} / {us[m + '/choice', s]:.1f}" if (m + "/choice", s) in us else "" for s in CHOICE_SHAPES]
        rows.append([m.removesuffix("@7.5"), *cells])
        own = m.removesuffix("@7.5")
        if own != "f16" and (own, "1x32768") in whole:
            rows.append([own + ", all tokens", *microseconds(whole, [(own, s) for s in CHOICE_SHAPES])])
    return columns(CHOICE_SHAPES), rows


def goals(printed):
    us, best = times(printed["attention"] + printed["choice"]), best_f16(printed["pytorch"])
    rows = [["best f16", *microseconds(best, PAPER_SHAPES), ""]]
    for m, wanted in GOALS.items():
        cells, parts = [], []
        for s, goal in zip(PAPER_SHAPES, (None, *wanted)):
            if (m, s) not in us or s not in best:
                cells.append("")
                continue
            ratio = best[s] / us[m, s]
            cells.append(f"{us[m, s]:.1f}, {ratio:.2f}" + (f" ({goal:g})" if goal else ""))
            parts += [(ratio, goal)] if goal else []
        rows.append([m.replace("@7.5", ", 7.5 % of the tokens"), *cells, of_goals(parts)])
    return [*columns(PAPER_SHAPES), "of the goals"], rows


def million(printed):
    us, best = times(printed["heads"]), best_f16(printed["heads"])[MILLION_SHAPE]
    return ["", "us", "times"], [[name, f"{t:.1f}", f"{best / t:.2f}"] for name, t in [("PyTorch f16", best), *((m, us[m, MILLION_SHAPE]) for m in MILLION)]]


def ratios(printed):
    us, best = times(printed["attention"] + printed["choice"]), best_f16(printed["pytorch"])
    shapes = ["1x8192", "1x32768", "1x131072", "8x32768", "8x131072"]
    rows = []
    for m in ["f16", "kivi-4", "terse-4", "terse-2", "terse-1", "million-4", "antkv-1", "commvq-2", "selfindex-2@7.5"]:
        name = m.replace("@7.5", ", 7.5 % of the tokens, without anchors").replace("antkv-1", "antkv-1, without anchors")
        rows.append([name, *(f"{best[s] / us[m, s]:.2f}" if (m, s) in us and s in best else "" for s in shapes)])
    return columns(shapes), rows


def encoding(printed):
    us = {(m, what): float(t) for m, what, t in re.findall(r"^(\S+) (encode|decode) (\S+) ", printed["encode"], re.MULTILINE)}
    methods = [m for m in ENCODED if (m, "encode") in us]
    return ["", *methods], [[what, *(f"{us[m, what]:,.0f}" if (m, what) in us else "" for m in methods)] for what in ("encode", "decode")]


def weights(printed):
    counts = re.search(r"vectors((?: +\d+)+)$", printed["weights"], re.MULTILINE)[1].split()
    rates = {t: cells.split() for t, cells in re.findall(r"^(\S+) +28672 x 4096 +(.*)$", printed["weights"], re.MULTILINE)}
    types = [t for t in WEIGHTS if t in rates]
    return ["vectors", *types], [[n, *(rates[t][i] for t in types)] for i, n in enumerate(counts) if n in ("1", "8", "16", "32", "64")]


def anchors(printed):
    found = re.findall(r"^anchors (\d+) (\d+) attention (\S+) scores (\S+) \((\S+)\) choice (\S+)", printed["anchors"], re.MULTILINE)
    rows = [[hd, f"{int(n):,}", *(f"{float(x):,.0f}" for x in (a, s)), times_of, f"{float(c):.0f}"] for hd, n, a, s, times_of, c in found]
    return ["head_dim", "tokens", "attention", "scores", "times attention", "choice of 1 %"], sorted(rows, key=lambda r: int(r[0]))


def commvq(printed):
    rows = []
    for m, n, *us in re.findall(r"^(commvq-\d) (\d+) registers (\S+) tables (\S+) naive (\S+)", printed["commvq"], re.MULTILINE):
        own, tables, naive = map(float, us)
        rows.append([f"{m}, {int(n):,} tokens", f"{own:.1f}", f"{tables:,.0f}", f"{naive:,.0f}", f"{tables / own:.1f}", f"{naive / own:.1f}"])
    return ["", "shipped", "tables", "naive", "tables / shipped", "naive / shipped"], rows


def million_tables(printed):
    rows = []
    for n, tokens, heads, hd, *us in re.findall(r"^million-4 (\d+)x(\d+)/(\d+)(?:/(\d+))? shipped (\S+) scores (\S+) sums (\S+)$", printed["million-tables"], re.MULTILINE):
        own, scores, sums = map(float, us)
        rows.append([f"{n} x {int(tokens):,}, {heads} KV heads" + (f" of {hd}" if hd else ""), *(f"{t:.1f}" for t in (own, scores, sums)), f"{(scores + sums) / own:.2f}"])
    return ["", "shipped", "scores by tables", "sums by code", "both / shipped"], rows


def benched(text):
    """Rows of tests of terse bench: (model, test, method, row); a test is "8 x 32,768", sequences x depth, or "prompt of 8,192"."""
    found = []
    for row in (row for one in re.split(r"(?<=\])\s*(?=\[)", text.strip()) for row in json.loads(one)):
        kind, tokens, n, depth = re.fullmatch(r"(pp|tg)(\d+)(?: x (\d+))?(?: @ d(\d+))?", row["test"]).groups()
        test = f"prompt of {int(tokens):,}" if kind == "pp" else f"{int(n or 1):,} x {int(depth or 0):,}"
        found.append((row["model"], test, row["kv"], {**row, "sequences": int(n or 1)}))
    return found


def steps(part):
    def make(printed):
        rates = {}
        for model, test, method, row in benched(printed[part]):
            rates.setdefault((model, test), {})[method] = row["tokens_per_second"]
        rows = []
        for (model, test), of in rates.items():
            own = [of.get(m) for m in STEP_METHODS]
            rows.append([model, test, *("" if not x else f"{x:.0f}" + (f" ({x / own[0]:.2f})" if i and own[0] else "") for i, x in enumerate(own))])
        return ["model", "sequences x depth", *STEP_METHODS], rows

    return make


def beside_f16(part):
    def make(printed):
        found = benched(printed[part])
        half = {(model, test): row["tokens_per_second"] for model, test, method, row in found if method == "f16"}
        rows = []
        for model, test, method, row in found:
            rate = row["tokens_per_second"]
            ms = "" if test.startswith("prompt") else f"{1e3 * row['sequences'] / rate:.2f}"
            ratio = f"{rate / half[model, test]:.2f}" if method != "f16" and (model, test) in half else ""
            rows.append([model, test, method, f"{row['kv_mib'] / 1024:,.2f}", f"{rate:,.1f}", ms, ratio])
        return ["model", "sequences x depth", "KV", "GiB of KV", "tokens/s", "ms a step", "times f16"], rows

    return make


def prefill(printed):
    cell = r"(-|\S+ \( *\S+\))"
    found = re.findall(rf"^ *(\d+) +(\d+) +(\d+) +{cell} +{cell} +{cell} *(\S*)$", printed["prefill"], re.MULTILINE)
    rows = []
    for *shape, terse, cudnn, flash, ratio in found:
        pairs = [re.findall(r"[\d.]+", cell) for cell in (terse, cudnn, flash)]  # microseconds and TFLOP/s, of "-" none
        rows.append([*shape, *(f"{float(p[0]):.0f} ({float(p[1]):.0f})" if p else "" for p in pairs), ratio])
    return ["head_dim", "queries", "rows behind them", "terse", "cuDNN", "FlashAttention", "ratio"], rows


def sealing(printed):
    found = re.findall(r"^(\S+), encoded (ahead|within the step): mean (\S+) ms, median (\S+), longest (\S+) ", printed["sealing"], re.MULTILINE)
    return ["", "mean, ms", "median", "longest"], [[f"{m}, {'beside steps' if how == 'ahead' else how}", *ms] for m, how, *ms in found]


def divergence(printed):
    found = re.findall(r"^(\S+) +(\S+) +\S+ +([\d.]+) +\S+$", printed["divergence"], re.MULTILINE)  # f16's, of which there is no ratio, is not among them
    return ["", *(m.replace(":none", ", no profile") for m, *_ in found)], [["processor", *(cpu for _, cpu, _ in found)], ["GPU's, times that", *(f"{float(r):.3f}" for *_, r in found)]]


# Of each table: its page, its parts, and what makes it.
TABLES = {
    "ratios": ("cuda.md", ["attention", "pytorch", "choice"], ratios),
    "weights": ("cuda.md", ["weights"], weights),
    "steps": ("cuda.md", ["steps"], steps("steps")),
    "small-steps": ("cuda.md", ["small-steps"], steps("small-steps")),
    "encode": ("cuda.md", ["encode"], encoding),
    "attention": ("reports/cuda-attention.md", ["attention", "pytorch"], all_tokens(SCALAR)),
    "attention-scalar": ("reports/cuda-attention.md", ["attention", "pytorch"], all_tokens(OTHER_SCALAR)),
    "choice": ("reports/cuda-attention.md", ["choice", "attention", "pytorch"], choosing),
    "goals": ("reports/papers.md", ["attention", "pytorch", "choice"], goals),
    "prefill": ("cuda.md", ["prefill"], prefill),
    "sealing": ("cuda.md", ["sealing"], sealing),
    "divergence": ("cuda.md", ["divergence"], divergence),
    "million": ("reports/papers.md", ["heads"], million),
    "anchors": ("reports/papers.md", ["anchors"], anchors),
    "commvq": ("reports/papers.md", ["commvq"], commvq),
    "million-tables": ("reports/papers.md", ["million-tables"], million_tables),
    "papers": ("reports/papers.md", ["papers"], beside_f16("papers")),
    "second-token": ("reports/papers.md", ["second-token"], beside_f16("second-token")),
    "batches": ("reports/papers.md", ["batches"], beside_f16("batches")),
    "largest": ("reports/papers.md", ["largest"], beside_f16("largest")),
    "whole": ("reports/papers.md", ["whole"], beside_f16("whole")),
}


def missing(name, lines):
    """A command of a table's parts whose output is not there, or None."""
    done = {(line["part"], line["command"]) for line in lines}
    for part in TABLES[name][1]:
        for words in PARTS[part]:
            if (part, " ".join(words)) not in done:
                return " ".join(words)
        if part not in {p for p, _ in done}:
            return f"part {part}"
    return None


def block(name, lines):
    """What stands between a table's markers."""
    _, parts, make = TABLES[name]
    own = [line for line in lines if line["part"] in parts]
    refuse_mixture(f"the table {name}", own)
    dates = sorted({line["date"] for line in own})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    printed = {part: "\n".join(line["printed"] for line in own if line["part"] == part) for part in parts}
    first = own[0]
    head, rows = make(printed)
    return f"Commit {first['commit']}, {first['gpu']}, driver {first['driver']}, {when}; `bench/cuda/speed.py run {' '.join(parts)}`:\n\n" + table(head, rows).rstrip("\n")


def write(options):
    lines = read(options.files)
    absent = {name: missing(name, lines) for name in TABLES}
    blocks = {name: block(name, lines) for name in TABLES if not absent[name]}  # all of them before any page changes
    for name, what in absent.items():
        if what:
            print(f"{name}: left as it is, not measured: {what}")
    for name, text in blocks.items():
        path = os.path.join(options.docs, TABLES[name][0])
        replace_block(path, f"speed.py {name}", name, text)
        print(f"{name}: written into {path}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    runs = actions.add_parser("run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs.add_argument("parts", nargs="*", metavar="PART")
    runs.add_argument("--build", default="build-cuda")
    runs.add_argument("--lines", default="speed.jsonl")
    runs.add_argument("-m", "--model", action="append", default=[], help="also times whole steps of this model")
    writes = actions.add_parser("write", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    writes.add_argument("files", nargs="+", metavar="FILE")
    writes.add_argument("--docs", default=os.path.join(HERE, "..", "..", "docs"))
    options = parser.parse_args()
    unknown = [part for part in getattr(options, "parts", []) if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: {', '.join(PARTS)}")
    try:
        return run(options) if options.action == "run" else write(options)
    except (Failed, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"speed.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
