#include "text/chat_choose.h"

#include "base/options.h"
#include "base/text.h"

#include <string.h>

const char *terse_chat_format_name(size_t i) {
    const struct chat_format *format = chat_format_at(i);
    return format ? format->name : NULL;
}

/* Writes the names of all formats, or of those that have tools, to names[384]. */
static const char *list_formats(char *names, bool with_tools) {
    struct text_line line = text_line_begin(names, 384);
    for (size_t i = 0; chat_format_at(i); i++) {
        if (with_tools && !chat_format_at(i)->tools) continue;
        if (line.length) text_line_unit(&line, ", ", 2);
        text_line_unit(&line, chat_format_at(i)->name, strlen(chat_format_at(i)->name));
    }
    text_line_end(&line);
    return names;
}

static enum terse_status unknown_format(const char *what, enum terse_status code, struct terse_error *error) {
    char names[384];
    return status_fail(error, code, "%s: pass --chat-template NAME (%s)", what, list_formats(names, false));
}

enum terse_status chat_refuse_tools(const struct chat_format *format, bool own, struct terse_error *error) {
    char names[384];
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
    return TERSE_OK;
}

enum terse_status chat_choose(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                              struct chat_format *format, bool *own_format, struct terse_error *error) {
    enum terse_status status = OPTIONS_CHECK(options, terse_chat_options, error);
    if (status) return status;
    struct gguf_string template = tokenizer_chat_template(tokenizer);
    const char *name = options->format;
    const struct chat_format *named = name ? chat_format_find(name) : NULL;
    bool own = chat_format_recognise(template, format);
    if (name && !named) return unknown_format("there is no such chat format", TERSE_E_ARGUMENT, error);
    if (!name && !own)
        return unknown_format(template.size ? "the model's chat template is none that terse knows"
                                            : "the model has no chat template",
                              TERSE_E_UNSUPPORTED, error);
    if (named && !(own && strcmp(named->name, format->name) == 0)) {
        *format = *named;
        own = false;
    }
    if (named) format->tools = named->tools; /* who names a format wants it, whatever the model's template lacks */
    if (own_format) *own_format = own;
    return choose_thinking(format, options, error);
}
