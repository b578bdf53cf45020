"""Several replies to one prompt: n of them, the best of them, and that they share what they have read."""
import time

from served import PATIENCE, ServedTest, document, main

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


class Replies(ServedTest):
    options = ("--parallel", "4", "--kv", "q8_0")

    def ask(self, path=COMPLETION, **fields):
        status, _, reply = self.server.post(path, fields)
        self.assertEqual(status, 200, reply)
        return reply

    def by_mean(self, replies, logprobs):
        """Texts of replies that were all cut, the one of the greatest mean log probability first."""
        self.assertEqual({reply["finish_reason"] for reply in replies}, {"length"})
        return sorted(replies, key=lambda reply: -sum(logprobs(reply)) / len(logprobs(reply)))

    def test_the_best(self):
        drawn = {"prompt": ["Once upon a time", "The road to"], "max_tokens": 7, "seed": 3, "temperature": 1}
        every = self.ask(n=4, logprobs=0, **drawn)["choices"]
        for n in (1, 2):
            best = self.ask(n=n, best_of=4, **drawn)
            self.assertEqual([choice["index"] for choice in best["choices"]], list(range(2 * n)))
            for prompt in range(2):
                ordered = self.by_mean(every[4 * prompt:4 * prompt + 4], lambda choice: choice["logprobs"]["token_logprobs"])
                self.assertEqual(len({choice["text"] for choice in ordered}), 4)
                self.assertEqual([choice["text"] for choice in best["choices"][n * prompt:n * prompt + n]],
                                 [choice["text"] for choice in ordered[:n]])
            self.assertEqual(best["usage"]["completion_tokens"], 8 * 7)  # all that were written
        self.assertEqual([choice["text"] for choice in self.ask(n=4, best_of=4, **drawn)["choices"]], [choice["text"] for choice in every])

    def test_the_best_of_chats(self):
        drawn = {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 7, "seed": 4, "temperature": 1}
        every = self.ask(CHAT, n=3, logprobs=True, **drawn)["choices"]
        best, = self.ask(CHAT, best_of=3, **drawn)["choices"]
        ordered = self.by_mean(every, lambda choice: [token["logprob"] for token in choice["logprobs"]["content"]])
        self.assertEqual((best["index"], best["message"]), (0, ordered[0]["message"]))

    def test_what_is_refused(self):
        prompt = {"prompt": "x", "max_tokens": 1}
        for fields, words in (({"n": 3, "best_of": 2}, "at least"), ({"best_of": 5}, "4"), ({"best_of": 2, "stream": True}, "streamed")):
            self.refused(400, "best_of", COMPLETION, {**prompt, **fields}, words)
        self.assertEqual(len(self.ask(n=2, best_of=2, **prompt)["choices"]), 2)
        events = list(self.server.stream(COMPLETION, {**prompt, "n": 2, "best_of": 2}))
        self.assertEqual(events[-1], "[DONE]")

    def held(self):
        return [slot for slot in self.server.get("/slots")[2] if slot["is_processing"]]

    def while_written(self, n):
        """The bytes of all caches while n replies to one long prompt are written, of which no prefix is kept, and the slots' own reports."""
        body = {"prompt": document(7, size=12000), "max_tokens": 4000, "n": n, "seed": 1, "cache_prompt": False, "logit_bias": {"0": -100}}
        events, seen = self.server.stream(COMPLETION, body), set()
        while len(seen) < n or any(slot["tokens"] < 4 for slot in self.held()):
            seen.add(next(events)["choices"][0]["index"])
        slots = self.held()
        metrics = dict(line.rsplit(" ", 1) for line in self.server.get("/metrics")[2].decode().splitlines() if line[0] != "#")
        events.close()
        for _ in range(20 * PATIENCE):
            if not self.held():
                break
            time.sleep(0.05)
        self.assertEqual(len(slots), n)
        return float(metrics["terse_kv_bytes"]), [slot["cache"] for slot in slots]

    def test_replies_share_the_prompts_pages(self):
        """Of four replies each has its own window and the page that it fills; the prompt's other pages are there once."""
        one, (alone,) = self.while_written(1)
        four, caches = self.while_written(4)
        own = max(cache["resident"] - cache["shared"] for cache in caches)
        for cache in caches:
            self.assertGreater(cache["shared"], 0.95 * alone["codes"])
        self.assertLess(own, 0.15 * one)
        self.assertLess(four, one + 3.1 * own)


if __name__ == "__main__":
    main()
