/* What the codec transform goes by, on the device: of each layer, KV head and side the layout of its components and the numbers of the
 * profile. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORMS_H
#define TERSE_BACKEND_CUDA_KV_TRANSFORMS_H

#include "backend/cuda/kv/view.h"
#include "kv/shape.h"
#include "method/method.h"

/* `learned_new` of codec.h: struct transform_view views[layers][Hk] and the numbers that they point to, of a side whose codec is transform.
 * Immutable. */
enum terse_status transforms_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                                 struct terse_error *error);

/* What attention knows of a layout's planes, up to a multiple of 8 of them (those that the layout has not have levels of 0), in words of 32 bits:
 * a table of 4 words for each plane, whose bytes are the levels of the nibbles 0 to 7 and then of 15 down to 8, TRANSFORM_LEVEL_MAX higher; then for
 * each plane where a page in shared memory has the nibble, << 16 the one before it and bit 31 if of that one components are one further;
 * and a mask of the bits that are the nibble's own. */
size_t transform_reader_words(const struct transform_layout *layout);
void transform_readers(const struct transform_layout *layout, enum codec_side side, uint32_t *words);
/* Bit n: planes of the n-th group, of 4 planes of keys or 8 of values, have one with bit 31. */
uint32_t transform_wraps(const struct transform_layout *layout, enum codec_side side);

#endif
