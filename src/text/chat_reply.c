#include "text/chat_reply.h"

#include "text/chat_choose.h"
#include "text/chat_tools.h"
#include "text/detokenizer.h"

/* Chooses the format and parses the tools; *tools is NULL where there are none. */
static enum terse_status read_options(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                      struct chat_format *format, cJSON **tools, struct terse_error *error) {
    bool own;
    *tools = NULL;
    enum terse_status status = chat_choose(tokenizer, options, format, &own, error);
    if (!status) status = chat_tools_parse(options->tools, tools, error);
    if (status || !*tools || format->tools) return status;
    cJSON_Delete(*tools);
    *tools = NULL;
    return chat_refuse_tools(format, own, error);
}

enum terse_status chat_filter_calls(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                    struct call_filter **filter, struct terse_error *error) {
    struct chat_format format;
    cJSON *tools;
    *filter = NULL;
    enum terse_status status = read_options(tokenizer, options, &format, &tools, error);
    if (!status && tools) status = call_filter_new(&format, tools, options->open_call, filter, error);
    cJSON_Delete(tools);
    return status;
}

enum terse_status chat_read_reply(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                  struct terse_reply_reader **reader, struct terse_error *error) {
    struct chat_format format;
    cJSON *tools;
    *reader = NULL;
    enum terse_status status = read_options(tokenizer, options, &format, &tools, error);
    if (!status) status = reply_reader_new(&format, tools != NULL, tools && options->open_call, reader, error);
    cJSON_Delete(tools);
    return status;
}

enum terse_status chat_detokenize_reply(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                        struct terse_detokenizer **detokenizer, struct terse_error *error) {
    struct chat_format format;
    *detokenizer = NULL;
    enum terse_status status = chat_choose(tokenizer, options, &format, NULL, error);
    return status ? status : detokenizer_new(tokenizer, DETOKENIZER_REPLY, &format, detokenizer, error);
}
