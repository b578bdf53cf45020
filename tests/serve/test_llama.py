"""What scripts for llama-server look for: timings, the progress of a prompt, /apply-template, /infill, and what is not there."""
import os
import struct
import tempfile

from served import FIXTURES, ServedTest, ask_about, document, main

CHAT, COMPLETION, LLAMA = "/v1/chat/completions", "/v1/completions", "/completion"
HELLO = [{"role": "user", "content": "Hello"}]
RATES = {what + ending for what in ("prompt", "predicted") for ending in ("_n", "_ms", "_per_token_ms", "_per_second")}


class Llama(ServedTest):
    def post(self, path, **body):
        status, _, answer = self.server.post(path, {"temperature": 0, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def check_timings(self, timings, prompt, cached, predicted):
        self.assertEqual(set(timings), RATES | {"cache_n"})
        self.assertEqual((timings["prompt_n"], timings["cache_n"], timings["predicted_n"]), (prompt, cached, predicted))
        for what, n in (("prompt", prompt), ("predicted", predicted)):
            if n > 0:
                self.assertGreater(timings[what + "_ms"], 0)
                self.assertAlmostEqual(timings[what + "_per_token_ms"] * n, timings[what + "_ms"], 6)
                self.assertAlmostEqual(timings[what + "_per_second"] * timings[what + "_per_token_ms"], 1000, 3)

    def test_timings(self):
        text = "The harbour lay still under the morning fog. " * 4
        for path, prompt in ((CHAT, {"messages": [{"role": "user", "content": text}]}), (COMPLETION, {"prompt": text + "a"}), (LLAMA, {"prompt": text + "b"})):
            first = self.post(path, max_tokens=5, **prompt)
            total = first["timings"]["prompt_n"]
            if path == CHAT:
                self.assertEqual(total + first["timings"]["cache_n"], first["usage"]["prompt_tokens"])
            again = self.post(path, max_tokens=5, **prompt)["timings"]
            self.check_timings(again, total + first["timings"]["cache_n"] - again["cache_n"], again["cache_n"], 5)
            self.check_timings(self.post(path, max_tokens=3, cache_prompt=False, **prompt)["timings"], total + first["timings"]["cache_n"], 0, 3)
        both = self.post(COMPLETION, prompt=["One day", "Long ago"], n=2, max_tokens=2, cache_prompt=False)
        self.check_timings(both["timings"], both["usage"]["prompt_tokens"], 0, 8)
        self.check_timings(self.post(COMPLETION, prompt="One day", max_tokens=0, cache_prompt=False)["timings"],
                           len(self.server.post("/tokenize", {"content": "One day", "add_special": True})[2]["tokens"]), 0, 0)

    def test_timings_of_streams(self):
        for path, prompt in ((CHAT, {"messages": HELLO}), (COMPLETION, {"prompt": "Hello"}), (LLAMA, {"prompt": "Hello"})):
            events = [e for e in self.server.stream(path, {"max_tokens": 4, "temperature": 0, **prompt}) if e != "[DONE]"]
            self.assertEqual(["timings" in event for event in events], [False] * (len(events) - 1) + [True])
            self.assertEqual(events[-1]["timings"]["predicted_n"], 4)
            each = [e for e in self.server.stream(path, {"max_tokens": 4, "temperature": 0, "timings_per_token": True, **prompt}) if e != "[DONE]"]
            counts = [event["timings"]["predicted_n"] for event in each if "timings" in event]
            self.assertEqual(sorted(set(counts)), [1, 2, 3, 4])
        events = list(self.server.stream(CHAT, {"messages": HELLO, "max_tokens": 2, "stream_options": {"include_usage": True}}))
        self.assertEqual(events[-2]["timings"]["predicted_n"], events[-2]["usage"]["completion_tokens"])

    def test_progress(self):
        text = document(7712345, size=9000)
        for i, (path, prompt) in enumerate(((CHAT, lambda t: {"messages": ask_about(t)}), (COMPLETION, lambda t: {"prompt": t}), (LLAMA, lambda t: {"prompt": t}))):
            body = {"max_tokens": 2, "temperature": 0, "return_progress": True, **prompt("%d. " % i + text)}
            for cached in (False, True):
                events = [e for e in self.server.stream(path, body) if e != "[DONE]"]
                progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
                self.assertGreater(len(progress), 0 if cached else 1)
                total, cache = progress[0]["total"], progress[0]["cache"]
                read = [p["processed"] for p in progress]
                self.assertEqual((read, read[-1]), (sorted(read), total))
                self.assertTrue(all(set(p) == {"total", "cache", "processed", "time_ms"} and (p["total"], p["cache"]) == (total, cache) and
                                    p["processed"] >= cache and p["time_ms"] >= 0 for p in progress))
                self.assertEqual(cache > 0, cached)
                self.assertEqual(events[-1]["timings"]["cache_n"], cache)
                last = [i for i, event in enumerate(events) if "prompt_progress" in event][-1]
                self.assertFalse(any("prompt_progress" in event for event in events[last + 1:]))
                text_before = "".join(event.get("content", "") if path == LLAMA else event["choices"][0].get("text", "") for event in events[:last])
                self.assertEqual(text_before, "")
        self.assertFalse(any("prompt_progress" in e for e in self.server.stream(CHAT, {"messages": HELLO, "max_tokens": 2}) if e != "[DONE]"))
        self.assertNotIn("prompt_progress", self.post(LLAMA, prompt="Hello", max_tokens=2, return_progress=True))
        self.refused(400, "return_progress", CHAT, {"messages": HELLO, "return_progress": 1}, "return_progress")

    def test_apply_template(self):
        prompt = self.post("/apply-template", messages=HELLO)["prompt"]
        self.assertTrue(prompt.startswith("<|begin_of_text|>"), prompt)
        self.assertIn("<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>", prompt)
        written = self.post(CHAT, messages=HELLO, max_tokens=4)
        completed = self.post(COMPLETION, prompt=prompt.removeprefix("<|begin_of_text|>"), max_tokens=4)
        self.assertEqual(completed["choices"][0]["text"], written["choices"][0]["message"]["content"])
        self.assertEqual(completed["usage"]["prompt_tokens"], written["usage"]["prompt_tokens"])
        self.refused(400, "messages", "/apply-template", {"messages": []}, "messages")
        self.refused(400, "tools", "/apply-template", {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}, "no tools")
        self.refused(400, "prompt", "/apply-template", {"messages": HELLO, "prompt": "x"})

    def test_a_model_that_does_not_fill_in(self):
        error = self.refused(501, None, "/infill", {"input_prefix": "a", "input_suffix": "b"}, "does not fill in the middle")
        self.assertEqual(error["type"], "not_supported_error")

    def test_what_terse_does_not_compute(self):
        """Embeddings and ranks are refused by name, as llama-server refuses what it was not started for."""
        for path in ("/v1/embeddings", "/embeddings", "/embedding", "/v1/rerank", "/v1/reranking", "/rerank", "/reranking"):
            error = self.refused(501, None, path, {"input": "x"}, path)
            self.assertEqual((error["type"], error["code"]), ("not_supported_error", 501))
            self.assertIn("ranks no documents" if "rerank" in path else "computes no embeddings", error["message"])


class Tools(ServedTest):
    options = ("--chat-template", "chatml")

    def test_apply_template_with_tools(self):
        tool = {"type": "function", "function": {"name": "unlock", "parameters": {"type": "object", "properties": {}}}}
        prompt = self.server.post("/apply-template", {"messages": HELLO, "tools": [tool]})[2]["prompt"]
        self.assertIn('"name": "unlock"', prompt)
        self.assertTrue(prompt.endswith("<|im_start|>assistant\n"), prompt)


def gguf_with(path, numbers):
    """The bytes of a GGUF file with more metadata: numbers by their keys. Where tensors begin stays a multiple of 32 bytes."""
    with open(path, "rb") as file:
        data = file.read()
    (count,) = struct.unpack_from("<Q", data, 16)
    more = b"".join(struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", 4, number) for key, number in numbers.items())
    empty = struct.pack("<Q", len("general.note")) + b"general.note" + struct.pack("<I", 8)
    fill = -(len(more) + len(empty) + 8) % 32
    return data[:16] + struct.pack("<Q", count + len(numbers) + 1) + empty + struct.pack("<Q", fill) + fill * b"x" + more + data[24:]


PRE, SUF, MID, REP, SEP = 60, 61, 62, 63, 64


class Infill(ServedTest):
    @classmethod
    def setUpClass(cls):
        marks = {"tokenizer.ggml.fim_%s_token_id" % name: token for name, token in (("pre", PRE), ("suf", SUF), ("mid", MID), ("rep", REP), ("sep", SEP))}
        cls.folder = tempfile.TemporaryDirectory()
        model = os.path.join(cls.folder.name, "fim.gguf")
        with open(model, "wb") as file:
            file.write(gguf_with(os.path.join(FIXTURES, "models", "qwen3.gguf"), marks))
        cls.options = ("-m", model, "-c", "256")
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def tokens(self, text, special=False):
        return self.server.post("/tokenize", {"content": text, "parse_special": special})[2]["tokens"]

    def prompt(self, prefix, suffix, extra=(), prompt=""):
        files = [[SEP, *self.tokens(name), *self.tokens("\n"), *self.tokens(text)] for name, text in extra]
        return [REP, *self.tokens("myproject\n"), *sum(files, []), SEP, *self.tokens("filename\n"), PRE, *self.tokens(prefix),
                *self.tokens(prompt, True), SUF, *self.tokens(suffix), MID]

    def check(self, body, tokens):
        """The reply is that of /completion to these tokens, whole and streamed."""
        settings = {"n_predict": 6, "temperature": 0, "seed": 2, "n_probs": 3}
        status, _, reply = self.server.post("/infill", {**settings, **body})
        self.assertEqual(status, 200, reply)
        expected = self.server.post("/completion", {"prompt": tokens, **settings})[2]
        for name in ("content", "tokens_evaluated", "tokens_predicted", "stop_type", "completion_probabilities"):
            self.assertEqual(reply[name], expected[name], name)
        streamed = list(self.server.stream("/infill", {**settings, **body}))
        self.assertEqual("".join(event["content"] for event in streamed), reply["content"])
        self.assertTrue(streamed[-1]["stop"])

    def test_the_prompt(self):
        both = {"input_prefix": "def f(a):\n", "input_suffix": "\n    return b\n"}
        self.check(both, self.prompt(*both.values()))
        self.check({**both, "prompt": "    b ="}, self.prompt(*both.values(), prompt="    b ="))
        extra = [("a.py", "import b"), ("tmp", "c = 1")]
        files = [{"filename": "a.py", "text": "import b"}, {"text": "c = 1"}]
        self.check({**both, "input_extra": files}, self.prompt(*both.values(), extra))
        self.check({"input_prefix": "", "input_suffix": "", "input_extra": []}, self.prompt("", ""))
        self.check({"input_prefix": "<|endoftext|>", "input_suffix": "x"}, self.prompt("<|endoftext|>", "x"))  # letters

    def test_files_that_do_not_fit(self):
        files = [{"filename": "f", "text": 100 * str(i)} for i in range(4)]
        self.check({"input_prefix": "a", "input_suffix": "b", "input_extra": files}, self.prompt("a", "b", [("f", 100 * "2"), ("f", 100 * "3")]))
        self.refused(400, "prompt", "/infill", {"input_prefix": 300 * "a", "input_suffix": "b"}, "context")

    def test_what_is_refused(self):
        both = {"input_prefix": "a", "input_suffix": "b"}
        self.refused(400, "input_prefix", "/infill", {"input_suffix": "b"}, "missing")
        self.refused(400, "input_suffix", "/infill", {"input_prefix": "a"}, "missing")
        for name, value in {"input_prefix": 5, "input_suffix": [], "prompt": ["a"], "input_extra": {}, "n_predict": "x", "temperature": -1}.items():
            self.refused(400, name, "/infill", {**both, name: value}, name)
        for value in (["a"], [{"filename": "f"}], [{"text": 5}]):
            self.assertEqual(self.server.post("/infill", {**both, "input_extra": value})[0], 400)
        self.refused(400, "n", "/infill", {**both, "n": 2})
        self.refused(400, "input_prefix", "/completion", {"prompt": "x", "input_prefix": "a"})


if __name__ == "__main__":
    main()
