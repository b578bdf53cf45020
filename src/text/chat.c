/* Writes conversations in a model's chat format (chat_format.h): as text, and as tokens of which only the format's own are
 * special. */
#include "text/chat.h"

#include "base/text.h"
#include "text/chat_choose.h"
#include "text/chat_default.h"
#include "text/chat_format.h"
#include "text/chat_tools.h"

#include <stdlib.h>
#include <string.h>

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

/* A render is one conversation that is being written. */
struct render {
    struct chat_format format; /* as the model's own template varies it */
    struct gguf_string bos, eos;
    struct terse_message
        *messages; /* [n_messages] the caller's, behind the system message that its template brings where they have none */
    struct chat_calls *calls; /* [n_messages] what messages call; none where `calls` is NULL */
    size_t n_messages, n_own; /* n_own: 1 where there is such a message, else 0 */
    char *system;             /* its text */
    char *tools;              /* their lines; NULL: none */
    char *text;
    size_t size, capacity;
    struct text_span *contents;            /* [n_contents] where the text has what messages and tools say, in its order */
    const struct terse_message **speakers; /* [n_contents] their messages; NULL: of tools */
    size_t n_contents, contents_capacity;
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

/* Adds text that is never a special token. */
static void add_literal(struct render *r, const char *text, const struct terse_message *speaker) {
    size_t begin = r->size;
    add(r, text);
    if (r->n_contents == r->contents_capacity) {
        r->refused = true;
        return;
    }
    r->contents[r->n_contents] = (struct text_span){begin, r->size};
    r->speakers[r->n_contents++] = speaker;
}

/* Returns the part of the assistant's message that follows its thoughts. */
static const char *without_thoughts(const struct chat_format *f, const char *said) {
    size_t n = f->thoughts ? strlen(f->thoughts) : 0;
    const char *from = said;
    for (const char *at = said; n && (at = strstr(at, f->thoughts)); at++) from = at + n;
    if (from > said && f->thoughts_and_line) from += strspn(from, "\n");
    return from;
}

/* Adds what a message says; with `whole`, the assistant's thoughts as well. */
static void add_content(struct render *r, const struct terse_message *message, bool whole) {
    bool reply = strcmp(message->role, "assistant") == 0;
    add_literal(r, reply && !whole ? without_thoughts(&r->format, message->content) : message->content, message);
}

static bool is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Returns the new place of the byte at `at`, after [begin, end) has moved to `first` and the rest is gone. */
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

/* Returns the role of a message that check_roles has accepted. */
static enum chat_role role_of(const struct terse_message *message) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    enum chat_role role = CHAT_SYSTEM;
    while (strcmp(message->role, roles[role]) != 0) role++;
    return role;
}

/* ---- Tools, in the form of Hermes and Qwen 2.5 ---------------------------------------------------------------------------- */

/* Writes the system's message with the tools; `system` is NULL where no message is the system's. */
static void write_tools(struct render *r, const struct terse_message *system) {
    add(r, r->format.open[CHAT_SYSTEM]);
    if (system) {
        add_content(r, system, false);
        add(r, "\n\n");
    }
    add(r,
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures "
        "within <tools></tools> XML tags:\n<tools>");
    add_literal(r, r->tools, NULL);
    add(r, "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
           "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
           "<args-json-object>}\n</tool_call>");
    add(r, r->format.close[CHAT_SYSTEM]);
}

/* Writes the calls of a message behind what it says, which began at `first`. */
static void write_calls(struct render *r, const struct chat_calls *calls, const struct terse_message *message, size_t first) {
    for (size_t i = 0; i < calls->n; i++) {
        if (r->size > first) add(r, "\n");
        add(r, "<tool_call>\n{\"name\": \"");
        add_literal(r, calls->call[i].name, message);
        add(r, "\", \"arguments\": ");
        add_literal(r, calls->call[i].arguments, message);
        add(r, "}\n</tool_call>");
    }
    if (calls->n) add_literal(r, "", message); /* the message ends here, not behind its last arguments */
}

/* Writes what a tool has returned. Results side by side share a turn of the user. */
static void write_result(struct render *r, size_t i) {
    bool first = i == 0 || role_of(&r->messages[i - 1]) != CHAT_TOOL;
    bool last = i + 1 == r->n_messages || role_of(&r->messages[i + 1]) != CHAT_TOOL;
    add(r, first ? r->format.open[CHAT_USER] : "\n");
    add(r, "<tool_response>\n");
    add_content(r, &r->messages[i], false);
    add(r, "\n</tool_response>");
    if (last) add(r, r->format.close[CHAT_USER]);
}

/* ---- Messages ------------------------------------------------------------------------------------------------------------- */

