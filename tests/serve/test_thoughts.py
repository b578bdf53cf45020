"""Thoughts: what a reply thinks stays out of its text, what messages thought is read where the format keeps it, and a chat's next turn reads only what is
new where the format drops it. The built-in model's own chat format has no thoughts, so that the server is told another; a schema says what is thought."""
from served import ServedTest, main

CHAT = "/v1/chat/completions"
SHOWN = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"say": {"const": "Hm </think> Good."}}, "required": ["say"], "additionalProperties": False}
FORCED = {"response_format": {"type": "json_object", "schema": SCHEMA}}


class Thoughts(ServedTest):
    options = ("--chat-template", "qwen-3-thinking")

    def ask(self, messages, **fields):
        status, _, answer = self.server.post(CHAT, {"messages": messages, "temperature": 0, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def test_thoughts_stay_out_of_the_text(self):
        message = self.ask(SHOWN, **FORCED)["choices"][0]["message"]
        self.assertEqual("".join(message["reasoning_content"].split()), '{"say":"Hm')
        self.assertEqual("".join(message["content"].split()), 'Good."}')
        text, thoughts = "", ""
        for event in self.server.stream(CHAT, {"messages": SHOWN, "temperature": 0, **FORCED}):
            if event != "[DONE]":
                delta = event["choices"][0]["delta"]
                self.assertFalse("content" in delta and "reasoning_content" in delta)
                text += delta.get("content") or ""
                thoughts += delta.get("reasoning_content") or ""
        self.assertEqual((text, thoughts), (message["content"], message["reasoning_content"]))

    def test_a_reply_that_is_all_thoughts(self):
        message = self.ask(SHOWN, max_tokens=3)["choices"][0]["message"]
        self.assertEqual(message["content"], "")
        self.assertTrue(message["reasoning_content"])

    def test_what_is_refused(self):
        error = self.refused(400, "chat_template_kwargs", CHAT, {"messages": SHOWN, "chat_template_kwargs": {"enable_thinking": False}})
        self.assertIn("always think", error["message"])
        error = self.refused(400, "reasoning_effort", CHAT, {"messages": SHOWN, "reasoning_effort": "high"})
        self.assertIn("qwen-3-thinking", error["message"])
        self.refused(400, "reasoning_effort", CHAT, {"messages": SHOWN, "reasoning_effort": "most"})
        self.refused(400, "chat_template_kwargs", CHAT, {"messages": SHOWN, "chat_template_kwargs": 1})
        self.refused(400, "enable_thinking", CHAT, {"messages": SHOWN, "chat_template_kwargs": {"enable_thinking": "yes"}})
        self.refused(400, "documents", CHAT, {"messages": SHOWN, "chat_template_kwargs": {"documents": []}})
        self.refused(400, "reasoning_content", CHAT, {"messages": [*SHOWN, {"role": "assistant", "content": "x", "reasoning_content": 5}]})

    def test_the_next_turn_reads_what_is_new(self):
        """The format drops earlier thoughts, so that the next prompt and what the first reply has read differ from its thoughts on. The prefix that was
        kept before the reply serves the next turn all the same: only the answer without its thoughts and the new question are read."""
        question = [{"role": "user", "content": "The code of the merry lantern is 4071826. " * 20}]
        first = self.ask(question, **FORCED)
        message = first["choices"][0]["message"]
        self.assertEqual("".join(message["content"].split()), 'Good."}')
        second = self.ask([*question, message, {"role": "user", "content": "And now?"}], **FORCED)
        usage = second["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        # The first prompt ends with "assistant\n<think>\n", of which the second has but "assistant\n".
        mark = len(self.server.post("/tokenize", {"content": "<think>\n"})[2]["tokens"]) + 1
        self.assertGreaterEqual(cached, first["usage"]["prompt_tokens"] - mark)
        answer = len(self.server.post("/tokenize", {"content": message["content"]})[2]["tokens"])
        self.assertLess(usage["prompt_tokens"] - cached, answer + 60)
        # A third turn begins with the second's prompt.
        third = self.ask([*question, message, {"role": "user", "content": "And now?"}, second["choices"][0]["message"], {"role": "user", "content": "And?"}], max_tokens=4)
        self.assertGreaterEqual(third["usage"]["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - mark)


class ThoughtsInCodes(Thoughts):
    """The same with a cache of codes, whose pages are sealed."""
    options = ("--chat-template", "qwen-3-thinking", "--kv", "terse-4")


class Switch(ServedTest):
    options = ("--chat-template", "qwen-3")

    def prompt_tokens(self, **fields):
        status, _, answer = self.server.post(CHAT, {"messages": SHOWN, "max_tokens": 1, **fields})
        self.assertEqual(status, 200, answer)
        return answer["usage"]["prompt_tokens"]

    def test_thinking_is_switched_off(self):
        usual, off = self.prompt_tokens(), self.prompt_tokens(chat_template_kwargs={"enable_thinking": False})
        self.assertGreater(off, usual)  # an empty thought stands before the reply
        self.assertEqual(self.prompt_tokens(reasoning_effort="none"), off)
        self.assertEqual(self.prompt_tokens(chat_template_kwargs={"enable_thinking": True}), usual)
        prompts = [self.server.post("/apply-template", {"messages": SHOWN, **fields})[2]["prompt"] for fields in ({}, {"reasoning_effort": "none"})]
        self.assertEqual([prompt.endswith("</think>\n\n") for prompt in prompts], [False, True])

    def test_thoughts_of_messages(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "1"}
        thinking = {**calling, "reasoning_content": "I think of a long sentence about the weather."}
        question = {"role": "user", "content": "And?"}
        self.assertGreater(self.prompt_tokens(messages=[*SHOWN, thinking, result]), self.prompt_tokens(messages=[*SHOWN, calling, result]))
        self.assertEqual(self.prompt_tokens(messages=[*SHOWN, thinking, result, question]), self.prompt_tokens(messages=[*SHOWN, calling, result, question]))


if __name__ == "__main__":
    main()
