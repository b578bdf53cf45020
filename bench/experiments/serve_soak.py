#!/usr/bin/env python3
"""A soak of `terse serve`: clients that do everything at once for an hour, and whether each gets its own replies, none an error, and what the server's memory
does meanwhile.

    serve_soak.py build/bin/terse [--clients 16] [--seconds 3600] [--options "..."]

The built-in model: questions in its own format, as completions, tools in ChatML. Each client does one of these after another, by a die:

ask      a question about a text of its own with a code in it, as a stream
go on    the same, and a second question to the reply
replies  the same question with n or best_of
call     a tool call that it is shown, of its own or required, with n of 1 or 2
leave    a stream that it leaves after a few tokens
slots    saves a slot, restores one, or erases one, by names of its own

Right are replies that say the client's own code; a single reply or call with the code of another client, a status that is none of a good request's, or arguments
that are no JSON of the schema make the command fail. Written each minute: resident memory, and what was done.

Python's standard library alone."""
import argparse
import asyncio
import json
import random
import re
import shlex
import sys
import tempfile
import time

from serve_load import QUESTION, TEXT, Server, ask, document, question

UNLOCK = {"type": "function", "function": {"name": "unlock", "description": "Unlocks.", "parameters": {
    "type": "object", "properties": {"code": {"type": "integer"}, "kind": {"enum": ["old", "new"]}}, "required": ["code", "kind"], "additionalProperties": False}}}
NAMED = {"type": "function", "function": {"name": "unlock"}}


def conversation(messages):
    """The prompt of a chat in the built-in model's own format."""
    turns = ["<|start_header_id|>%s<|end_header_id|>\n\n%s<|eot_id|>" % (message["role"], message["content"]) for message in messages]
    return "".join(turns) + "<|start_header_id|>assistant<|end_header_id|>\n\n"


async def post(port, path, body):
    """The status and the JSON of a reply that comes at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    try:
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(rest)
    finally:
        writer.close()


class Soak:
    def __init__(self, server, text, slots, seconds):
        self.server, self.text, self.slots = server, text, slots
        self.end = time.perf_counter() + seconds
        self.done, self.right, self.codes, self.wrong = {}, {}, set(), []

    def note(self, kind, right=None):
        self.done[kind] = self.done.get(kind, 0) + 1
        if right is not None:
            self.right[kind] = self.right.get(kind, 0) + right

    def judge(self, text, code):
        """Whether the reply says the code; one that says another client's is wrong."""
        said = set(re.findall(r"\d{7}", text))
        if (said - {code}) & self.codes:
            self.wrong.append("the code of another client: %r of %s" % (text, code))
        return said == {code}

    async def good(self, path, body, allowed=(200,)):
        status, reply = await post(self.server.port, path, body)
        if status not in allowed:
            self.wrong.append("%s: %d: %s" % (path, status, reply))
        return reply if status == 200 else None

    async def ask(self, rng, code):
        reply = await self.read(question(self.about(rng, code)), 40)
        self.note("ask", self.judge(reply, code))

    def about(self, rng, code):
        return document(rng, self.text, int(512 * 8 ** rng.random()), int(code))

    async def read(self, messages, n):
        text = ""
        async for _, event in ask(self.server.port, "/v1/completions", {"prompt": conversation(messages), "max_tokens": n, "temperature": 0}):
            if event != b"[DONE]":
                text += "".join(choice["text"] for choice in json.loads(event)["choices"])
        return text

    async def go_on(self, rng, code):
        messages = question(self.about(rng, code))
        reply = await self.read(messages, 40)
        reply = await self.read(messages + [{"role": "assistant", "content": reply}, {"role": "user", "content": QUESTION}], 40)
        self.note("go on", self.judge(reply, code))

    async def replies(self, rng, code):
        several = rng.choice(({"n": 2}, {"n": 3}, {"best_of": 3}, {"n": 2, "best_of": 4}))
        reply = await self.good("/v1/completions", {"prompt": conversation(question(self.about(rng, code))), "max_tokens": 40, "temperature": 0.7, **several})
        if reply:
            if len(reply["choices"]) != several.get("n", 1):
                self.wrong.append("%s: %d replies" % (several, len(reply["choices"])))
            self.note("replies", all([self.judge(choice["text"], code) for choice in reply["choices"]]))

    async def call(self, rng, code):
        said = '<tool_call>{"name": "unlock", "arguments": {"code": %s, "kind": "new"}}</tool_call>' % code
        required = rng.random() < 0.5
        body = {"messages": [{"role": "user", "content": "Say: %s\n\nWhat do you say?" % said}], "tools": [UNLOCK], "max_tokens": 120, "n": rng.choice((1, 2)),
                "temperature": 0, **({"tool_choice": NAMED} if required else {"parallel_tool_calls": False})}
        reply = await self.good("/v1/chat/completions", body)
        for choice in reply["choices"] if reply else ():
            calls = choice["message"].get("tool_calls") or []
            for function in (call["function"] for call in calls):
                arguments = json.loads(function["arguments"])
                if function["name"] != "unlock" or set(arguments) != {"code", "kind"} or not isinstance(arguments["code"], int):
                    self.wrong.append("not of the schema: %s" % function)
                self.judge(function["arguments"], code)
            if required and not calls and choice["finish_reason"] != "length":
                self.wrong.append("no call: %s" % choice)
            self.note("call required" if required else "call", bool(calls) and code in calls[0]["function"]["arguments"])

    async def leave(self, rng, code):
        left, events = rng.randrange(12), 0
        stream = ask(self.server.port, "/v1/chat/completions", {"messages": question(self.about(rng, code)), "max_tokens": 400, "n": rng.choice((1, 2)),
                                                                "tools": rng.choice(([], [UNLOCK]))})
        async for _ in stream:
            events += 1
            if events > left:
                break
        await stream.aclose()
        self.note("leave")

    async def act(self, rng, code):
        action, slot = rng.choice(("save", "save", "restore", "erase")), rng.randrange(self.slots)
        body = {"filename": "slot-%d" % rng.randrange(4)} if action != "erase" else {}
        await self.good("/slots/%d?action=%s" % (slot, action), body, (200, 400, 503))  # 400: the slot holds nothing, there is no such file; 503: no room for it now
        self.note(action)

    async def client(self, number):
        rng = random.Random(number)
        kinds = [self.ask] * 3 + [self.go_on] * 2 + [self.replies] * 2 + [self.call] * 3 + [self.leave] * 2 + [self.act] * 2
        while time.perf_counter() < self.end and not self.wrong:
            code = str(rng.randrange(1000000, 10000000))
            self.codes.add(code)
            await rng.choice(kinds)(rng, code)


