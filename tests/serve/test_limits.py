"""The server withstands hostile and careless clients: sizes, depths, bytes that are no text, slowness, missing keys, pages of other origins."""
import json
import tempfile
import threading

from served import ServedTest, main

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def drain(s):
    """Returns what the server sends until it closes."""
    data = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return data
            data += piece
    except ConnectionResetError:
        return data
    finally:
        s.close()


class Bodies(ServedTest):
    options = ("--max-body", "64K", "--timeout", "2")

    def bad_json(self, body, contains):
        status, _, answer = self.server.post(CHAT, body)
        self.assertEqual(status, 400, answer)
        self.assertIn(contains, answer["error"]["message"])
        self.assertEqual(answer["error"]["type"], "invalid_request_error")

    def test_no_json(self):
        self.bad_json(b"", "byte 0")
        self.bad_json(b"{\"messages\": [}", "byte 14")
        self.bad_json(b"{} {}", "byte 3")
        self.bad_json(b"[]", "must be an object, not an array")
        self.bad_json(b"\"x\"", "not a string")

    def test_depth(self):
        for opening, closing in ((b"[", b"]"), (b"{\"a\":", b"}")):
            self.bad_json(10000 * opening + b"1" + 10000 * closing, "deeper than 1000")
        schema = 900 * b"{\"properties\":{\"a\":" + b"{}" + 900 * b"}}"
        status, _, _ = self.server.post(CHAT, b"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":"
                                        b"{\"type\":\"json_object\",\"schema\":" + schema + b"}}")
        self.assertEqual(status, 400)

    def test_malformed_utf8(self):
        for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\x00"):
            text = b"{\"messages\": [{\"role\": \"user\", \"content\": \"" + bad + b"\"}]}"
            self.bad_json(text, "byte %d" % text.index(bad))

    def test_nul_characters(self):
        self.bad_json(b"{\"prompt\": \"a\\u0000b\"}", "U+0000")
        status, _, _ = self.server.post("/tokenize", b"{\"content\": \"a\\\\u0000b\"}")
        self.assertEqual(status, 200)

    def test_lone_surrogates_are_refused(self):
        self.bad_json(b"{\"prompt\": \"\\ud800\"}", "not JSON")

    def test_oversized(self):
        status, _, answer = self.server.post(CHAT, {**BODY, "user": "x" * 70000})
        self.assertEqual((status, answer["error"]["type"]), (413, "invalid_request_error"))
        with self.server.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n{") as s:
            self.assertIn(b" 413 ", s.recv(4096))

    def test_oversized_without_a_length(self):
        chunk = b"8000\r\n" + 32768 * b" " + b"\r\n"
        start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        with self.server.raw(start + 3 * chunk + b"0\r\n\r\n") as s:
            self.assertIn(b" 413 ", s.recv(4096))
        s = self.server.raw(start)
        try:  # without end
            for _ in range(1000):
                s.sendall(chunk)
            self.fail("a body without end is read without end")
        except OSError:
            s.close()

    def test_large_headers(self):
        with self.server.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + 40000 * b"x" + b"\r\n\r\n") as s:
            self.assertIn(b" 431 ", s.recv(4096))

    def test_garbage(self):
        drain(self.server.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n"))
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_addresses(self):
        for path in ("/nothing", "/../../etc/passwd", "/%2e%2e/etc/passwd", "/v1/models/../../x", "/" + 3000 * "x"):
            status, _, answer = self.server.get(path)
            self.assertEqual((status, answer["error"]["type"]), (404, "not_found_error"))
            self.assertLess(len(answer["error"]["message"]), 120)
        self.assertEqual(self.server.get(CHAT)[0], 405)
        self.assertEqual(self.server.post("/health", {})[0], 405)
        self.assertEqual(self.server.ask("HEAD", "/health")[0], 200)

    def test_slow_clients_are_cut_off(self):
        """One that sends a byte now and then, one that stops in its body, one that says nothing; others are served meanwhile."""
        slow = [self.server.raw(b"GET /health HTTP/1.1\r\nX: "), self.server.raw(),
                self.server.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")]
        over = threading.Event()

        def drip():
            try:
                while not over.wait(0.2):
                    slow[0].sendall(b"x")
            except OSError:
                pass

        dripping = threading.Thread(target=drip)
        dripping.start()
        self.assertEqual(self.server.get("/health")[0], 200)
        try:
            for s in slow:
                self.assertNotIn(b" 200 ", drain(s))
        finally:
            over.set()
            dripping.join()

    def test_a_connection_serves_many_requests(self):
        connection = self.server.connect()
        for i in range(3):
            connection.request("POST", CHAT, json.dumps(BODY))
            response = connection.getresponse()
            self.assertEqual((response.status, len(json.loads(response.read())["choices"])), (200, 1))
        connection.close()

    def test_pages_of_other_origins(self):
        for origin, status in (("https://example.org", 403), ("null", 403), ("http://127.0.0.1:%d" % self.server.port, 200)):
            got, headers, _ = self.server.post(CHAT, BODY, {"Origin": origin})
            self.assertEqual((origin, got), (origin, status))
            self.assertNotIn("Access-Control-Allow-Origin", headers)

    def test_names_that_lead_here(self):
        """A site whose name was made to lead to this machine is another origin all the same."""
        for name, status in (("example.org", 403), ("127.example.org", 403), ("localhost.example.org", 403), ("localhost", 200)):
            host = "%s:%d" % (name, self.server.port)
            self.assertEqual((host, self.server.post(CHAT, BODY, {"Host": host, "Origin": "http://" + host})[0]), (host, status))


class Cors(ServedTest):
    options = ("--cors", "https://example.org")

    def test_cors(self):
        origin = {"Origin": "https://example.org"}
        status, headers, _ = self.server.post(CHAT, BODY, origin)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "https://example.org"))
        status, headers, _ = self.server.ask("OPTIONS", CHAT, headers=origin)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, "https://example.org"))
        self.assertIn("Authorization", headers["Access-Control-Allow-Headers"])
        self.assertEqual(self.server.post(CHAT, BODY, {"Origin": "https://example.com"})[0], 403)


class Keys(ServedTest):
    @classmethod
    def setUpClass(cls):
        cls.file = tempfile.NamedTemporaryFile("w")
        cls.file.write("# keys\nfirst-key\n\n  second-key \n")
        cls.file.flush()
        cls.options = ("--api-key", "third-key", "--api-key-file", cls.file.name)
        super().setUpClass()

    def test_keys(self):
        for key in ("first-key", "second-key", "third-key"):
            self.assertEqual(self.server.post(CHAT, BODY, {"Authorization": "Bearer " + key})[0], 200)
        for header in ("Bearer first-kez", "Bearer first-ke", "Bearer first-keyy", "Bearer ", "Basic first-key", "first-key",
                       "Bearer first-keyfirst-key"):
            status, headers, answer = self.server.post(CHAT, BODY, {"Authorization": header})
            self.assertEqual((header, status, answer["error"]["code"]), (header, 401, "invalid_api_key"))
            self.assertEqual(headers["WWW-Authenticate"], "Bearer")
        for path in ("/v1/models", "/slots", "/props", "/nothing"):
            self.assertEqual(self.server.get(path)[0], 401)
        self.assertEqual(self.server.get("/health")[0], 200)


main()
