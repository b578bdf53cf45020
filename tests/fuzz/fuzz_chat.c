/* Fuzz target of chat formats. The first byte chooses the vocabulary and whether a reply is opened, the second the format, past the last of them
 * the model's own template, which is then the text up to the first U+001F. What follows are messages, each up to U+001F: a byte for the role, then the
 * content. A text may be refused in one line; else tokens and text must agree, and what messages say must never be the format's special tokens.
 * Run it with the corpus in corpus/chat; see CMakeLists.txt. */
#include "model/model.h"
#include "support/vocabulary_sample.h"
#include "text/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

enum { MOST = 8 };

static struct tokenizer *tokenizer(bool spm) {
    static struct tokenizer_sample samples[2];
    struct gguf_writer writer = {0};
    if (samples[spm].tokenizer) return samples[spm].tokenizer;
    if (spm)
        vocabulary_sample_spm(&writer, 0);
    else
        vocabulary_sample_bpe(&writer, "llama-bpe");
    require(tokenizer_sample_open(&writer, &samples[spm], NULL) == TERSE_OK);
    return samples[spm].tokenizer;
}

/* Cuts text[n + 1], which is changed, into messages. */
static size_t read_messages(char *text, size_t n, struct terse_message messages[MOST]) {
    static const char *const roles[] = {"user", "assistant", "system", "tool"};
    size_t n_messages = 0;
    for (size_t at = 0; at < n && n_messages < MOST;) {
        char *end = memchr(text + at, '\x1f', n - at);
        size_t next = end ? (size_t)(end - text) : n;
        text[next] = '\0';
        messages[n_messages].role = roles[(unsigned char)text[at] % 4];
        messages[n_messages++].content = text + at + (next > at);
        at = next + 1;
    }
    return n_messages;
}

static size_t count_controls(const struct tokenizer *t, const int32_t *tokens, size_t n) {
    size_t controls = 0;
    for (size_t i = 0; i < n; i++) controls += t->vocabulary.type[tokens[i]] == TOKEN_CONTROL;
    return controls;
}

static void check_tokens(const struct terse_model *model, const char *format, const struct terse_message *messages, size_t n,
                         bool open) {
    const struct tokenizer *t = model->tokenizer;
    struct terse_message tame[MOST];
    char *text;
    int32_t *tokens, *others;
    size_t n_tokens, n_others, bytes, size = 0;
    require(terse_chat_tokenize(model, format, messages, n, 0, open, &tokens, &n_tokens, NULL) == TERSE_OK);
    require(terse_chat_render(model, format, messages, n, open, &text, NULL) == TERSE_OK);
    for (size_t i = 0; i < n_tokens && t->kind == TOKENIZER_BPE; i++) {
        const char *part = tokenizer_bytes(t, tokens[i], true, &bytes);
        require(strncmp(text + size, part, bytes) == 0); /* no part has a zero */
        size += bytes;
    }
    require(t->kind != TOKENIZER_BPE || size == strlen(text));
    for (size_t i = 0; i < n; i++) tame[i] = (struct terse_message){messages[i].role, "x"};
    require(terse_chat_tokenize(model, format, tame, n, 0, open, &others, &n_others, NULL) == TERSE_OK);
    require(count_controls(t, tokens, n_tokens) == count_controls(t, others, n_others));
    terse_tokens_free(others);
    for (size_t after = 1; after <= n; after++) {
        require(terse_chat_tokenize(model, format, messages, n, after, open, &others, &n_others, NULL) == TERSE_OK);
        require(count_controls(t, others, n_others) <= count_controls(t, tokens, n_tokens));
        terse_tokens_free(others);
    }
    terse_tokens_free(tokens);
    terse_string_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct terse_message messages[MOST];
    struct terse_error error = {0};
    if (size < 2) return 0;
    size_t n_formats = 0, n = size - 2;
    while (terse_chat_format_name(n_formats)) n_formats++;
    struct tokenizer *t = tokenizer(data[0] & 1);
    const struct terse_model model = {.tokenizer = t};
    bool open = data[0] & 2;
    const char *format = terse_chat_format_name(data[1] % (n_formats + 1));
    char *text = malloc(n + 1), *rest = text;
    require(text != NULL);
    memcpy(text, data + 2, n);
    text[n] = '\0';
    t->chat_template = (struct gguf_string){0};
    if (!format) {
        const char *end = memchr(text, '\x1f', n);
        size_t n_template = end ? (size_t)(end - text) : n;
        t->chat_template = (struct gguf_string){text, n_template};
        rest += n_template + (end ? 1 : 0);
    }
    size_t n_messages = read_messages(rest, (size_t)(text + n - rest), messages);
    char *rendered;
    enum terse_status status = terse_chat_render(&model, format, messages, n_messages, open, &rendered, &error);
    require((status == TERSE_OK) == (rendered != NULL));
    if (status == TERSE_OK)
        check_tokens(&model, format, messages, n_messages, open);
    else
        require(error.code == status && strlen(error.message) > 10 && !strpbrk(error.message, "\n\x1b"));
    terse_string_free(rendered);
    free(text);
    return 0;
}
