"""Chats: whole and streamed replies, what they say of themselves, and what slots show."""
import threading

from served import ServedTest, answer, ask_about, document, main


class Chat(ServedTest):
    def test_reply(self):
        json = self.server.chat("Hello", max_tokens=8, seed=5)
        self.assertEqual(json["object"], "chat.completion")
        self.assertTrue(json["id"].startswith("chatcmpl-"))
        choice, = json["choices"]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(choice["finish_reason"], "length")
        usage = json["usage"]
        self.assertEqual(usage["completion_tokens"], 8)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 8)

    def test_stream_says_what_the_whole_reply_says(self):
        fields = {"messages": ask_about(document(5512907)), "max_tokens": 30, "temperature": 0}
        whole = self.server.post("/v1/chat/completions", fields)[2]["choices"][0]["message"]["content"]
        self.assertEqual(whole, answer(5512907))
        events = list(self.server.stream("/v1/chat/completions", dict(fields, stream_options={"include_usage": True})))
        self.assertEqual(events[-1], "[DONE]")
        usage, chunks = events[-2], events[:-2]
        self.assertEqual(usage["choices"], [])
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in chunks), whole)
        self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks[:-1]], [None] * (len(chunks) - 1))
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "stop")
        self.assertGreater(len(chunks), 6)
        self.assertEqual(len({c["id"] for c in chunks}), 1)
        self.assertGreater(usage["usage"]["completion_tokens"], 5)

    def test_each_client_gets_its_own_fact(self):
        replies = {}

        def ask(code):
            fields = {"messages": ask_about(document(code, begin=code % 7 * 400)), "max_tokens": 30, "temperature": 0}
            replies[code] = self.server.post("/v1/chat/completions", fields)[2]["choices"][0]["message"]["content"]

        threads = [threading.Thread(target=ask, args=(4071826 + 111 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(replies, {code: answer(code) for code in replies})
        self.assertEqual(len(replies), 4)

    def test_several_replies(self):
        json = self.server.chat("Tell me", n=3, max_tokens=6, seed=9)
        texts = [choice["message"]["content"] for choice in json["choices"]]
        self.assertEqual([choice["index"] for choice in json["choices"]], [0, 1, 2])
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(json["usage"]["completion_tokens"], 18)
        again = self.server.chat("Tell me", n=3, max_tokens=6, seed=9)
        self.assertEqual([choice["message"]["content"] for choice in again["choices"]], texts)
        self.assertEqual(self.server.chat("Tell me", max_tokens=6, seed=9)["choices"][0]["message"]["content"], texts[0])

    def test_the_first_event_comes_with_the_slot(self):
        """While the prompt is read a stream has said who speaks already, and by its id the slot is found."""
        events = self.server.stream("/v1/chat/completions", {"messages": ask_about(document(4711, size=20000)), "max_tokens": 1})
        first = next(events)
        self.assertEqual(first["choices"][0]["delta"], {"role": "assistant", "content": ""})
        slot, = [slot for slot in self.server.get("/slots")[2] if slot["request"] == first["id"]]
        self.assertEqual(slot["state"], "prompt")
        self.assertLess(slot["prompt"]["read"], slot["prompt"]["tokens"])
        self.assertEqual(list(events)[-1], "[DONE]")

    def test_a_prompt_with_echo_is_read_beside_replies(self):
        """Its log probabilities come by pieces: a running reply goes on meanwhile."""
        bias = {str(token): -100 for token in range(5)}
        running = self.server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me"}], "logit_bias": bias})
        request = [next(running) for _ in range(3)][0]["id"]

        def tokens():
            slot, = [slot for slot in self.server.get("/slots")[2] if slot["request"] == request]
            return slot["tokens"]

        before = tokens()
        status, _, json = self.server.post("/v1/completions", {"prompt": document(4712, size=6000), "max_tokens": 0, "echo": True, "logprobs": 0})
        self.assertEqual(status, 200, json)
        self.assertGreater(len(json["choices"][0]["logprobs"]["token_logprobs"]), 1500)
        self.assertGreater(tokens() - before, 5)
        running.close()

    def test_slots(self):
        json = self.server.chat("Hello there", max_tokens=4)
        status, _, slots = self.server.get("/slots")
        self.assertEqual((status, len(slots)), (200, 4))
        slot, = [slot for slot in slots if slot["request"] == json["id"]]
        self.assertEqual((slot["state"], slot["is_processing"]), ("idle", False))
        self.assertEqual(slot["tokens"], 4)
        self.assertEqual(slot["prompt"]["read"], json["usage"]["prompt_tokens"])
        cache = slot["cache"]
        self.assertEqual(cache["resident"], cache["codes"] + cache["exact"] + cache["window"] + cache["tables"])
        self.assertEqual(cache["f16"], 2 * 2 * 12 * 2 * 128 * cache["tokens"])


main()
