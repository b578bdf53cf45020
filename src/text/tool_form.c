/* Sources: the templates of Qwen 2.5 and 3, Llama 3.1, Mistral 7B Instruct v0.3, Mistral Nemo, gpt-oss, Command R+ and R7B (tool_use), DeepSeek
 * V3-0324, R1-0528 and V3.1; the page on the format harmony in OpenAI's cookbook, for the ways in which a reply addresses a function; llama.cpp's
 * template for Phi 4 mini. DeepSeek's templates write calls and results but tell of no tools: the text for V3.1 is that of its model card, the text
 * for the others that of vLLM's template for R1. */
#include "text/tool_form.h"

#include "text/tool_declare.h"

const struct tool_form tool_form_hermes = {
    .mark = "<tool_call>",
    .call = {.open = {"<tool_call>"},
             .before_name = " { \"name\" : \"",
             .before_arguments = {"\" , \"arguments\" :"},
             .after_arguments = " } </tool_call>",
             .text_follows = true,
             .begun = "<tool_call>\n",
             .name_key = "name",
             .arguments_key = "arguments",
             .end = "</tool_call>"},
    .place = TOOLS_BEHIND_SYSTEM,
    .before =
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures "
        "within <tools></tools> XML tags:\n<tools>\n",
    .between = "\n",
    .after = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
             "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
             "<args-json-object>}\n</tool_call>",
    .declare = tool_declare_line,
    .behind_system = "\n\n",
    .call_open = "<tool_call>\n{\"name\": \"",
    .call_arguments = "\", \"arguments\": ",
    .call_close = "}\n</tool_call>",
    .call_between = "\n",
    .calls_close = "",
    .results_open = "<|im_start|>user\n",
    .result_between = "\n",
    .results_close = "<|im_end|>\n",
    .result_open = "<tool_response>\n",
    .result_close = "\n</tool_response>",
};

const struct tool_form tool_form_llama = {
    .mark = "ipython",
    .call = {.open = {" { \"name\" : \"", " <|python_tag|> { \"name\" : \"", " { \"type\" : \"function\" , \"name\" : \""},
             .opens_reply = true,
             .before_name = "",
             .before_arguments = {"\" , \"parameters\" :"},
             .after_arguments = " }",
             .begun = "{\"name\": \"",
             .name_key = "name",
             .arguments_key = "parameters"},
    .place = TOOLS_IN_FIRST_TURN,
    .before =
        "Given the following functions, please respond with a JSON for a function call with its proper arguments that best answers "
        "the given prompt.\n\nRespond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its "
        "value}.Do not use variables.\n\n",
    .between = "\n\n",
    .after = "\n\n",
    .declare = tool_declare_indented,
    .before_system = "Environment: ipython\n",
    .only_calls = true,
    .one_call = true,
    .call_open = "{\"name\": \"",
    .call_arguments = "\", \"parameters\": ",
    .call_close = "}",
    .call_between = "",
    .calls_close = "",
    .result_open = "<|start_header_id|>ipython<|end_header_id|>\n\n",
    .result_quoted = true,
    .result_close = "<|eot_id|>",
};

#define MISTRAL_CALL(space) \
    { \
        .open = {"[TOOL_CALLS]"}, .before_name = " [ { \"name\" : \"", .before_arguments = {"\" , \"arguments\" :"}, \
        .after_arguments = " }", .before_another = " , { \"name\" : \"", .close = " ]", \
        .begun = "[TOOL_CALLS]" space "[{\"name\": \"", .name_key = "name", .arguments_key = "arguments", \
    }
#define MISTRAL_FORM(space) \
    { \
        .mark = "[AVAILABLE_TOOLS]", .call = MISTRAL_CALL(space), .place = TOOLS_BEFORE_LAST_TURN, \
        .before = "[AVAILABLE_TOOLS]" space "[", .between = ", ", .after = "][/AVAILABLE_TOOLS]", \
        .declare = tool_declare_unescaped, .turn = "[TOOL_CALLS]" space "[", .only_calls = true, .call_open = "{\"name\": \"", \
        .call_arguments = "\", \"arguments\": ", .call_id = ", \"id\": \"", .call_close = "}", .call_between = ", ", \
        .calls_close = "]", .result_open = "[TOOL_RESULTS]" space "{\"content\": ", .result_id = ", \"call_id\": \"", \
        .result_close = "}[/TOOL_RESULTS]", \
    }
const struct tool_form tool_form_mistral = MISTRAL_FORM(" ");
const struct tool_form tool_form_mistral_tekken = MISTRAL_FORM("");

