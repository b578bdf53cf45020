/* Vocabularies for tests and fuzz targets: the marks of all chat formats, every byte, some merges. */
#ifndef TERSE_TESTS_SUPPORT_VOCABULARY_SAMPLE_H
#define TERSE_TESTS_SUPPORT_VOCABULARY_SAMPLE_H

#include "support/tokenizer_sample.h"

/* The first tokens: "<s>", "</s>", "<unk>", the marks of chat formats, and "<tool>", which is no format's. Control tokens, but for "<unk>" and
 * those from VOCABULARY_SAMPLE_USER_DEFINED on, which are user-defined, as some files have them. */
enum {
    VOCABULARY_SAMPLE_BOS,
    VOCABULARY_SAMPLE_EOS,
    VOCABULARY_SAMPLE_UNKNOWN,
    VOCABULARY_SAMPLE_USER_DEFINED = 36,
    VOCABULARY_SAMPLE_MARKS = 45
};
extern const char *const vocabulary_sample_marks[VOCABULARY_SAMPLE_MARKS];

/* Byte-level BPE whose words are cut as `pre` says. */
void vocabulary_sample_bpe(struct gguf_writer *writer, const char *pre);

enum { SPM_SPACE_PREFIX = 1, SPM_INNER_SPACES = 2, SPM_SPACE_RUNS = 4, SPM_NO_BYTES = 8 };

/* SentencePiece. `flags`: a text begins with a space; a token has a space within; runs of spaces and line ends are user-defined tokens, as
 * Gemma has them; there are no tokens of bytes. */
void vocabulary_sample_spm(struct gguf_writer *writer, unsigned flags);

#endif
