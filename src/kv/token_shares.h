/* The map of tokens says which shares of the tokens are exact, compressed, evicted and read, in parts of the sequence of equal
 * length (terse_session_map). */
#ifndef TERSE_KV_TOKEN_SHARES_H
#define TERSE_KV_TOKEN_SHARES_H

#include "terse.h"

/* A token_map cuts a sequence of `length` tokens into n parts. */
struct token_map {
    struct terse_token_share *shares;
    size_t n;
    uint64_t length;
};

/* Adds `share` of each token of [begin, end) to a member of its part's shares, `offset` bytes into them. */
void token_map_add(const struct token_map *map, size_t offset, uint64_t begin, uint64_t end, double share);
/* Sets the shares that were evicted: all that is neither exact nor compressed. */
void token_map_end(const struct token_map *map);

#endif