const struct tool_form tool_form_harmony = {
    .mark = "to=functions.",
    .call = {.open = {"<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.",
                      "<|start|>assistant to=functions."},
             .before_name = "",
             .before_arguments = {" <|constrain|> json <|message|>", " json <|message|>",
                                  " <|channel|> commentary <|constrain|> json <|message|>",
                                  " <|channel|> commentary json <|message|>"},
             .after_arguments = "",
             .begun = "<|channel|>commentary to=functions.",
             .before_value = "<|message|>"},
    .place = TOOLS_BEHIND_SYSTEM,
    .before = "# Tools\n\n## functions\n\nnamespace functions {\n\n",
    .between = "",
    .after = "} // namespace functions",
    .declare = tool_declare_typescript,
    .behind_system = "\n\n",
    .preamble = "\nCalls to these tools must go to the commentary channel: 'functions'.",
    .bare_open = "<|start|>developer<|message|>",
    .system_close = "<|end|>",
    .turn = "",
    .only_calls = true,
    .one_call = true,
    .call_open = "<|start|>assistant to=functions.",
    .call_arguments = "<|channel|>commentary json<|message|>",
    .call_close = "",
    .call_between = "",
    .calls_close = "",
    .turn_close = "<|call|>",
    .result_open = "<|start|>functions.",
    .result_name = " to=assistant<|channel|>commentary<|message|>",
    .result_quoted = true,
    .result_close = "<|end|>",
};

const struct tool_form tool_form_phi = {
    .mark = "<|tool_call|>",
    .call = {.open = {"<|tool_call|>"},
             .before_name = " { \"name\" : \"",
             .before_arguments = {"\" , \"arguments\" :"},
             .after_arguments = " } <|/tool_call|>",
             .text_follows = true,
             .begun = "<|tool_call|>{\"name\": \"",
             .name_key = "name",
             .arguments_key = "arguments",
             .end = "<|/tool_call|>"},
    .place = TOOLS_BEHIND_SYSTEM,
    .before = "<|tool|>",
    .between = "<|/tool|><|tool|>",
    .after =
        "<|/tool|>You are a helpful assistant with some tools.\nTo use a tool, respond in this format: <|tool_call|>{\"name\": "
        "\"foo\", \"arguments\": {\"a\": 1}}<|/tool_call|>",
    .declare = tool_declare_function,
    .behind_system = "",
    .call_open = "<|tool_call|>{\"name\": \"",
    .call_arguments = "\", \"arguments\": ",
    .call_close = "}<|/tool_call|>",
    .call_between = "",
    .calls_close = "",
    .result_open = "<|tool_response|>",
    .result_quoted = true,
    .result_close = "<|end|>",
};

const struct tool_form tool_form_command = {
    .mark = "<results>",
    .call = {.open = {"Action:\n```json\n"},
             .before_name = " [ { \"tool_name\" : \"",
             .before_arguments = {"\" , \"parameters\" :"},
             .after_arguments = " }",
             .before_another = " , { \"tool_name\" : \"",
             .close = " ] ```",
             .begun = "Action:\n```json\n[\n    {\n        \"tool_name\": \"",
             .name_key = "tool_name",
             .arguments_key = "parameters",
             .end = "```"},
    .place = TOOLS_BEHIND_SYSTEM,
    .before = "## Available Tools\nHere is a list of tools that you have available to you:\n\n",
    .between = "\n\n",
    .after = "",
    .declare = tool_declare_python,
    .before_system =
        "# Safety Preamble\nThe instructions in this section override those in the task description and style guide sections. "
        "Don't "
        "answer questions that are harmful or immoral.\n\n# System Preamble\n## Basic Rules\nYou are a powerful conversational AI "
        "trained by Cohere to help people. You are augmented by a number of tools, and your job is to use and consume the output "
        "of "
        "these tools to best help the user. You will see a conversation history between yourself and a user, ending with an "
        "utterance from the user. You will then see a specific instruction instructing you what kind of response to generate. When "
        "you answer the user's requests, you cite your sources in your answers, according to those instructions.\n\n# User "
        "Preamble\n",
    .system =
        "## Task and Context\nYou help people answer their questions and other requests interactively. You will be asked a very "
        "wide array of requests on all kinds of topics. You will be equipped with a wide range of search engines or similar "
        "tools to help you, which you use to research your answer. You should focus on serving the user's needs as best you "
        "can, which will be wide-ranging.\n\n## Style Guide\nUnless the user asks for a different style of answer, you should "
        "answer in full sentences, using proper grammar and spelling.",
    .behind_system = "\n\n",
    .behind_nothing = true,
    .before_reply =
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Write 'Action:' followed by a json-formatted list of actions that you want to "
        "perform in order to produce a good response to the user's last input. You can use any of the supplied tools any number of "
        "times, but you should aim to execute the minimum number of necessary actions for the input. You should use the "
        "`directly-answer` tool if calling the other tools is unnecessary. The list of actions you want to call should be "
        "formatted "
        "as a list of json objects, for example:\n```json\n[\n    {\n        \"tool_name\": title of the tool in the "
        "specification,\n        \"parameters\": a dict of parameters to input into the tool as they are defined in the specs, or "
        "{} "
        "if it takes no parameters\n    }\n]```<|END_OF_TURN_TOKEN|>",
    .calls_open = "\nAction:\n```json\n[\n",
    .call_open = "    {\n        \"tool_name\": \"",
    .call_arguments = "\",\n        \"parameters\": ",
    .arguments_indented = true,
    .call_close = "\n    }",
    .call_between = ",\n",
    .calls_close = "\n]```\n",
    .turn_close = "",
    .result_open = "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\n",
    .result_trimmed = true,
    .result_close = "</results><|END_OF_TURN_TOKEN|>",
};

