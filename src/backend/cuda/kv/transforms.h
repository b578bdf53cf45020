/* Keeps the parameters of the codec transform on the device: for each layer, KV head and side the layout of its components and the
 * numbers of the profile. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORMS_H
#define TERSE_BACKEND_CUDA_KV_TRANSFORMS_H

#include "backend/cuda/kv/view.h"
#include "kv/cache.h"
#include "kv/shape.h"
#include "method/method.h"

/* Implements learned_new of codec.h for a side whose codec is transform: sends struct transform_view views[layers][Hk] and the
 * numbers that they point to, which never change. */
enum terse_status transforms_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                                 struct terse_error *error);

/* Returns the bytes of the views of a side of a sequence that has transforms of its own, and of the numbers that they point to. */
size_t transforms_fitted_bytes(const struct cache_shape *shape);
/* Writes these views and numbers to host[transforms_fitted_bytes] in the form that the device gets: from the records and layouts of
 * `base`, with the metrics of `profile`, which transforms_new made. */
void transforms_fitted_set(const struct cache_base *base, enum codec_side side, const void *profile, uint8_t *host,
                           uint8_t *device);

/* Returns the bytes of the views of a side at a rate to which pages are lowered (kv/rates.h), and of their readers. */
size_t transforms_rate_bytes(const struct cache_shape *shape);
/* Writes them to host[transforms_rate_bytes] in the form that the device gets: `own`[layers][Hk], the views at the method's own rate, on
 * the host, with the layouts of the rate. */
void transforms_rate_set(const struct cache_shape *shape, const struct method *at_rate, enum codec_side side,
                         const struct transform_view *own, uint8_t *host, uint8_t *device);

/* transform_reader_words counts and transform_readers writes the words of 32 bits that describe a layout's planes to attention, two for
 * each, up to a multiple of 8 planes. The first is the place of its nibble in a page in shared memory. The second has its largest code in
 * each byte, shifted to where codes lie, and is 0 of planes that the layout does not have. */
size_t transform_reader_words(const struct transform_layout *layout);
void transform_readers(const struct transform_layout *layout, enum codec_side side, uint32_t *words);
/* Writes quads[layout->quads]. */
void transform_quads(const struct transform_layout *layout, struct transform_quad *quads);
/* Sets score_planes and score_nibbles of a view of keys, whose layout is there. */
void transform_set_scored(uint32_t head_dim, struct transform_view *view);

#endif
