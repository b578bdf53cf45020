#include "fields.h"

#include <string.h>

enum {
    CHAT = 1 << API_CHAT,
    COMPLETION = 1 << API_COMPLETION,
    INFILL = 1 << API_INFILL,
    LLAMA = 1 << API_LLAMA | INFILL, /* whose settings are the same */
    OPENAI = CHAT | COMPLETION,
    RESPONSES = 1 << API_RESPONSES,
    ALL = OPENAI | LLAMA | RESPONSES
};

/* request.c, tool_request.c, chat_prompt.c, infill.c and responses_request.c read these fields. */
static const struct {
    const char *name;
    int apis;
} known[] = {
    {"model", ALL},
    {"user", ALL},
    {"messages", CHAT},
    {"prompt", COMPLETION | LLAMA},
    {"input", RESPONSES},
    {"instructions", RESPONSES},
    {"text", RESPONSES},
    {"max_output_tokens", RESPONSES},
    {"input_prefix", INFILL},
    {"input_suffix", INFILL},
    {"input_extra", INFILL},
    {"stream", ALL},
    {"stream_options", ALL},
    {"stop", ALL},
    {"max_tokens", OPENAI | LLAMA},
    {"max_completion_tokens", OPENAI | LLAMA},
    {"n_predict", OPENAI | LLAMA},
    {"n", OPENAI},
    {"best_of", OPENAI},
    {"temperature", ALL},
    {"top_p", ALL},
    {"min_p", ALL},
    {"typical_p", ALL},
    {"top_k", ALL},
    {"repeat_penalty", ALL},
    {"repeat_last_n", ALL},
    {"presence_penalty", ALL},
    {"frequency_penalty", ALL},
    {"seed", ALL},
    {"logit_bias", ALL},
    {"logprobs", OPENAI},
    {"top_logprobs", CHAT},
    {"n_probs", LLAMA},
    {"echo", COMPLETION},
    {"response_format", OPENAI | LLAMA},
    {"json_schema", LLAMA},
    {"cache_prompt", ALL},
    {"return_progress", OPENAI | LLAMA},
    {"timings_per_token", OPENAI | LLAMA},
    {"tools", CHAT | RESPONSES},
    {"tool_choice", CHAT | RESPONSES},
    {"parallel_tool_calls", CHAT | RESPONSES},
    {"reasoning_effort", CHAT},
    {"reasoning", RESPONSES},
    {"chat_template_kwargs", CHAT},
};

/* Other servers have these fields, which terse does not implement. A field is accepted with one of the values named, written
 * without spaces and with spaces between them; NULL: with any, as it says nothing about the reply, or only together with another
 * field of this table. */
static const struct {
    const char *name, *values;
} others[] = {
    /* OpenAI's platform stores, bills or schedules by these. */
    {"metadata", NULL},
    {"store", NULL},
    {"service_tier", NULL},
    {"safety_identifier", NULL},
    {"prompt_cache_key", NULL},
    {"prompt_cache_retention", NULL},
    {"prediction", NULL},
    {"parallel_tool_calls", NULL},
    /* /v1/responses keeps nothing between requests, nor thinks or computes in the background. */
    {"previous_response_id", ""},
    {"conversation", ""},
    {"background", "false"},
    {"truncation", "\"disabled\""},
    {"include", "[] [\"reasoning.encrypted_content\"]"},
    {"reasoning", "{}"},
    {"top_logprobs", "0"},
    /* These tell llama.cpp where to compute and how fast. Prompts that do not fit are refused, so nothing is discarded. */
    {"id_slot", NULL},
    {"n_keep", NULL},
    {"n_discard", NULL},
    {"n_cache_reuse", NULL},
    {"speculative.n_max", NULL},
    {"speculative.n_min", NULL},
    {"speculative.p_min", NULL},
    /* These fields are of samplers. The first field of each sampler turns it on. */
    {"mirostat", "0"},
    {"mirostat_tau", NULL},
    {"mirostat_eta", NULL},
    {"dry_multiplier", "0"},
    {"dry_base", NULL},
    {"dry_allowed_length", NULL},
    {"dry_penalty_last_n", NULL},
    {"dry_sequence_breakers", NULL},
    {"xtc_probability", "0"},
    {"xtc_threshold", NULL},
    {"dynatemp_range", "0"},
    {"dynatemp_exponent", NULL},
    {"top_n_sigma", "-1 0"},
    {"min_keep", "0"},
    {"samplers", ""},
    {"ignore_eos", "false"},
    /* These fields are of forms of prompts and replies. */
    {"suffix", "\"\""},
    {"grammar", "\"\""},
    {"grammar_lazy", "false"},
    {"grammar_triggers", "[]"},
    {"preserved_tokens", "[]"},
    {"n_indent", "0"},
    {"t_max_predict_ms", "-1 0"},
    {"t_max_prompt_ms", "-1 0"},
    {"post_sampling_probs", "false"},
    {"return_tokens", "false"},
    {"response_fields", "[]"},
    {"image_data", "[]"},
    {"lora", "[]"},
    {"reasoning_effort", ""},
    {"reasoning_format", "\"auto\" \"deepseek\""},
    {"chat_template", ""},
    {"chat_template_kwargs", "{}"},
    {"add_generation_prompt", "true"},
    {"verbosity", "\"medium\""},
    {"modalities", "[\"text\"]"},
    {"audio", ""},
    {"web_search_options", ""},
    {"functions", "[]"},
    {"function_call", "\"none\" \"auto\""},
    {"tools", "[]"},
    {"tool_choice", "\"none\" \"auto\""},
};
#define N(array) (sizeof(array) / sizeof *(array))

