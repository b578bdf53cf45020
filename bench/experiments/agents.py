#!/usr/bin/env python3
"""Agents that take turns on `terse serve`, each with a long prompt of its own, one more than there is room for: what is read again, and how long the
first token takes.

    agents.py build/bin/terse [-m MODEL.gguf] [--tokens 16384] [--agents 4] [--room 3] [--turns 6] [--order cycle,random]
              [--rules llama-server,fixed,auto] [--kv terse-4] [--options "--device cuda ..."]

An agent begins with a text of --tokens tokens; each of its turns adds what a tool would have said, some 150 tokens, and a reply of 24, which it gives back as it
came. The budget is what --room agents take at their ends by --kv, and three recent windows. Rules:

llama-server  slots for --room agents: a request takes the slot whose tokens are the longest beginning of its own, of more than a tenth, or else the one used
              least recently, whose tokens are lost (llama-server with --cache-ram 0). The slots are kept here: the server has no budget, and where one is
              lost the conversation goes on behind another first line, so that nothing of it is held
fixed         terse serve with the budget, by --kv
auto          terse serve with the budget, by --kv auto, which may lower pages

Orders: cycle, one after another; random, whoever a die names. Printed for the turns after each agent's first: tokens of prompts, how many of them were read,
how many turns found less than half of their prompt, and the time to the first token. Token counts do not depend on the machine's speed.

Python's standard library alone."""
import argparse
import http.client
import json
import random
import shlex
import statistics
import sys
import time

from serve_load import TEXT, Server

SIMILAR = 0.1  # llama-server's --slot-prompt-similarity
REPLY, SAID = 24, 600  # tokens of a reply, bytes of what a tool says


