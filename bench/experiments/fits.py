#!/usr/bin/env python3
"""What `terse inspect --fits` foretells, beside the resident memory that `terse run` then takes at its peak: the table of docs/laptop.md.

    fits.py build/bin/terse TEXT [MODEL.gguf ...] [--kv f16,q8_0,terse-4] [--bytes 11000]

Without a model the built-in one. No profile of the cache folder is used, so that methods that need a codebook cannot be measured, but for the built-in model's.

Python's standard library alone."""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile


def peak(command, text, environment):
    """What a command says, and the peak of its resident memory in MiB, for which a process of its own waits."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        done = subprocess.run(command, input=text, capture_output=True, env=environment, check=False)
        os.write(writer, b"%d\n" % resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss + done.stderr)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        kib, said = answer.read().split(b"\n", 1)
    os.waitpid(child, 0)
    return said.decode(), int(kib) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("terse")
    parser.add_argument("text")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--kv", default="f16,q8_0,q4_0,kivi-2,terse-4,terse-2,streaming-512,mat-512,snapkv-512,selfindex-2,quest-512")
    parser.add_argument("--bytes", type=int, default=11000, help="of the text, which the prompt is")
    arguments = parser.parse_args()
    with open(arguments.text, "rb") as file:
        text = file.read(arguments.bytes)
    print("| model | tokens | method | foretold, MiB | measured | |\n|---|---:|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, OMP_WAIT_POLICY="passive", XDG_CACHE_HOME=folder)
        for model in arguments.models or [None]:
            for kv in arguments.kv.split(","):
                chosen = ["-m", model] if model else []
                said, taken = peak([arguments.terse, "run", *chosen, "-t", "2", "-n", "1", "--kv", kv], text, environment)
                tokens = re.search(r"prompt (\d+) tokens", said)
                if not tokens:
                    sys.exit(said)
                inspect = [arguments.terse, "inspect", *chosen[1:], "--fits", "8G", "-c", tokens[1], "-o", "json"]
                rows = json.loads(subprocess.run(inspect, capture_output=True, env=environment, check=True).stdout)
                foretold = next(row["total_mib"] for row in rows if row["kv"] == kv)
                name = os.path.basename(model) if model else "built in"
                print("| %s | %s | `%s` | %.1f | %.1f | %+.1f %% |" % (name, tokens[1], kv, foretold, taken, 100 * (foretold / taken - 1)), flush=True)


main()