static bool is_one_of(const cJSON *field, const char *values) {
    char *written = cJSON_PrintUnformatted(field);
    size_t n = written ? strlen(written) : 0;
    bool found = false;
    for (const char *at = values; n && *at && !found; at += at[0] == ' ') {
        size_t length = strcspn(at, " ");
        found = length == n && memcmp(at, written, n) == 0;
        at += length;
    }
    cJSON_free(written);
    return found;
}

static bool is_text(const cJSON *body, const char *name, const char *text) {
    const cJSON *field = json_field(body, name);
    return cJSON_IsString(field) && strcmp(field->valuestring, text) == 0;
}

/* Returns whether tools are not used: a choice of no tool asks for what a reply is without tools. */
static bool unused_tools(const cJSON *body, const char *name) {
    return (strcmp(name, "tools") == 0 && is_text(body, "tool_choice", "none")) ||
           (strcmp(name, "functions") == 0 && is_text(body, "function_call", "none"));
}

static const char *advice(const char *name) {
    if (strcmp(name, "functions") == 0) return "use \"tools\"";
    if (strcmp(name, "previous_response_id") == 0 || strcmp(name, "conversation") == 0)
        return "it keeps no responses; send the whole conversation as \"input\"";
    if (strcmp(name, "samplers") == 0)
        return "leave it out; it samples by penalties, top_k, typical_p, top_p, min_p and temperature";
    return "leave it out";
}

static bool check_other(const cJSON *body, const cJSON *field, bool *found, struct api_error *error) {
    *found = false;
    for (size_t i = 0; i < N(others); i++) {
        if (strcmp(field->string, others[i].name) != 0) continue;
        *found = true;
        if (!others[i].values || is_one_of(field, others[i].values) || unused_tools(body, field->string)) return true;
        return api_fail(error, 400, "unsupported", field->string, "terse has no \"%s\"%s: %s", field->string,
                        others[i].values[0] ? " with this value" : "", advice(field->string));
    }
    return true;
}

static bool unknown(const cJSON *field, struct api_error *error) {
    return api_fail(error, 400, "unknown_field", field->string,
                    "there is no field \"%.60s\" here: leave it out, or see docs/serve.md for its name", field->string);
}

bool fields_check(const cJSON *body, enum api api, struct api_error *error) {
    const cJSON *field;
    cJSON_ArrayForEach(field, body) {
        bool found = false;
        if (cJSON_IsNull(field)) continue;
        for (size_t i = 0; i < N(known) && !found; i++)
            found = known[i].apis >> api & 1 && strcmp(field->string, known[i].name) == 0;
        if (found) continue;
        if (!check_other(body, field, &found, error)) return false;
        if (!found) return unknown(field, error);
    }
    return true;
}

bool fields_only(const cJSON *body, const char *const *names, size_t n, struct api_error *error) {
    const cJSON *field;
    cJSON_ArrayForEach(field, body) {
        bool found = cJSON_IsNull(field);
        for (size_t i = 0; i < n && !found; i++) found = strcmp(field->string, names[i]) == 0;
        if (!found) return unknown(field, error);
    }
    return true;
}
