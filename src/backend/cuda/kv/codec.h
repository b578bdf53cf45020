/* A codec runs on the GPU by its row of kernels here, if the GPU has them. format/codec.h says what a codec is, with its sizes and
 * parameters.
 *
 * A launch covers all pages of a layer or of a step, of all sequences of a batch, so a row holds launches and not functions of a
 * page. The table in codec.c is the only place of the backend that goes by a codec's name: encode.c and attend_decode.c look a
 * side's codec up and launch what its row says. Adding a codec touches its kernels and one row; docs/architecture.md says how. Rows
 * never change and serve any thread. */
#ifndef TERSE_BACKEND_CUDA_KV_CODEC_H
#define TERSE_BACKEND_CUDA_KV_CODEC_H

#include "backend/cuda/kv/attend_launch.h"
#include "backend/cuda/kv/encode_launch.h"
#include "backend/cuda/kv/select.h"
#include "kv/shape.h"
#include "method/method.h"

typedef cudaError_t encode_launch(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
typedef cudaError_t attend_launch(const struct attend_decode *attend, cudaStream_t stream);

/* An attend_form describes the memory that kernels of attention work in, and how a multiprocessor takes them. Codecs whose kernels
 * are alike share one. */
struct attend_form {
    uint32_t resident; /* CTAs that a multiprocessor holds at once */
    uint32_t together; /* so many pages of a row, or fewer, are one part: a row alone then takes longer, and many rows take less */
    bool in_stretches; /* CTAs that read several parts leave states of stretches in memory */
    bool halves_apart; /* exact rows and the window are read by a CTA of their own, beside those that read pages */
    bool appends;      /* a launch can append the step's rows itself */
    /* Returns the words that the queries of a row and KV head take, prepared for a rope run. NULL: they are prepared in the
     * kernel. */
    size_t (*run_words)(const struct head_view *heads);
};

struct cuda_codec {
    const struct codec *format;

    /* Every row has these. `encodes` returns whether `encode` writes pages of these heads and `decode` reads them whole. Rows that
     * name the same launch have both sides done by one. */
    bool (*encodes)(const struct head_view *heads);
    encode_launch *encode, *decode;
    /* Launches a decoding step over pages whose keys and values are both of codecs that name this launch. */
    attend_launch *attend;
    const struct attend_form *form;

    /* Only some codecs need these; NULL in the rows of the others. */

    /* Returns whether `attend` and `attend_mixed` read pages of these heads and codes. NULL: they read those of all heads that
     * attend_decode_supports names. */
    bool (*attends)(const struct head_view *heads, enum codec_side side, struct centroid_shape code);
    /* Launches a decoding step where the other side is of another codec that names the same launch here. */
    attend_launch *attend_mixed;
    /* Launches the scores of a prompt's tokens by their keys, where the codec ranks its own (index_components). */
    score_launch *score;
    /* Sends what the side learned to the device: *learned[layers][Hk], in the codec's own form, one piece of device memory, which
     * device_free(NULL, learned, 0) gives back. Kernels find it in `learned` of their launch. *learned is NULL on failure. */
    enum terse_status (*learned_new)(const struct cache_shape *shape, const struct method *method, enum codec_side side,
                                     void **learned, struct terse_error *error);
};

/* Returns the scores of the index that the method has; NULL: there are none on the GPU. */
score_launch *cuda_scores_of(const struct method *method);

/* Returns the GPU's row of a codec; NULL: it has none. */
const struct cuda_codec *cuda_codec_of(enum codec_id id);

#endif