const struct tool_form tool_form_command_r7b = {
    .mark = "<|START_TOOL_RESULT|>",
    .call = {.open = {"<|START_ACTION|>"},
             .before_name = " [ { \"tool_call_id\" : \"0\" , \"tool_name\" : \"",
             .before_arguments = {"\" , \"parameters\" :"},
             .after_arguments = " }",
             .before_another = " , { \"tool_call_id\" : \"0\" , \"tool_name\" : \"",
             .close = " ] <|END_ACTION|>",
             .begun = "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"",
             .name_key = "tool_name",
             .arguments_key = "parameters",
             .end = "<|END_ACTION|>"},
    .place = TOOLS_IN_PREAMBLE,
    .before =
        "\nYou have been trained to have advanced reasoning and tool-use capabilities and you should make best use of these "
        "skills to serve user's requests.\n\n## Tool Use\nThink about how you can make best use of the provided tools to help "
        "with the task and come up with a high level plan that you will execute first.\n\n0. Start by writing <|START_THINKING|> "
        "followed by a detailed step by step plan of how you will solve the problem. For each step explain your thinking fully "
        "and give details of required tool calls (if needed). Unless specified otherwise, you write your plan in natural "
        "language. When you finish, close it out with <|END_THINKING|>.\n    You can optionally choose to skip this step when the "
        "user request is so straightforward to address that only a trivial plan would be needed.\n    NOTE: You MUST skip this "
        "step when you are directly responding to the user's request without using any tools.\n\nThen carry out your plan by "
        "repeatedly executing the following steps.\n1. Action: write <|START_ACTION|> followed by a list of JSON-formatted tool "
        "calls, with each one containing \"tool_name\" and \"parameters\" fields.\n    When there are multiple tool calls which "
        "are completely independent of each other (i.e. they can be executed in parallel), you should list them out all together "
        "in one step. When you finish, close it out with <|END_ACTION|>.\n2. Observation: you will then receive results of those "
        "tool calls in JSON format in the very next turn, wrapped around by <|START_TOOL_RESULT|> and <|END_TOOL_RESULT|>. "
        "Carefully observe those results and think about what to do next. Note that these results will be provided to you in a "
        "separate turn. NEVER hallucinate results.\n    Every tool call produces a list of results (when a tool call produces no "
        "result or a single result, it'll still get wrapped inside a list). Each result is clearly linked to its originating tool "
        "call via its \"tool_call_id\".\n3. Reflection: start the next turn by writing <|START_THINKING|> followed by what you've "
        "figured out so far, any changes you need to make to your plan, and what you will do next. When you finish, close it out "
        "with <|END_THINKING|>.\n    You can optionally choose to skip this step when everything is going according to plan and "
        "no special pieces of information or reasoning chains need to be recorded.\n    NOTE: You MUST skip this step when you "
        "are done with tool-use actions and are ready to respond to the user.\n\nYou can repeat the above 3 steps multiple times "
        "(could be 0 times too if no suitable tool calls are available or needed), until you decide it's time to finally respond "
        "to the user.\n\n4. Response: then break out of the loop and write <|START_RESPONSE|> followed by a piece of text which "
        "serves as a response to the user's last request. Use all previous tool calls and results to help you when formulating "
        "your response. When you finish, close it out with <|END_RESPONSE|>.\n\n## Available Tools\nHere is the list of tools "
        "that you have available to you.\nYou can ONLY use the tools listed here. When a tool is not listed below, it is NOT "
        "available and you should NEVER attempt to use it.\nEach tool is represented as a JSON object with fields like \"name\", "
        "\"description\", \"parameters\" (per JSON Schema), and optionally, \"responses\" (per JSON Schema).\n\n```json\n[\n",
    .between = ",\n",
    .after = "\n]\n```\n\n",
    .declare = tool_declare_responses,
    .turn = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    .only_calls = true,
    .calls_open = "<|START_ACTION|>[\n",
    .call_open = "    {\"tool_call_id\": \"",
    .call_name = "\", \"tool_name\": \"",
    .call_arguments = "\", \"parameters\": ",
    .call_close = "}",
    .call_between = ",\n",
    .calls_close = "\n]<|END_ACTION|>",
    .turn_close = "<|END_OF_TURN_TOKEN|>",
    .results_open = "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[\n",
    .result_between = ",\n",
    .results_close = "\n]<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>",
    .result_open = "    {\n        \"tool_call_id\": \"",
    .result_number = "\",\n        \"results\": {\n            \"0\": ",
    .result_quoted = true,
    .result_close = "\n        },\n        \"is_error\": null\n    }",
};

