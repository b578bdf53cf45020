/* Reads and writes codes of 4 to 12 bits in their planes, for every instruction set; page_layout.h has the layout. The functions
 * are plain loops over whole words, which compilers turn into vector code. */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_CODE_PLANES_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_CODE_PLANES_H

#include "format/page_layout.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Each of these adds one plane's bits to codes[64], `done` bits up. A byte's tokens become neighbours in a wider word: codes are
 * 16-bit words, the first the lowest, as all of terse takes memory to be little-endian. */
static inline void code_plane_8(const uint8_t *plane, uint16_t *codes) {
    for (size_t t = 0; t < PAGE_TOKENS; t++) codes[t] = plane[t];
}

static inline void code_plane_4(const uint8_t *plane, unsigned done, uint16_t *codes) {
    uint32_t pairs[PAGE_TOKENS / 2];
    memcpy(pairs, codes, sizeof pairs);
    for (size_t i = 0; i < PAGE_TOKENS / 2; i++) {
        uint32_t x = plane[i];
        pairs[i] |= ((x & 15) | (x & 240) << 12) << done;
    }
    memcpy(codes, pairs, sizeof pairs);
}

static inline void code_plane_2(const uint8_t *plane, unsigned done, uint16_t *codes) {
    uint64_t fours[PAGE_TOKENS / 4];
    memcpy(fours, codes, sizeof fours);
    for (size_t i = 0; i < PAGE_TOKENS / 4; i++) {
        uint64_t x = plane[i];
        fours[i] |= ((x & 3) | (x & 12) << 14 | (x & 48) << 28 | (x & 192) << 42) << done;
    }
    memcpy(codes, fours, sizeof fours);
}

static inline void code_plane_1(const uint8_t *plane, unsigned done, uint16_t *codes) {
    uint64_t fours[PAGE_TOKENS / 4];
    memcpy(fours, codes, sizeof fours);
    for (size_t i = 0; i < PAGE_TOKENS / 4; i++) {
        uint64_t x = plane[i / 2] >> i % 2 * 4 & 15u;
        fours[i] |= ((x & 1) | (x & 2) << 15 | (x & 4) << 30 | (x & 8) << 45) << done;
    }
    memcpy(codes, fours, sizeof fours);
}

/* Reads the planes of a sub-vector to codes[64]. */
static inline void code_planes_read(const uint8_t *planes, unsigned bits, uint16_t *codes) {
    unsigned done = 0;
    if (bits & 8) {
        code_plane_8(planes, codes);
        planes += PAGE_PQ_PART(8);
        done = 8;
    } else {
        memset(codes, 0, PAGE_TOKENS * sizeof *codes);
    }
    if (bits & 4) {
        code_plane_4(planes, done, codes);
        planes += PAGE_PQ_PART(4);
        done += 4;
    }
    if (bits & 2) {
        code_plane_2(planes, done, codes);
        planes += PAGE_PQ_PART(2);
        done += 2;
    }
    if (bits & 1) code_plane_1(planes, done, codes);
}

/* Writes codes[64] of `bits` bits to the planes, all of whose bytes are written. */
static inline void code_planes_write(const uint16_t *codes, unsigned bits, uint8_t *planes) {
    memset(planes, 0, PAGE_PQ_PART(bits));
    for (unsigned part = 8, done = 0; part; part /= 2) {
        if (!(bits & part)) continue;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            unsigned bit = (unsigned)t * part, cut = codes[t] >> done & ((1u << part) - 1);
            planes[bit / 8] = (uint8_t)(planes[bit / 8] | cut << bit % 8);
        }
        planes += PAGE_PQ_PART(part);
        done += part;
    }
}

#endif
