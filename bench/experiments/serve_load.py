#!/usr/bin/env python3
"""Load on `terse serve`: clients that ask for facts of their own, how long they wait, and what the server's memory does meanwhile.

    serve_load.py build/bin/terse [--clients 1,8,32,64] [--seconds 600] [--prefix TOKENS] [--gap TOKENS] [--save TOKENS]
                  [--recall TOKENS [--texts N]] [--options "--kv terse-2 ..."]

For each number of clients a server is started; each client asks one question after another about a text of its own, of a length between 0.5
and 16 KB, in which a code is planted, reads the reply as a stream, and checks that the code is its own. Written: replies, tokens per second,
p50, p95 and p99 of the time to the first token and between two tokens, and the server's resident memory after the first tenth of the time,
at the end, and at the end of each minute.

--prefix: six questions about one document of so many tokens: the time to the first token of the others against that of the first.
--gap: the longest time between two tokens of running replies while a prompt of so many tokens is read, beside the usual one.
--save: the same while the state of a session of so many tokens is saved (--state-dir).
--recall: what a reused prefix costs: in texts of so many tokens eight sentences are planted, each of which is begun again behind its text: with
the text read afresh, with its prefix held, and with that prefix from --state-dir after a restart. How many are ended right, how probable the
right word is, and how many go on alike.

Python's standard library alone."""
import argparse
import asyncio
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(HERE, "..", "..", "data", "wiki.valid.raw")
QUESTION = "What is the access code for the merry lantern?"
OTHER_QUESTIONS = (  # which begin differently, so that no two share more than the document
    "Who is named most often in this text, and what for? Answer in one sentence, please.",
    "Summarise it in three sentences that a child of ten years would understand well.",
    "In which year does the story begin, and in which one does it end?",
    "List all places that are mentioned, in the order in which they come, with a comma between them, and nothing else.",
    "Does the author say anything about music, theatre or games? If so, quote the first such sentence word by word.")


class Server:
    def __init__(self, command, options):
        self.process = subprocess.Popen([command, "serve", "--port", "0", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)
        line = ""
        while not line.startswith("http://"):
            line = self.process.stderr.readline()
            if not line:
                sys.exit("the server did not start")
        self.port = int(line.split(": ")[0].rsplit(":", 1)[1])

    def resident(self):
        with open("/proc/%d/status" % self.process.pid) as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) / 1024

    def stop(self):
        self.process.terminate()
        self.process.stderr.read()
        return self.process.wait()


