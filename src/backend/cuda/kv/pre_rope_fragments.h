/* Makes the cosines and sines of a page's tokens that attention over pages of the codec transform multiplies by
 * (attend_transform_positions.cuh). Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_PRE_ROPE_FRAGMENTS_H
#define TERSE_BACKEND_CUDA_KV_PRE_ROPE_FRAGMENTS_H

#include "model/rope.h"

#include <stddef.h>
#include <stdint.h>

/* Returns how many words of 32 bits the fragments have; 0 for no pairs. */
size_t pre_rope_fragment_words(size_t pairs);

/* Writes words [steps of 8 pairs][tile][upper, rest][lane][4], fragments a of m16n8k16: a tile's rows are tokens that a lane has
 * (lane_token() and the 3 behind it, two in each tile), its columns cosine and sine of a step's pairs (zeros for pairs past the
 * first `pairs`). The upper half and the rest, a half too, add up to a number within 2^-23. */
void pre_rope_fragments(const struct rope *rope, size_t pairs, uint32_t *words);

#endif
