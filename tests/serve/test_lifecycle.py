"""Starting, waiting, going away, and stopping."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from served import COMMAND, PATIENCE, Server, ServedTest, answer, ask_about, document, environment, main

CHAT = "/v1/chat/completions"
SMALL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/models/llama.gguf")


def until(condition):
    """Waits until the condition holds; its value."""
    for _ in range(PATIENCE * 20):
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it never happened")


def endless(server, **fields):
    """A request whose reply does not end by itself."""
    end, = server.post("/tokenize", {"content": "<|eot_id|>"})[2]["tokens"]
    ends = {str(token): -100 for token in (end, end - 1)}
    for name in ("<|end_of_text|>", "<|begin_of_text|>"):
        tokens = server.post("/tokenize", {"content": name})[2]["tokens"]
        if len(tokens) == 1:
            ends[str(tokens[0])] = -100
    return {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 20000, "logit_bias": ends, **fields}


def preemptions(server):
    text = server.get("/metrics")[2].decode()
    return next(float(line.split()[1]) for line in text.split("\n") if line.startswith("terse_preemptions_total "))


def busy(server):
    return [slot for slot in server.get("/slots")[2] if slot["is_processing"]]


class OneSlot(ServedTest):
    options = ("--parallel", "1", "--queue", "1")

    def send(self, **fields):
        """A request that is sent, and whose reply is not read yet."""
        connection = self.server.connect()
        connection.request("POST", CHAT, json.dumps(endless(self.server, **fields)))
        return connection

    def send_to_queue(self, **fields):
        """A request that waits: only then is the queue full for the next request."""
        connection = self.send(**fields)
        until(lambda: b"terse_requests_waiting 1\n" in self.server.get("/metrics")[2])
        return connection

    def test_a_client_that_goes_away_is_forgotten(self):
        for stream in (False, True):
            connection = self.send(stream=stream)
            slot, = until(lambda: [slot for slot in busy(self.server) if slot["tokens"] > 3])
            if stream:
                self.assertTrue(connection.getresponse().readline().startswith(b"data: "))
            connection.close()
            until(lambda: not busy(self.server))
            slot, = [slot for slot in self.server.get("/slots")[2] if slot["request"] == slot["request"]]
            self.assertLess(slot["tokens"], 19000)

    def test_queue(self):
        running = self.send()
        until(lambda: busy(self.server))
        waiting = self.send_to_queue(max_tokens=2)
        full = self.server.post(CHAT, endless(self.server, max_tokens=2))
        self.assertEqual(full[0], 429)
        self.assertEqual(full[1]["Retry-After"], "1")
        self.assertEqual(full[2]["error"]["type"], "rate_limit_error")
        running.close()
        response = waiting.getresponse()
        self.assertEqual(response.status, 200)
        response.read()
        waiting.close()

    def test_one_that_leaves_the_queue(self):
        running = self.send()
        until(lambda: busy(self.server))
        waiting = self.send_to_queue()
        self.assertEqual(self.server.post(CHAT, endless(self.server, max_tokens=2))[0], 429)
        waiting.close()
        third = []
        thread = threading.Thread(target=lambda: third.append(until(
            lambda: [got for got in [self.server.post(CHAT, endless(self.server, max_tokens=2))] if got[0] != 429])[0][0]))
        thread.start()
        time.sleep(0.2)
        running.close()
        thread.join()
        self.assertEqual(third, [200])

    def test_n_is_at_most_the_slots(self):
        self.refused(400, "n", CHAT, {"messages": [{"role": "user", "content": "x"}], "n": 2})


class Turns(ServedTest):
    options = ("--parallel", "1")

    @classmethod
    def setUpClass(cls):
        cls.file = tempfile.NamedTemporaryFile("w")
        cls.file.write("a\nb\n")
        cls.file.flush()
        cls.options += ("--api-key-file", cls.file.name)
        super().setUpClass()

    def test_clients_take_turns(self):
        """A client that asks much does not keep another waiting; clients are told apart by their keys."""
        order = []

        def ask(key, n):
            fields = {"prompt": [[5, 6, 7 + i] for i in range(n)], "max_tokens": 20}
            status, _, _ = self.server.post("/v1/completions", fields, {"Authorization": "Bearer " + key})
            order.append((key, status))

        threads = [threading.Thread(target=ask, args=("a", 15)), threading.Thread(target=ask, args=("b", 1))]
        threads[0].start()
        until(lambda: self.server.get("/slots", Authorization="Bearer a")[2][0]["request"])
        threads[1].start()
        for thread in threads:
            thread.join()
        self.assertEqual(order, [("b", 200), ("a", 200)])


class Budget(ServedTest):
    """Room for one document's cache, not for two: the second one waits for the first. One larger than the room is refused."""
    options = ("--parallel", "2", "--kv", "f16", "--kv-budget", "24M", "-c", "4096")

    def test_budget(self):
        replies = {}

        def ask(code):
            fields = {"messages": ask_about(document(code)), "max_tokens": 30, "temperature": 0}
            replies[code] = self.server.post(CHAT, fields)[2]["choices"][0]["message"]["content"]

        threads = [threading.Thread(target=ask, args=(1000003 * i,)) for i in (3, 4, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(replies, {code: answer(code) for code in (3000009, 4000012, 5000015)})
        status, _, refused = self.server.post(CHAT, {"messages": ask_about(document(1, size=9000)), "max_tokens": 2})
        self.assertEqual(status, 503, refused)
        self.assertIn("--kv-budget", refused["error"]["message"])


class Lowered(ServedTest):
    """Replies whose caches do not fit the budget together at terse-4: their oldest pages are lowered, and none is preempted."""
    options = ("--parallel", "4", "--kv", "auto", "--kv-budget", "15500K", "-c", "8192")
    fixed = ("--parallel", "4", "--kv", "terse-4", "--kv-budget", "15500K", "-c", "8192")

    def write(self, server):
        """Writes four replies at the same time; returns the most tokens that were held at each rate at a time."""
        held, replies = {}, []

        def ask(i):
            replies.append(server.post(CHAT, endless(server, max_tokens=600, seed=i))[2]["usage"]["completion_tokens"])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for slot in server.get("/slots")[2]:
                for rate in slot["cache"].get("rates", []):
                    held[rate["bits"]] = max(held.get(rate["bits"], 0), rate["tokens"])
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        self.assertEqual(replies, [600] * 4)
        return held

    def test_pages_are_lowered_before_replies_are_preempted(self):
        held = self.write(self.server)
        self.assertEqual(preemptions(self.server), 0)
        self.assertEqual(sorted(held), [1.5, 2, 3, 4])
        self.assertGreater(held[3] + held[2], 0)
        server = Server(*self.fixed)
        try:
            self.assertEqual(self.write(server), {})
            self.assertGreater(preemptions(server), 0)
        finally:
            server.stop()


class Parking(ServedTest):
    """Room for some 330 tokens, and replies that need more together: those for which there is none wait, and come whole all the same. Some
    room is given back later than a reply is written, when it is saved."""
    options = ("--parallel", "4", "--kv", "f16", "--kv-budget", "4M", "-c", "8192")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.options += ("--state-dir", cls.folder.name)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def preempted(self):
        return preemptions(self.server)

    def ask_all(self, bodies):
        """Their replies, asked for at the same time; some were preempted, and in the end nothing is held that is not a prefix."""
        replies, before = {}, self.preempted()

        def ask(i):
            if bodies[i].pop("stream", False):
                events = list(self.server.stream(CHAT, bodies[i]))
                text = "".join(choice["delta"].get("content", "") for event in events[:-1] for choice in event["choices"])
                finish = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"] if choice["finish_reason"]]
                replies[i] = [(text, reason) for reason in finish], len(events) - 3
            else:
                status, _, reply = self.server.post(CHAT, bodies[i])
                self.assertEqual(status, 200, reply)
                replies[i] = ([(choice["message"]["content"], choice["finish_reason"]) for choice in reply["choices"]],
                              reply["usage"]["completion_tokens"])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertGreater(self.preempted(), before)
        self.assertEqual(busy(self.server), [])
        return [replies[i] for i in range(len(bodies))]

    def test_replies_come_whole(self):
        bodies = [endless(self.server, max_tokens=130, seed=i, stream=i % 2 == 1) for i in range(6)]
        for choices, tokens in self.ask_all(bodies):
            self.assertEqual([finish for _, finish in choices], ["length"])
            self.assertGreater(len(choices[0][0]), 130)
            self.assertGreaterEqual(tokens, 123)  # of a stream events are counted: some tokens end no character

    def test_replies_to_one_prompt(self):
        choices, tokens = self.ask_all([endless(self.server, max_tokens=130, n=4, seed=5)])[0]
        self.assertEqual(([finish for _, finish in choices], tokens), (["length"] * 4, 520))
        self.assertEqual(len({text for text, _ in choices}), 4)

    def test_prompts(self):
        """A document that is read beside long replies."""
        asked = {"messages": ask_about(document(5550123, size=250)), "max_tokens": 30, "temperature": 0}
        replies = self.ask_all([endless(self.server, max_tokens=150), endless(self.server, max_tokens=150), endless(self.server, max_tokens=150),
                                asked])
        self.assertEqual([tokens for _, tokens in replies[:3]], [150] * 3)
        self.assertEqual(replies[3][0], [(answer(5550123), "stop")])

    def test_json(self):
        """A text that must be JSON goes on where it was, to its end."""
        before, replies = self.preempted(), []
        constant = "the sun rises over the old harbour"
        schema = {"type": "object", "required": ["list"], "additionalProperties": False,
                  "properties": {"list": {"type": "array", "minItems": 6, "maxItems": 6, "items": {"enum": [constant]}}}}
        fields = {"messages": [{"role": "user", "content": "Numbers"}], "seed": 1,
                  "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        thread = threading.Thread(target=lambda: replies.append(self.server.post(CHAT, endless(self.server, max_tokens=275))[2]))
        thread.start()
        until(lambda: [slot for slot in busy(self.server) if slot["tokens"] > 64])
        as_json = self.server.post(CHAT, fields)[2]  # the newer of the two, which waits for the end of the other
        self.assertEqual(as_json["choices"][0]["finish_reason"], "stop")
        self.assertEqual(json.loads(as_json["choices"][0]["message"]["content"]), {"list": [constant] * 6})
        self.assertGreater(self.preempted(), before)
        thread.join()
        self.assertEqual(replies[0]["usage"]["completion_tokens"], 275)

    def test_one_that_never_fits(self):
        """Alone it has all the room there is, and then it ends."""
        reply = self.server.post(CHAT, endless(self.server, max_tokens=1000))[2]
        self.assertEqual(reply["choices"][0]["finish_reason"], "length")
        self.assertTrue(200 < reply["usage"]["completion_tokens"] < 375, reply["usage"])


class Stopping(unittest.TestCase):
    def test_running_replies_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server("--parallel", "1")
            events = server.stream(CHAT, endless(server, max_tokens=200))
            next(events)
            next(events)
            server.signal(number)
            until(lambda: server.get("/health")[0] == 503)
            self.assertEqual(server.post(CHAT, {"messages": [{"role": "user", "content": "x"}]})[0], 503)
            rest = list(events)
            self.assertEqual(rest[-1], "[DONE]")
            self.assertEqual(rest[-2]["choices"][0]["finish_reason"], "length")
            self.assertEqual(server.wait(), 0)

    def test_a_second_signal_ends_it_at_once(self):
        server = Server()
        events = server.stream(CHAT, endless(server))
        next(events)
        server.signal()
        until(lambda: server.get("/health")[0] == 503)
        server.signal()
        self.assertEqual(server.wait(), -signal.SIGTERM)
        events.close()

    def test_idle(self):
        server = Server()
        self.assertEqual(server.stop(), 0)
        self.assertIn("stopping", server.rest)


class Starting(unittest.TestCase):
    def refused(self, contains, *options, cache=None):
        variables = dict(environment(), XDG_CACHE_HOME=cache) if cache else environment()
        done = subprocess.run([COMMAND, "serve", "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables,
                              timeout=PATIENCE)
        lines = done.stderr.decode().splitlines()
        self.assertEqual((done.returncode, len(lines), done.stdout), (1, 1, b""), lines)
        self.assertIn(contains, lines[0])
        self.assertTrue(lines[0].startswith("terse serve: "))

    def test_refusals(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused("choose another --port", "--port", str(taken.getsockname()[1]))
        self.refused("no-such-host.invalid", "--host", "no-such-host.invalid")
        self.refused("cannot listen at 192.0.2.1", "--host", "192.0.2.1")
        self.refused("--kv-budget takes a size", "--kv-budget", "much")
        self.refused("budget", "--kv-budget", "1K")
        self.refused("/no/such/file", "--api-key-file", "/no/such/file")
        with tempfile.NamedTemporaryFile() as empty:
            self.refused("has no API key", "--api-key-file", empty.name)
        self.refused("--api-key is empty", "--api-key", "")
        self.refused("--parallel takes a whole number from 1", "--parallel", "0")
        self.refused("-n 0: replies of no tokens", "-n", "0")
        self.refused("-a is empty", "-a", "")
        self.refused("no such chat format", "--chat-template", "no-such-format")
        self.refused("model", "-m", "/no/such/model.gguf")
        self.refused("context", "-c", "1000000")

    def test_errors_come_before_anything_is_learned(self):
        with tempfile.TemporaryDirectory() as cache, socket.create_server(("127.0.0.1", 0)) as taken:
            wrong = (("--port", str(taken.getsockname()[1])), ("--state-dir", "/nonexistent/x"))
            for options in wrong:
                self.refused(options[1] if options[0] == "--state-dir" else "cannot listen at 127.0.0.1", "-m", SMALL, "--kv", "antkv-1",
                             "--auto-calibrate", *options, cache=cache)
            self.assertEqual(os.listdir(cache), [])

    def test_no_profile_is_learned_unasked(self):
        """A remark says so where the user named a method that compresses nothing in so short a context."""
        for options, remarks in (((), 0), (("--kv", "terse-2"), 1), (("--kv", "terse-2", "-c", "4096", "--allow-longer-context"), 0)):
            server = Server("-m", SMALL, *options)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(server.start.count("fits itself to each text from 2052 tokens on"), remarks, server.start)
            self.assertNotIn("profile", server.start + server.rest)

    def test_startup_line(self):
        server = Server("--kv", "f16", "--kv-budget", "256M", "--parallel", "3", "-c", "4096", "--api-key", "k")
        for part in ("lab-27m", "f16", "3 slots", "4096", "256 MiB", "API key"):
            self.assertIn(part, server.start)
        self.assertEqual(server.stop(), 0)
        self.assertIn("try: curl " + server.address, server.rest)

    def test_defaults_of_requests(self):
        """-a, -n and --temp are for requests that do not say; what the server has anyway may be asked for."""
        server = Server("--kv", "f16", "-a", "a name", "-n", "5", "--temp", "0", "--metrics", "--slots", "-cb", "--jinja")
        asked = {"prompt": "It was a dark and stormy", "logit_bias": {}}
        replies = [server.post("/v1/completions", {**asked, **more})[2] for more in ({}, {}, {"max_tokens": 2}, {"temperature": 100, "seed": 1})]
        self.assertEqual(replies[0]["model"], "a name")
        self.assertEqual([reply["usage"]["completion_tokens"] for reply in replies], [5, 5, 2, 5])
        texts = [reply["choices"][0]["text"] for reply in replies]
        self.assertEqual(texts[0], texts[1])
        self.assertTrue(texts[0].startswith(texts[2]))
        self.assertNotEqual(texts[0], texts[3])
        self.assertLessEqual(server.chat("Hello")["usage"]["completion_tokens"], 5)
        self.assertEqual(server.stop(), 0)

    def test_a_model_without_a_chat_format(self):
        model = os.path.join(os.path.dirname(__file__), "../fixtures/models/qwen3.gguf")
        server = Server("-m", model, "--kv", "f16")
        self.assertIn("chats are refused: the model has no chat template: pass --chat-template", server.start)
        status, _, refused = server.post(CHAT, {"messages": [{"role": "user", "content": "x"}]})
        self.assertEqual((status, "no chat template" in refused["error"]["message"]), (400, True), refused)
        self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)
        self.assertEqual(server.stop(), 0)
        self.assertIn("try: curl " + server.address + "/v1/completions -d '{\"prompt\": ", server.rest)
        server = Server("-m", model, "--kv", "f16", "--chat-template", "gemma")
        self.assertNotIn("chats are refused", server.start)
        self.assertEqual(server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})[0], 200)
        self.assertEqual(server.stop(), 0)


main()
