#!/usr/bin/env python3
"""divergence.py TERSE TEXT [--kv METHOD,...] [--context N] [--chunks N]

KL divergence of each method from f16 on the processor, once computed on the processor and once on the GPU, of the built-in model and one text,
and by how much the two differ: `terse perplexity --kl-divergence` in both cases.
"""
import argparse, os, re, subprocess, tempfile

METHODS = "f16,q8_0,q4_0,kivi-4,kivi-2,terse-4,terse-3,terse-2,terse-1,terse-0.5,streaming-512"

parser = argparse.ArgumentParser()
parser.add_argument("terse")
parser.add_argument("text")
parser.add_argument("--kv", default=METHODS)
parser.add_argument("--context", type=int, default=2048)
parser.add_argument("--chunks", type=int, default=8)
options = parser.parse_args()


def perplexity(base, *more):
    command = [options.terse, "perplexity", "--kl-divergence-base", base, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


with tempfile.TemporaryDirectory() as directory:
    base = os.path.join(directory, "base.kld")
    perplexity(base, "-f", options.text, "-c", str(options.context), "--chunks", str(options.chunks))
    print(f"{options.chunks} x {options.context} tokens of {os.path.basename(options.text)}")
    print(f"{'method':14} {'processor':>11} {'GPU':>11} {'GPU / processor':>16} {'standard error':>15}")
    for method in options.kv.split(","):
        found = []
        for device in ("cpu", "cuda"):
            out = perplexity(base, "--kl-divergence", "--kv", method, "--device", device)
            found.append(re.search(r"KLD mean = (\S+) \+/- (\S+)", out).groups())
        on_cpu, on_gpu = (float(mean) for mean, _ in found)
        ratio = f"{on_gpu / on_cpu:16.4f}" if on_cpu > 1e-6 else f"{'-':>16}"
        print(f"{method:14} {on_cpu:11.6f} {on_gpu:11.6f} {ratio} {float(found[0][1]):15.6f}", flush=True)
