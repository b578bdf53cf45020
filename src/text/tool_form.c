/* Sources: the templates of Qwen 2.5 and 3, Llama 3.1, Mistral 7B Instruct v0.3, Mistral Nemo and gpt-oss, and the page on the format harmony in
 * OpenAI's cookbook, for the ways in which a reply addresses a function. */
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
    .call_open = "<tool_call>\n{\"name\": \"",
    .call_arguments = "\", \"arguments\": ",
    .call_close = "}\n</tool_call>",
    .call_between = "\n",
    .calls_close = "",
    .in_turns = true,
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
