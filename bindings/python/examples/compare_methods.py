"""Compares methods on a text in a table: what they take, and how far they move the model's probabilities from those with an f16 cache.

    python compare_methods.py data/demo.txt [MODEL.gguf [CONTEXT]]
"""
import sys

import terse

METHODS = "q8_0", "q4_0", "kivi-2", "terse-4", "terse-3", "terse-2"


def main(path: str, model_path: str | None = None, context: str = "2048") -> list[terse.Divergence]:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    model = terse.Model(model_path)
    rows = []
    print(f"{'method':10} {'bits/value':>10} {'KL divergence':>22} {'same top':>9} {'perplexity':>10}")
    for method in METHODS:
        row = terse.kl_divergence(model, text, kv=method, context=int(context), windows=1)
        print(f"{method:10} {row.cache.bits_per_value:10.2f} {row.mean:12.5f} ±{row.error:8.5f} {row.same_top:9.1%} {row.perplexity:10.3f}")
        rows.append(row)
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
