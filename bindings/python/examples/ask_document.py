"""Asks a question about a text, and says what the KV cache took.

    python ask_document.py data/demo.txt "What is the access code for the merry lantern?" [MODEL.gguf]
"""
import sys

import terse


def main(path: str, question: str, model_path: str | None = None) -> None:
    with open(path, encoding="utf-8") as file:
        document = file.read().rstrip("\n")
    model = terse.Model(model_path)
    session = model.session()
    for piece in session.chat([{"role": "user", "content": f"{document}\n\n{question}"}], temperature=0, stream=True):
        print(piece, end="", flush=True)
    report = session.cache
    half = model.cache_bytes("f16", report.tokens)
    print(f"\n{report.tokens} tokens: {report.resident / 2**20:.2f} MiB of KV cache with {session.kv}, {half.resident / 2**20:.2f} with f16")


if __name__ == "__main__":
    main(*sys.argv[1:])
