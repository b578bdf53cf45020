"""Clients that others wrote: the openai package, curl, and lm_eval on a task made of files of a folder. Those that are not there are
skipped, each with a line that says so; with none of them the test is, with exit status 77."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import served

HAS_OPENAI = importlib.util.find_spec("openai") is not None
HAS_PYDANTIC = importlib.util.find_spec("pydantic") is not None
HAS_LM_EVAL = importlib.util.find_spec("lm_eval") is not None
HAS_CURL = shutil.which("curl") is not None
if not (HAS_OPENAI or HAS_LM_EVAL or HAS_CURL):
    sys.stderr.write("skipped: neither curl nor, for this Python, openai or lm_eval (pip install openai 'lm_eval[api]')\n")
    sys.exit(77)

CODE = 5550123


@unittest.skipUnless(HAS_OPENAI, "no openai for this Python (pip install openai)")
class OpenAI(served.ServedTest):
    options = ("--api-key", "geheim")

    @classmethod
    def setUpClass(cls):
        import openai
        super().setUpClass()
        cls.openai = openai
        cls.client = openai.OpenAI(base_url=cls.server.address + "/v1", api_key="geheim", max_retries=0, timeout=served.PATIENCE)
        cls.model = cls.client.models.list().data[0].id

    def ask(self, **fields):
        return self.client.chat.completions.create(model=self.model, messages=served.ask_about(served.document(CODE)), temperature=0, **fields)

    def test_a_chat(self):
        reply = self.ask()
        self.assertEqual(reply.choices[0].message.content, served.answer(CODE))
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)

    def test_a_stream(self):
        text, usage = "", None
        for chunk in self.ask(stream=True, stream_options={"include_usage": True}):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(text, served.answer(CODE))
        self.assertGreater(usage.completion_tokens, 5)

    def test_log_probabilities_and_several_replies(self):
        reply = self.ask(logprobs=True, top_logprobs=3, n=2, max_tokens=4)
        self.assertEqual([choice.index for choice in reply.choices], [0, 1])
        for choice in reply.choices:
            self.assertEqual(len(choice.logprobs.content), 4)
            for token in choice.logprobs.content:
                self.assertEqual(len(token.top_logprobs), 3)
                self.assertEqual(token.token, token.top_logprobs[0].token)  # the likeliest: temperature 0
                self.assertLessEqual(token.logprob, 0)

    def test_json_by_a_schema(self):
        schema = {"type": "object", "properties": {"code": {"type": "integer"}}, "required": ["code"], "additionalProperties": False}
        reply = self.ask(response_format={"type": "json_schema", "json_schema": {"name": "code", "schema": schema}}, max_tokens=40)
        if reply.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(reply.choices[0].message.content)["code"], int)

    @unittest.skipUnless(HAS_PYDANTIC, "no pydantic for this Python (pip install pydantic)")
    def test_nested_models(self):
        """Optional fields, unions, lists and trees of models, as the client makes schemas of them."""
        from typing import List, Literal, Optional, Union

        import pydantic

        class Code(pydantic.BaseModel):
            """A digit or two."""
            digits: str = pydantic.Field(pattern="^[0-9]{1,2}$", description="the digits")

        class Colour(pydantic.BaseModel):
            colour: Literal["red", "green"]

        class Answer(pydantic.BaseModel):
            code: Code
            other: Optional[Code] = None
            kind: Union[Code, Colour, None]
            notes: List[Union[Literal["a", "b"], Colour]] = pydantic.Field(max_length=2)

        class Tree(pydantic.BaseModel):
            value: bool
            left: Optional["Tree"]

        spaces = {token for run in (" ", "\t", "\n", "\r") for n in range(1, 33)
                  for token in self.server.post("/tokenize", {"content": n * run}, {"Authorization": "Bearer geheim"})[2]["tokens"]}
        for model, question in ((Answer, "Which code?"), (Tree, "Which tree?")):
            reply = self.client.chat.completions.parse(model=self.model, messages=[{"role": "user", "content": question}], temperature=0.5, seed=4,
                                                       logit_bias={str(token): -100 for token in spaces}, response_format=model, max_tokens=1500)
            self.assertEqual(reply.choices[0].finish_reason, "stop")
            self.assertIsInstance(reply.choices[0].message.parsed, model)

    def test_a_completion_with_its_prompt(self):
        reply = self.client.completions.create(model=self.model, prompt="The sea is", max_tokens=2, echo=True, logprobs=1, temperature=0)
        self.assertTrue(reply.choices[0].text.startswith("The sea is"))
        tokens = reply.choices[0].logprobs.tokens
        self.assertEqual("".join(tokens[1:]), reply.choices[0].text)  # the first begins every text

    def test_responses(self):
        body = {"model": self.model, "input": served.ask_about(served.document(CODE)), "temperature": 0, "max_output_tokens": 60}
        response = self.client.responses.create(**body)
        self.assertEqual((response.output_text, response.status, response.output[0].role), (served.answer(CODE), "completed", "assistant"))
        self.assertEqual(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens)
        text = "".join(event.delta for event in self.client.responses.create(stream=True, **body) if event.type == "response.output_text.delta")
        self.assertEqual(text, served.answer(CODE))
        with self.client.responses.stream(**body) as stream:
            types = {event.type for event in stream}
            self.assertEqual(stream.get_final_response().output_text, served.answer(CODE))
        self.assertLessEqual({"response.created", "response.output_text.delta", "response.output_text.done", "response.completed"}, types)
        more = [*body["input"], *[item.to_dict() for item in response.output], {"role": "user", "content": "Say it again."}]
        self.assertGreater(self.client.responses.create(**{**body, "input": more, "max_output_tokens": 4}).usage.input_tokens, response.usage.input_tokens)
        with self.assertRaises(self.openai.BadRequestError) as refused:
            self.client.responses.create(**body, previous_response_id=response.id)
        self.assertIn("previous_response_id", str(refused.exception))

    @unittest.skipUnless(HAS_PYDANTIC, "no pydantic for this Python (pip install pydantic)")
    def test_responses_by_a_schema(self):
        from typing import Literal

        import pydantic

        class Colour(pydantic.BaseModel):
            colour: Literal["red", "green"]

        response = self.client.responses.parse(model=self.model, input="Which colour?", text_format=Colour, temperature=0)
        self.assertIsInstance(response.output_parsed, Colour)

    def test_what_is_not_there_is_refused(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        with self.assertRaises(self.openai.BadRequestError) as refused:
            self.ask(tools=[tool])
        self.assertIn("tools", str(refused.exception))
        self.assertIsNotNone(self.ask(tools=[tool], tool_choice="none", max_tokens=1).choices[0].message)
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(self.openai.NotFoundError):
            self.client.models.retrieve("another")
        with self.assertRaises(self.openai.AuthenticationError):
            self.client.with_options(api_key="falsch").models.list()


@unittest.skipUnless(HAS_OPENAI, "no openai for this Python (pip install openai)")
class OpenAITools(served.ServedTest):
    options = ("--chat-template", "chatml")

    def test_a_call_and_its_output(self):
        import openai
        client = openai.OpenAI(base_url=self.server.address + "/v1", api_key="none", max_retries=0, timeout=served.PATIENCE)
        schema = {"type": "object", "properties": {"code": {"type": "integer"}}, "required": ["code"], "additionalProperties": False}
        body = {"model": "any", "temperature": 0, "tools": [{"type": "function", "name": "unlock", "parameters": schema}]}
        question = [{"role": "user", "content": "Unlock it."}]
        response = client.responses.create(input=question, tool_choice="required", **body)
        call = response.output[0]
        self.assertEqual((call.type, call.name), ("function_call", "unlock"))
        self.assertIsInstance(json.loads(call.arguments)["code"], int)
        with client.responses.stream(input=question, tool_choice="required", **body) as stream:
            done = [event for event in stream if event.type == "response.function_call_arguments.done"]
            self.assertEqual((done[0].arguments, stream.get_final_response().output[0].arguments), (call.arguments, call.arguments))
        question += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "open"}]
        self.assertEqual(client.responses.create(input=question, max_output_tokens=4, **body).output[0].type, "message")


@unittest.skipUnless(HAS_CURL, "no curl")
class OpenAIToolsOfDeepSeek(OpenAITools):
    """The same in a format whose calls have other marks."""

    options = ("--chat-template", "deepseek-v3.1")


@unittest.skipUnless(HAS_OPENAI, "no openai for this Python (pip install openai)")
class OpenAIThoughts(served.ServedTest):
    options = ("--chat-template", "qwen-3-thinking")

    def test_an_item_of_thoughts(self):
        import openai
        client = openai.OpenAI(base_url=self.server.address + "/v1", api_key="none", max_retries=0, timeout=served.PATIENCE)
        schema = {"type": "object", "properties": {"say": {"const": "Hm </think> Good."}}, "required": ["say"], "additionalProperties": False}
        body = {"model": "any", "input": "Hello", "temperature": 0, "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
        response = client.responses.create(**body)
        self.assertEqual([item.type for item in response.output], ["reasoning", "message"])
        thoughts = response.output[0].content[0].text
        self.assertTrue(thoughts.endswith("Hm"))
        self.assertIn("Good.", response.output_text)
        self.assertGreater(response.usage.output_tokens_details.reasoning_tokens, 0)
        with client.responses.stream(**body) as stream:
            self.assertEqual("".join(event.delta for event in stream if event.type == "response.reasoning_text.delta"), thoughts)
            self.assertEqual(stream.get_final_response().output[0].content[0].text, thoughts)
        again = [{"role": "user", "content": "Hello"}, *[item.model_dump(exclude_none=True) for item in response.output], {"role": "user", "content": "And now?"}]
        self.assertEqual(client.responses.create(**{**body, "input": again}).output[0].type, "reasoning")


class Curl(served.ServedTest):
    def test_a_stream(self):
        body = {"messages": served.ask_about(served.document(CODE)), "temperature": 0, "stream": True}
        got = subprocess.run(["curl", "-sSN", self.server.address + "/v1/chat/completions", "-d", "@-"], input=json.dumps(body).encode(),
                             stdout=subprocess.PIPE, timeout=served.PATIENCE, check=True).stdout.decode()
        events = [line[6:] for line in got.split("\n") if line]
        self.assertEqual(events.pop(), "[DONE]")
        self.assertEqual("".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events), served.answer(CODE))


TASK = """task: planted_codes
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "<|start_header_id|>user<|end_header_id|>\\n\\n{{text}}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\\n\\n"
doc_to_target: "{{code}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 24, temperature: 0}
filter_list:
  - {name: digits, filter: [{function: regex, regex_pattern: "([0-9]+)"}, {function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@unittest.skipUnless(HAS_LM_EVAL, "no lm_eval for this Python (pip install 'lm_eval[api]')")
class LmEval(served.ServedTest):
    def test_local_completions(self):
        with tempfile.TemporaryDirectory() as folder:
            questions = os.path.join(folder, "test.jsonl")
            with open(questions, "w", encoding="utf-8") as file:
                for i in range(4):
                    code = 5550123 + 1017 * i
                    file.write(json.dumps({"text": served.ask_about(served.document(code, begin=3000 * i))[0]["content"], "code": str(code)}) + "\n")
            with open(os.path.join(folder, "planted_codes.yaml"), "w", encoding="utf-8") as file:
                file.write(TASK % questions)
            settings = "model=terse,base_url=%s/v1/completions,tokenizer_backend=none,num_concurrent=2,max_retries=1" % self.server.address
            offline = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=os.path.join(folder, "cache"), OPENAI_API_KEY="-")
            subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", settings, "--tasks", "planted_codes",
                            "--include_path", folder, "--output_path", folder], env=offline, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=4 * served.PATIENCE, check=True)
            found = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.startswith("results")]
            with open(found[0], encoding="utf-8") as file:
                scores = json.load(file)["results"]["planted_codes"]
            self.assertEqual(scores["exact_match,digits"], 1.0)


if __name__ == "__main__":
    served.main()
