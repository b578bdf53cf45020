/* Tokenizers for tests: from a vocabulary written by the test, or from a file. */
#ifndef TERSE_TESTS_SUPPORT_TOKENIZER_SAMPLE_H
#define TERSE_TESTS_SUPPORT_TOKENIZER_SAMPLE_H

#include "base/mapped_file.h"
#include "gguf/gguf_writer.h"
#include "text/tokenizer.h"

struct tokenizer_sample {
    void *built;
    struct mapped_file mapped;
    struct gguf *gguf;
    struct tokenizer *tokenizer;
};

/* Builds what was written, frees the writer and returns tokenizer_new's status. The sample is to be closed in any case. */
enum terse_status tokenizer_sample_open(struct gguf_writer *writer, struct tokenizer_sample *sample, struct terse_error *error);
/* The same for the file at `path`; fails the test when it cannot be read. */
void tokenizer_sample_load(const char *path, struct tokenizer_sample *sample);
void tokenizer_sample_close(struct tokenizer_sample *sample);

/* The letters of the bytes 0 to 255 in byte-level vocabularies, zero-terminated UTF-8, as the GPT-2 tokenizer makes them: the
 * printable bytes of Latin-1 are themselves, the others follow from U+0100 on. */
extern char byte_letters[256][3];
void byte_letters_fill(void);

/* Encodes a text into a new array (free) and fails the test if that fails. */
int32_t *tokenizer_sample_encode(const struct tokenizer_sample *sample, const char *text, size_t n_bytes, unsigned flags,
                                 size_t *n_tokens);

#endif
