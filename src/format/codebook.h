/* A codebook holds what the codecs of a method have learned about a model. It is a file of its own (a GGUF container,
 * docs/codebook-format.md), is immutable once made, and is shared by any number of sessions and threads.
 *
 * It owns the parameters, half floats as in the file, and keeps for each backend the form that the backend has made of them.
 * Learning is src/train's, tables that kernels read are the backends', and codebook_check's caller brings the fingerprint by which
 * a model is found to be the right one. */
#ifndef TERSE_FORMAT_CODEBOOK_H
#define TERSE_FORMAT_CODEBOOK_H

#include "format/codec.h"

#define CODEBOOK_ARCHITECTURE "terse-codebook" /* general.architecture of the file */

/* A codebook's fingerprint covers all weights as they are stored, or only the tensors that quantization leaves alone
 * (model/fingerprint.h), so that a codebook learned from one file of a model serves the others. */
enum codebook_fingerprint { CODEBOOK_OF_WEIGHTS, CODEBOOK_OF_NORMS, CODEBOOK_FINGERPRINTS };

/* A codebook_info holds everything but the parameters. Strings are cut to fit, and in a codebook what is not printable UTF-8 stands
 * as an escape. */
struct codebook_info {
    char method[64];          /* for which it was learned, as method/method.c names it: "antkv-1" */
    struct coding key, value; /* codec NULL: the side learns nothing */
    bool shared;              /* one set of parameters for all layers and KV heads, else one for each */
    uint32_t layers, kv_heads, head_dim;
    uint64_t fingerprint; /* of the model */
    enum codebook_fingerprint fingerprint_of;
    char model[128];  /* general.name, for messages */
    char corpus[128]; /* what the text was called */
    uint64_t tokens;  /* of the text that were looked at */
    uint64_t seed;
    char weighting[64];       /* how samples were weighted: "none", "gradient^2 per sub-vector" */
    double effective_samples; /* mean over fits of (sum w)^2 / sum w^2; 0: unknown */
    /* A profile says what rates cost, from the most bits to the fewest, and where that was measured. */
    struct terse_rate_cost costs[TERSE_RATE_COSTS];
    size_t n_costs;
    char costs_corpus[128];
    uint64_t costs_positions;
};

/* This is the library's public noun, opaque in terse.h. */
struct terse_codebook;

/* Returns whether the codebook holds transforms: a model's profile, which serves every rate (docs/codebook-format.md). */
bool codebook_is_profile(const struct codebook_info *info);

/* Returns how many sets of parameters a side has: layers * kv_heads, or 1 when shared. */
size_t codebook_sets(const struct codebook_info *info);
/* Returns how many floats one side has: codec_parameters times codebook_sets, 0 when the side learns nothing. */
size_t codebook_floats(const struct codebook_info *info, enum codec_side side);
/* Return the side's coding, whose codec is NULL when it learns nothing, and the shape that its codec sees. */
struct coding codebook_coding(const struct codebook_info *info, enum codec_side side);
struct codec_shape codebook_shape(const struct codebook_info *info, enum codec_side side);

/* Makes a codebook of keys[codebook_floats(KEYS)] and values[...], [layers][kv_heads][parameters]; copies them, rounded to half
 * precision as they lie in the file, so that a codebook just learned and one loaded again are the same. TERSE_E_FORMAT when they are not
 * what codecs take for granted (codec_check_parameters). */
enum terse_status codebook_new(const struct codebook_info *info, const float *keys, const float *values,
                               struct terse_codebook **codebook, struct terse_error *error);

/* Makes a codebook of random numbers, in the form that learning would leave them, for measuring speed. `pairs` of channels are rotated
 * together, as commvq_set_pairing has them. */
enum terse_status codebook_random(const struct codebook_info *info, size_t pairs, bool adjacent, struct terse_codebook **codebook,
                                  struct terse_error *error);

const struct codebook_info *codebook_info(const struct terse_codebook *codebook);

/* Returns TERSE_OK when it serves `method` on the model with these fingerprints and shape; else TERSE_E_ARGUMENT, and one line that says for
 * what it was made and what to do. */
enum terse_status codebook_check(const struct terse_codebook *codebook, const char *method, struct coding key, struct coding value,
                                 const uint64_t fingerprints[CODEBOOK_FINGERPRINTS], uint32_t layers, uint32_t kv_heads,
                                 uint32_t head_dim, struct terse_error *error);

/* A side's parameters of one layer and KV head lie in two parts, apart in memory and in the file: what is learned in the space of
 * normalized rows (2^bits centroids of each sub-vector, say), then how rows are normalized. */
enum codebook_part { CODEBOOK_CENTROIDS, CODEBOOK_NORMALIZATION };
/* Returns how many numbers a part has for one layer and KV head; 0 where the side has no such part. */
size_t codebook_part_floats(const struct codebook_info *info, enum codec_side side, enum codebook_part part);
/* Returns the half floats of the set-th layer and KV head; NULL where the side has no such part. */
const uint16_t *codebook_halves(const struct terse_codebook *codebook, enum codec_side side, enum codebook_part part, size_t set);
/* Writes both parts of a set as floats[codec_parameters]. */
void codebook_parameters(const struct terse_codebook *codebook, enum codec_side side, size_t set, float *floats);
/* Writes the parameters of a set from number `first` on, each to its place in floats[codec_parameters]; the others stay as they are. */
void codebook_parameters_from(const struct terse_codebook *codebook, enum codec_side side, size_t set, size_t first, float *floats);

/* Returns the file of a codebook in memory, as terse_codebook_load_memory takes it, released by memory_free; NULL when memory is refused. */
void *codebook_build(const struct terse_codebook *codebook, size_t *size);
/* Returns a hash of the method, the shape and every parameter, which tells codebooks apart. */
uint64_t codebook_hash(const struct terse_codebook *codebook);

/* A form holds a codebook's parameters as a backend needs them: tables in the order that its kernels read. It is made when the backend first
 * uses the codebook, shared by all that use it, kept with the codebook and freed with it. */
struct codebook_form_ops {
    enum terse_status (*make)(const struct terse_codebook *codebook, void **form, struct terse_error *error);
    void (*free)(void *form);
    uint64_t (*bytes)(const void *form); /* its memory */
};
#define CODEBOOK_MOST_FORMS 4 /* backends that use one codebook */
/* Returns the codebook's form of `ops`, a static object of the backend, made if it is not there yet. Thread-safe: threads that ask for a form
 * that is being made wait for it. A failure leaves the codebook as it was. */
enum terse_status codebook_form(const struct terse_codebook *codebook, const struct codebook_form_ops *ops, const void **form,
                                struct terse_error *error);
/* Returns the form if it has been made, else NULL. */
const void *codebook_form_made(const struct terse_codebook *codebook, const struct codebook_form_ops *ops);

/* Returns the memory of the parameters and of all forms made so far. */
uint64_t codebook_bytes(const struct terse_codebook *codebook);

/* terse.h declares terse_codebook_load, _load_memory, _save, _free and _describe. */

#endif
