/* Writes conversations in a model's chat format (chat_format.h): as text, and as tokens of which only the format's own are
 * special. */
#include "text/chat.h"

#include "base/text.h"
#include "text/chat_choose.h"
#include "text/chat_default.h"
#include "text/chat_format.h"
#include "text/chat_tools.h"
#include "text/json_text.h"
#include "text/tool_declare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

/* A render is one conversation that is being written. */
struct render {
    struct chat_format format; /* as the model's own template varies it */
    struct gguf_string bos, eos;
    struct terse_message
        *messages; /* [n_messages] the caller's, behind the system message that its template brings where they have none */
    struct chat_calls *calls;                 /* [n_messages] what messages call; none where `calls` is NULL */
    size_t n_messages, n_own;                 /* n_own: 1 where there is such a message, else 0 */
    char *system;                             /* its text */
    const char *const *thoughts, *const *ids; /* [n_messages - n_own] the caller's, or NULL */
    struct chat_declared tools;               /* as the format declares them */
    const char *name;                         /* of the function that was called last; or NULL */
    const struct chat_calls *called;          /* by the message whose results are being written; or NULL */
    size_t n_results, n_called;               /* results of it so far; calls of the whole conversation so far */
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

/* Takes what was written since `first` away from there up to `begin`. */
static void take_away(struct render *r, size_t first, size_t begin) {
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

/* Takes white space off both ends of what was written since `first`. */
static void trim(struct render *r, size_t first) {
    if (r->refused) return;
    size_t begin = first;
    while (r->size > first && is_white(r->text[r->size - 1])) r->size--;
    while (begin < r->size && is_white(r->text[begin])) begin++;
    take_away(r, first, begin);
}

/* Takes line ends off the beginning of what was written since `first`. */
static void trim_lines(struct render *r, size_t first) {
    size_t begin = first;
    while (!r->refused && begin < r->size && r->text[begin] == '\n') begin++;
    if (!r->refused) take_away(r, first, begin);
}

/* Returns the role of a message that check_roles has accepted. */
static enum chat_role role_of(const struct terse_message *message) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    enum chat_role role = CHAT_SYSTEM;
    while (strcmp(message->role, roles[role]) != 0) role++;
    return role;
}

/* ---- Tools ---------------------------------------------------------------------------------------------------------------- */

static void add_tools(struct render *r) {
    const struct tool_form *form = r->format.tools;
    add(r, form->before);
    for (size_t i = 0; i < r->tools.n; i++) {
        struct text_span span = r->tools.span[i];
        if (i) add(r, form->between);
        add_literal(r, "", NULL);
        add_bytes(r, r->tools.text.at + span.begin, span.end - span.begin);
        if (!r->refused) r->contents[r->n_contents - 1].end = r->size;
    }
    add(r, form->after);
}

/* Writes the system's message, with the tools where they stand there; `system` is NULL where no message is the system's. */
static void write_system(struct render *r, const struct terse_message *system) {
    const struct chat_format *f = &r->format;
    const struct tool_form *form = r->tools.n ? f->tools : NULL;
    bool behind = form && form->place == TOOLS_BEHIND_SYSTEM, silent = !system || !*system->content;
    bool bare = behind && form->bare_open && silent;
    if (!f->system_open)
        add(r, bare ? form->bare_open : f->open[CHAT_SYSTEM]);
    else if (!silent)
        add(r, f->system_open);
    if (form && form->before_system) add(r, form->before_system);
    if (f->system_begin) add(r, f->system_begin);
    size_t first = r->size;
    if (system && !bare) {
        add_content(r, system, false);
        if (f->trim & CHAT_TRIM_SYSTEM) trim(r, first);
    } else if (form && form->system && !system) {
        add(r, form->system);
    }
    if (behind && !bare && (system || f->tools_behind_lines || form->behind_nothing)) add(r, form->behind_system);
    if (behind) add_tools(r);
    add(r, behind && form->system_close ? form->system_close : f->close[CHAT_SYSTEM]);
}

/* Writes a message of the system that stands where it stands. */
static void write_system_message(struct render *r, const struct terse_message *message) {
    add(r, r->format.open[CHAT_SYSTEM]);
    size_t first = r->size;
    add_content(r, message, false);
    if (r->format.trim & CHAT_TRIM_SYSTEM) trim(r, first);
    add(r, r->format.close[CHAT_SYSTEM]);
}

/* Writes nine letters and digits that stand for a call: its id where this is such a text, or what is made of it, or of its number. */
static void write_id(struct render *r, const char *before, const char *id, size_t number, const struct terse_message *message) {
    char text[10];
    size_t n = id ? strlen(id) : 0;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)id[i]) * UINT64_C(1099511628211);
    bool good = n == 9 && strspn(id, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == 9;
    snprintf(text, sizeof text, "%09u", (unsigned)(n ? hash % 1000000000 : number % 1000000000));
    add(r, before);
    add_literal(r, good ? id : text, message);
    add(r, "\"");
}

