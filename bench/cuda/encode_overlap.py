#!/usr/bin/env python3
"""Shows that pages are encoded beside decoding steps: a trace of the GPU's streams while tokens are decoded one by one.

    encode_overlap.py -m MODEL.gguf -f TEXT --kv million-4 [--codebook FILE] [-d 8192] [-n 320] [-s 1]

The terse Python package runs in this process, so that PyTorch's profiler sees its kernels. It prints, of tokens decoded without the profiler, the mean step,
the median and the slowest, of which there are as many as steps that fill a page, and the same with pages encoded within the step that seals them (no window);
then, with the profiler, how many encodings there were, which part of their time kernels of a step ran beside them, how long steps and the gaps between them
were, and what ran while a page was encoded. Steps and gaps are longer under the profiler. Several sequences are forks of one, whose pages fill at once.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time

import terse
import torch

PAGE = 64  # tokens
SHOWN = 14  # kernels of the trace


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--file", required=True, help="text: the first tokens are the prompt, the next ones are decoded")
    parser.add_argument("--kv", required=True)
    parser.add_argument("--codebook", help="what the method has learned; without it what terse calibrate has kept")
    parser.add_argument("-d", "--depth", type=int, default=8192, help="tokens of the prompt")
    parser.add_argument("-n", "--tokens", type=int, default=320, help="tokens that are decoded, of each sequence")
    parser.add_argument("-s", "--sequences", type=int, default=1, help="sequences that are decoded together")
    return parser.parse_args()


def kernels_of(profiler):
    """(begin, end, stream, name) of all kernels, in microseconds, by their beginning."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    found = [e for e in events if e.get("cat") == "kernel"]
    return sorted((e["ts"], e["ts"] + e["dur"], e["args"]["stream"], e["name"].split("(")[0].split("<")[0].split(" ")[-1]) for e in found)


def joined(spans):
    """Spans without overlaps, in order."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def covered(begin, end, spans):
    """How much of [begin, end) the spans cover."""
    return sum(max(0, min(end, b) - max(begin, a)) for a, b in spans)


def make_steps(model, kv, options, tokens):
    """Reads the prompt, and returns a function that decodes one token after each sequence."""
    first = model.session(kv=kv, codebook=options.codebook, allow_longer_context=True)
    first.prefill(tokens[: options.depth])
    sessions = [first] + [first.fork() for _ in range(options.sequences - 1)]
    return lambda token: model.step({session: [token] for session in sessions})


def seconds_of(step, tokens):
    """Seconds of each step."""
    seconds = []
    for token in tokens:
        begin = time.perf_counter()
        step(token)
        seconds.append(time.perf_counter() - begin)
    return seconds


def decode(options):
    """Seconds of each step without the profiler, beside which pages were encoded or within which, and the kernels of as many with the profiler."""
    model = terse.Model(options.model, device="cuda")
    with open(options.file, encoding="utf-8") as file:
        tokens = model.tokenize(file.read(16 * (options.depth + 2 * options.tokens)))
    if len(tokens) < options.depth + 2 * options.tokens + 1:
        sys.exit(f"encode_overlap.py: {options.file} has too few tokens: {len(tokens)}")
    after = tokens[options.depth : options.depth + 2 * options.tokens + 1]
    cache = terse.Cache(options.kv)
    within = make_steps(model, dataclasses.replace(cache, tail_tokens=0), options, tokens)
    within(after[0])
    seconds = {"within": seconds_of(within, after[1 : options.tokens + 1])}
    del within
    step = make_steps(model, cache, options, tokens)
    step(after[0])
    seconds["beside"] = seconds_of(step, after[1 : options.tokens + 1])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for token in after[options.tokens + 1 :]:
            step(token)
    return seconds, kernels_of(profiler)


def steps_of(kernels, n):
    """Spans from a step's first kernel to the next step's, of n steps: of the kernels that run once a step the one that is first."""
    begins = {}
    for begin, *_, name in kernels:
        begins.setdefault(name, []).append(begin)
    once = min((of for of in begins.values() if len(of) == n), default=[])
    return list(zip(once, once[1:]))


def gaps_between(steps, kernels):
    """Microseconds without a step's kernel before each step but the first."""
    ends = sorted(end for _, end, *_ in kernels)
    return [begin - max((e for e in ends if e <= begin), default=begin) for begin, _ in steps[1:]]


def main():
    options = parse()
    torch.cuda.init()
    seconds, kernels = decode(options)
    encodings = [k for k in kernels if "encode" in k[3]]
    others = [k for k in kernels if "encode" not in k[3]]
    if not encodings:
        sys.exit(f"encode_overlap.py: nothing was encoded in {options.tokens} tokens with {options.kv}")
    busy = joined((begin, end) for begin, end, *_ in others)
    took = [end - begin for begin, end, *_ in encodings]
    beside = [covered(begin, end, busy) for begin, end, *_ in encodings]
    shape = f"{options.kv}, {options.sequences} x {options.depth:,} tokens, {options.tokens} decoded of each"
    print(f"{torch.cuda.get_device_name()}, {os.path.basename(options.model)}, {shape}")
    for where in ("beside", "within"):
        times = [1e6 * t for t in seconds[where]]
        slowest = sorted(times)[-max(options.tokens // PAGE, 1) :]
        print(
            f"without the profiler, pages encoded {where} steps: {statistics.mean(times):.1f} us a step, median {statistics.median(times):.1f}, "
            f"the {len(slowest)} slowest {statistics.mean(slowest):.1f}"
        )
    share = 100 * sum(beside) / sum(took)
    print(f"{len(encodings)} encodings of {statistics.median(took):.1f} us; kernels of steps ran beside them for {share:.0f} % of their time")
    steps = steps_of(others, options.tokens)
    during = [any(begin < b and a < end for a, b, *_ in encodings) for begin, end in steps]
    for what, wanted in (("with an encoding beside them", True), ("without", False)):
        times = [end - begin for (begin, end), has in zip(steps, during) if has == wanted]
        if times:
            print(f"{len(times)} steps {what}: {statistics.median(times):.1f} us")
    if steps:
        print(f"gaps between steps: {statistics.median(gaps_between(steps, others)):.1f} us")
    begin, end, *_ = max(zip(beside, encodings))[1]
    print("\nWhile a page set was encoded, that with most beside it, from its beginning:\n")
    shown = [k for k in kernels if k[0] < end and begin < k[1]]
    for a, b, stream, name in shown[:SHOWN]:
        print(f"{a - begin:8.1f} to {b - begin:8.1f} us  stream {stream:<3}  {name}")
    if len(shown) > SHOWN:
        print(f"... and {len(shown) - SHOWN} more")


if __name__ == "__main__":
    main()
