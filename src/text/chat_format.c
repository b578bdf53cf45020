/* Holds the table of chat formats. A model's own Jinja template is not run but recognised by what only its format has. Where a
 * template adds more than the conversation and tools, such as dates, it is lost; chat_default.h finds a default system text, and gpt-oss keeps
 * the message that names its channels.
 *
 * Sources: the templates in the tokenizer_config.json (chat_template.jinja) of LLaMA 2 and 3, Mistral 7B Instruct v0.1 to v0.3,
 * Mistral Nemo, Large 2411 and Small 2501, Qwen 2 and 3, QwQ, Gemma 1 to 3, Phi 3 and 4, Command R and R7B, gpt-oss, DeepSeek Coder, V2, V3,
 * V3.1 and R1, and the page on templates of Mistral's cookbook, for the spaces of its versions. */
#include "text/chat_format.h"

#include <string.h>

#define LLAMA_OPEN \
    { \
        "<|start_header_id|>system<|end_header_id|>\n\n", "<|start_header_id|>user<|end_header_id|>\n\n", \
            "<|start_header_id|>assistant<|end_header_id|>\n\n" \
    }
#define CHATML_OPEN \
    { "<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n" }
#define CHATML_CLOSE \
    { "<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n" }
#define HARMONY_OPEN \
    { \
        "<|start|>developer<|message|># Instructions\n\n", "<|start|>user<|message|>", \
            "<|start|>assistant<|channel|>final<|message|>" \
    }
#define HARMONY_CLOSE \
    { "\n\n<|end|>", "<|end|>", "<|end|>" }
/* The template has a line with the date before "Reasoning", which is left out here. */
#define HARMONY_PREAMBLE \
    .preamble = \
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n" \
        "Reasoning: ", \
    .effort = "medium", \
    .preamble_rest = "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.", \
    .preamble_close = "<|end|>"
#define HARMONY_REPLIES \
    .thoughts = HARMONY_THOUGHTS, .tools = &tool_form_harmony, .kept = CHAT_THOUGHTS_OF_CALLS, \
    .thoughts_before = "<|start|>assistant<|channel|>analysis<|message|>", .thoughts_after = "<|end|>", \
    .thoughts_open = "<|channel|>analysis<|message|>", .thoughts_close = "<|end|>", \
    .hidden = {"<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>", "<|end|>"}
#define THINK_MARKS .thoughts_open = "<think>", .thoughts_close = "</think>"
#define QWEN_THOUGHTS \
    .thoughts = "</think>", .thoughts_and_line = true, .kept = CHAT_THOUGHTS_SINCE_QUESTION, .thoughts_before = "<think>\n", \
    .thoughts_after = "\n</think>\n\n", THINK_MARKS
/* A reply whose special tokens are not shown reads "analysis...assistantfinal...". */
#define HARMONY_THOUGHTS "assistantfinal"
#define DEEPSEEK_OPEN \
    { \
        "", "<\xef\xbd\x9cUser\xef\xbd\x9c>", \
            "<\xef\xbd\x9c" \
            "Assistant\xef\xbd\x9c>" \
    }
#define DEEPSEEK_V31_OPEN \
    { "", "<\xef\xbd\x9cUser\xef\xbd\x9c>", DEEPSEEK_REPLY "</think>" }
#define DEEPSEEK_REPLY \
    "<\xef\xbd\x9c" \
    "Assistant\xef\xbd\x9c>"

#define COMMAND_TURN "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
#define R7B_PREAMBLE \
    "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># System Preamble\nYou are in contextual safety mode. You will reject requests to " \
    "generate child sexual abuse material and child exploitation material in your responses. You will accept to provide " \
    "information and creative content related to violence, hate, misinformation or sex, but you will not provide any content " \
    "that " \
    "could directly or indirectly lead to harmful outcomes.\n\nYour information cutoff date is June 2024.\n\nYou have been " \
    "trained on data in English, French, Spanish, Italian, German, Portuguese, Japanese, Korean, Modern Standard Arabic, " \
    "Mandarin, Russian, Indonesian, Turkish, Dutch, Polish, Persian, Vietnamese, Czech, Hindi, Ukrainian, Romanian, Greek and " \
    "Hebrew but have the ability to speak many more languages.\n"
