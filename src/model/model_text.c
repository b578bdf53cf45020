/* Implements the public functions of terse.h that take a model and concern only its tokenizer. */
#include "model/model.h"
#include "text/chat.h"
#include "text/chat_reply.h"
#include "text/detokenizer.h"

enum terse_status terse_tokenize(const struct terse_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t *tokens,
                                 size_t capacity, size_t *n_tokens, struct terse_error *error) {
    return tokenizer_encode(model->tokenizer, text, n_bytes, flags, tokens, capacity, n_tokens, error);
}

bool terse_token_ends(const struct terse_model *model, int32_t token) { return tokenizer_ends(model->tokenizer, token); }

int32_t terse_token_bos(const struct terse_model *model, bool *added) { return tokenizer_bos(model->tokenizer, added); }

int32_t terse_token_fim(const struct terse_model *model, enum terse_fim_mark mark) { return tokenizer_fim(model->tokenizer, mark); }

const char *terse_token_bytes(const struct terse_model *model, int32_t token, size_t *n_bytes) {
    return tokenizer_bytes(model->tokenizer, token, true, n_bytes);
}

enum terse_status terse_detokenizer_new(const struct terse_model *model, bool show_special, struct terse_detokenizer **detokenizer,
                                        struct terse_error *error) {
    return detokenizer_new(model->tokenizer, show_special ? DETOKENIZER_ALL : DETOKENIZER_TEXT, NULL, detokenizer, error);
}

enum terse_status terse_detokenizer_new_for_reply(const struct terse_model *model, const struct terse_chat_options *options,
                                                  struct terse_detokenizer **detokenizer, struct terse_error *error) {
    return chat_detokenize_reply(model->tokenizer, options, detokenizer, error);
}

enum terse_status terse_reply_reader_new(const struct terse_model *model, const struct terse_chat_options *options,
                                         struct terse_reply_reader **reader, struct terse_error *error) {
    return chat_read_reply(model->tokenizer, options, reader, error);
}

struct terse_chat_options terse_chat_options_defaults(void) {
    return (struct terse_chat_options){.size = sizeof(struct terse_chat_options), .open_reply = true};
}

enum terse_status terse_chat_render_with(const struct terse_model *model, const struct terse_chat_options *options,
                                         const struct terse_message *messages, size_t n_messages, char **text,
                                         struct terse_error *error) {
    return chat_render(model->tokenizer, options, messages, n_messages, text, error);
}

enum terse_status terse_chat_tokenize_with(const struct terse_model *model, const struct terse_chat_options *options,
                                           const struct terse_message *messages, size_t n_messages, int32_t **tokens,
                                           size_t *n_tokens, struct terse_error *error) {
    return chat_tokenize(model->tokenizer, options, messages, n_messages, tokens, n_tokens, error);
}

enum terse_status terse_chat_render(const struct terse_model *model, const char *format, const struct terse_message *messages,
                                    size_t n_messages, bool open_reply, char **text, struct terse_error *error) {
    struct terse_chat_options options = terse_chat_options_defaults();
    options.format = format;
    options.open_reply = open_reply;
    return chat_render(model->tokenizer, &options, messages, n_messages, text, error);
}

enum terse_status terse_chat_tokenize(const struct terse_model *model, const char *format, const struct terse_message *messages,
                                      size_t n_messages, size_t after, bool open_reply, int32_t **tokens, size_t *n_tokens,
                                      struct terse_error *error) {
    struct terse_chat_options options = terse_chat_options_defaults();
    options.format = format;
    options.after = after;
    options.open_reply = open_reply;
    return chat_tokenize(model->tokenizer, &options, messages, n_messages, tokens, n_tokens, error);
}
