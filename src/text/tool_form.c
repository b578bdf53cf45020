#include "text/tool_form.h"

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
};
