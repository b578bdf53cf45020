/* Implements the automaton around arguments: text in which marks are looked for, the texts that stand between the parts of a call, and names. */
#include "text/call_filter.h"

#include "base/memory.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum phase {
    FREE, /* text to the reply's end */
    TEXT, /* in which a call may open */
    THINKING,
    OPENING, /* the reply begins, with a call or with text */
    BEFORE_NAME,
    NAME,
    BEFORE_ARGUMENTS,
    ARGUMENTS,
    AFTER_ARGUMENTS,
    BETWEEN, /* calls, or behind the last one */
    ENDED
};

enum { NOT_AT = UINT8_MAX };

/* ---- Texts between the parts of a call */

/* Writes the texts of which one stands in this phase, NULL where there is none. */
static void texts_of(const struct call_filter *f, uint8_t phase, const char *texts[TOOL_MARKS]) {
    const struct call_form *form = f->form;
    memset(texts, 0, TOOL_MARKS * sizeof *texts);
    switch (phase) {
    case OPENING: memcpy(texts, form->open, sizeof form->open); break;
    case BEFORE_NAME: texts[0] = form->before_name; break;
    case BEFORE_ARGUMENTS: memcpy(texts, form->before_arguments, sizeof form->before_arguments); break;
    case AFTER_ARGUMENTS: texts[0] = form->after_arguments; break;
    default: /* BETWEEN */
        texts[0] = form->close;
        texts[1] = f->begun ? NULL : form->before_another;
        break;
    }
}

static void begin_name(const struct call_filter *f, struct call_state *s) {
    s->phase = NAME;
    s->low = s->name_at = 0;
    s->high = f->n;
}

static void begin_text(struct call_state *s) {
    s->phase = TEXT;
    s->n_newest = 0;
}

/* Begins a phase of texts, or what follows it where nothing stands there. */
static void enter(const struct call_filter *f, struct call_state *s, enum phase phase) {
    const char *texts[TOOL_MARKS];
    const struct call_form *form = f->form;
    bool none = (phase == BEFORE_NAME && !*form->before_name) || (phase == AFTER_ARGUMENTS && !*form->after_arguments) ||
                (phase == BETWEEN && !form->close && (f->begun || !form->before_another));
    s->phase = (uint8_t)phase;
    s->spaces = 0;
    if (none && phase == BEFORE_NAME) {
        begin_name(f, s);
    } else if (none && phase == AFTER_ARGUMENTS) {
        enter(f, s, BETWEEN);
    } else if (none) {
        s->phase = ENDED;
        if (form->text_follows && !f->begun) begin_text(s);
    } else {
        texts_of(f, s->phase, texts);
        for (size_t i = 0; i < TOOL_MARKS; i++) s->at[i] = texts[i] ? 0 : NOT_AT;
    }
}

/* Begins what stands behind the i-th text of a phase. */
static void leave(const struct call_filter *f, struct call_state *s, size_t i) {
    switch (s->phase) {
    case OPENING: enter(f, s, BEFORE_NAME); break;
    case BEFORE_NAME: begin_name(f, s); break;
    case BEFORE_ARGUMENTS:
        s->phase = ARGUMENTS;
        s->json = json_begin();
        break;
    case AFTER_ARGUMENTS: enter(f, s, BETWEEN); break;
    default:
        if (i)
            begin_name(f, s);
        else if (f->form->text_follows && !f->begun)
            begin_text(s);
        else
            s->phase = ENDED;
        break;
    }
}

