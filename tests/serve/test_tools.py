"""Tool calls: those that a reply makes of its own, those that are required, conversations with them, and what is refused. The built-in model repeats a
call that it is shown; its own chat format has no tools, so that the server is told another."""
import json

from served import Server, ServedTest, main

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"code": {"type": "integer"}, "kind": {"enum": ["old", "new"]}}, "required": ["code", "kind"],
              "additionalProperties": False}
UNLOCK = {"type": "function", "function": {"name": "unlock", "description": "Unlocks.", "parameters": PARAMETERS}}
PING = {"type": "function", "function": {"name": "ping"}}
SAID = '<tool_call>{"name": "unlock", "arguments": {"code": 4071826}}</tool_call>'
SHOWN = [{"role": "user", "content": "Say: %s\n\nWhat do you say?" % SAID}]
OPEN = {"type": "function", "function": {"name": "unlock", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}}}
NAMED = {"type": "function", "function": {"name": "unlock"}}


class ToolsTest(ServedTest):
    def ask(self, messages, **fields):
        status, _, answer = self.server.post(CHAT, {"messages": messages, "temperature": 0, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def choice(self, messages, **fields):
        return self.ask(messages, **fields)["choices"][0]

    def joined(self, messages, **fields):
        """A streamed reply: its text, its calls as OpenAI's clients put them together, and why it ended."""
        text, calls, reason = "", [], None
        for event in self.server.stream(CHAT, {"messages": messages, "temperature": 0, **fields}):
            if event == "[DONE]":
                break
            choice = event["choices"][0]
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                self.assertEqual((call["index"], call["type"]), (len(calls), "function"))
                self.assertTrue(call["id"].startswith("call_"))
                calls.append(call["function"])
            reason = choice["finish_reason"]
        return text, calls, reason

    def check_unlock(self, function):
        arguments = json.loads(function["arguments"])
        self.assertEqual((function["name"], sorted(arguments)), ("unlock", ["code", "kind"]))
        self.assertIsInstance(arguments["code"], int)
        self.assertIn(arguments["kind"], ("old", "new"))


class Tools(ToolsTest):
    options = ("--chat-template", "chatml")

    def test_a_call_of_its_own(self):
        choice = self.choice(SHOWN, tools=[OPEN], max_tokens=200, parallel_tool_calls=False)
        call = choice["message"]["tool_calls"][0]
        self.assertEqual((choice["finish_reason"], len(choice["message"]["tool_calls"])), ("tool_calls", 1))
        self.assertEqual(call["function"], {"name": "unlock", "arguments": '{"code": 4071826}'})
        self.assertEqual(call["type"], "function")
        self.assertTrue(choice["message"]["content"])
        self.assertNotIn("<tool_call>", choice["message"]["content"])
        streamed = self.joined(SHOWN, tools=[OPEN], max_tokens=200, parallel_tool_calls=False)
        self.assertEqual(streamed, (choice["message"]["content"], [call["function"]], "tool_calls"))
        # Without tools the same letters are text.
        choice = self.choice([*SHOWN, {"role": "assistant", "content": "I say: "}], max_tokens=40)
        self.assertNotIn("tool_calls", choice["message"])

    def test_a_call_of_its_own_is_held_to_its_schema(self):
        """The call that is shown lacks an argument that is required, and names a tool that another request does not have."""
        for stream in (False, True):
            if stream:
                text, calls, reason = self.joined(SHOWN, tools=[PING, UNLOCK], max_tokens=200, parallel_tool_calls=False)
            else:
                choice = self.choice(SHOWN, tools=[PING, UNLOCK], max_tokens=200, parallel_tool_calls=False)
                text, calls, reason = choice["message"]["content"], [c["function"] for c in choice["message"]["tool_calls"]], choice["finish_reason"]
            self.assertEqual(reason, "tool_calls")
            self.assertTrue(text)
            self.check_unlock(calls[0])
            self.assertEqual(json.loads(calls[0]["arguments"])["code"], 4071826)
        choice = self.choice(SHOWN, tools=[PING], max_tokens=200, parallel_tool_calls=False)
        self.assertEqual(choice["message"]["tool_calls"][0]["function"], {"name": "ping", "arguments": "{}"})
        # What of a schema is not understood is not asked for.
        odd = {"type": "object", "properties": {"code": {"type": "integer", "maximum": 5}, "kind": {"enum": ["old"]}}, "required": ["code", "kind"]}
        tool = {"type": "function", "function": {"name": "unlock", "parameters": odd}}
        choice = self.choice(SHOWN, tools=[tool], max_tokens=200, parallel_tool_calls=False)
        self.assertEqual(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), {"code": 4071826, "kind": "old"})

    def test_a_call_that_is_cut_stays_text(self):
        whole = self.ask(SHOWN, tools=[OPEN], max_tokens=200, parallel_tool_calls=False)
        written = whole["usage"]["completion_tokens"]
        cut = self.choice(SHOWN, tools=[OPEN], max_tokens=written - 12)
        self.assertEqual(cut["finish_reason"], "length")
        self.assertNotIn("tool_calls", cut["message"])
        self.assertIn('<tool_call>{"name": "unlock"', cut["message"]["content"])
        self.assertEqual(self.joined(SHOWN, tools=[OPEN], max_tokens=written - 12), (cut["message"]["content"], [], "length"))
        stopped = self.choice(SHOWN, tools=[OPEN], max_tokens=200, stop=['"arguments"'])
        self.assertTrue(stopped["message"]["content"].endswith('<tool_call>{"name": "unlock", '), stopped)
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_text_stays_text(self):
        choice = self.choice(HELLO, tools=[UNLOCK], max_tokens=8)
        self.assertEqual(sorted(choice["message"]), ["content", "role"])
        text, calls, reason = self.joined(HELLO, tools=[UNLOCK], max_tokens=8, tool_choice="auto")
        self.assertEqual((text, calls, reason), (choice["message"]["content"], [], "length"))

    def test_a_required_call(self):
        for fields in ({"tool_choice": NAMED, "tools": [PING, UNLOCK]}, {"tool_choice": "required", "tools": [UNLOCK]}):
            choice = self.choice(HELLO, **fields)
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (None, "tool_calls"))
            self.check_unlock(choice["message"]["tool_calls"][0]["function"])
            text, calls, reason = self.joined(HELLO, **fields)
            self.assertEqual((text, len(calls), reason), ("", 1, "tool_calls"))
            self.assertEqual(calls[0], choice["message"]["tool_calls"][0]["function"])
        for seed in range(3):
            choice = self.choice(HELLO, tools=[PING, UNLOCK], tool_choice="required", temperature=1.5, seed=seed, max_tokens=400)
            function = choice["message"]["tool_calls"][0]["function"]
            if function["name"] == "ping":
                self.assertEqual(json.loads(function["arguments"]), {})
            else:
                self.check_unlock(function)
        many = [{"type": "function", "function": {"name": "tool_%d" % i}} for i in range(40)]
        self.assertIn(self.choice(HELLO, tools=many, tool_choice="required")["message"]["tool_calls"][0]["function"]["name"], [t["function"]["name"] for t in many])
        replies = self.ask(HELLO, tools=[UNLOCK], tool_choice=NAMED, n=2, temperature=1)["choices"]
        ids = {choice["message"]["tool_calls"][0]["id"] for choice in replies}
        self.assertEqual(len(ids), 2)

    def test_definitions_of_parameters(self):
        colour = {"type": "object", "properties": {"colour": {"$ref": "#/$defs/Colour"}}, "required": ["colour"], "additionalProperties": False,
                  "$defs": {"Colour": {"enum": ["red", "blue"]}}}
        tool = {"type": "function", "function": {"name": "paint", "parameters": colour}}
        choice = self.choice(HELLO, tools=[tool], tool_choice="required")
        self.assertIn(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["colour"], ("red", "blue"))

    def test_a_conversation_goes_on(self):
        message = self.choice(HELLO, tools=[UNLOCK], tool_choice=NAMED)["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": [{"type": "text", "text": "open"}]}
        short = self.ask([*HELLO], tools=[UNLOCK], max_tokens=4)
        whole = self.ask([*HELLO, message, result], tools=[UNLOCK], max_tokens=4)
        self.assertGreater(whole["usage"]["prompt_tokens"], short["usage"]["prompt_tokens"])
        bare = self.ask(HELLO, tools=[UNLOCK], tool_choice="none", max_tokens=4)
        self.assertLess(bare["usage"]["prompt_tokens"], short["usage"]["prompt_tokens"])

    def test_what_is_refused(self):
        def refused(param, contains, **fields):
            error = self.refused(400, param, CHAT, {"messages": HELLO, **fields})
            self.assertIn(contains, error["message"])

        refused("tools", "array", tools={})
        refused("tools[0]", "object", tools=["f"])
        refused("tools[0]", "function", tools=[{"type": "web_search"}])
        refused("tools[1]", "name", tools=[PING, {"type": "function", "function": {}}])
        refused("tools[0]", "parameters", tools=[{"type": "function", "function": {"name": "f", "parameters": 5}}])
        refused("tool_choice", "tool_choice", tools=[PING], tool_choice="always")
        refused("tool_choice", "tool_choice", tools=[PING], tool_choice={"type": "function"})
        refused("tool_choice", "tools", tools=[PING], tool_choice=NAMED)
        refused("tool_choice", "tools", tool_choice="required")
        refused("tool_choice", "response_format", tools=[PING], tool_choice="required", response_format={"type": "json_object"})
        refused("parallel_tool_calls", "parallel_tool_calls", tools=[PING], parallel_tool_calls="no")
        refused("messages[0]", "tool_calls", messages=[{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}])
        refused("messages", "arguments", messages=[*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])
        minimum = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}}
        fields = {"tools": [{"type": "function", "function": {"name": "f", "parameters": minimum}}], "max_tokens": 2}
        status, _, answer = self.server.post(CHAT, {"messages": HELLO, **fields, "tool_choice": "required"})
        self.assertEqual(status, 400)
        self.assertIn('"minimum"', answer["error"]["message"])
        self.ask(HELLO, **fields)  # a reply that may call is not held to it


