/* Says whether a model fits into so much memory: its weights, its KV cache by each method, and what a prompt that fills the context
 * takes beside them. */
#ifndef TERSE_TOOLS_FITS_H
#define TERSE_TOOLS_FITS_H

#include "setup.h"

#include <cjson/cJSON.h>

/* Bytes of a command that has read a prompt of so many tokens, at their most. */
struct fits_bytes {
    uint64_t weights;
    uint64_t cache; /* of the prompt's tokens */
    uint64_t
        working; /* the command, its tokenizer and logits, rows of the prompt, what the method fits itself by, and its codebook */
};

/* Computes the bytes of the loaded model's cache by these options. Fails as terse_cache_bytes does. */
enum terse_status fits_count(const struct setup *setup, const struct terse_cache_options *options, uint32_t context,
                             struct fits_bytes *bytes, struct terse_error *error);
uint64_t fits_sum(const struct fits_bytes *bytes);

/* Returns a row for a method: its bytes with so many tokens of context, whether they fit `size`, and the longest context of the
 * model's that does. NULL: the model takes no such cache. */
cJSON *fits_row(const struct setup *setup, const struct terse_cache_options *options, uint32_t context, uint64_t size);

/* Prints the rows; `format` is table_print's. Returns an exit status. */
int fits_print(const cJSON *rows, const struct setup *setup, uint32_t context, uint64_t size, int format);

#endif