async def ask(port, path, body):
    """Sends a request and yields (seconds since it was sent, event) of its stream. HTTP/1.0: the stream comes without chunks."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(dict(body, stream=True)).encode()
    writer.write(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    try:
        status = (await reader.readline()).split()[1]
        while (await reader.readline()).strip():
            pass
        if status != b"200":
            raise RuntimeError("status %s: %s" % (status.decode(), (await reader.read()).decode()[:300]))
        while True:
            line = await reader.readline()
            if not line:
                return
            if line.startswith(b"data: "):
                yield time.perf_counter() - began, line[6:].strip()
    finally:
        writer.close()


class Reply:
    """What came, and when: times of pieces with text, in seconds since the request."""

    def __init__(self):
        self.text, self.times, self.usage = "", [], None

    async def read(self, port, messages, **fields):
        body = {"messages": messages, "stream_options": {"include_usage": True}, "temperature": 0, **fields}
        async for at, event in ask(port, "/v1/chat/completions", body):
            if event == b"[DONE]":
                continue
            event = json.loads(event)
            self.usage = event.get("usage") or self.usage
            for choice in event["choices"]:
                piece = choice["delta"].get("content")
                if piece:
                    self.text += piece
                    self.times.append(at)
        return self


def document(rng, text, size, code):
    at = rng.randrange(len(text) - size)
    lines = text[at:at + size].split("\n")
    lines.insert(rng.randrange(len(lines) + 1), "The access code for the merry lantern is %d." % code)
    return "\n".join(lines)


def question(text):
    return [{"role": "user", "content": text + "\n\n" + QUESTION}]


def percentiles(values):
    if not values:
        return "none"
    ordered = sorted(values)
    return " ".join("%.0f" % (1000 * ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))]) for p in (50, 95, 99))


class Load:
    def __init__(self, server, text, seconds):
        self.server, self.text = server, text
        self.end = time.perf_counter() + seconds
        self.replies = self.right = self.mixed = self.written = self.read = 0
        self.first, self.gaps, self.codes = [], [], set()

    async def client(self, number):
        rng = random.Random(number)
        while time.perf_counter() < self.end:
            code = rng.randrange(1000000, 10000000)
            self.codes.add(str(code))
            size = int(512 * 32 ** rng.random())
            reply = await Reply().read(self.server.port, question(document(rng, self.text, size, code)), max_tokens=40)
            found = set(re.findall(r"\d{7}", reply.text))
            self.replies += 1
            self.right += found == {str(code)}
            self.mixed += bool((found - {str(code)}) & self.codes)  # another client's code: this must not be
            self.written += reply.usage["completion_tokens"]
            self.read += reply.usage["prompt_tokens"] - reply.usage["prompt_tokens_details"]["cached_tokens"]
            self.first += reply.times[:1]
            self.gaps += [b - a for a, b in zip(reply.times, reply.times[1:])]


async def run_load(command, options, clients, seconds, text):
    server = Server(command, ["--queue", str(clients + 1), *options])
    load = Load(server, text, seconds)
    began, early, minutes = time.perf_counter(), None, []
    tasks = [asyncio.create_task(load.client(i)) for i in range(clients)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.2)
        passed = time.perf_counter() - began
        if early is None and passed > seconds / 10:
            early = server.resident()
        if passed > 60 * (len(minutes) + 1):
            minutes.append(server.resident())
            print("minute %d: %.0f MiB, %d replies, %d mixed" % (len(minutes), minutes[-1], load.replies, load.mixed), file=sys.stderr,
                  flush=True)
    for task in tasks:
        task.result()
    took, late = time.perf_counter() - began, server.resident()
    status = server.stop()
    print("%7d %7d %6.1f%% %5d %9.1f %9.1f   %-20s %-16s %7.1f %7.1f" %
          (clients, load.replies, 100 * load.right / max(load.replies, 1), load.mixed, load.written / took, load.read / took,
           percentiles(load.first), percentiles(load.gaps), early or late, late), flush=True)
    if minutes:
        print("        RSS at the end of each minute, MiB: " + " ".join("%.0f" % size for size in minutes), flush=True)
    return status == 0 and load.mixed == 0


async def run_prefix(command, options, tokens, text):
    server = Server(command, options)
    body = document(random.Random(1), text, int(tokens * 3.2), 4071826)
    first = await Reply().read(server.port, question(body), max_tokens=8)
    seconds = []
    for other in OTHER_QUESTIONS:
        asked = [{"role": "user", "content": body + "\n\n" + other}]
        second = await Reply().read(server.port, asked, max_tokens=8)
        seconds.append(second.times[0])
        usage = second.usage
        print("another question, %d of %d tokens held: first token after %.0f ms" %
              (usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"], 1000 * second.times[0]))
    print("first question, %d tokens: first token after %.0f ms; another question about it: %.0f ms (median), %.1f times sooner" %
          (first.usage["prompt_tokens"], 1000 * first.times[0], 1000 * statistics.median(seconds),
           first.times[0] / statistics.median(seconds)))
    return server.stop() == 0


FACTS = ("The password of the harbour office is", "The captain's dog is called", "The secret ingredient of the soup is", "The horse that won was",
         "The code name of the expedition is", "The lighthouse keeper's daughter is called", "The prize of the lottery was a",
         "The key to the cellar hangs behind the")
WORDS = ("Kumquat", "Walrus", "Lantern", "Saffron", "Compass", "Violin", "Glacier", "Pepper")


def document_of_facts(rng, text, size):
    """A text into which sentences of FACTS are put, and the words with which they end, in that order."""
    words = rng.sample(WORDS, len(WORDS))
    at = rng.randrange(len(text) - size)
    sentences = text[at:at + size].replace("\n", " ").split(". ")
    for fact, word in zip(FACTS, words):
        sentences.insert(rng.randrange(len(sentences)), "%s %s" % (fact, word))
    return ". ".join(sentences), words


class Told:
    """How a text goes on that ends with the beginning of a sentence in it: the words, whether they are right, how probable that was (by the
    likeliest 20 tokens), and after how many seconds the first came."""

    async def read(self, port, body, fact, word, **fields):
        self.text, self.tops, self.seconds = "", {}, None
        async for at, event in ask(port, "/v1/completions", dict(prompt=body + "\n\n" + fact, max_tokens=5, temperature=0, logprobs=20, **fields)):
            choice = None if event == b"[DONE]" else json.loads(event)["choices"][0]
            if choice:
                self.text += choice["text"]
                self.seconds = self.seconds or at
                self.tops = self.tops or (choice["logprobs"]["top_logprobs"] or [{}])[0]
        self.right = self.text.strip().startswith(word)
        self.probability = sum(math.exp(p) for token, p in self.tops.items() if token.strip() and (" " + word).startswith(token))
        return self


async def recall(port, body, words, **fields):
    return [await Told().read(port, body, fact, word, **fields) for fact, word in zip(FACTS, words)]


async def run_recall(command, options, tokens, text, texts):
    rng, fresh, held, restored, good = random.Random(7), [], [], [], True
    for _ in range(texts):
        body, words = document_of_facts(rng, text, int(tokens * 4.2))
        with tempfile.TemporaryDirectory() as folder:
            state, left = os.path.join(folder, "state"), os.path.join(folder, "left")
            server = Server(command, [*options, "--state-dir", state])
            await Told().read(server.port, body, "It", "")  # reads the text, which is kept
            shutil.copytree(state, left)  # what a server leaves that ends now
            held += await recall(server.port, body, words)
            fresh += await recall(server.port, body, words, cache_prompt=False)
            good &= server.stop() == 0
            server = Server(command, [*options, "--state-dir", left])
            restored += await recall(server.port, body, words)
            good &= server.stop() == 0
    print("%s: %d sentences of %d texts" % (" ".join(options), len(fresh), texts))
    for name, replies in (("read afresh", fresh), ("prefix held", held), ("prefix from --state-dir after a restart", restored)):
        print("  %s: %d right, probability of the right word %.3f, the same words as afresh %d, as held %d; first token after %.2f s (median)" % (
            name, sum(told.right for told in replies), statistics.mean(told.probability for told in replies),
            sum(a.text == b.text for a, b in zip(replies, fresh)), sum(a.text == b.text for a, b in zip(replies, held)),
            statistics.median(told.seconds for told in replies)), flush=True)
    return good


async def endless_reply(port):
    """A reply that is being written, and the task that reads it: no token that could end it."""
    ban = {}
    for name in ("<|eot_id|>", "<|end_of_text|>", "<|begin_of_text|>"):
        ban.update(await special_token(port, name))
    running = Reply()
    task = asyncio.create_task(running.read(port, [{"role": "user", "content": "Tell me"}], max_tokens=3000, logit_bias=ban))
    while len(running.times) < 50:
        await asyncio.sleep(0.01)
    return running, task


def gaps_between(reply, began, ended):
    """Between two tokens of the reply, in seconds, of those written between two times of its clock."""
    return [b - a for a, b in zip(reply.times, reply.times[1:]) if began <= a <= ended] or [0]


async def run_gap(command, options, tokens, text):
    server = Server(command, options)
    running, task = await endless_reply(server.port)
    before, began = time.perf_counter(), running.times[-1]
    long = await Reply().read(server.port, question(document(random.Random(2), text, int(tokens * 3.2), 4071826)), max_tokens=1)
    took = time.perf_counter() - before
    during, usual = gaps_between(running, began, began + took), gaps_between(running, 0, began)
    print("a prompt of %d tokens beside one reply: read in %.1f s; between two tokens of the reply meanwhile: median %.0f ms, longest %.0f ms "
          "(%d tokens); before: median %.0f ms" % (long.usage["prompt_tokens"], took, 1000 * statistics.median(during), 1000 * max(during),
                                                   len(during), 1000 * statistics.median(usual)))
    task.cancel()
    return server.stop() == 0


async def watch_file(folder):
    """When a state file that is written to the folder began to be there, when it was whole, and its bytes."""
    began = None
    while True:
        for entry in os.scandir(folder):
            began = began or time.perf_counter()
            if entry.name.endswith(".state"):
                return began, time.perf_counter(), entry.stat().st_size
        await asyncio.sleep(0.001)


async def run_save(command, options, tokens, text):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(command, [*options, "--state-dir", folder])
        running, task = await endless_reply(server.port)
        offset = time.perf_counter() - running.times[-1]  # of the reply's clock, to within a token
        watch = asyncio.create_task(watch_file(folder))
        long = await Reply().read(server.port, question(document(random.Random(2), text, int(tokens * 3.2), 4071826)), max_tokens=16)
        began, whole, size = await watch
        await asyncio.sleep(1)
        during = gaps_between(running, began - offset - 0.1, whole - offset + 0.1)
        after = gaps_between(running, whole - offset + 0.1, running.times[-1])
        print("the state of %d tokens, %.1f MiB, was written in %.3f s; between two tokens of another reply meanwhile: median %.0f ms, longest "
              "%.0f ms (%d tokens); afterwards: median %.0f ms, longest %.0f ms" %
              (long.usage["prompt_tokens"], size / 2**20, whole - began, 1000 * statistics.median(during), 1000 * max(during), len(during),
               1000 * statistics.median(after), 1000 * max(after)))
        task.cancel()
        return server.stop() == 0


async def special_token(port, name):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({"content": name}).encode()
    writer.write(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    tokens = json.loads((await reader.read()).split(b"\r\n\r\n", 1)[1])["tokens"]
    writer.close()
    return {str(tokens[0]): -100} if len(tokens) == 1 else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--clients", default="1,8,32,64")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--prefix", type=int, help="tokens of the document")
    parser.add_argument("--gap", type=int, help="tokens of the prompt")
    parser.add_argument("--save", type=int, help="tokens of the session")
    parser.add_argument("--recall", type=int, help="tokens of each text")
    parser.add_argument("--texts", type=int, default=1, help="of --recall")
    parser.add_argument("--options", default="--parallel 8", help="of the server")
    arguments = parser.parse_args()
    with open(TEXT, encoding="utf-8") as file:
        text = file.read()
    options, good = arguments.options.split(), True
    if arguments.prefix:
        good = asyncio.run(run_prefix(arguments.command, options, arguments.prefix, text))
    elif arguments.recall:
        good = asyncio.run(run_recall(arguments.command, options, arguments.recall, text, arguments.texts))
    elif arguments.save:
        good = asyncio.run(run_save(arguments.command, options, arguments.save, text))
    elif arguments.gap:
        good = asyncio.run(run_gap(arguments.command, options, arguments.gap, text))
    else:
        print("clients replies  right mixed written/s    read/s   first token, ms      next token, ms   RSS, MiB  at end\n"
              "                                                   p50 p95 p99          p50 p95 p99")
        for clients in arguments.clients.split(","):
            good &= asyncio.run(run_load(arguments.command, options, int(clients), arguments.seconds, text))
    sys.exit(not good)


if __name__ == "__main__":
    main()