/* Writes a call's number in the conversation. */
static void write_number(struct render *r, size_t number, const char *behind) {
    char text[24];
    snprintf(text, sizeof text, "%zu", number);
    add(r, text);
    add(r, behind);
}

/* Writes arguments as the format has them. */
static void write_arguments(struct render *r, const char *arguments, const struct terse_message *message) {
    struct text_buffer indented = {0};
    if (!r->format.tools->arguments_indented) {
        add_literal(r, arguments, message);
        return;
    }
    if (tool_add_indented(&indented, arguments, strlen(arguments), 8, NULL) || text_buffer_add(&indented, "", 1, NULL))
        r->refused = true;
    else
        add_literal(r, indented.at, message);
    text_buffer_free(&indented);
}

/* Writes the calls of a message behind what it says, which began at `first`. */
static void write_calls(struct render *r, const struct chat_calls *calls, const struct terse_message *message, size_t first) {
    const struct tool_form *form = r->format.tools;
    if (form->calls_open) add(r, form->calls_open);
    for (size_t i = 0; i < calls->n; i++) {
        if (i || (!form->calls_open && !form->only_calls && r->size > first)) add(r, form->call_between);
        add(r, form->call_open);
        if (form->call_name) write_number(r, r->n_called, form->call_name);
        add_literal(r, calls->call[i].name, message);
        add(r, form->call_arguments);
        write_arguments(r, calls->call[i].arguments, message);
        r->n_called++;
        if (form->call_id) write_id(r, form->call_id, calls->call[i].id, r->n_called, message);
        add(r, form->call_close);
        r->name = calls->call[i].name;
    }
    add(r, form->calls_close);
    add_literal(r, "", message); /* the message ends here, not behind its last arguments */
    r->called = calls;
    r->n_results = 0;
}

/* Writes a text as a JSON string. */
static void add_quoted(struct render *r, const struct terse_message *message) {
    char *quoted = json_quoted(message->content);
    if (quoted)
        add_literal(r, quoted, message);
    else
        r->refused = true;
    free(quoted);
}

/* Returns the number of the first call with this id before the i-th message, `otherwise` where there is none. */
static size_t number_of(const struct render *r, size_t i, const char *id, size_t otherwise) {
    size_t number = 0;
    for (size_t m = 0; id && r->calls && m < i; m++)
        for (size_t c = 0; c < r->calls[m].n; c++, number++)
            if (r->calls[m].call[c].id && strcmp(r->calls[m].call[c].id, id) == 0) return number;
    return otherwise;
}

/* Returns whether the i-th message is there and a tool's. */
static bool is_result(const struct render *r, size_t i) { return i < r->n_messages && role_of(&r->messages[i]) == CHAT_TOOL; }

/* Writes what a tool has returned. */
static void write_result(struct render *r, size_t i) {
    const struct tool_form *form = r->format.tools;
    const struct terse_message *message = &r->messages[i];
    bool first = i == 0 || !is_result(r, i - 1);
    size_t n_calls = r->called ? r->called->n : 0, before = r->n_called - n_calls, number = r->n_results++;
    const char *id = r->ids ? r->ids[i - r->n_own] : NULL, *between = first ? form->results_open : form->result_between;
    if (!id && number < n_calls) id = r->called->call[number].id;
    if (between) add(r, between);
    add(r, form->result_open);
    if (form->result_name) {
        add_literal(r, r->name ? r->name : "", message);
        add(r, form->result_name);
    }
    if (form->result_number) write_number(r, number_of(r, i, id, before + number), form->result_number);
    size_t begin = r->size;
    if (form->result_quoted)
        add_quoted(r, message);
    else
        add_content(r, message, false);
    if (form->result_trimmed) trim(r, begin);
    if (form->result_id) write_id(r, form->result_id, id, before + number + 1, message);
    add(r, form->result_close);
    if (form->results_close && !is_result(r, i + 1)) add(r, form->results_close);
}

