/* Finds the best of many tokens by 16-bit scores, as an index (codec/index.h) gives them. */
#ifndef TERSE_BACKEND_CPU_KV_TOP_K_H
#define TERSE_BACKEND_CPU_KV_TOP_K_H

#include <stddef.h>
#include <stdint.h>

/* Writes to tokens[min(k, n)] the places of the k largest of scores[n], in ascending order; of equal scores the last places are
 * taken, the newest tokens. Returns their number. It is deterministic; n is below 2^32. */
size_t top_tokens(const uint16_t *scores, size_t n, size_t k, uint32_t *tokens);

#endif
