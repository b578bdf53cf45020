"""Starts `terse serve` for the tests of this folder, and asks it. Python's standard library alone.

Each test_*.py is run by ctest with the command's path as its first argument: `python3 test_chat.py build/bin/terse [TEST...]`."""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

COMMAND = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else None
PATIENCE = 120  # seconds for anything that shall happen at all; no test passes or fails by less


def main():
    if COMMAND is None:
        sys.exit("usage: python3 %s build/bin/terse [TEST...]" % sys.argv[0])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])


def environment():
    """Waiting threads sleep: tests run side by side. The codebooks of the user who runs them are not used."""
    return dict(os.environ, OMP_WAIT_POLICY="passive", XDG_CACHE_HOME=os.path.join(tempfile.gettempdir(), "terse-no-cache"))


class Server:
    """A server on a free port, with two threads; the startup line says which port. `launcher` starts the command, as mpirun does."""

    launcher = ()

    def __init__(self, *options):
        self.process = subprocess.Popen([*self.launcher, COMMAND, "serve", "--port", "0", "-t", "2", *options], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
        self.start = ""  # what it says until it serves
        while not self.start.startswith("http://") and "\nhttp://" not in self.start:
            line = self.process.stderr.readline().decode()
            if not line:
                raise RuntimeError("terse serve did not start: " + self.start)
            self.start += line
        self.address = line.split(": ")[0]
        self.port = int(self.address.rsplit(":", 1)[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method, path, body=None, headers={}):
        """Status, headers, and the body: of JSON its value."""
        connection = self.connect()
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
            is_json = response.headers.get("Content-Type", "").startswith("application/json")
            return response.status, response.headers, json.loads(text) if is_json and text else text
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body, headers={}):
        return self.ask("POST", path, body, headers)

    def chat(self, text, **fields):
        """The reply's JSON to one message of the user."""
        status, _, json_body = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})
        if status != 200:
            raise AssertionError("%d: %s" % (status, json_body))
        return json_body

    def stream(self, path, body):
        """The events of a streamed reply: values of JSON, and "[DONE]"."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(dict(body, stream=True)).encode())
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            for line in response:
                line = line.decode().rstrip("\n")
                if not line:
                    continue
                assert line.startswith("data: "), line
                yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])
        finally:
            connection.close()

    def raw(self, data=b""):
        """A socket to the server, with bytes sent as they are."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        s.sendall(data)
        return s

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        """The exit status; whatever else it wrote to stderr is in self.rest."""
        self.rest = self.process.stderr.read().decode()
        status = self.process.wait(PATIENCE)
        self.process.stderr.close()
        return status

    def stop(self):
        if self.process.poll() is None:
            self.signal()
        return self.wait() if not self.process.stderr.closed else self.process.returncode


class ServedTest(unittest.TestCase):
    """Tests that share one server, started with `options`; that it ends well is a part of each of them."""

    options = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        if status != 0:
            raise AssertionError("the server ended with status %d: %s" % (status, cls.server.rest))

    def refused(self, status, param, path, body, contains=""):
        """The request is refused with an error in OpenAI's form, which is returned."""
        got, _, answer = self.server.post(path, body)
        self.assertEqual(got, status, answer)
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["param"], param, error)
        self.assertIn(contains, error["message"])
        self.assertNotIn("\n", error["message"])
        return error


FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
QUESTION = "What is the access code for the merry lantern?"


def document(code, size=3000, begin=0):
    """A text of about `size` bytes in whose middle a fact is planted, which the built-in model is good at finding."""
    with open(os.path.join(FIXTURES, "wiki_excerpt.txt"), encoding="utf-8") as file:
        lines = file.read()[begin:begin + size].split("\n")
    lines.insert(len(lines) // 2, "The access code for the merry lantern is %d." % code)
    return "\n".join(lines)


def ask_about(text):
    return [{"role": "user", "content": text + "\n\n" + QUESTION}]


def answer(code):
    return "The access code for the merry lantern is %d." % code
