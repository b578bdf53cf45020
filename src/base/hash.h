/* Computes XXH64 with seed 0, of the xxHash library: the checksum of files and the fingerprint of models. It finds accidents, not
 * malice. */
#ifndef TERSE_BASE_HASH_H
#define TERSE_BASE_HASH_H

#define XXH_STATIC_LINKING_ONLY /* states on the stack; XXH64's is the same in all releases of the 0.8 series */
#include <xxhash.h>

#endif