static bool is_white(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Takes a byte of a text, of which *at bytes were there. */
static bool text_byte(const char *text, uint8_t *at, char c) {
    if (text[*at] == '0') {
        if (c >= '0' && c <= '9') return true;
        ++*at;
    }
    if (text[*at] == ' ') {
        if (is_white(c)) return true;
        ++*at;
    }
    return text[(*at)++] == c;
}

/* Takes a byte of the texts of a phase, which then ends where one of them is whole. */
static bool phase_byte(const struct call_filter *f, struct call_state *s, char c) {
    const char *texts[TOOL_MARKS];
    bool any = false;
    s->spaces = is_white(c) ? (uint8_t)(s->spaces + 1) : 0;
    texts_of(f, s->phase, texts);
    for (size_t i = 0; i < TOOL_MARKS; i++) {
        if (s->at[i] == NOT_AT) continue;
        if (s->spaces > JSON_SPACES || !text_byte(texts[i], &s->at[i], c)) {
            s->at[i] = NOT_AT;
            continue;
        }
        any = true;
        if (texts[i][s->at[i]]) continue;
        leave(f, s, i);
        break;
    }
    return any;
}

/* ---- Names */

static bool name_byte(const struct call_filter *f, struct call_state *s, char c) {
    uint32_t tool = s->low;
    if (!f->name[tool][s->name_at]) { /* the first one ends here, or others go on */
        struct call_state ends;
        memcpy(&ends, s, offsetof(struct call_state, json));
        enter(f, &ends, BEFORE_ARGUMENTS);
        if (phase_byte(f, &ends, c)) {
            ends.low = tool;
            memcpy(s, &ends, offsetof(struct call_state, json));
            if (s->phase == ARGUMENTS) s->json = json_begin();
            return true;
        }
    }
    while (s->low < s->high && f->name[s->low][s->name_at] != c) s->low++;
    while (s->high > s->low && f->name[s->high - 1][s->name_at] != c) s->high--;
    s->name_at++;
    return s->low < s->high;
}

/* ---- Text */

static bool ends_with(const struct call_state *s, const char *mark) {
    size_t n = strlen(mark);
    return n <= s->n_newest && memcmp(s->newest + s->n_newest - n, mark, n) == 0;
}

static bool opens_call(const struct call_filter *f, const struct call_state *s) {
    for (size_t i = 0; i < TOOL_MARKS && f->form->open[i]; i++)
        if (ends_with(s, f->form->open[i])) return true;
    return false;
}

static void free_byte(const struct call_filter *f, struct call_state *s, char c) {
    if (s->n_newest == sizeof s->newest) memmove(s->newest, s->newest + 1, --s->n_newest);
    s->newest[s->n_newest++] = c;
    if (s->phase == THINKING) {
        if (ends_with(s, f->format.thoughts_close)) begin_text(s);
    } else if (f->format.thoughts_open && ends_with(s, f->format.thoughts_open)) {
        s->phase = THINKING;
    } else if (opens_call(f, s)) {
        enter(f, s, BEFORE_NAME);
    }
}

/* Returns whether the newest text may be the beginning of a mark. */
static bool mark_begun(const struct call_state *s, const char *mark) {
    size_t n = strlen(mark) - 1;
    for (n = n < s->n_newest ? n : s->n_newest; n; n--)
        if (memcmp(s->newest + s->n_newest - n, mark, n) == 0) return true;
    return false;
}

/* ---- The automaton */

static bool push_byte(const struct call_filter *f, struct call_state *s, char c) {
    switch (s->phase) {
    case FREE: return true;
    case TEXT:
    case THINKING: free_byte(f, s, c); return true;
    case OPENING:
        if (!phase_byte(f, s, c)) s->phase = FREE;
        return true;
    case NAME: return name_byte(f, s, c);
    case ARGUMENTS:
        if (!json_push(f->arguments[s->low], &s->json, &c, 1)) return false;
        if (json_may_end(f->arguments[s->low], &s->json)) enter(f, s, AFTER_ARGUMENTS);
        return true;
    case ENDED: return false;
    default: return phase_byte(f, s, c);
    }
}

void call_begin(const struct call_filter *f, struct call_state *s) {
    memset(s, 0, offsetof(struct call_state, json));
    if (f->form->opens_reply) {
        enter(f, s, OPENING);
    } else {
        begin_text(s);
        for (const char *c = f->format.reply; *c; c++) free_byte(f, s, *c);
    }
    for (const char *c = f->begun ? f->form->begun : ""; *c; c++) (void)push_byte(f, s, *c);
}

bool call_push(const struct call_filter *f, struct call_state *s, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (push_byte(f, s, text[i])) continue;
        if (f->form->text_follows)
            begin_text(s);
        else
            s->phase = FREE;
        return false;
    }
    return true;
}

bool call_allows(const struct call_filter *f, const struct call_state *s, const char *text, size_t n) {
    struct call_state copy;
    memcpy(&copy, s, offsetof(struct call_state, json));
    if (s->phase == ARGUMENTS) json_copy(&copy.json, &s->json);
    return call_push(f, &copy, text, n);
}