/* Writes messages in an order that check_order allows. `begun`: the last message is a reply that goes on. */
static void write_messages(struct render *r, bool begun) {
    const struct terse_message *messages = r->messages;
    size_t n = r->n_messages;
    static const unsigned trims[] = {CHAT_TRIM_SYSTEM, CHAT_TRIM_USER, CHAT_TRIM_REPLY};
    const struct chat_format *f = &r->format;
    const struct terse_message *within = f->system != CHAT_SYSTEM_OWN && role_of(&messages[0]) == CHAT_SYSTEM ? messages : NULL;
    size_t begin = within ? 1 : 0, last_turn = n - 1 - (role_of(&messages[n - 1]) == CHAT_ASSISTANT ? 1 : 0);
    size_t system_turn = f->system == CHAT_SYSTEM_LAST_TURN ? last_turn : begin;
    if (r->tools) {
        begin = role_of(&messages[0]) == CHAT_SYSTEM ? 1 : 0;
        write_tools(r, begin ? messages : NULL);
    }
    for (size_t i = begin; i < n; i++) {
        enum chat_role role = role_of(&messages[i]);
        if (role == CHAT_TOOL) {
            write_result(r, i);
            continue;
        }
        if (role == CHAT_USER && i > begin && f->bos_each_turn) add_bytes(r, r->bos.data, r->bos.size);
        add(r, f->open[role]);
        size_t turn = r->size;
        if (within && i == system_turn) {
            add(r, f->open[CHAT_SYSTEM]);
            add_content(r, within, false);
            add(r, f->close[CHAT_SYSTEM]);
        }
        size_t first = r->size;
        bool goes_on = begun && i == n - 1;
        add_content(r, &messages[i], goes_on);
        if (goes_on) return;
        if (r->calls) write_calls(r, &r->calls[i], &messages[i], first);
        if (f->trim & trims[role]) trim(r, first);
        if (role == CHAT_USER && f->trim & CHAT_TRIM_TURN) trim(r, turn);
        add(r, f->close[role]);
        if (role == CHAT_ASSISTANT && f->eos_after_reply) add_bytes(r, r->eos.data, r->eos.size);
    }
}

/* Returns whether the last message is a reply that can go on: one that ends with calls is finished. */
static bool ends_with_text(const struct render *r) {
    size_t last = r->n_messages - 1;
    return role_of(&r->messages[last]) == CHAT_ASSISTANT && !(r->calls && r->calls[last].n);
}

static void write_conversation(struct render *r, const struct terse_chat_options *options) {
    add_bytes(r, r->bos.data, r->bos.size);
    if (r->format.preamble) add(r, r->format.preamble);
    bool begun = options->open_reply && ends_with_text(r);
    write_messages(r, begun);
    if (options->open_reply && !begun) add(r, r->format.reply);
    if (options->open_call) add(r, r->format.tools->call.begun);
}

/* ---- Checking what is asked for ------------------------------------------------------------------------------------------ */

static enum terse_status check_roles(const struct terse_message *messages, size_t n, struct terse_error *error) {
    if (n == 0) return status_fail(error, TERSE_E_ARGUMENT, "a conversation without messages: give at least one");
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (!role || !messages[i].content)
            return status_fail(error, TERSE_E_ARGUMENT, "message %zu has no role or no content: give both", i + 1);
        if (strcmp(role, "system") == 0 || strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 || strcmp(role, "tool") == 0)
            continue;
        char shown[64];
        return status_fail(error, TERSE_E_ARGUMENT, "message %zu has the role %s: the roles are system, user, assistant and tool",
                           i + 1, text_quote(shown, sizeof shown, role, strlen(role)));
    }
    return TERSE_OK;
}

/* Refuses an order of roles that the format does not allow: the templates of formats that alternate refuse it, too. */
static enum terse_status check_order(const struct chat_format *f, const struct terse_message *messages, size_t n,
                                     struct terse_error *error) {
    if (!f->alternates) return TERSE_OK;
    size_t begin = role_of(&messages[0]) == CHAT_SYSTEM ? 1 : 0;
    for (size_t i = begin; i < n || i == begin; i++)
        if (i == n || role_of(&messages[i]) != ((i - begin) % 2 ? CHAT_ASSISTANT : CHAT_USER))
            return status_fail(error, TERSE_E_ARGUMENT,
                               "message %zu: the format %s wants at most one system message, then user and assistant alternating",
                               i + 1, f->name);
    return TERSE_OK;
}

/* Chooses the format, with what its own template brings: BOS, and a default system text. */
static enum terse_status choose_format(struct render *r, const struct tokenizer *t, const struct terse_chat_options *options,
                                       bool *own, struct terse_error *error) {
    struct gguf_string template = tokenizer_chat_template(t);
    bool added;
    enum terse_status status = chat_choose(t, options, &r->format, own, error);
    if (status) return status;
    int32_t bos = tokenizer_bos(t, &added);
    size_t n;
    if (added || (*own && chat_template_has_bos(template))) {
        r->bos.data = tokenizer_bytes(t, bos, true, &n);
        r->bos.size = n;
    }
    r->eos.data = tokenizer_bytes(t, tokenizer_eos(t), true, &n);
    r->eos.size = n;
    if (*own && !chat_default_system(template, &r->format, &r->system))
        return status_no_memory(error, template.size, "the text of a chat template");
    return TERSE_OK;
}

