/* Conversations in a model's chat format. The formats are rows of a table; a model's own Jinja template is not run but recognised by
 * what only its format has. Templates that put more than the conversation in (dates, default system texts, tools) lose that.
 *
 * Sources: the templates in the tokenizer_config.json of LLaMA 2 and 3, Mistral 7B Instruct v0.1 to v0.3 and Qwen 2, and
 * "tokenization/templates.md" of Mistral's cookbook for the spaces of its versions. */
#include "text/chat.h"

#include "base/status.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum trim { TRIM_NONE = 0, TRIM_USER = 1, TRIM_REPLY = 2 };

/* Either every message has a header with its role, or a turn is a message of the user and the assistant's reply. BOS stands before the
 * first message. */
struct format {
    const char *name;
    unsigned trim; /* enum trim: white space at both ends of what is taken off */
    /* <role_open>ROLE<role_close>CONTENT<message_close> */
    const char *role_open, *role_close, *message_close;
    /* <turn_open>[<system_open>SYSTEM<system_close>]USER<user_close>[<reply_open>ASSISTANT<reply_close>EOS] */
    const char *turn_open, *system_open, *system_close, *user_close, *reply_open, *reply_close;
    bool bos_each_turn;
    bool system_last; /* the system's text stands in the last turn, not in the first */
};

