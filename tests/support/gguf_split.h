/* Splits GGUF files into parts, as people bring large models. */
#ifndef TESTS_SUPPORT_GGUF_SPLIT_H
#define TESTS_SUPPORT_GGUF_SPLIT_H

#include "gguf/gguf.h"

/* The damage makes one part of a split differ from a sound one; all zeros: no damage. Parts are counted from 0. */
struct gguf_split_damage {
    uint32_t part;              /* what follows is of this one */
    int number, count, tensors; /* added to what its keys say; of part 0 alone `tensors` */
    bool repeats;               /* it has the tensor before its own first too */
};

/* Writes PREFIX-00001-of-0000N.gguf and so on: the first of `count` parts has the keys of the file at `path` and, of more than 2 parts, no tensors,
 * the others their share. */
enum terse_status gguf_split(const char *path, const char *prefix, uint32_t count, const struct gguf_split_damage *damage,
                             struct terse_error *error);

#endif