/* Collects the messages to be written, and makes room to note where their contents lie. Returns false where there is no memory. */
static bool collect_messages(struct render *r, const struct terse_message *messages, size_t n) {
    r->n_own = r->system && role_of(&messages[0]) != CHAT_SYSTEM ? 1 : 0;
    r->n_messages = n + r->n_own;
    r->contents_capacity = r->n_messages + (r->tools ? 1 : 0);
    for (size_t i = 0; r->calls && i < n; i++) r->contents_capacity += 2 * r->calls[i].n + (r->calls[i].n ? 1 : 0);
    r->messages = calloc(r->n_messages, sizeof *r->messages);
    r->contents = calloc(r->contents_capacity, sizeof *r->contents);
    r->speakers = calloc(r->contents_capacity, sizeof *r->speakers);
    if (!r->messages || !r->contents || !r->speakers) return false;
    if (r->n_own) r->messages[0] = (struct terse_message){"system", r->system};
    memcpy(r->messages + r->n_own, messages, n * sizeof *messages);
    if (r->calls && r->n_own) {
        memmove(r->calls + 1, r->calls, n * sizeof *r->calls);
        r->calls[0] = (struct chat_calls){0};
    }
    return true;
}

/* Reads the tools, and what messages[n] call. There is room for a message before the first. */
static enum terse_status read_tools(struct render *r, const struct terse_chat_options *options,
                                    const struct terse_message *messages, size_t n, bool own, struct terse_error *error) {
    bool used = options->tools || options->tool_calls;
    for (size_t i = 0; i < n; i++) used |= role_of(&messages[i]) == CHAT_TOOL;
    if (!used) return TERSE_OK;
    enum terse_status status = chat_tools_read(options->tools, &r->tools, error);
    if (!status && options->tool_calls && !(r->calls = calloc(n + 1, sizeof *r->calls)))
        status = status_no_memory(error, n * sizeof *r->calls, "the tool calls of a conversation");
    used = r->tools != NULL;
    for (size_t i = 0; i < n; i++) {
        bool reply = role_of(&messages[i]) == CHAT_ASSISTANT;
        const char *calls = r->calls ? options->tool_calls[i] : NULL;
        if (!status && calls && !reply)
            status = status_fail(error, TERSE_E_ARGUMENT, "message %zu has tool calls: only the assistant's messages have", i + 1);
        if (!status && calls) status = chat_calls_read(calls, i + 1, &r->calls[i], error);
        used |= role_of(&messages[i]) == CHAT_TOOL || (!status && calls && r->calls[i].n);
    }
    return status || !used || r->format.tools ? status : chat_refuse_tools(&r->format, own, error);
}

static void render_free(struct render *r) {
    for (size_t i = 0; r->calls && i < r->n_messages; i++) chat_calls_free(&r->calls[i]);
    free(r->calls);
    free(r->tools);
    free(r->text);
    free(r->system);
    free(r->messages);
    free(r->contents);
    free(r->speakers);
}

/* Writes a conversation. render_free releases it, also after a failure. */
static enum terse_status render(struct render *r, const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                const struct terse_message *messages, size_t n_messages, struct terse_error *error) {
    bool own;
    *r = (struct render){.n_messages = n_messages};
    enum terse_status status = choose_format(r, tokenizer, options, &own, error);
    if (!status) status = check_roles(messages, n_messages, error);
    if (!status) status = read_tools(r, options, messages, n_messages, own, error);
    if (!status) status = check_order(&r->format, messages, n_messages, error);
    if (status) return status;
    r->refused = !collect_messages(r, messages, n_messages);
    if (!r->refused && options->open_call && (!r->tools || !options->open_reply || ends_with_text(r)))
        return status_fail(error, TERSE_E_ARGUMENT, "a reply that is a call needs tools, and begins behind all messages");
    if (!r->refused) write_conversation(r, options);
    return r->refused ? status_no_memory(error, r->size + r->n_messages * sizeof *r->contents, "a conversation's text") : TERSE_OK;
}

enum terse_status chat_render(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                              const struct terse_message *messages, size_t n_messages, char **text, struct terse_error *error) {
    struct render r;
    enum terse_status status = render(&r, tokenizer, options, messages, n_messages, error);
    *text = status ? NULL : r.text;
    if (!status) r.text = NULL;
    render_free(&r);
    return status;
}

enum terse_status chat_tokenize(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                const struct terse_message *messages, size_t n_messages, int32_t **tokens, size_t *n_tokens,
                                struct terse_error *error) {
    struct render r;
    size_t after = options->after;
    *tokens = NULL;
    *n_tokens = 0;
    if (after > n_messages)
        return status_fail(error, TERSE_E_ARGUMENT, "what follows message %zu of %zu: there is no such message", after, n_messages);
    enum terse_status status = render(&r, tokenizer, options, messages, n_messages, error);
    size_t first = 0;
    for (size_t i = 0; !status && after && i < r.n_contents; i++)
        if (r.speakers[i] == &r.messages[r.n_own + after - 1]) first = r.contents[i].end;
    if (!status)
        status = tokenizer_encode_around(tokenizer, r.text, r.size, first, r.contents, r.n_contents, tokens, n_tokens, error);
    render_free(&r);
    return status;
}

void terse_string_free(char *string) { free(string); }

void terse_tokens_free(int32_t *tokens) { free(tokens); }
