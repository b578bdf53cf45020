#!/usr/bin/env python3
"""Fifty tool calls behind a long text: how many are valid, by the method of the KV cache.

    tool_calls.py build/bin/terse -m MODEL.gguf [--kv f16,q4_0,terse-4,terse-2] [--choice required,auto] [--options "-t 2"] [--replies FILE]

For each method a server is started and asked 50 questions, greedily, each behind the same tools, an article with a directory of people in its middle; all but the
question is a prefix that is read once, so that the calls are written from the quantized cache. Twenty questions need an entry of the directory.
Counted: replies with a call whose arguments are JSON, with the right tool, with the right arguments as well (numbers by value, texts without regard to case).
--replies writes each reply as a line of JSON.

Python's standard library alone."""
import argparse
import json
import os
import subprocess
import sys
import urllib.request

from tool_calls_questions import QUESTIONS, TOOLS, arguments_right, document

HERE = os.path.dirname(os.path.abspath(__file__))
ARTICLE = os.path.join(HERE, "..", "..", "tests", "fixtures", "wiki_excerpt.txt")


def start(command, model, method, options):
    """Starts a server; returns it and its address, once it listens."""
    server = subprocess.Popen([command, "serve", "--port", "0", "-m", model, "--kv", method, "--parallel", "1", "-c", "8192", *options],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if line.startswith("http://"):
            return server, line.split(": ")[0]
    sys.exit(f"{command} has not started")


def ask(address, body):
    request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as reply:
        return json.load(reply)


def judge(message, name, arguments):
    """Returns whether there is a call whose arguments parse, whether its tool is right, and whether all is."""
    calls = message.get("tool_calls") or []
    if not calls:
        return False, False, False
    function = calls[0]["function"]
    try:
        got = json.loads(function["arguments"])
    except ValueError:
        return False, False, False
    right = function["name"] == name
    return True, right, right and len(calls) == 1 and arguments_right(arguments, got)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("-m", required=True)
    parser.add_argument("--kv", default="f16,q4_0,terse-4,terse-2")
    parser.add_argument("--choice", default="required,auto")
    parser.add_argument("--options", default="")
    parser.add_argument("--replies")
    asked = parser.parse_args()
    with open(ARTICLE, encoding="utf-8") as file:
        text = document(file.read())
    log = open(asked.replies, "w", encoding="utf-8") if asked.replies else None
    print("| `--kv` | `tool_choice` | prompt tokens | calls that parse | right tool | right arguments | of them from the directory |\n|---|---|---:|---:|---:|---:|---:|")
    for method in asked.kv.split(","):
        server, address = start(asked.command, asked.m, method, asked.options.split())
        try:
            for choice in asked.choice.split(","):
                counts, from_directory, tokens = [0, 0, 0], 0, 0
                for question, name, arguments in QUESTIONS:
                    messages = [{"role": "user", "content": f"{text}\n\n{question}"}]
                    reply = ask(address, {"messages": messages, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0,
                                          "max_tokens": 120})
                    message = reply["choices"][0]["message"]
                    verdict = judge(message, name, arguments)
                    counts = [n + good for n, good in zip(counts, verdict)]
                    from_directory += verdict[2] and name in ("call_extension", "send_email")
                    tokens = max(tokens, reply["usage"]["prompt_tokens"])
                    if log:
                        log.write(json.dumps({"kv": method, "choice": choice, "question": question, "verdict": verdict, "message": message}) + "\n")
                        log.flush()
                print(f"| `{method}` | {choice} | {tokens:,} | {counts[0]} | {counts[1]} | {counts[2]} | {from_directory} |", flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
