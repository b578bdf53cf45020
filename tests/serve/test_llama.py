"""What scripts for llama-server look for: timings, the progress of a prompt, /apply-template, and what is not there."""
from served import ServedTest, ask_about, document, main

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


if __name__ == "__main__":
    main()