class AgentServer(Server):
    def __init__(self, asked, kv, budget=None):
        options = ["--parallel", "1", "--kv", kv, *shlex.split(asked.options)]
        options += ["-m", asked.m] if asked.m else []
        options += ["--kv-budget", str(budget)] if budget else []
        super().__init__(asked.command, options)

    def open(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST" if body is not None else "GET", path, json.dumps(body) if body is not None else None)
        reply = connection.getresponse()
        if reply.status != 200:
            sys.exit("%s: %d: %s" % (path, reply.status, reply.read().decode()[:300]))
        return connection, reply

    def ask(self, path, body=None):
        connection, reply = self.open(path, body)
        value = json.loads(reply.read())
        connection.close()
        return value

    def turn(self, messages):
        """A reply: its text, its usage, and after how many seconds its first token came."""
        body = {"messages": messages, "max_tokens": REPLY, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        began, first, text, usage = time.perf_counter(), None, "", None
        connection, reply = self.open("/v1/chat/completions", body)
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(event["error"]["message"])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                text += piece
                if first is None and (piece or choice["finish_reason"]):
                    first = time.perf_counter() - began
        connection.close()
        return text, usage, first

    def tokens(self, messages):
        prompt = self.ask("/apply-template", {"messages": messages})["prompt"]
        return self.ask("/tokenize", {"content": prompt, "parse_special": True})["tokens"]


class Agent:
    def __init__(self, number, document, said):
        self.number, self.document, self.said, self.life = number, document, said, 0
        self.messages = [{"role": "user", "content": self.first()}]

    def next_messages(self):
        """The conversation with the next thing that a tool says; its first line names the agent, and how often a slot has lost it."""
        if len(self.messages) > 1:
            turn = len(self.messages) // 2
            self.messages.append({"role": "user", "content": "The tool has said: " + self.said[SAID * turn:SAID * (turn + 1)] + "\n\nGo on."})
        return self.messages

    def begin_again(self):
        """The same behind another first line."""
        self.life += 1
        self.messages[0]["content"] = self.first()
        return self.messages

    def first(self):
        return "Agent %d.%03d works on this text.\n\n%s\n\nDescribe what you will do." % (self.number, self.life, self.document)

    def take(self, reply):
        self.messages.append({"role": "assistant", "content": reply})


def common(a, b):
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


class Slots:
    """llama-server's slots: which tokens each holds, the one used least recently first."""

    def __init__(self, n):
        self.held = [[] for _ in range(n)]

    def take(self, prompt):
        """Returns whether a slot holds the prompt's beginning; its tokens are then the prompt's."""
        alike = [common(tokens, prompt) / len(prompt) for tokens in self.held]
        best = max(alike)
        at = alike.index(best) if best > SIMILAR else 0
        self.held.pop(at)
        self.held.append(prompt)
        return best > SIMILAR


def agents(server, asked):
    """The agents, with texts of so many tokens by the server's tokenizer."""
    with open(TEXT, encoding="utf-8") as file:
        text = file.read()
    size, each = 6 * asked.tokens, []
    for i in range(asked.agents):
        at = (i * len(text) // asked.agents) % max(len(text) - size, 1)
        tokens = server.ask("/tokenize", {"content": text[at:at + size]})["tokens"][:asked.tokens]
        document = server.ask("/detokenize", {"tokens": tokens})["content"]
        each.append(Agent(i, document, text[at + size // 2:] + text))
    return each


def order_of(name, asked):
    turns = [i % asked.agents for i in range(asked.agents * asked.turns)]
    if name == "random":
        rng = random.Random(1)
        turns[asked.agents:] = [rng.randrange(asked.agents) for _ in turns[asked.agents:]]
    return turns


def budget(asked):
    """What the agents that there is room for take at their ends."""
    server = AgentServer(asked, asked.kv)
    agent = agents(server, argparse.Namespace(**{**vars(asked), "agents": 1}))[0]
    for _ in range(asked.turns):
        agent.take(server.turn(agent.next_messages())[0])
    cache = server.ask("/slots")[0]["cache"]
    server.stop()
    return asked.room * cache["resident"] + 3 * cache["window"]


def play(asked, rule, order, most):
    server = AgentServer(asked, "auto" if rule == "auto" else asked.kv, None if rule == "llama-server" else most)
    all_agents, slots, counts, seconds = agents(server, asked), Slots(asked.room), [0, 0, 0, 0], []
    for i, number in enumerate(order_of(order, asked)):
        agent = all_agents[number]
        messages = agent.next_messages()
        if rule == "llama-server" and not slots.take(server.tokens(messages)):
            messages = agent.begin_again()
            slots.held[-1] = server.tokens(messages)
        reply, usage, first = server.turn(messages)
        agent.take(reply)
        if asked.trace:
            print(rule, order, i, number, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], "%.2f" % first, file=sys.stderr, flush=True)
        if i < asked.agents:
            continue
        prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        counts = [a + b for a, b in zip(counts, (1, prompt, prompt - cached, cached < prompt / 2))]
        seconds.append(first)
    rates = server.ask("/slots")[0]["cache"].get("rates") or []
    if server.stop() != 0:
        sys.exit("the server did not end well")
    print("| %s | %s | %d | %d | %d | %d | %.2f s | %.2f s | %s |" % (order, rule, *counts, statistics.median(seconds), max(seconds),
                                                                    ", ".join("%d at %g" % (rate["tokens"], rate["bits"]) for rate in rates if rate["tokens"])), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("-m")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--room", type=int, default=3)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--order", default="cycle,random")
    parser.add_argument("--rules", default="llama-server,fixed,auto")
    parser.add_argument("--kv", default="terse-4")
    parser.add_argument("--options", default="")
    parser.add_argument("--trace", action="store_true", help="write each turn to stderr")
    asked = parser.parse_args()
    most = budget(asked)
    print("%d agents of %d tokens, %d turns each, room for %d at %s: %.1f MiB\n" % (asked.agents, asked.tokens, asked.turns, asked.room, asked.kv, most / 2**20))
    print("| order | rule | turns | prompt tokens | read | missed turns | first token, median | worst | tokens at bits, at the end |\n|---|---|---:|---:|---:|---:|---:|---:|---|")
    for order in asked.order.split(","):
        for rule in asked.rules.split(","):
            play(asked, rule, order, most)


main()