/* "<|name|>" in the letters of DeepSeek, whose bar is a wide one and whose spaces are low blocks. */
#define DEEPSEEK(name) "<\xef\xbd\x9c" name "\xef\xbd\x9c>"
#define LOW "\xe2\x96\x81"
#define CALLS_BEGIN DEEPSEEK("tool" LOW "calls" LOW "begin")
#define CALLS_END DEEPSEEK("tool" LOW "calls" LOW "end")
#define CALL_BEGIN DEEPSEEK("tool" LOW "call" LOW "begin")
#define CALL_END DEEPSEEK("tool" LOW "call" LOW "end")
#define SEPARATOR DEEPSEEK("tool" LOW "sep")

const struct tool_form tool_form_deepseek = {
    .mark = "is_last_user", /* templates before V3-0324 write calls only once a conversation */
    .call = {.open = {CALLS_BEGIN},
             .before_name = " " CALL_BEGIN "function" SEPARATOR,
             .before_arguments = {" ```json"},
             .after_arguments = " ``` " CALL_END,
             .before_another = " " CALL_BEGIN "function" SEPARATOR,
             .close = " " CALLS_END,
             .begun = CALLS_BEGIN CALL_BEGIN "function" SEPARATOR},
    .place = TOOLS_BEHIND_SYSTEM,
    .before =
        "You are a helpful assistant with tool calling capabilities. When a tool call is needed, you MUST use the following format "
        "to issue the call:\n" CALLS_BEGIN CALL_BEGIN "function" SEPARATOR
        "FUNCTION_NAME\n```json\n{\"param1\": \"value1\", \"param2\": \"value2\"}\n```" CALL_END CALLS_END
        "\n\nMake sure the JSON is valid.## Tools\n\n### Function\n\nYou have the following functions available:\n\n",
    .between = "",
    .after = "",
    .declare = tool_declare_block,
    .behind_system = "\n\n",
    .behind_nothing = true,
    .calls_open = CALLS_BEGIN,
    .call_open = CALL_BEGIN "function" SEPARATOR,
    .call_arguments = "\n```json\n",
    .call_close = "\n```" CALL_END,
    .call_between = "\n",
    .calls_close = CALLS_END,
    .results_open = DEEPSEEK("tool" LOW "outputs" LOW "begin"),
    .result_between = "\n",
    .results_close = DEEPSEEK("tool" LOW "outputs" LOW "end"),
    .result_open = DEEPSEEK("tool" LOW "output" LOW "begin"),
    .result_close = DEEPSEEK("tool" LOW "output" LOW "end"),
    .answers_open = true,
};

const struct tool_form tool_form_deepseek_v31 = {
    .mark = CALLS_BEGIN,
    .call = {.open = {CALLS_BEGIN},
             .before_name = " " CALL_BEGIN,
             .before_arguments = {SEPARATOR},
             .after_arguments = " " CALL_END,
             .before_another = " " CALL_BEGIN,
             .close = " " CALLS_END,
             .begun = CALLS_BEGIN CALL_BEGIN},
    .place = TOOLS_BEHIND_SYSTEM,
    .before = "## Tools\nYou have access to the following tools:\n\n",
    .between = "\n\n",
    .after = "\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n" CALLS_BEGIN CALL_BEGIN "tool_call_name" SEPARATOR
             "tool_call_arguments" CALL_END "{additional_tool_calls}" CALLS_END
             "\n\nWhere:\n- `tool_call_name` must be an exact match to one of the available tools\n- `tool_call_arguments` must be "
             "valid "
             "JSON that strictly follows the tool's Parameters Schema\n- For multiple tool calls, chain them directly without "
             "separators or spaces",
    .declare = tool_declare_heading,
    .behind_system = "\n\n",
    .behind_nothing = true,
    .calls_open = CALLS_BEGIN,
    .call_open = CALL_BEGIN,
    .call_arguments = SEPARATOR,
    .call_close = CALL_END,
    .call_between = "",
    .calls_close = CALLS_END,
    .result_open = DEEPSEEK("tool" LOW "output" LOW "begin"),
    .result_close = DEEPSEEK("tool" LOW "output" LOW "end"),
    .answers_open = true,
};