/* ---- Thoughts ------------------------------------------------------------------------------------------------------------- */

/* A thought is text[n]. */
struct thought {
    const char *text;
    size_t n;
};

/* Returns what the i-th message thought: the caller's thoughts, or those that stand in what it says. */
static struct thought thought_of(const struct render *r, size_t i) {
    const struct chat_format *f = &r->format;
    const char *given = r->thoughts && i >= r->n_own ? r->thoughts[i - r->n_own] : NULL, *said = r->messages[i].content;
    const char *close = !given && f->thoughts_close ? strstr(said, f->thoughts_close) : NULL;
    struct thought t = {given, given ? strlen(given) : 0};
    if (close) {
        const char *open = strstr(said, f->thoughts_open), *from = open && open < close ? open + strlen(f->thoughts_open) : said;
        t = (struct thought){from, (size_t)(close - from)};
    }
    if (f->kept != CHAT_THOUGHTS_SINCE_QUESTION) return t;
    while (t.n && t.text[0] == '\n') t.text++, t.n--;
    while (t.n && t.text[t.n - 1] == '\n') t.n--;
    return t;
}

static bool has_calls(const struct render *r, size_t i) { return r->calls && r->calls[i].n; }

/* Returns whether the format writes the thoughts of the i-th message, the assistant's. */
static bool keeps_thoughts(const struct render *r, size_t i, const struct thought *thought) {
    size_t from = i + 1;
    switch (r->format.kept) {
    case CHAT_THOUGHTS_SINCE_QUESTION:
        while (from < r->n_messages && role_of(&r->messages[from]) != CHAT_USER) from++;
        return from == r->n_messages && (thought->n || (i + 1 == r->n_messages && has_calls(r, i)));
    case CHAT_THOUGHTS_OF_CALLS:
        while (from < r->n_messages && (role_of(&r->messages[from]) != CHAT_ASSISTANT || has_calls(r, from))) from++;
        return from == r->n_messages && has_calls(r, i) && thought->n;
    case CHAT_THOUGHTS_OF_ALL_CALLS: return has_calls(r, i);
    default: return false;
    }
}

/* Writes the thoughts of the i-th message, where they are kept. */
static bool write_thoughts(struct render *r, size_t i) {
    const struct terse_message *message = &r->messages[i];
    struct thought thought = thought_of(r, i);
    if (r->format.kept == CHAT_THOUGHTS_OF_CALLS && !thought.n)
        thought = (struct thought){message->content, strlen(message->content)};
    if (!keeps_thoughts(r, i, &thought)) return false;
    add(r, r->format.thoughts_before);
    add_literal(r, "", message);
    add_bytes(r, thought.text, thought.n);
    if (!r->refused) r->contents[r->n_contents - 1].end = r->size;
    add(r, r->format.thoughts_after);
    return true;
}

/* ---- Messages ------------------------------------------------------------------------------------------------------------- */

/* Returns whether what the assistant says as the i-th message, or as the reply, follows results without anything between. */
static bool answers_at_once(const struct render *r, size_t i) {
    return i && r->format.tools && r->format.tools->answers_open && is_result(r, i - 1);
}

/* Writes what the assistant said and called. `begun`: the reply goes on behind it. */
static void write_reply(struct render *r, size_t i, bool begun) {
    const struct chat_format *f = &r->format;
    const struct terse_message *message = &r->messages[i];
    bool calls = !begun && has_calls(r, i);
    const char *turn = calls ? f->tools->turn : NULL;
    bool before_turn = turn && f->kept == CHAT_THOUGHTS_OF_CALLS; /* thoughts are a message of their own */
    if (before_turn) write_thoughts(r, i);
    if (!answers_at_once(r, i)) add(r, turn ? turn : f->open[CHAT_ASSISTANT]);
    size_t first = r->size;
    bool thought = !begun && !before_turn && write_thoughts(r, i);
    size_t said = r->size;
    if (!calls || !f->tools->only_calls) add_content(r, message, begun);
    if (begun) return;
    if (thought) trim_lines(r, said);
    if (f->trim & CHAT_TRIM_REPLY) trim(r, first);
    if (calls) write_calls(r, &r->calls[i], message, said);
    add(r, calls && f->tools->turn_close ? f->tools->turn_close : f->close[CHAT_ASSISTANT]);
    if (f->eos_after_reply) add_bytes(r, r->eos.data, r->eos.size);
}

