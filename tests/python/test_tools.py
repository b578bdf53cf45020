"""Chats with tools: how they are written, the calls that are found in replies, and what a session holds afterwards. The built-in model calls no tools,
so that what it writes is given to it, token by token."""
import json
import os
import unittest
from unittest import mock

import support

support.need("numpy")
import terse

CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time in a town.",
                                          "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}}
QUESTION = [{"role": "user", "content": "What time is it in Köln?"}]
CALLING = 'I look.\n<tool_call>\n{"name": "clock", "arguments": {"town": "Köln"}}\n</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
CALLS = [terse.ToolCall("clock", {"town": "Köln"}), terse.ToolCall("clock", {})]


def writing(model, *texts):
    """Makes sessions choose the tokens of these texts, each of which then ends."""
    ends = next(token for token in range(model.info.vocabulary) if model.token_ends(token))
    return mock.patch.object(terse.Session, "sample", side_effect=[t for text in texts for t in [*model.tokenize(text, begin=False, special=False), ends]])


class Tools(unittest.TestCase):
    def setUp(self):
        self.model = support.model()

    def test_conversations_are_written_as_the_template_has_them(self):
        with open(os.path.join(support.ROOT, "tests", "fixtures", "chat_tools.json"), encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        rows = [row for row in rows if row["messages"][0]["role"] == "system"]  # the built-in model's template has no default text
        self.assertGreaterEqual(len(rows), 3)
        for row in rows:
            text = self.model.chat_text(row["messages"], tools=json.loads(row["tools"]), format="chatml")
            self.assertEqual(text.replace(self.model.detokenize([self.model.bos], special=True), ""), row["text"])

    def test_a_reply_with_calls(self):
        session = self.model.session("f16")
        with writing(self.model, CALLING, "Noon."):
            reply = session.chat(QUESTION, tools=[CLOCK], format="chatml")
            self.assertEqual((reply.text, reply.calls, session.finish_reason), ("I look.", CALLS, "stop"))
            self.assertEqual(session.messages, [*QUESTION, reply.message])
            self.assertEqual(json.loads(reply.message["tool_calls"][0]["function"]["arguments"]), {"town": "Köln"})
            messages = [*QUESTION, reply.message, {"role": "tool", "content": "12:00"}]
            read = session.counters().prefill_tokens
            second = session.chat(messages, tools=[CLOCK], format="chatml")
        self.assertEqual(second, terse.Reply("Noon.", [], {"role": "assistant", "content": "Noon."}))
        new = len(self.model.chat_tokens(messages, after=2, tools=[CLOCK], format="chatml"))
        self.assertEqual(session.counters().prefill_tokens - read, new)
        # All in all the session has read what it would have read at once.
        whole = self.model.chat_tokens([*messages, second.message], tools=[CLOCK], format="chatml")
        self.assertEqual(len(session), len(whole))

    def test_a_stream(self):
        session = self.model.session("f16")
        with writing(self.model, CALLING):
            pieces = list(session.chat(QUESTION, tools=[CLOCK], format="chatml", stream=True))
        self.assertEqual("".join(piece for piece in pieces if isinstance(piece, str)), "I look.")
        self.assertEqual([piece for piece in pieces if isinstance(piece, terse.ToolCall)], CALLS)

    def test_text_and_broken_calls(self):
        for text in ("It is noon. \n", '<tool_call>{"name": "clock"}</tool_call>'):
            session = self.model.session("f16")
            with writing(self.model, text):
                reply = session.chat(QUESTION, tools=[CLOCK], format="chatml")
            self.assertEqual((reply.text, reply.calls, reply.message), (text, [], {"role": "assistant", "content": text}))

    def test_calls_are_held_to_their_tools(self):
        """The built-in model repeats a call that it is shown, which lacks an argument that is required."""
        shown = [{"role": "user", "content": 'Say: <tool_call>{"name": "unlock", "arguments": {"code": 4071826}}</tool_call>\n\nWhat do you say?'}]
        parameters = {"type": "object", "properties": {"code": {"type": "integer"}, "kind": {"enum": ["old", "new"]}}, "required": ["code", "kind"],
                      "additionalProperties": False}
        session = self.model.session("f16")
        for piece in session.chat(shown, tools=[{"type": "function", "function": {"name": "unlock", "parameters": parameters}}], format="chatml",
                                  temperature=0, max_tokens=300, stream=True):
            if isinstance(piece, terse.ToolCall):
                break
        self.assertEqual((piece.name, piece.arguments["code"], piece.arguments["kind"] in ("old", "new")), ("unlock", 4071826, True))
        session.truncate(len(session) - 1)  # refused while calls are held to their tools

    def test_a_begun_reply_goes_on(self):
        session = self.model.session("f16")
        begun = {"role": "assistant", "content": "I "}
        with writing(self.model, "look."):
            reply = session.chat([*QUESTION, begun], tools=[CLOCK], format="chatml")
        self.assertEqual((reply.text, reply.message["content"]), ("look.", "I look."))

    def test_other_tools_are_read_anew(self):
        session = self.model.session("f16")
        with writing(self.model, "Noon.", "Noon.", "Noon."):
            reply = session.chat(QUESTION, tools=[CLOCK], format="chatml")
            messages = [*QUESTION, reply.message, {"role": "user", "content": "And now?"}]
            fork = session.fork()
            fork.chat(messages, tools=[CLOCK], format="chatml")
            session.chat(messages, tools=[], format="chatml")
        self.assertLess(len(session), len(fork))
        self.assertEqual(session.tools, [])

    def test_messages_without_text(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
        text = self.model.chat_text([*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}], format="chatml", reply=False)
        self.assertTrue(text.endswith('assistant\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call><|im_end|>\n'), text)

    def test_what_is_refused(self):
        session = self.model.session("f16")
        with self.assertRaisesRegex(terse.UnsupportedError, "the format llama-3 has no tools"):
            session.chat(QUESTION, tools=[CLOCK])
        with self.assertRaisesRegex(terse.ArgumentError, "tool 1"):
            session.chat(QUESTION, tools=[{"name": "clock"}], format="chatml")


if __name__ == "__main__":
    support.main()