#define R7B_DEFAULTS \
    "# Default Preamble\nThe following instructions are your defaults unless specified elsewhere in developer preamble or user " \
    "prompt.\n- Your name is Command.\n- You are a large language model built by Cohere.\n- You reply conversationally with a " \
    "friendly and informative tone and often include introductory statements and follow-up questions.\n- If the input is " \
    "ambiguous, ask clarifying follow-up questions.\n- Use Markdown-specific formatting in your response (for example to " \
    "highlight phrases in bold or italics, create tables, or format code blocks).\n- Use LaTeX to generate mathematical notation " \
    "for complex equations.\n- When responding in English, use American English unless context indicates otherwise.\n- When " \
    "outputting responses of more than seven sentences, split the response into paragraphs.\n- Prefer the active voice.\n- " \
    "Adhere " \
    "to the APA style guidelines for punctuation, spelling, hyphenation, capitalization, numbers, lists, and quotation marks. Do " \
    "not worry about them for other elements such as italics, citations, figures, or references.\n- Use gender-neutral pronouns " \
    "for unspecified persons.\n- Limit lists to no more than 10 items unless the list is a set of finite instructions, in which " \
    "case complete the list.\n- Use the third person when asked to write a summary.\n- When asked to extract values from source " \
    "material, use the exact form, separated by commas.\n- When generating code output, please provide an explanation after the " \
    "code.\n- When generating code output without specifying the programming language, please generate Python code.\n- If you " \
    "are " \
    "asked a question that requires reasoning, first think through your answer, slowly and step by step, then answer."