/* Writes a turn of the user. `within`: the system's text, which it holds, or NULL; `tools`: they stand in it. */
static void write_turn(struct render *r, size_t i, const struct terse_message *within, bool tools) {
    const struct chat_format *f = &r->format;
    add(r, f->open[CHAT_USER]);
    size_t turn = r->size;
    if (tools) add_tools(r);
    if (within) {
        add(r, f->open[CHAT_SYSTEM]);
        add_content(r, within, false);
        add(r, f->close[CHAT_SYSTEM]);
    }
    size_t first = r->size;
    add_content(r, &r->messages[i], false);
    if (f->trim & CHAT_TRIM_USER) trim(r, first);
    if (f->trim & CHAT_TRIM_TURN) trim(r, turn);
    add(r, f->close[CHAT_USER]);
}

/* Returns whether the i-th message says the same as the user's last. */
static bool is_last_turn(const struct render *r, size_t i) {
    size_t last = r->n_messages;
    while (last-- > 0)
        if (role_of(&r->messages[last]) == CHAT_USER) return strcmp(r->messages[i].content, r->messages[last].content) == 0;
    return false;
}

/* Writes what a format with tools says behind all messages, before the reply. */
static void write_before_reply(struct render *r) {
    const struct tool_form *form = r->tools.n ? r->format.tools : NULL;
    if (form && form->before_reply) add(r, form->before_reply);
}

/* Writes messages in an order that check_order allows. `begun`: the last message is a reply that goes on. */
static void write_messages(struct render *r, bool begun) {
    const struct terse_message *messages = r->messages;
    size_t n = r->n_messages;
    const struct chat_format *f = &r->format;
    const struct tool_form *form = r->tools.n ? f->tools : NULL;
    bool system = role_of(&messages[0]) == CHAT_SYSTEM;
    const struct terse_message *within = f->system != CHAT_SYSTEM_OWN && system ? messages : NULL;
    bool ahead = f->system_begin || f->system_open ||
                 (form && form->place == TOOLS_BEHIND_SYSTEM); /* the system's message is there in any case */
    size_t begin = within || (ahead && system) ? 1 : 0;
    size_t last_turn = n - 1 - (role_of(&messages[n - 1]) == CHAT_ASSISTANT ? 1 : 0);
    size_t system_turn = f->system == CHAT_SYSTEM_LAST_TURN ? last_turn : begin, turns = 0;
    if (ahead) write_system(r, system ? messages : NULL);
    for (size_t i = begin; i < n; i++) {
        enum chat_role role = role_of(&messages[i]);
        if (role == CHAT_TOOL) {
            write_result(r, i);
        } else if (role == CHAT_SYSTEM) {
            write_system_message(r, &messages[i]);
        } else if (role == CHAT_ASSISTANT) {
            if (begun && i == n - 1) write_before_reply(r);
            write_reply(r, i, begun && i == n - 1);
        } else {
            if (i > begin && f->bos_each_turn) add_bytes(r, r->bos.data, r->bos.size);
            if (form && form->place == TOOLS_BEFORE_LAST_TURN && is_last_turn(r, i)) add_tools(r);
            bool first = form && form->place == TOOLS_IN_FIRST_TURN && turns++ == 0;
            write_turn(r, i, within && i == system_turn ? within : NULL, first);
        }
    }
}

/* Returns whether the last message is a reply that can go on: one that ends with calls is finished. */
static bool ends_with_text(const struct render *r) {
    size_t last = r->n_messages - 1;
    return role_of(&r->messages[last]) == CHAT_ASSISTANT && !(r->calls && r->calls[last].n);
}

static void write_preamble(struct render *r) {
    const struct chat_format *f = &r->format;
    if (!f->preamble) return;
    add(r, f->preamble);
    if (f->effort) add(r, f->effort);
    if (f->preamble_rest) add(r, f->preamble_rest);
    if (r->tools.n && f->tools->preamble) add(r, f->tools->preamble);
    if (r->tools.n && f->tools->place == TOOLS_IN_PREAMBLE) add_tools(r);
    add(r, f->preamble_close);
}