static const struct format formats[] = {
    {.name = "llama-3",
     .trim = TRIM_USER | TRIM_REPLY,
     .role_open = "<|start_header_id|>",
     .role_close = "<|end_header_id|>\n\n",
     .message_close = "<|eot_id|>"},
    {.name = "chatml", .role_open = "<|im_start|>", .role_close = "\n", .message_close = "<|im_end|>\n"},
    {.name = "llama-2",
     .trim = TRIM_USER | TRIM_REPLY,
     .turn_open = "[INST] ",
     .system_open = "<<SYS>>\n",
     .system_close = "\n<</SYS>>\n\n",
     .user_close = " [/INST]",
     .reply_open = " ",
     .reply_close = " ",
     .bos_each_turn = true},
    /* What v0.1 and v0.2 of Mistral 7B Instruct were published with, before the template of mistral-v1. */
    {.name = "mistral-v0",
     .turn_open = "[INST] ",
     .system_open = "",
     .system_close = "\n\n",
     .user_close = " [/INST]",
     .reply_open = "",
     .reply_close = ""},
    {.name = "mistral-v1",
     .turn_open = " [INST] ",
     .system_open = "",
     .system_close = "\n\n",
     .user_close = " [/INST]",
     .reply_open = " ",
     .reply_close = ""},
    {.name = "mistral-v3",
     .trim = TRIM_REPLY,
     .turn_open = "[INST] ",
     .system_open = "",
     .system_close = "\n\n",
     .user_close = "[/INST]",
     .reply_open = " ",
     .reply_close = "",
     .system_last = true},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

const char *terse_chat_format_name(size_t i) { return i < N_FORMATS ? formats[i].name : NULL; }

static const struct format *find_format(const char *name) {
    for (size_t i = 0; i < N_FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

/* ---- The model's own template -------------------------------------------------------------------------------------------- */

static bool has(struct gguf_string template, const char *part) {
    size_t n = strlen(part);
    for (uint64_t at = 0; at + n <= template.size; at++)
        if (memcmp(template.data + at, part, n) == 0) return true;
    return false;
}

static const struct format *recognise(struct gguf_string template) {
    if (has(template, "<|im_start|>")) {
        /* Two other formats borrow that mark. */
        bool other = has(template, "<|im_sep|>") || has(template, "<end_of_utterance>");
        return other ? NULL : find_format("chatml");
    }
    if (has(template, "[INST]")) {
        if (has(template, "<<SYS>>")) return find_format("llama-2");
        /* Later Mistral formats: system texts with marks of their own, no space behind [INST]. */
        if (has(template, "[SYSTEM_PROMPT]") || has(template, "[INST]'") || has(template, "[INST]\"")) return NULL;
        bool space_before = has(template, "' [INST] ") || has(template, "\" [INST] "), space_after = has(template, " [/INST]");
        if (space_before) return space_after ? find_format("mistral-v1") : NULL;
        return find_format(space_after ? "mistral-v0" : "mistral-v3");
    }
    if (has(template, "<|start_header_id|>") && has(template, "<|end_header_id|>")) return find_format("llama-3");
    return NULL;
}

static enum terse_status unknown_format(const char *what, enum terse_status code, struct terse_error *error) {
    char names[128];
    struct text_line line = text_line_begin(names, sizeof names);
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (i) text_line_unit(&line, ", ", 2);
        text_line_unit(&line, formats[i].name, strlen(formats[i].name));
    }
    text_line_end(&line);
    return status_fail(error, code, "%s: pass --chat-template NAME (%s)", what, names);
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

/* One conversation being written. */
struct render {
    struct format format; /* as the model's own template varies it */
    struct gguf_string bos, eos;
    char *text;
    size_t size, capacity;
    struct text_span *contents;            /* [n_contents] where the text has what messages say, in its order */
    const struct terse_message **speakers; /* [n_contents] their messages */
    size_t n_contents;
    bool refused; /* memory */
};

static void add_bytes(struct render *r, const char *data, size_t n) {
    if (r->refused) return;
    if (n >= r->capacity - r->size) {
        size_t capacity = (r->size + n + 1) * 2;
        char *text = realloc(r->text, capacity);
        if (!text) {
            r->refused = true;
            return;
        }
        r->text = text;
        r->capacity = capacity;
    }
    if (n) memcpy(r->text + r->size, data, n); /* a model without BOS has no data */
    r->size += n;
    r->text[r->size] = '\0';
}

static void add(struct render *r, const char *text) { add_bytes(r, text, strlen(text)); }

static void add_content(struct render *r, const struct terse_message *message) {
    size_t begin = r->size;
    add(r, message->content);
    r->contents[r->n_contents] = (struct text_span){begin, r->size};
    r->speakers[r->n_contents++] = message;
}

static bool is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Where what stood at `at` is, once [begin, end) has moved to `first`. */
static size_t trimmed(size_t at, size_t first, size_t begin, size_t end) {
    at = at < begin ? begin : at > end ? end : at;
    return at - (begin - first);
}

/* Takes white space off both ends of what was written since `first`. */
static void trim(struct render *r, size_t first) {
    if (r->refused) return;
    size_t begin = first;
    while (r->size > first && is_white(r->text[r->size - 1])) r->size--;
    while (begin < r->size && is_white(r->text[begin])) begin++;
    memmove(r->text + first, r->text + begin, r->size - begin);
    for (size_t i = 0; i < r->n_contents; i++) {
        struct text_span *content = &r->contents[i];
        if (content->begin < first) continue;
        content->begin = trimmed(content->begin, first, begin, r->size);
        content->end = trimmed(content->end, first, begin, r->size);
    }
    r->size -= begin - first;
    r->text[r->size] = '\0';
}

static bool is_role(const struct terse_message *message, const char *role) { return strcmp(message->role, role) == 0; }

static void write_with_headers(struct render *r, const struct terse_message *messages, size_t n, bool open_reply) {
    const struct format *f = &r->format;
    add_bytes(r, r->bos.data, r->bos.size);
    for (size_t i = 0; i < n; i++) {
        add(r, f->role_open);
        add(r, messages[i].role);
        add(r, f->role_close);
        size_t first = r->size;
        add_content(r, &messages[i]);
        if (f->trim) trim(r, first);
        add(r, f->message_close);
    }
    if (!open_reply) return;
    add(r, f->role_open);
    add(r, "assistant");
    add(r, f->role_close);
}

/* Messages in the order that check_turns wants. A reply is open behind every user message. */
static void write_turns(struct render *r, const struct terse_message *messages, size_t n) {
    const struct format *f = &r->format;
    const struct terse_message *system = is_role(&messages[0], "system") ? &messages[0] : NULL;
    size_t begin = system ? 1 : 0, last_user = n - 1 - (is_role(&messages[n - 1], "assistant") ? 1 : 0);
    size_t system_turn = f->system_last ? last_user : begin;
    for (size_t i = begin; i < n; i++) {
        if (is_role(&messages[i], "user")) {
            if (i == begin || f->bos_each_turn) add_bytes(r, r->bos.data, r->bos.size);
            add(r, f->turn_open);
            size_t first = r->size;
            if (system && i == system_turn) {
                add(r, f->system_open);
                add_content(r, system);
                add(r, f->system_close);
            }
            add_content(r, &messages[i]);
            if (f->trim & TRIM_USER) trim(r, first);
            add(r, f->user_close);
        } else {
            add(r, f->reply_open);
            size_t first = r->size;
            add_content(r, &messages[i]);
            if (f->trim & TRIM_REPLY) trim(r, first);
            add(r, f->reply_close);
            add_bytes(r, r->eos.data, r->eos.size);
        }
    }
}

/* ---- Checking what is asked for ------------------------------------------------------------------------------------------ */

static enum terse_status check_roles(const struct terse_message *messages, size_t n, struct terse_error *error) {
    if (n == 0) return status_fail(error, TERSE_E_ARGUMENT, "a conversation without messages: give at least one");
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (!role || !messages[i].content)
            return status_fail(error, TERSE_E_ARGUMENT, "message %zu has no role or no content: give both", i + 1);
        if (is_role(&messages[i], "system") || is_role(&messages[i], "user") || is_role(&messages[i], "assistant")) continue;
        char shown[64];
        return status_fail(error, TERSE_E_ARGUMENT, "message %zu has the role %s: the roles are system, user and assistant", i + 1,
                           text_quote(shown, sizeof shown, role, strlen(role)));
    }
    return TERSE_OK;
}

/* The templates of these formats refuse any other order, too. */
static enum terse_status check_turns(const struct format *f, const struct terse_message *messages, size_t n,
                                     struct terse_error *error) {
    size_t begin = is_role(&messages[0], "system") ? 1 : 0;
    for (size_t i = begin; i < n || i == begin; i++)
        if (i == n || !is_role(&messages[i], (i - begin) % 2 ? "assistant" : "user"))
            return status_fail(error, TERSE_E_ARGUMENT,
                               "message %zu: the format %s wants at most one system message, then user and assistant alternating",
                               i + 1, f->name);
    return TERSE_OK;
}

/* Chooses the format and what the model's own template, if it is of that format, varies in it. */
static enum terse_status choose_format(struct render *r, const struct tokenizer *t, const char *name, struct terse_error *error) {
    struct gguf_string template = tokenizer_chat_template(t);
    const struct format *own = template.size ? recognise(template) : NULL, *chosen = name ? find_format(name) : own;
    if (!chosen && name) return unknown_format("there is no such chat format", TERSE_E_ARGUMENT, error);
    if (!chosen)
        return unknown_format(template.size ? "the model's chat template is none that terse knows"
                                            : "the model has no chat template",
                              TERSE_E_UNSUPPORTED, error);
    r->format = *chosen;
    bool added, vary = chosen == own;
    if (vary && !has(template, "|trim") && !has(template, "| trim") && !has(template, "strip()")) r->format.trim = TRIM_NONE;
    if (vary) r->format.bos_each_turn = has(template, "bos_token + '[INST]") || has(template, "bos_token + \"[INST]");
    int32_t bos = tokenizer_bos(t, &added);
    size_t n;
    if (added || (vary && has(template, "bos_token"))) {
        r->bos.data = tokenizer_bytes(t, bos, true, &n);
        r->bos.size = n;
    }
    r->eos.data = tokenizer_bytes(t, tokenizer_eos(t), true, &n);
    r->eos.size = n;
    return TERSE_OK;
}

static void render_free(struct render *r) {
    free(r->text);
    free(r->contents);
    free(r->speakers);
}

/* Released by render_free, also after a failure. */
static enum terse_status render(struct render *r, const struct tokenizer *tokenizer, const char *format,
                                const struct terse_message *messages, size_t n_messages, bool open_reply,
                                struct terse_error *error) {
    *r = (struct render){0};
    enum terse_status status = choose_format(r, tokenizer, format, error);
    if (!status) status = check_roles(messages, n_messages, error);
    if (!status && !r->format.role_open) status = check_turns(&r->format, messages, n_messages, error);
    if (status) return status;
    r->contents = calloc(n_messages, sizeof *r->contents);
    r->speakers = calloc(n_messages, sizeof *r->speakers);
    r->refused = !r->contents || !r->speakers;
    if (!r->refused && r->format.role_open) write_with_headers(r, messages, n_messages, open_reply);
    if (!r->refused && !r->format.role_open) write_turns(r, messages, n_messages);
    return r->refused ? status_no_memory(error, r->size + n_messages * sizeof *r->contents, "a conversation's text") : TERSE_OK;
}

enum terse_status chat_render(const struct tokenizer *tokenizer, const char *format, const struct terse_message *messages,
                              size_t n_messages, bool open_reply, char **text, struct terse_error *error) {
    struct render r;
    enum terse_status status = render(&r, tokenizer, format, messages, n_messages, open_reply, error);
    *text = status ? NULL : r.text;
    if (!status) r.text = NULL;
    render_free(&r);
    return status;
}

enum terse_status chat_tokenize(const struct tokenizer *tokenizer, const char *format, const struct terse_message *messages,
                                size_t n_messages, size_t after, bool open_reply, int32_t **tokens, size_t *n_tokens,
                                struct terse_error *error) {
    struct render r;
    *tokens = NULL;
    *n_tokens = 0;
    if (after > n_messages)
        return status_fail(error, TERSE_E_ARGUMENT, "what follows message %zu of %zu: there is no such message", after, n_messages);
    enum terse_status status = render(&r, tokenizer, format, messages, n_messages, open_reply, error);
    size_t first = 0;
    for (size_t i = 0; !status && after && i < r.n_contents; i++)
        if (r.speakers[i] == &messages[after - 1]) first = r.contents[i].end;
    if (!status)
        status = tokenizer_encode_around(tokenizer, r.text, r.size, first, r.contents, r.n_contents, tokens, n_tokens, error);
    render_free(&r);
    return status;
}

void terse_string_free(char *string) { free(string); }

void terse_tokens_free(int32_t *tokens) { free(tokens); }
