"""Two replicas of `terse serve` behind HAProxy with the configuration of docs/distributed.md: requests that begin alike come to the replica that has
kept their prefix, other ones to both, and one replica answers for the other that is gone."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from served import PATIENCE, Server, answer, ask_about, document, main

CONFIGURATION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "haproxy.cfg")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class BalancerTest(unittest.TestCase):
    def setUp(self):
        self.replicas = [Server("--kv", "q8_0", "-np", "2") for _ in range(2)]
        self.port = free_port()
        with open(CONFIGURATION, encoding="utf-8") as file:
            text = file.read()
        ports = {"8080": self.port, "8081": self.replicas[0].port, "8082": self.replicas[1].port}
        text = re.sub(r"127\.0\.0\.1:(808[012])", lambda match: "127.0.0.1:%d" % ports[match[1]], text)
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "haproxy.cfg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.balancer = subprocess.Popen(["haproxy", "-db", "-f", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_until(lambda: self.ask("GET", "/health")[0] == 200)

    def tearDown(self):
        self.balancer.kill()
        self.balancer.wait()
        self.folder.cleanup()
        for replica in self.replicas:
            replica.stop()

    def wait_until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, json.dumps(body) if body else None)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    def chat(self, messages):
        status, body = self.ask("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 24, "temperature": 0})
        self.assertEqual(status, 200, body)
        return json.loads(body)

    def prompts_read(self):
        """How many tokens of prompts each replica has read."""
        read = []
        for replica in self.replicas:
            text = replica.get("/metrics")[2]
            text = text.decode() if isinstance(text, bytes) else text
            read.append(float(re.search(r"^\S*prompt_tokens_total\S* ([0-9.e+]+)$", text, re.M)[1]))
        return read

    def test_conversations_return_to_their_replica(self):
        texts = [document(4700 + i, 2500, 2000 * i) for i in range(5)]  # an odd number: by turns each would come back to the other one
        for i, text in enumerate(texts):
            self.assertIn(answer(4700 + i), self.chat(ask_about(text))["choices"][0]["message"]["content"])
        self.assertTrue(all(self.prompts_read()), self.prompts_read())
        for i, text in enumerate(texts):
            messages = ask_about(text) + [{"role": "assistant", "content": answer(4700 + i)}, {"role": "user", "content": "And again?"}]
            cached = self.chat(messages)["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertGreater(cached, 300)

    def test_one_replica_answers_for_the_other(self):
        self.replicas[0].signal(signal.SIGKILL)
        self.replicas[0].process.wait()
        for i in range(4):
            text = document(4700 + i, 1200, 1500 * i)
            self.assertIn(answer(4700 + i), self.chat(ask_about(text))["choices"][0]["message"]["content"])


if __name__ == "__main__":
    if not shutil.which("haproxy"):
        print("skipped: there is no haproxy")
        sys.exit(77)
    main()