static void write_conversation(struct render *r, const struct terse_chat_options *options) {
    add_bytes(r, r->bos.data, r->bos.size);
    write_preamble(r);
    bool begun = options->open_reply && ends_with_text(r);
    write_messages(r, begun);
    const char *reply = r->format.reply, *marks = r->format.thoughts_open ? strstr(reply, r->format.thoughts_open) : NULL;
    bool bare = options->bare_reply && marks && !r->format.hidden[0];
    if (!begun) write_before_reply(r);
    bool opens = options->open_reply && !begun && !answers_at_once(r, r->n_messages);
    if (opens) add_bytes(r, reply, bare ? (size_t)(marks - reply) : strlen(reply));
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
static enum terse_status check_order(const struct chat_format *f, const struct terse_message *messages,
                                     const struct chat_calls *calls, size_t n, struct terse_error *error) {
    if (!f->alternates) return TERSE_OK;
    size_t begin = role_of(&messages[0]) == CHAT_SYSTEM ? 1 : 0;
    size_t turns = 0;
    for (size_t i = begin; i < n || i == begin; i++) {
        enum chat_role role = i < n ? role_of(&messages[i]) : CHAT_SYSTEM;
        if (role == CHAT_TOOL || (calls && i < n && calls[i].n)) continue; /* these stand between turns */
        if (role != (turns++ % 2 ? CHAT_ASSISTANT : CHAT_USER))
            return status_fail(error, TERSE_E_ARGUMENT,
                               "message %zu: the format %s wants at most one system message, then user and assistant alternating",
                               i + 1, f->name);
    }
    return TERSE_OK;
}

/* Chooses the format, with what its own template brings: BOS, and a default system text. */
static enum terse_status choose_format(struct render *r, const struct tokenizer *t, const struct terse_chat_options *options,
                                       bool *own, struct terse_error *error) {
    struct gguf_string template = chat_template_of(t, options);
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
    r->contents_capacity = 4 * r->n_messages + r->tools.n + 1;
    for (size_t i = 0; r->calls && i < n; i++) r->contents_capacity += 3 * r->calls[i].n;
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

/* Reads the calls of messages[n]. *used: there are calls, or results. There is room for a message before the first. */
static enum terse_status read_calls(struct render *r, const struct terse_chat_options *options,
                                    const struct terse_message *messages, size_t n, bool *used, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    const struct tool_form *form = r->format.tools;
    if (options->tool_calls && !(r->calls = calloc(n + 1, sizeof *r->calls)))
        return status_no_memory(error, n * sizeof *r->calls, "the tool calls of a conversation");
    for (size_t i = 0; i < n && !status; i++) {
        const char *calls = r->calls ? options->tool_calls[i] : NULL;
        *used |= role_of(&messages[i]) == CHAT_TOOL;
        if (!calls) continue;
        if (role_of(&messages[i]) != CHAT_ASSISTANT)
            return status_fail(error, TERSE_E_ARGUMENT, "message %zu has tool calls: only the assistant's messages have", i + 1);
        status = chat_calls_read(calls, i + 1, &r->calls[i], error);
        *used |= !status && r->calls[i].n;
        if (!status && form && form->one_call && r->calls[i].n > 1)
            return status_fail(error, TERSE_E_UNSUPPORTED, "message %zu has %zu tool calls: the format %s takes one a message",
                               i + 1, r->calls[i].n, r->format.name);
    }
    return status;
}

/* Reads the tools, and what messages[n] call. */
static enum terse_status read_tools(struct render *r, const struct terse_chat_options *options,
                                    const struct terse_message *messages, size_t n, bool own, struct terse_error *error) {
    cJSON *tools;
    bool used = false;
    enum terse_status status = chat_tools_parse(options->tools, &tools, error);
    if (!status) status = read_calls(r, options, messages, n, &used, error);
    if (!status && (used || tools) && !r->format.tools) status = chat_refuse_tools(&r->format, own, error);
    if (!status && tools) status = chat_tools_write(r->format.tools, options->tools, tools, &r->tools, error);
    cJSON_Delete(tools);
    return status;
}

static void render_free(struct render *r) {
    for (size_t i = 0; r->calls && i < r->n_messages; i++) chat_calls_free(&r->calls[i]);
    free(r->calls);
    chat_declared_free(&r->tools);
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
    if (!status) status = check_order(&r->format, messages, r->calls, n_messages, error);
    if (status) return status;
    r->thoughts = options->thoughts;
    r->ids = options->tool_call_ids;
    r->refused = !collect_messages(r, messages, n_messages);
    if (!r->refused && options->open_call && (!r->tools.n || !options->open_reply || ends_with_text(r)))
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