bool call_is_free(const struct call_filter *f, const struct call_state *s) {
    bool begun = false;
    if (s->phase == OPENING)
        for (size_t i = 0; i < TOOL_MARKS; i++) begun |= s->at[i] && s->at[i] != NOT_AT;
    else if (s->phase == TEXT)
        for (size_t i = 0; i < TOOL_MARKS && f->form->open[i]; i++) begun |= mark_begun(s, f->form->open[i]);
    return s->phase <= OPENING && !begun;
}

bool call_in_text(const struct call_state *s) { return s->phase <= OPENING; }

bool call_may_end(const struct call_filter *f, const struct call_state *s) {
    return s->phase <= OPENING || s->phase == ENDED || (s->phase == BETWEEN && !f->form->close);
}

/* ---- Making a filter */

/* Returns the schema of a function's arguments as text; cJSON_free releases it. NULL: no memory. */
static char *schema_of(const cJSON *function) {
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    cJSON *schema = cJSON_IsObject(given) ? cJSON_Duplicate(given, true) : cJSON_CreateObject();
    if (!cJSON_IsObject(given)) cJSON_AddBoolToObject(schema, "additionalProperties", false); /* it has no parameters */
    bool open =
        !cJSON_HasObjectItem(schema, "type") && !cJSON_HasObjectItem(schema, "anyOf") && !cJSON_HasObjectItem(schema, "$ref");
    if (open) cJSON_AddStringToObject(schema, "type", "object");
    char *text = schema ? cJSON_PrintUnformatted(schema) : NULL;
    cJSON_Delete(schema);
    return text;
}

static enum terse_status add_tool(struct call_filter *f, const cJSON *tool, struct terse_error *error) {
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name");
    size_t size = strlen(name->valuestring) + 1;
    char *schema = schema_of(function);
    if (!schema || !(f->name[f->n] = memory_array(size, 1))) {
        cJSON_free(schema);
        return status_no_memory(error, size, "the tools of a reply");
    }
    memcpy(f->name[f->n], name->valuestring, size);
    enum terse_status status = json_schema_new(schema, f->begun ? JSON_STRICT : JSON_LENIENT, &f->arguments[f->n++], error);
    cJSON_free(schema);
    struct json_node *root = status ? NULL : &f->arguments[f->n - 1]->node[1];
    if (root && !root->is_union) root->kinds = JSON_OBJECT, root->n_choices = 0; /* whatever the schema says */
    return status;
}

/* Sorts the tools by name; of equal names the first stays first. */
static void sort_tools(struct call_filter *f) {
    for (uint32_t i = 1; i < f->n; i++) {
        char *name = f->name[i];
        struct json_schema *arguments = f->arguments[i];
        uint32_t to = i;
        for (; to && strcmp(f->name[to - 1], name) > 0; to--) {
            f->name[to] = f->name[to - 1];
            f->arguments[to] = f->arguments[to - 1];
        }
        f->name[to] = name;
        f->arguments[to] = arguments;
    }
}

static enum terse_status fill(struct call_filter *f, const cJSON *tools, struct terse_error *error) {
    const cJSON *tool;
    size_t n = (size_t)cJSON_GetArraySize(tools);
    enum terse_status status = TERSE_OK;
    f->name = memory_zeros(n, sizeof *f->name);
    f->arguments = memory_zeros(n, sizeof *f->arguments);
    if (!f->name || !f->arguments) return status_no_memory(error, n * sizeof *f->name, "the tools of a reply");
    cJSON_ArrayForEach(tool, tools) if (!status) status = add_tool(f, tool, error);
    if (!status) sort_tools(f);
    return status;
}

enum terse_status call_filter_new(const struct chat_format *format, const cJSON *tools, bool begun, struct call_filter **filter,
                                  struct terse_error *error) {
    struct call_filter *f = memory_zeros(1, sizeof *f);
    *filter = NULL;
    if (!f) return status_no_memory(error, sizeof *f, "the tools of a reply");
    f->format = *format;
    f->form = &format->tools->call;
    f->begun = begun;
    enum terse_status status = fill(f, tools, error);
    if (status)
        call_filter_free(f);
    else
        *filter = f;
    return status;
}

void call_filter_share(struct call_filter *f) { f->others++; }

void call_filter_free(struct call_filter *f) {
    if (!f || f->others--) return;
    for (uint32_t i = 0; i < f->n; i++) {
        memory_free(f->name[i]);
        json_schema_free(f->arguments[i]);
    }
    memory_free(f->name);
    memory_free(f->arguments);
    memory_free(f);
}
