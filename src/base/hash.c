/* XXH64: stripes of 32 bytes go through four lanes of 8, which are folded into one number that then takes in the rest. */
#include "base/hash.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the hash is of little-endian words");

#define P1 0x9e3779b185ebca87u
#define P2 0xc2b2ae3d27d4eb4fu
#define P3 0x165667b19e3779f9u
#define P4 0x85ebca77c2b2ae63u
#define P5 0x27d4eb2f165667c5u
enum { STRIPE = 32 };

static uint64_t rotate(uint64_t x, unsigned bits) { return x << bits | x >> (64 - bits); }

static uint64_t step(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }

static uint64_t word_at(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

struct hash64 hash64_begin(void) {
    return (struct hash64){.lanes = {P1 + P2, P2, 0, 0 - P1}};
}

/* Whole stripes. */
static void put_stripes(struct hash64 *hash, const uint8_t *data, size_t size) {
    uint64_t a = hash->lanes[0], b = hash->lanes[1], c = hash->lanes[2], d = hash->lanes[3];
    for (; size >= STRIPE; data += STRIPE, size -= STRIPE) {
        a = step(a, word_at(data));
        b = step(b, word_at(data + 8));
        c = step(c, word_at(data + 16));
        d = step(d, word_at(data + 24));
    }
    hash->lanes[0] = a, hash->lanes[1] = b, hash->lanes[2] = c, hash->lanes[3] = d;
}

void hash64_put(struct hash64 *hash, const void *data, size_t size) {
    const uint8_t *at = data;
    size_t waiting = hash->size % STRIPE;
    if (size == 0) return;
    hash->size += size;
    if (waiting) {
        size_t fits = STRIPE - waiting < size ? STRIPE - waiting : size;
        memcpy(hash->rest + waiting, at, fits);
        at += fits;
        size -= fits;
        if (waiting + fits < STRIPE) return;
        put_stripes(hash, hash->rest, STRIPE);
    }
    put_stripes(hash, at, size);
    memcpy(hash->rest, at + size / STRIPE * STRIPE, size % STRIPE);
}

uint64_t hash64_end(const struct hash64 *hash) {
    static const unsigned turns[4] = {1, 7, 12, 18};
    const uint8_t *at = hash->rest, *end = at + hash->size % STRIPE;
    uint64_t sum = P5;
    if (hash->size >= STRIPE) {
        sum = 0;
        for (int i = 0; i < 4; i++) sum += rotate(hash->lanes[i], turns[i]);
        for (int i = 0; i < 4; i++) sum = (sum ^ step(0, hash->lanes[i])) * P1 + P4;
    }
    sum += hash->size;
    for (; end - at >= 8; at += 8) sum = rotate(sum ^ step(0, word_at(at)), 27) * P1 + P4;
    if (end - at >= 4) {
        uint32_t word;
        memcpy(&word, at, sizeof word);
        sum = rotate(sum ^ word * P1, 23) * P2 + P3;
        at += 4;
    }
    for (; at < end; at++) sum = rotate(sum ^ *at * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}
