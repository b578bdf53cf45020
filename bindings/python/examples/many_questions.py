"""Asks many questions about one document, which is read once: each question goes to a fork, which shares the document's pages.

    python many_questions.py data/demo.txt MODEL.gguf QUESTION...      # MODEL.gguf: - for the built-in model
"""
import sys

import terse


def main(path: str, model_path: str, *questions: str) -> None:
    with open(path, encoding="utf-8") as file:
        document = {"role": "user", "content": file.read()}
    model = terse.Model(None if model_path == "-" else model_path)
    session = model.session()
    session.prefill([document])
    print(f"read {len(session)} tokens once")
    for question in questions:
        fork = session.fork()
        reply = fork.chat([document, {"role": "assistant", "content": "Ask me about it."}, {"role": "user", "content": question}], temperature=0, max_tokens=64)
        report = fork.cache
        print(f"{question}\n  {reply}\n  read {fork.counters().prefill_tokens} tokens more; {report.shared} of {report.codes} bytes of pages are shared")


if __name__ == "__main__":
    main(*sys.argv[1:])
