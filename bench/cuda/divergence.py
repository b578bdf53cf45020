#!/usr/bin/env python3
"""divergence.py TERSE TEXT [-m MODEL ...] [--kv METHOD,...] [--context N] [--chunks N] [--within R]

KL divergence of each method from f16 on the processor, once computed on the processor and once on the GPU, of one text and the built-in model or
those given, and by how much the two differ: `terse perplexity --kl-divergence` in both cases. METHOD:none is terse-N without a profile of the model.
With --within the exit status is 1 where the GPU's divergence is not within that factor of the processor's, either way.
"""
import argparse, os, re, subprocess, sys, tempfile

METHODS = "f16,q8_0,q4_0,kivi-4,kivi-2,terse-4,terse-3,terse-2,terse-1,terse-0.5,terse-4:none,terse-2:none,streaming-512"
LEAST = 1e-6  # a divergence below this is that of rounding alone

parser = argparse.ArgumentParser()
parser.add_argument("terse")
parser.add_argument("text")
parser.add_argument("-m", "--model", action="append", help="a GGUF file; may come several times")
parser.add_argument("--kv", default=METHODS)
parser.add_argument("--context", type=int, default=2048)
parser.add_argument("--chunks", type=int, default=8)
parser.add_argument("--within", type=float, default=0)
options = parser.parse_args()


def perplexity(base, *more):
    command = [options.terse, "perplexity", "--kl-divergence-base", base, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def compare(model, base, method):
    """Prints a line; false: the two are too far apart."""
    name, *without = method.split(":")
    found = []
    for device in ("cpu", "cuda"):
        out = perplexity(base, *model, "--kl-divergence", "--kv", name, *(["--codebook", "none"] if without else []), "--device", device)
        found.append(re.search(r"KLD mean = (\S+) \+/- (\S+)", out).groups())
    on_cpu, on_gpu = (float(mean) for mean, _ in found)
    small = on_cpu <= LEAST
    ratio = f"{'-':>16}" if small else f"{on_gpu / on_cpu:16.4f}"
    print(f"{method:14} {on_cpu:11.6f} {on_gpu:11.6f} {ratio} {float(found[0][1]):15.6f}", flush=True)
    return small or not options.within or on_cpu / options.within <= on_gpu <= on_cpu * options.within


failed = 0
for path in options.model or [None]:
    model = ["-m", path] if path else []
    with tempfile.TemporaryDirectory() as directory:
        base = os.path.join(directory, "base.kld")
        perplexity(base, *model, "-f", options.text, "-c", str(options.context), "--chunks", str(options.chunks))
        name = os.path.basename(path) if path else "the built-in model"
        print(f"{options.chunks} x {options.context} tokens of {os.path.basename(options.text)}, {name}")
        print(f"{'method':14} {'processor':>11} {'GPU':>11} {'GPU / processor':>16} {'standard error':>15}")
        failed += sum(not compare(model, base, method) for method in options.kv.split(","))
if failed:
    sys.exit(f"divergence.py: {failed} of these are not within {options.within:g} of the processor's")