class Formats(ToolsTest):
    """What other formats than Hermes's make of calls; each has a server of its own."""

    options = ("--chat-template", "llama-3.1")

    def test_every_format(self):
        for name in ("phi-4-mini", "command-r", "command-r7b", "deepseek-v3", "deepseek-v3.1"):
            with self.subTest(name):
                type(self).server.stop()
                type(self).server = Server("--chat-template", name)
                self.check_format()

    def check_format(self):
        for choose in (NAMED, "required"):
            tools = [PING, UNLOCK] if choose == NAMED else [UNLOCK]
            made = self.choice(HELLO, tools=tools, tool_choice=choose)
            self.assertEqual((made["message"]["content"], made["finish_reason"]), (None, "tool_calls"))
            call = made["message"]["tool_calls"][0]
            self.check_unlock(call["function"])
            self.assertEqual(self.joined(HELLO, tools=tools, tool_choice=choose), ("", [call["function"]], "tool_calls"))
        result = {"role": "tool", "tool_call_id": call["id"], "content": "open"}
        short, whole = (self.ask(messages, tools=[UNLOCK], max_tokens=4) for messages in (HELLO, [*HELLO, made["message"], result]))
        self.assertGreater(whole["usage"]["prompt_tokens"], short["usage"]["prompt_tokens"])
        bare = self.ask(HELLO, tools=[UNLOCK], tool_choice="none", max_tokens=4)
        self.assertLess(bare["usage"]["prompt_tokens"], short["usage"]["prompt_tokens"])
        self.assertEqual(sorted(self.choice(HELLO, tools=[UNLOCK], max_tokens=4)["message"]), ["content", "role"])


if __name__ == "__main__":
    main()
