/* Opening, closing and using tokenizers in tests. */
#include "support/tokenizer_sample.h"
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

char byte_letters[256][3];

void byte_letters_fill(void) {
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        unsigned letter = printable ? byte : next++;
        memset(byte_letters[byte], 0, sizeof *byte_letters);
        if (letter < 0x80) {
            byte_letters[byte][0] = (char)letter;
        } else {
            byte_letters[byte][0] = (char)(0xc0 | letter >> 6);
            byte_letters[byte][1] = (char)(0x80 | (letter & 0x3f));
        }
    }
}

enum terse_status tokenizer_sample_open(struct gguf_writer *writer, struct tokenizer_sample *sample, struct terse_error *error) {
    size_t size;
    *sample = (struct tokenizer_sample){0};
    sample->built = gguf_writer_build(writer, &size);
    gguf_writer_free(writer);
    assert_non_null(sample->built);
    enum terse_status status = gguf_open(sample->built, size, "sample", &sample->gguf, error);
    return status ? status : tokenizer_new(sample->gguf, &sample->tokenizer, error);
}

void tokenizer_sample_load(const char *path, struct tokenizer_sample *sample) {
    struct terse_error error = {0};
    *sample = (struct tokenizer_sample){0};
    if (mapped_file_open(path, &sample->mapped, &error) ||
        gguf_open(sample->mapped.data, sample->mapped.size, path, &sample->gguf, &error) ||
        tokenizer_new(sample->gguf, &sample->tokenizer, &error))
        fail_msg("%s", error.message);
}

void tokenizer_sample_close(struct tokenizer_sample *sample) {
    tokenizer_free(sample->tokenizer);
    gguf_free(sample->gguf);
    mapped_file_close(&sample->mapped);
    memory_free(sample->built);
    *sample = (struct tokenizer_sample){0};
}

int32_t *tokenizer_sample_encode(const struct tokenizer_sample *sample, const char *text, size_t n_bytes, unsigned flags,
                                 size_t *n_tokens) {
    struct terse_error error = {0};
    size_t capacity = 2 * n_bytes + 4;
    int32_t *tokens = malloc(capacity * sizeof *tokens);
    assert_non_null(tokens);
    if (tokenizer_encode(sample->tokenizer, text, n_bytes, flags, tokens, capacity, n_tokens, &error))
        fail_msg("%s", error.message);
    return tokens;
}
