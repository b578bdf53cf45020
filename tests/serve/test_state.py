"""Tests of state that outlives a request: prefixes across restarts (--state-dir), and the counters of /metrics."""
import os
import shutil
import signal
import tempfile
import unittest

from served import Server, ServedTest, answer, ask_about, document, main

CHAT = "/v1/chat/completions"


class StateDir(unittest.TestCase):
    def turn(self, server, messages, **fields):
        """The reply to a conversation, and how many of its tokens were read already, of how many."""
        status, _, json = server.post(CHAT, {"messages": messages, "max_tokens": 30, "temperature": 0, **fields})
        self.assertEqual(status, 200, json)
        usage = json["usage"]
        return json["choices"][0]["message"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    def test_prefixes_survive_restarts(self):
        with tempfile.TemporaryDirectory() as folder:
            state = os.path.join(folder, "state")
            text = document(8123377, size=9000)  # longer than what a cache fits itself to
            messages = ask_about(text)
            server = Server("--state-dir", state)
            reply, cached, _ = self.turn(server, messages)
            self.assertEqual((reply["content"], cached), (answer(8123377), 0))
            server.signal(signal.SIGKILL)  # what was answered is saved by then
            server.wait()
            self.assertRegex(",".join(os.listdir(state)), r"^[0-9a-f]{16}-[0-9]+\.state$")

            server = Server("--state-dir", state)
            self.assertIn("1 saved prefixes", server.start)
            messages += [reply, {"role": "user", "content": "Say it again."}]
            _, cached, tokens = self.turn(server, messages, max_tokens=2)
            self.assertGreater(cached, tokens - 25)
            other = [{"role": "user", "content": text + "\n\nWho wrote it?"}]
            _, cached, tokens = self.turn(server, other, max_tokens=2)
            self.assertGreater(cached, 0.75 * tokens)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(len(os.listdir(state)), 2)  # the longer conversation in place of the shorter, and the other question

            server = Server("--state-dir", state, "--kv", "f16")
            self.assertEqual(server.stop(), 0)
            self.assertIn("2 saved sessions are left alone", server.start)
            self.assertEqual(len(os.listdir(state)), 2)

    def follow_ups(self, server, text, reply):
        """A conversation's next turn and another question about its text: the replies with the likeliest tokens of each step, and how much was held."""
        replies = []
        for messages in (ask_about(text) + [reply, {"role": "user", "content": "Say it again."}], [{"role": "user", "content": text + "\n\nWho wrote it?"}]):
            status, _, json = server.post(CHAT, {"messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 5})
            self.assertEqual(status, 200, json)
            replies.append((json["choices"][0], json["usage"]))
        return replies

    def test_a_restored_prefix_tells_what_the_held_one_tells(self):
        """To the last bit: replies, probabilities, and how many tokens were held."""
        for kv in ("q8_0", "terse-1"):
            with self.subTest(kv=kv), tempfile.TemporaryDirectory() as folder:
                state, left = os.path.join(folder, "state"), os.path.join(folder, "left")
                text = document(8123377, size=3000)
                server = Server("--state-dir", state, "--kv", kv)
                self.addCleanup(server.stop)
                reply, _, _ = self.turn(server, ask_about(text))
                shutil.copytree(state, left)  # what a server leaves that ends now
                held = self.follow_ups(server, text, reply)
                restarted = Server("--state-dir", left, "--kv", kv)
                self.addCleanup(restarted.stop)
                restored = self.follow_ups(restarted, text, reply)
                for a, b in zip(held, restored, strict=True):
                    self.assertGreater(a[1]["prompt_tokens_details"]["cached_tokens"], 0.75 * a[1]["prompt_tokens"])
                    self.assertEqual(a, b)

    def test_json_replies_are_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server("--state-dir", folder)
            self.turn(server, ask_about(document(8123377)), max_tokens=2, response_format={"type": "json_object"})
            self.assertEqual((server.stop(), len(os.listdir(folder))), (0, 1))
            self.assertNotIn("--state-dir", server.rest)

    def test_damaged_files_are_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("0123456789abcdef-200.state", "notes.txt"):
                with open(os.path.join(folder, name), "w") as file:
                    file.write("damaged")
            server = Server("--state-dir", folder)
            self.assertEqual(server.stop(), 0)
            self.assertIn("1 saved sessions are left alone", server.start)
            self.assertEqual(len(os.listdir(folder)), 2)


class Metrics(ServedTest):
    options = ("--kv-budget", "512M")

    def values(self):
        status, headers, text = self.server.get("/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        values = {}
        for line in text.decode().splitlines():
            if not line.startswith("#"):
                self.assertRegex(line, r'^[a-z_]+(\{[a-z]+="[^"]+"\})? [0-9.e+-]+$')
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def test_metrics(self):
        before = self.values()
        self.assertEqual(before["terse_slots"], 4)
        self.assertEqual(before["terse_kv_budget_bytes"], 512 << 20)
        messages = ask_about(document(9112233))
        usage = [self.server.post(CHAT, {"messages": messages, "max_tokens": 5})[2]["usage"] for _ in range(2)]
        self.server.post(CHAT, {"messages": 5})
        after = self.values()

        def grown(name):
            return after["terse_" + name] - before.get("terse_" + name, 0)

        cached = usage[1]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 0)
        self.assertEqual(grown("prompt_tokens_total"), 2 * usage[0]["prompt_tokens"])
        self.assertEqual(grown("cached_tokens_total"), cached)
        self.assertEqual(grown("written_tokens_total"), 10)
        self.assertEqual((grown("prompts_total"), grown("prefix_hits_total")), (2, 1))
        self.assertEqual((grown('answers_total{code="200"}'), grown('answers_total{code="400"}')), (3, 1))
        self.assertEqual(grown("request_seconds_count"), 2)
        self.assertEqual(grown("first_token_seconds_count"), 2)
        self.assertEqual(grown("inter_token_seconds_count"), 8)
        self.assertEqual(grown('inter_token_seconds_bucket{le="+Inf"}'), 8)
        self.assertGreater(after["terse_kv_bytes"], 0)
        self.assertGreater(after["terse_resident_memory_bytes"], 10e6)
        buckets = [value for name, value in after.items() if name.startswith("terse_request_seconds_bucket")]
        self.assertEqual(buckets, sorted(buckets))


main()