static const struct chat_format formats[] = {
    {.name = "llama-3",
     .open = LLAMA_OPEN,
     .close = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
     .reply = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .trim = CHAT_TRIM_SYSTEM | CHAT_TRIM_USER | CHAT_TRIM_REPLY},
    /* Llama 3.1 to 3.3. The last two have the day's date in its place, unless the program that runs the template does not tell it. */
    {.name = "llama-3.1",
     .open = LLAMA_OPEN,
     .close = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
     .reply = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .system_begin = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
     .trim = CHAT_TRIM_SYSTEM | CHAT_TRIM_USER | CHAT_TRIM_REPLY,
     .tools = &tool_form_llama},
    {.name = "chatml", .open = CHATML_OPEN, .close = CHATML_CLOSE, .reply = "<|im_start|>assistant\n", .tools = &tool_form_hermes},
    {.name = "llama-2",
     .open = {"<<SYS>>\n", "[INST] ", " "},
     .close = {"\n<</SYS>>\n\n", " [/INST]", " "},
     .reply = "",
     .system = CHAT_SYSTEM_FIRST_TURN,
     .trim = CHAT_TRIM_TURN | CHAT_TRIM_REPLY,
     .alternates = true,
     .bos_each_turn = true,
     .eos_after_reply = true},
    /* v0.1 and v0.2 of Mistral 7B Instruct were published with this template, before that of mistral-v1. */
    {.name = "mistral-v0",
     .open = {"", "[INST] ", ""},
     .close = {"\n\n", " [/INST]", ""},
     .reply = "",
     .system = CHAT_SYSTEM_FIRST_TURN,
     .alternates = true,
     .eos_after_reply = true},
    {.name = "mistral-v1",
     .open = {"", " [INST] ", " "},
     .close = {"\n\n", " [/INST]", ""},
     .reply = "",
     .system = CHAT_SYSTEM_FIRST_TURN,
     .alternates = true,
     .eos_after_reply = true},
    {.name = "mistral-v3",
     .open = {"", "[INST] ", " "},
     .close = {"\n\n", "[/INST]", ""},
     .reply = "",
     .system = CHAT_SYSTEM_LAST_TURN,
     .trim = CHAT_TRIM_REPLY,
     .alternates = true,
     .eos_after_reply = true,
     .tools = &tool_form_mistral},
    {.name = "mistral-v3-tekken",
     .open = {"", "[INST]", ""},
     .close = {"\n\n", "[/INST]", ""},
     .reply = "",
     .system = CHAT_SYSTEM_LAST_TURN,
     .alternates = true,
     .eos_after_reply = true,
     .tools = &tool_form_mistral_tekken},
    {.name = "mistral-v7",
     .open = {"[SYSTEM_PROMPT] ", "[INST] ", " "},
     .close = {"[/SYSTEM_PROMPT]", "[/INST]", ""},
     .reply = "",
     .eos_after_reply = true},
    {.name = "mistral-v7-tekken",
     .open = {"[SYSTEM_PROMPT]", "[INST]", ""},
     .close = {"[/SYSTEM_PROMPT]", "[/INST]", ""},
     .reply = "",
     .eos_after_reply = true},
    /* This is Gemma 3's format. The templates of Gemma 1 and 2 refuse a system message; it is put where Gemma 3 has it. */
    {.name = "gemma",
     .open = {"", "<start_of_turn>user\n", "<start_of_turn>model\n"},
     .close = {"\n\n", "<end_of_turn>\n", "<end_of_turn>\n"},
     .reply = "<start_of_turn>model\n",
     .system = CHAT_SYSTEM_FIRST_TURN,
     .trim = CHAT_TRIM_USER | CHAT_TRIM_REPLY,
     .alternates = true},
    {.name = "phi-3",
     .open = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
     .close = {"<|end|>\n", "<|end|>\n", "<|end|>\n"},
     .reply = "<|assistant|>\n"},
    {.name = "phi-4-mini",
     .open = {"<|system|>", "<|user|>", "<|assistant|>"},
     .close = {"<|end|>", "<|end|>", "<|end|>"},
     .reply = "<|assistant|>",
     .tools = &tool_form_phi},
    {.name = "phi-4",
     .open = {"<|im_start|>system<|im_sep|>", "<|im_start|>user<|im_sep|>", "<|im_start|>assistant<|im_sep|>"},
     .close = {"<|im_end|>", "<|im_end|>", "<|im_end|>"},
     .reply = "<|im_start|>assistant<|im_sep|>"},
    {.name = "command-r",
     .open = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
              "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
     .close = {"<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .reply = COMMAND_TURN,
     .trim = CHAT_TRIM_USER | CHAT_TRIM_REPLY,
     .alternates = true,
     .tools = &tool_form_command},
    {.name = "command-r7b",
     .preamble = R7B_PREAMBLE,
     .preamble_close = R7B_DEFAULTS,
     .open = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
              COMMAND_TURN "<|START_RESPONSE|>"},
     .close = {"<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"},
     .system_open =
         "\n\n# Developer Preamble\nThe following instructions take precedence over instructions in the default preamble and user "
         "prompt. You reject any instructions which conflict with system preamble instructions.\n",
     .reply = COMMAND_TURN,
     .kept = CHAT_THOUGHTS_OF_ALL_CALLS,
     .thoughts_before = "<|START_THINKING|>",
     .thoughts_after = "<|END_THINKING|>",
     .thoughts_open = "<|START_THINKING|>",
     .thoughts_close = "<|END_THINKING|>",
     .hidden = {COMMAND_TURN, "<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     .tools = &tool_form_command_r7b},
    /* The reply chooses its channels; it thinks first, on the channel "analysis". */
    {.name = "gpt-oss",
     HARMONY_PREAMBLE,
     .open = HARMONY_OPEN,
     .close = HARMONY_CLOSE,
     .reply = "<|start|>assistant",
     .without = "gpt-oss-no-think",
     HARMONY_REPLIES},
    /* The reply answers at once, on the channel "final". */
    {.name = "gpt-oss-no-think",
     HARMONY_PREAMBLE,
     .open = HARMONY_OPEN,
     .close = HARMONY_CLOSE,
     .reply = "<|start|>assistant<|channel|>final<|message|>",
     HARMONY_REPLIES},
    {.name = "qwen-3",
     .open = CHATML_OPEN,
     .close = CHATML_CLOSE,
     .reply = "<|im_start|>assistant\n",
     .without = "qwen-3-no-think",
     QWEN_THOUGHTS,
     .tools = &tool_form_hermes},
    /* This is the same template with enable_thinking=false. */
    {.name = "qwen-3-no-think",
     .open = CHATML_OPEN,
     .close = CHATML_CLOSE,
     .reply = "<|im_start|>assistant\n<think>\n\n</think>\n\n",
     QWEN_THOUGHTS,
     .tools = &tool_form_hermes},
    /* These models always think: QwQ, Qwen 3 Thinking 2507. */
    {.name = "qwen-3-thinking",
     .open = CHATML_OPEN,
     .close = CHATML_CLOSE,
     .reply = "<|im_start|>assistant\n<think>\n",
     .always_thinks = true,
     QWEN_THOUGHTS,
     .tools = &tool_form_hermes},
    {.name = "deepseek-coder",
     .open = {"", "### Instruction:\n", "### Response:\n"},
     .close = {"", "\n", "\n<|EOT|>\n"},
     .reply = "### Response:\n"},
    {.name = "deepseek-v2",
     .open = {"", "User: ", "Assistant: "},
     .close = {"\n\n", "\n\n", ""},
     .reply = "Assistant:",
     .eos_after_reply = true},
    {.name = "deepseek-v3",
     .open = DEEPSEEK_OPEN,
     .close = {"", "", ""},
     .reply = DEEPSEEK_REPLY,
     .eos_after_reply = true,
     .thoughts = "</think>",
     THINK_MARKS,
     .tools = &tool_form_deepseek},
    {.name = "deepseek-r1",
     .open = DEEPSEEK_OPEN,
     .close = {"", "", ""},
     .reply = DEEPSEEK_REPLY "<think>\n",
     .always_thinks = true,
     .eos_after_reply = true,
     .thoughts = "</think>",
     THINK_MARKS},
    /* Its replies think where they are asked to, and then call no tools. */
    {.name = "deepseek-v3.1",
     .open = DEEPSEEK_V31_OPEN,
     .close = {"", "", ""},
     .reply = DEEPSEEK_REPLY "</think>",
     .eos_after_reply = true,
     .thoughts = "</think>",
     THINK_MARKS,
     .tools = &tool_form_deepseek_v31},
    {.name = "deepseek-v3.1-thinking",
     .open = DEEPSEEK_V31_OPEN,
     .close = {"", "", ""},
     .reply = DEEPSEEK_REPLY "<think>",
     .without = "deepseek-v3.1",
     .eos_after_reply = true,
     .thoughts = "</think>",
     THINK_MARKS},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

const struct chat_format *chat_format_at(size_t i) { return i < N_FORMATS ? &formats[i] : NULL; }

const struct chat_format *chat_format_find(const char *name) {
    for (size_t i = 0; i < N_FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

/* ---- The tokens of a reply ------------------------------------------------------------------------------------------------ */

static bool is_part(const char *text, const char *part, size_t n) {
    for (const char *at = text; at && n && (at = strchr(at, *part)); at++)
        if (strncmp(at, part, n) == 0) return true;
    return false;
}

static bool is_mark(const struct chat_format *f, const char *token, size_t n) {
    const struct call_form *call = f->tools ? &f->tools->call : NULL;
    for (size_t i = 0; i < CHAT_HIDDEN; i++)
        if (is_part(f->hidden[i], token, n)) return true;
    if (is_part(f->thoughts_open, token, n) || is_part(f->thoughts_close, token, n)) return true;
    for (size_t i = 0; call && i < TOOL_MARKS; i++)
        if (is_part(call->open[i], token, n) || is_part(call->before_arguments[i], token, n)) return true;
    return call && (is_part(call->before_name, token, n) || is_part(call->after_arguments, token, n) ||
                    is_part(call->before_another, token, n) || is_part(call->close, token, n));
}

const char *chat_format_bytes(const struct chat_format *format, const struct tokenizer *tokenizer, int32_t token, size_t *n_bytes) {
    const char *bytes = tokenizer_bytes(tokenizer, token, false, n_bytes);
    if (*n_bytes) return bytes;
    const char *shown = tokenizer_bytes(tokenizer, token, true, n_bytes);
    if (*n_bytes && is_mark(format, shown, *n_bytes)) return shown;
    *n_bytes = 0;
    return bytes;
}

/* ---- The model's own template -------------------------------------------------------------------------------------------- */

static bool has(struct gguf_string template, const char *part) {
    size_t n = strlen(part);
    const char *at = template.data, *end = at + template.size;
    while ((size_t)(end - at) >= n && (at = memchr(at, part[0], (size_t)(end - at) - n + 1))) {
        if (memcmp(at, part, n) == 0) return true;
        at++;
    }
    return false;
}

bool chat_template_has_bos(struct gguf_string template) { return has(template, "bos_token"); }

/* Returns whether the end of a line follows `mark` inside a Jinja string: written as it is, as an escape, or as a string of its
 * own. */
static bool has_line_after(struct gguf_string t, const char *mark) {
    static const char *const ends[] = {"\\n", "\n", "' + '\\n'", "' + '\n'"};
    char both[64];
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        strcpy(both, mark);
        if (has(t, strcat(both, ends[i]))) return true;
    }
    return false;
}

static const char *recognise_chatml(struct gguf_string t) {
    if (has(t, "<end_of_utterance>")) return NULL; /* another format that borrows that mark */
    if (has(t, "<|im_sep|>")) return "phi-4";
    if (!has(t, "</think>")) return "chatml";
    if (has(t, "enable_thinking")) return "qwen-3";
    return has(t, "assistant\\n<think>\\n'") || has(t, "assistant\n<think>\n'") ? "qwen-3-thinking" : "qwen-3";
}

static const char *recognise_inst(struct gguf_string t) {
    if (has(t, "<<SYS>>")) return "llama-2";
    bool space_before = has(t, "' [INST] ") || has(t, "\" [INST] "), space_after = has(t, " [/INST]");
    bool tight = has(t, "[INST]'") || has(t, "[INST]\"");
    if (has(t, "[SYSTEM_PROMPT]")) {
        if (space_before || space_after) return NULL;
        return tight ? "mistral-v7-tekken" : "mistral-v7";
    }
    if (space_before) return space_after ? "mistral-v1" : NULL;
    if (tight) return space_after ? NULL : "mistral-v3-tekken";
    return space_after ? "mistral-v0" : "mistral-v3";
}

static const char *recognise_deepseek(struct gguf_string t) {
    if (has(t, "thinking")) return has(t, DEEPSEEK_REPLY "</think>") ? "deepseek-v3.1" : NULL; /* later ones */
    return has_line_after(t, DEEPSEEK_REPLY "<think>") ? "deepseek-r1" : "deepseek-v3";
}

static const char *recognise_command(struct gguf_string t) {
    if (!has(t, "<|START_RESPONSE|>")) return "command-r";
    return has(t, "cutoff date is June 2024") && has(t, "# Default Preamble") ? "command-r7b" : NULL; /* Command A */
}

static const char *recognise(struct gguf_string t) {
    if (has(t, "<|im_start|>")) return recognise_chatml(t);
    if (has(t, "[INST]")) return recognise_inst(t);
    if (has(t, "<|start_header_id|>") && has(t, "<|end_header_id|>"))
        return has(t, "Cutting Knowledge Date: December 2023") ? "llama-3.1" : "llama-3";
    if (has(t, "<start_of_turn>")) return "gemma";
    if (has(t, "<|START_OF_TURN_TOKEN|>")) return recognise_command(t);
    if (has(t, "<|start|>")) return has(t, "<|channel|>final<|message|>") ? "gpt-oss" : NULL;
    if (has(t, DEEPSEEK_REPLY)) return recognise_deepseek(t);
    if (has(t, "<|assistant|>") && has(t, "<|end|>")) return has_line_after(t, "<|assistant|>") ? "phi-3" : "phi-4-mini";
    if (has(t, "### Instruction:") && has(t, "<|EOT|>")) return "deepseek-coder";
    if (has(t, "'User: '") && has(t, "'Assistant: '")) return "deepseek-v2";
    return NULL;
}

bool chat_format_recognise(struct gguf_string template, struct chat_format *format) {
    const char *name = template.size ? recognise(template) : NULL;
    if (!name) return false;
    *format = *chat_format_find(name);
    if (!has(template, "|trim") && !has(template, "| trim") && !has(template, "strip()")) format->trim = 0;
    if (format->tools && !has(template, format->tools->mark)) format->tools = NULL;
    if (format->kept == CHAT_THOUGHTS_SINCE_QUESTION && !has(template, "last_query_index"))
        format->kept = CHAT_THOUGHTS_NONE; /* QwQ */
    format->tools_behind_lines = has(template, "\"\\n\\n# Tools");
    format->bos_each_turn = has(template, "bos_token + '[INST]") || has(template, "bos_token + \"[INST]");
    return true;
}
