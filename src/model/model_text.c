/* Implements the public functions of terse.h that take a model and concern only its tokenizer. */
#include "model/model.h"
#include "text/chat.h"
#include "text/detokenizer.h"

enum terse_status terse_tokenize(const struct terse_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t *tokens,
                                 size_t capacity, size_t *n_tokens, struct terse_error *error) {
    return tokenizer_encode(model->tokenizer, text, n_bytes, flags, tokens, capacity, n_tokens, error);
}

bool terse_token_ends(const struct terse_model *model, int32_t token) { return tokenizer_ends(model->tokenizer, token); }

int32_t terse_token_bos(const struct terse_model *model, bool *added) { return tokenizer_bos(model->tokenizer, added); }

const char *terse_token_bytes(const struct terse_model *model, int32_t token, size_t *n_bytes) {
    return tokenizer_bytes(model->tokenizer, token, true, n_bytes);
}

enum terse_status terse_detokenizer_new(const struct terse_model *model, bool show_special, struct terse_detokenizer **detokenizer,
                                        struct terse_error *error) {
    return detokenizer_new(model->tokenizer, show_special, detokenizer, error);
}

enum terse_status terse_chat_render(const struct terse_model *model, const char *format, const struct terse_message *messages,
                                    size_t n_messages, bool open_reply, char **text, struct terse_error *error) {
    return chat_render(model->tokenizer, format, messages, n_messages, open_reply, text, error);
}

enum terse_status terse_chat_tokenize(const struct terse_model *model, const char *format, const struct terse_message *messages,
                                      size_t n_messages, size_t after, bool open_reply, int32_t **tokens, size_t *n_tokens,
                                      struct terse_error *error) {
    return chat_tokenize(model->tokenizer, format, messages, n_messages, after, open_reply, tokens, n_tokens, error);
}
