"""OpenAI's /v1/responses: the same replies as chats, in its own form, whole and as events."""
import json

from served import ServedTest, answer, ask_about, document, main

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
CODE = 6650123
UNLOCK = {"type": "object", "properties": {"code": {"type": "integer"}}, "required": ["code"], "additionalProperties": False}
TOOL = {"type": "function", "name": "unlock", "description": "Unlocks.", "parameters": UNLOCK}
CHAT_TOOL = {"type": "function", "function": {name: value for name, value in TOOL.items() if name != "type"}}


class Responses(ServedTest):
    def respond(self, **body):
        status, _, response = self.server.post(RESPONSES, {"temperature": 0, **body})
        self.assertEqual(status, 200, response)
        return response

    def chat(self, messages, **fields):
        status, _, reply = self.server.post(CHAT, {"messages": messages, "temperature": 0, **fields})
        self.assertEqual(status, 200, reply)
        return reply

    def events(self, **body):
        """The events of a stream: their names are their types, and their numbers count."""
        connection = self.server.connect()
        connection.request("POST", RESPONSES, json.dumps({"temperature": 0, "stream": True, **body}))
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        self.assertEqual(response.status, 200, text)
        events = []
        for block in text.rstrip("\n").split("\n\n"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            self.assertEqual(name, "event: " + events[-1]["type"])
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        return events

    def check_like_chat(self, response, reply):
        choice, usage = reply["choices"][0], reply["usage"]
        self.assertEqual(response["output"][0]["content"][0]["text"], choice["message"]["content"])
        self.assertEqual(response["status"], "completed" if choice["finish_reason"] == "stop" else "incomplete")
        self.assertEqual((response["usage"]["input_tokens"], response["usage"]["output_tokens"], response["usage"]["total_tokens"]),
                         (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]))

    def test_a_text(self):
        messages = ask_about(document(CODE))
        response = self.respond(input=messages[0]["content"], max_output_tokens=40)
        self.check_like_chat(response, self.chat(messages, max_tokens=40))
        self.assertEqual(response["output"][0]["content"][0]["text"], answer(CODE))
        self.assertEqual((response["object"], response["error"], response["incomplete_details"]), ("response", None, None))
        self.assertTrue(response["id"].startswith("resp_"))
        message = response["output"][0]
        self.assertEqual((message["type"], message["role"], message["status"]), ("message", "assistant", "completed"))
        self.assertEqual(set(message["content"][0]), {"type", "text", "annotations", "logprobs"})
        self.assertEqual((response["tools"], response["tool_choice"], response["parallel_tool_calls"], response["previous_response_id"]), ([], "auto", True, None))
        self.assertEqual((response["max_output_tokens"], response["temperature"]), (40, 0))
        self.assertEqual(response["timings"]["predicted_n"], response["usage"]["output_tokens"])
        cut = self.respond(input="Hello", max_output_tokens=2)
        self.assertEqual((cut["status"], cut["incomplete_details"], cut["output"][0]["status"]), ("incomplete", {"reason": "max_output_tokens"}, "incomplete"))

    def test_items(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."},
                    {"role": "user", "content": "Go on."}]
        expected = self.chat(messages, max_tokens=5)
        parts = [{"role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]}, {"type": "reasoning", "summary": []},
                 {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                  "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]}, messages[3]]
        for body in ({"input": messages}, {"instructions": "Be brief.", "input": messages[1:]}, {"instructions": "Be brief.", "input": parts},
                     {"input": [{"role": "developer", "content": "Be brief."}, *messages[1:]]}):
            self.check_like_chat(self.respond(max_output_tokens=5, **body), expected)

    def test_a_stream(self):
        body = {"input": ask_about(document(CODE))[0]["content"], "max_output_tokens": 40}
        whole, events = self.respond(**body), self.events(**body)
        types = [event["type"] for event in events]
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(types[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"])
        self.assertEqual(set(types[4:-4]), {"response.output_text.delta"})
        self.assertEqual("".join(event["delta"] for event in events[4:-4]), answer(CODE))
        self.assertEqual(events[0]["response"]["status"], "in_progress")
        last = events[-1]["response"]
        self.assertEqual((last["id"], last["status"]), (events[0]["response"]["id"], "completed"))
        for name in ("text", "annotations"):
            self.assertEqual(last["output"][0]["content"][0][name], whole["output"][0]["content"][0][name])
        self.assertEqual(events[-2]["item"], last["output"][0])
        self.assertEqual({event["item_id"] for event in events if "item_id" in event}, {last["output"][0]["id"]})
        self.assertEqual(self.events(input="Hello", max_output_tokens=1)[-1]["type"], "response.incomplete")

    def test_json(self):
        schema = {"type": "object", "properties": {"a": {"const": "b"}}, "required": ["a"], "additionalProperties": False}
        formats = ({"type": "json_schema", "name": "x", "schema": schema, "strict": True}, {"type": "json_object"})
        for form in formats:
            response = self.respond(input="Write it", text={"format": form, "verbosity": "medium"}, max_output_tokens=60)
            if response["status"] == "completed":
                json.loads(response["output"][0]["content"][0]["text"])
            self.assertEqual(response["text"]["format"], form)
        self.assertEqual(self.respond(input="Write it", text={"format": formats[0]})["status"], "completed")

    def test_what_is_refused(self):
        def refused(param, contains, **body):
            self.assertIn(contains, self.refused(400, param, RESPONSES, {"input": "x", **body})["message"])

        refused("previous_response_id", "send the whole conversation", previous_response_id="resp_1")
        refused("conversation", "send the whole conversation", conversation="conv_1")
        refused("background", "background", background=True)
        refused("truncation", "truncation", truncation="auto")
        refused("include", "include", include=["file_search_call.results"])
        refused("reasoning", "reasoning", reasoning={"effort": "high"})
        refused("reasoning", "effort", reasoning={"effort": "most"})
        refused("reasoning", "summary", reasoning={"summary": "auto"})
        refused("reasoning", "object", reasoning="high")
        refused("input", "missing", input=None)
        refused("input", "array", input=5)
        refused("input", "array", input=[])
        refused("input[0]", "object", input=["x"])
        refused("input[1]", "role", input=[{"role": "user", "content": "x"}, {"content": "x"}])
        refused("input[0]", "item_reference", input=[{"type": "item_reference", "id": "x"}])
        refused("input[0]", "input_image", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])
        refused("input[0]", "arguments", input=[{"type": "function_call", "name": "f"}])
        refused("input[0]", "output", input=[{"type": "function_call_output", "call_id": "x"}])
        refused("instructions", "string", instructions=["x"])
        refused("max_output_tokens", "max_output_tokens", max_output_tokens=0)
        refused("text", "object", text="x")
        refused("text", "verbosity", text={"verbosity": "low"})
        refused("response_format", "type", text={"format": {"type": "grammar"}})
        for name, value in {"messages": [], "prompt": "x", "n": 2, "max_tokens": 5, "response_format": {"type": "text"}, "logprobs": True}.items():
            refused(name, name, **{name: value})
        refused("temperature", "temperature", temperature="hot")
        self.respond(input="x", max_output_tokens=1, store=True, metadata={"a": "b"}, include=[], truncation="disabled", reasoning=None, user="me",
                     background=False, previous_response_id=None, stream_options={"include_obfuscation": False}, top_logprobs=0)
        status, _, error = self.server.post(RESPONSES, {"input": "x" * 200000})
        self.assertEqual((status, error["error"]["code"], error["error"]["param"]), (400, "context_length_exceeded", "input"))
        self.assertEqual(self.server.get(RESPONSES)[0], 405)


class Thoughts(ServedTest):
    """What a reply thinks is an item before the others. The built-in model's own format has no thoughts; a schema says what is thought."""

    options = ("--chat-template", "qwen-3-thinking")
    SCHEMA = {"type": "object", "properties": {"say": {"const": "Hm </think> Good."}}, "required": ["say"], "additionalProperties": False}
    FORCED = {"input": "Hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}

    respond, chat, events = Responses.respond, Responses.chat, Responses.events

    def test_an_item_of_thoughts(self):
        response = self.respond(**self.FORCED)
        self.assertEqual([item["type"] for item in response["output"]], ["reasoning", "message"])
        thoughts, message = response["output"]
        expected = self.chat([{"role": "user", "content": "Hello"}], response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": self.SCHEMA}})
        said = expected["choices"][0]["message"]
        self.assertEqual(thoughts, {"type": "reasoning", "id": thoughts["id"], "summary": [], "content": [{"type": "reasoning_text", "text": said["reasoning_content"]}],
                                    "status": "completed"})
        self.assertTrue(thoughts["id"].startswith("rs_"))
        self.assertEqual(message["content"][0]["text"], said["content"])
        usage = response["usage"]
        self.assertTrue(0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"])
        self.assertEqual(response["reasoning"], {"effort": None, "summary": None})

    def test_a_stream(self):
        events, whole = self.events(**self.FORCED), self.respond(**self.FORCED)
        kinds = [event["type"] for event in events]
        for kind in ("response.reasoning_text.delta", "response.output_text.delta"):
            while kinds.count(kind) > 1:
                kinds.remove(kind)
        self.assertEqual(kinds, ["response.created", "response.in_progress",
                                 "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
                                 "response.content_part.done", "response.output_item.done",
                                 "response.output_item.added", "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                                 "response.content_part.done", "response.output_item.done", "response.completed"])
        thoughts = whole["output"][0]["content"][0]["text"]
        self.assertEqual("".join(e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"), thoughts)
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        self.assertEqual(done, events[-1]["response"]["output"])
        self.assertEqual([e["output_index"] for e in events if e["type"] == "response.output_item.done"], [0, 1])
        self.assertEqual(done[0]["content"], [{"type": "reasoning_text", "text": thoughts}])

    def test_thoughts_alone(self):
        response = self.respond(input="Hello", max_output_tokens=3)
        self.assertEqual([(item["type"], item["status"]) for item in response["output"]], [("reasoning", "incomplete")])
        self.assertEqual(response["usage"]["output_tokens_details"]["reasoning_tokens"], 3)
        events = self.events(input="Hello", max_output_tokens=3)
        self.assertEqual([event["type"] for event in events][-3:], ["response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertEqual(events[-1]["response"]["output"][0]["content"], response["output"][0]["content"])

    def test_thoughts_are_read(self):
        """As a chat reads them, which keeps those since the last question: with the message or the call behind them."""
        thoughts = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm, "}, {"type": "reasoning_text", "text": "so"}]}
        call = {"type": "function_call", "call_id": "c", "name": "unlock", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": "open"}
        user, said = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well."}
        chat_call = {"id": "c", "type": "function", "function": {"name": "unlock", "arguments": "{}"}}
        chat_result = {"role": "tool", "tool_call_id": "c", "content": "open"}
        for items, messages in (([user, thoughts, call, result], [user, {"role": "assistant", "reasoning_content": "Hm, so", "tool_calls": [chat_call]}, chat_result]),
                                ([user, thoughts, said, call, result],
                                 [user, {**said, "reasoning_content": "Hm, so", "tool_calls": [chat_call]}, chat_result]),
                                ([user, thoughts, user], [user, user]), ([user, thoughts], [user])):
            expected = self.chat(messages, tools=[CHAT_TOOL], max_tokens=2)["usage"]["prompt_tokens"]
            self.assertEqual(self.respond(input=items, tools=[TOOL], max_output_tokens=2)["usage"]["input_tokens"], expected)
        self.refused(400, "input[0]", RESPONSES, {"input": [{"type": "reasoning", "content": ["x"]}]})
        self.refused(400, "reasoning", RESPONSES, {"input": "x", "reasoning": {"effort": "none"}}, "always think")


class Tools(ServedTest):
    options = ("--chat-template", "chatml")

    respond, chat, events = Responses.respond, Responses.chat, Responses.events

    def test_a_required_call(self):
        for choice, chat_choice in (("required", "required"), ({"type": "function", "name": "unlock"}, {"type": "function", "function": {"name": "unlock"}})):
            body = {"input": "Hello", "tools": [TOOL], "tool_choice": choice, "max_output_tokens": 60}
            response = self.respond(**body)
            expected = self.chat([{"role": "user", "content": "Hello"}], tools=[CHAT_TOOL], tool_choice=chat_choice, max_tokens=60)
            call = expected["choices"][0]["message"]["tool_calls"][0]["function"]
            self.assertEqual([item["type"] for item in response["output"]], ["function_call"])
            self.assertEqual((response["output"][0]["name"], response["output"][0]["arguments"]), (call["name"], call["arguments"]))
            self.assertEqual(response["usage"]["input_tokens"], expected["usage"]["prompt_tokens"])
            self.assertEqual((response["tools"], response["tool_choice"]), ([TOOL], choice))
            events = self.events(**body)
            self.assertEqual([event["type"] for event in events],
                             ["response.created", "response.in_progress", "response.output_item.added", "response.function_call_arguments.delta",
                              "response.function_call_arguments.done", "response.output_item.done", "response.completed"])
            self.assertEqual((events[3]["delta"], events[4]["arguments"], events[5]["item"]), (call["arguments"], call["arguments"], events[6]["response"]["output"][0]))

    def test_a_conversation_goes_on(self):
        """Calls and their outputs are read as a chat's are."""
        call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "unlock", "arguments": "{\"code\": 5}", "status": "completed"}
        chat_call = {"id": "call_1", "type": "function", "function": {"name": "unlock", "arguments": call["arguments"]}}
        user, said = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well."}
        for before, merged in (([user], {"role": "assistant", "content": None, "tool_calls": [chat_call, chat_call]}),
                               ([user, said], {**said, "tool_calls": [chat_call, chat_call]})):
            items = [*before, call, call, *2 * [{"type": "function_call_output", "call_id": "call_1", "output": "open"}]]
            messages = [user, merged, *2 * [{"role": "tool", "tool_call_id": "call_1", "content": "open"}]]
            response = self.respond(input=items, tools=[TOOL], max_output_tokens=4)
            expected = self.chat(messages, tools=[CHAT_TOOL], max_tokens=4)
            self.assertEqual(response["usage"]["input_tokens"], expected["usage"]["prompt_tokens"])
            self.assertEqual(response["output"][0]["content"][0]["text"], expected["choices"][0]["message"]["content"])


if __name__ == "__main__":
    main()
