/* Codebook: what the codecs of a method have learned about a model. A file of its own (a GGUF container, docs/codebook-format.md);
 * immutable once made, shared by any number of sessions and threads.
 *
 * Owns the parameters' file and the codecs' `learned` objects; leaves learning to src/learn and the question whether a model is the
 * right one to codebook_check's caller, who brings the model's fingerprint.
 */
#ifndef TERSE_FORMAT_CODEBOOK_H
#define TERSE_FORMAT_CODEBOOK_H

#include "backend/cpu/codec/codec.h"

#define CODEBOOK_ARCHITECTURE "terse-codebook" /* general.architecture of the file */

/* Everything but the parameters. Strings are cut to fit, and in a codebook what is not printable UTF-8 stands as an escape. */
struct codebook_info {
    char method[64];          /* for which it was learned, as method/method.c names it: "antkv-1" */
    struct coding key, value; /* codec NULL: the side learns nothing */
    bool shared;              /* one set of parameters for all layers and KV heads, else one for each */
    uint32_t layers, kv_heads, head_dim;
    uint64_t fingerprint; /* of the model */
    char model[128];      /* general.name, for messages */
    char corpus[128];     /* what the text was called */
    uint64_t tokens;      /* of the text that were looked at */
    uint64_t seed;
    char weighting[64];       /* how samples were weighted: "none", "gradient^2 per sub-vector" */
    double effective_samples; /* mean over fits of (sum w)^2 / sum w^2; 0: unknown */
};

/* The library's public noun, opaque there. */
struct terse_codebook;

/* Floats of one side: parameters(shape, side), times layers * kv_heads unless shared. 0 when the side learns nothing. */
size_t codebook_floats(const struct codebook_info *info, enum codec_side side);

/* Makes a codebook of keys[codebook_floats(KEYS)] and values[...], [layers][kv_heads][parameters]; copies them, rounded to half
 * precision as they lie in the file, so that a codebook just learned and one loaded again are the same. */
enum terse_status codebook_new(const struct codebook_info *info, const float *keys, const float *values,
                               struct terse_codebook **codebook, struct terse_error *error);

/* One of random numbers, as learning would leave them but for what they say: for measuring speed. `pairs` of channels are rotated
 * together, as commvq_set_pairing has them. */
enum terse_status codebook_random(const struct codebook_info *info, size_t pairs, bool adjacent, struct terse_codebook **codebook,
                                  struct terse_error *error);

const struct codebook_info *codebook_info(const struct terse_codebook *codebook);

/* TERSE_OK when it serves `method` on the model with this fingerprint and shape; else TERSE_E_ARGUMENT, and one line that says for
 * what it was made and what to do. */
enum terse_status codebook_check(const struct terse_codebook *codebook, const char *method, struct coding key, struct coding value,
                                 uint64_t fingerprint, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                 struct terse_error *error);

/* For codec_shape.learned; NULL where the side learns nothing or `codebook` is NULL. */
const void *codebook_learned(const struct terse_codebook *codebook, enum codec_side side, uint32_t layer, uint32_t head);

/* Memory of the learned objects and tables. */
uint64_t codebook_bytes(const struct terse_codebook *codebook);

/* terse_codebook_load, _load_memory, _save, _free and _describe are in terse.h. */

#endif
