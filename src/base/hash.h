/* The 64-bit hash XXH64 with seed 0 (Yann Collet, xxHash specification 0.1.1), over pieces of any sizes: the checksum of files and the
 * fingerprint of models. It finds accidents, not malice. Other programs have it in a library. */
#ifndef TERSE_BASE_HASH_H
#define TERSE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash64 {
    uint64_t lanes[4];
    uint8_t rest[32]; /* size % 32 bytes that fill no stripe yet */
    uint64_t size;    /* bytes seen */
};
struct hash64 hash64_begin(void);
void hash64_put(struct hash64 *hash, const void *data, size_t size);
/* Of all bytes so far; more may follow. */
uint64_t hash64_end(const struct hash64 *hash);

#endif
