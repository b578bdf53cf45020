/* Reads and writes the base file of a KL divergence: the log-probabilities of a reference run, as llama.cpp's perplexity tool
 * writes and reads them.
 *
 * Little-endian, as are all machines that terse runs on: 8 bytes "_logits_"; u32 context; i32 vocabulary; i32 chunks; i32
 * tokens[chunks][context], as tokenized (a BOS put in place of a chunk's first token is not in it); then for every chunk a row for
 * each position context/2 .. context-2. A row is f32 scale, f32 minimum, u16 codes[vocabulary], padded to an even number of codes:
 * log p(token) = scale * code + minimum. What lies more than 16 below the row's largest has the minimum, unless the token that
 * follows in the text lies there, too: then that one has it, or its perplexity would not be read back. (llama.cpp's tool leaves it
 * at 16 below: of files that it wrote PPL(base) is too small where tokens are less likely.) */
#ifndef TERSE_TOOLS_KLD_FILE_H
#define TERSE_TOOLS_KLD_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kld_header {
    uint32_t context, vocabulary, chunks;
};

enum { KLD_LEAST_CONTEXT = 8 };

static inline size_t kld_rows(uint32_t context) { return context - 1 - context / 2; } /* of a chunk */
static inline size_t kld_row_words(uint32_t vocabulary) { return ((size_t)vocabulary + 1) / 2 * 2 + 4; }

/* Writes the codes of logits[vocabulary], of which log_sum = log(sum(exp(logits))); `next` is the token that follows. row[kld_row_words]. */
void kld_encode(const float *logits, uint32_t vocabulary, double log_sum, int32_t next, uint16_t *row);
/* Reads *scale and *minimum of a row; returns false when no writer makes such a row. */
bool kld_row_scale(const uint16_t *row, float *scale, float *minimum);
static inline const uint16_t *kld_row_codes(const uint16_t *row) { return row + 4; }

/* The calls below that return an int return an exit status, after a complaint when it is not 0. */

/* Writes to a temporary name beside `path`; nothing stands at `path` before kld_writer_commit. */
struct kld_writer;
int kld_writer_open(const char *path, const struct kld_header *header, const int32_t *tokens, struct kld_writer **writer);
int kld_writer_rows(struct kld_writer *writer, const uint16_t *rows, size_t n_rows);
int kld_writer_commit(struct kld_writer *writer);
/* Removes what was not committed. */
void kld_writer_free(struct kld_writer *writer);

struct kld_reader;
int kld_reader_open(const char *path, struct kld_reader **reader);
void kld_reader_free(struct kld_reader *reader);
const struct kld_header *kld_reader_header(const struct kld_reader *reader);
const int32_t *kld_reader_tokens(const struct kld_reader *reader); /* [chunks][context], each within the vocabulary */
int kld_reader_rows(struct kld_reader *reader, uint16_t *rows, size_t n_rows);

#endif