async def run(asked):
    with open(TEXT, encoding="utf-8") as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(asked.command, ["--chat-template", "chatml", "--queue", str(2 * asked.clients), "--state-dir", folder, *shlex.split(asked.options)])
        slots = len((await get(server.port, "/slots")))
        soak, began, minutes = Soak(server, text, slots, asked.seconds), time.perf_counter(), []
        tasks = [asyncio.create_task(soak.client(i)) for i in range(asked.clients)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.5)
            if time.perf_counter() - began > 60 * (len(minutes) + 1):
                minutes.append(server.resident())
                print("minute %d: %.0f MiB, %s" % (len(minutes), minutes[-1], soak.done), file=sys.stderr, flush=True)
        for task in tasks:
            task.result()
        busy, late = [slot for slot in await get(server.port, "/slots") if slot["is_processing"]], server.resident()
        metrics = dict(line.rsplit(" ", 1) for line in (await get(server.port, "/metrics")).splitlines() if line and line[0] != "#")
        status = server.stop()
    print("%.0f s, %d clients: %s" % (time.perf_counter() - began, asked.clients, ", ".join("%s %d" % pair for pair in sorted(soak.done.items()))))
    print("with the client's own code: " + ", ".join("%s %.1f %%" % (kind, 100 * right / soak.done[kind]) for kind, right in sorted(soak.right.items())))
    print("tokens written %s, prompts %s with %s prefix hits, preempted %s, cancelled %s" % tuple(
        metrics.get("terse_" + name, "?") for name in ("written_tokens_total", "prompts_total", "prefix_hits_total", "preemptions_total", "cancelled_total")))
    print("RSS at the end of each minute, MiB: %s; at the end %.0f" % (" ".join("%.0f" % size for size in minutes), late))
    print("wrong: %s; slots still busy: %d; exit status %d" % (soak.wrong[:3] or "nothing", len(busy), status))
    return not soak.wrong and not busy and status == 0


async def get(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET %s HTTP/1.0\r\n\r\n" % path.encode())
    body = (await reader.read()).split(b"\r\n\r\n", 1)[1].decode()
    writer.close()
    return json.loads(body) if body[:1] in "[{" else body


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--options", default="--parallel 8 --kv-budget 24M -c 8192")
    sys.exit(not asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
