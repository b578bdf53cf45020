#include "text/chat_choose.h"

#include "base/options.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

const char *terse_chat_format_name(size_t i) {
    const struct chat_format *format = chat_format_at(i);
    return format ? format->name : NULL;
}

enum { NAMES = 512 };

/* Writes the names of all formats, or of those that have tools, to names[NAMES]. */
static const char *list_formats(char *names, bool with_tools) {
    struct text_line line = text_line_begin(names, NAMES);
    for (size_t i = 0; chat_format_at(i); i++) {
        if (with_tools && !chat_format_at(i)->tools) continue;
        if (line.length) text_line_unit(&line, ", ", 2);
        text_line_unit(&line, chat_format_at(i)->name, strlen(chat_format_at(i)->name));
    }
    text_line_end(&line);
    return names;
}

static enum terse_status unknown_format(const char *what, enum terse_status code, struct terse_error *error) {
    char names[NAMES];
    return status_fail(error, code, "%s: pass --chat-template NAME (%s)", what, list_formats(names, false));
}

/* Returns the length of a mark at the beginning of text[n], <name>, <|name|> or [NAME], 0 where there is none. */
static size_t mark_length(const char *text, size_t n) {
    bool angle = text[0] == '<';
    size_t i = 1;
    if (!angle && text[0] != '[') return 0;
    for (; i < n && i < 40; i++) {
        unsigned char c = (unsigned char)text[i];
        bool letter =
            (c >= 'A' && c <= 'Z') || c == '_' || c == '/' || (angle && ((c >= 'a' && c <= 'z') || c == '|' || c >= 0x80));
        if (!letter) break;
    }
    return i > 2 && i < n && text[i] == (angle ? '>' : ']') ? i + 1 : 0;
}

/* Writes the first marks of a template, each once, to marks[160]. Returns whether it has any. */
static bool list_marks(struct gguf_string template, char *marks) {
    struct text_line line = text_line_begin(marks, 160);
    for (size_t i = 0; i < template.size; i++) {
        size_t n = mark_length(template.data + i, template.size - i);
        bool known = !n;
        for (size_t j = 0; j + n <= line.length && !known; j++) known = memcmp(marks + j, template.data + i, n) == 0;
        if (known) continue;
        if (line.length) text_line_unit(&line, ", ", 2);
        text_line_string(&line, template.data + i, n, false);
    }
    return text_line_end(&line) > 0;
}

static enum terse_status unknown_template(struct gguf_string template, bool given, struct terse_error *error) {
    char marks[160], what[256];
    const char *whose = given ? "the chat template" : "the model's chat template";
    if (!template.size)
        snprintf(what, sizeof what, given ? "the chat template is empty" : "the model has no chat template");
    else if (list_marks(template, marks))
        snprintf(what, sizeof what, "%s is none that terse knows, by its marks %s", whose, marks);
    else
        snprintf(what, sizeof what, "%s is none that terse knows: it has no marks", whose);
    return unknown_format(what, TERSE_E_UNSUPPORTED, error);
}

struct gguf_string chat_template_of(const struct tokenizer *tokenizer, const struct terse_chat_options *options) {
    const char *text = options->template_text;
    return text ? (struct gguf_string){text, strlen(text)} : tokenizer_chat_template(tokenizer);
}

enum terse_status chat_refuse_tools(const struct chat_format *format, bool own, struct terse_error *error) {
    char names[NAMES];
    list_formats(names, true);
    if (own && chat_format_find(format->name)->tools)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "the model's chat template has no tools: pass --chat-template %s to write them all the same",
                           format->name);
    return status_fail(error, TERSE_E_UNSUPPORTED, "the format %s has no tools in terse; those that have: %s", format->name, names);
}

/* Returns the format of which `name` is the one without thoughts; NULL: there is none. */
static const struct chat_format *with_thoughts(const char *name) {
    const struct chat_format *format;
    for (size_t i = 0; (format = chat_format_at(i)); i++)
        if (format->without && strcmp(format->without, name) == 0) return format;
    return NULL;
}

/* Makes the format the one whose replies think, or do not, as the options ask. What a template varies stays. */
static enum terse_status choose_thinking(struct chat_format *format, const struct terse_chat_options *options,
                                         struct terse_error *error) {
    static const char *const efforts[] = {"low", "medium", "high"};
    const struct chat_format *other = NULL;
    const char *effort = options->effort ? NULL : format->effort;
    if ((unsigned)options->thinking > TERSE_THINKING_ON)
        return status_fail(error, TERSE_E_ARGUMENT, "there is no thinking %d", (int)options->thinking);
    for (size_t i = 0; i < 3 && options->effort; i++)
        if (strcmp(options->effort, efforts[i]) == 0) effort = efforts[i];
    if (options->effort && !effort)
        return status_fail(error, TERSE_E_ARGUMENT, "the effort of thinking is \"low\", \"medium\" or \"high\"");
    if (options->effort && !format->effort)
        return status_fail(error, TERSE_E_UNSUPPORTED, "the format %s has no effort of thinking: leave it out", format->name);
    if (options->thinking == TERSE_THINKING_ON && !format->thoughts_open)
        return status_fail(error, TERSE_E_UNSUPPORTED, "models of the format %s do not think", format->name);
    format->effort = effort;
    if (options->thinking == TERSE_THINKING_OFF && format->always_thinks)
        return status_fail(error, TERSE_E_UNSUPPORTED, "models of the format %s always think", format->name);
    if (options->thinking == TERSE_THINKING_OFF && format->without) other = chat_format_find(format->without);
    if (options->thinking == TERSE_THINKING_ON) other = with_thoughts(format->name);
    if (other) format->reply = other->reply;
    if (other && !other->tools) format->name = other->name, format->tools = NULL;
    return TERSE_OK;
}

/* Gives the format of a model's own template tools, where a second template of the model's has them. */
static void add_tools(const struct tokenizer *tokenizer, struct chat_format *format) {
    struct chat_format other;
    bool same = !format->tools && chat_format_recognise(tokenizer_tools_template(tokenizer), &other) &&
                strcmp(format->name, other.name) == 0;
    if (same) format->tools = other.tools;
}

enum terse_status chat_choose(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                              struct chat_format *format, bool *own_format, struct terse_error *error) {
    enum terse_status status = OPTIONS_CHECK(options, terse_chat_options, error);
    if (status) return status;
    struct gguf_string template = chat_template_of(tokenizer, options);
    const char *name = options->format;
    const struct chat_format *named = name ? chat_format_find(name) : NULL;
    bool own = chat_format_recognise(template, format);
    if (own && !options->template_text) add_tools(tokenizer, format);
    if (name && !named) return unknown_format("there is no such chat format", TERSE_E_ARGUMENT, error);
    if (!name && !own) return unknown_template(template, options->template_text != NULL, error);
    if (named && !(own && strcmp(named->name, format->name) == 0)) {
        *format = *named;
        own = false;
    }
    if (named) format->tools = named->tools; /* who names a format wants it, whatever the model's template lacks */
    if (own_format) *own_format = own;
    return choose_thinking(format, options, error);
}
