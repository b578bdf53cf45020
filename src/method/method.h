/* Declares the table of methods, the only place that knows their names. A method is a key codec, a value codec, a policy and
 * parameters. */
#ifndef TERSE_METHOD_METHOD_H
#define TERSE_METHOD_METHOD_H

#include "format/codebook.h"
#include "format/index.h"
#include "method/policy.h"

#define METHOD_PROFILE "terse" /* the codebook of codec transform, which serves every rate */

struct codebook_layouts; /* format/codebook_layouts.h */

struct method {
    char name[96];     /* as the user would write it: "streaming-512", "q8_0/q4_0" */
    char codebook[32]; /* the name that a codebook for it bears: "antkv-1", whatever the anchors; "": it needs none */
    struct coding key, value;
    const struct index *index; /* finds the tokens that a step reads; NULL: it reads all */
    bool beside_index;         /* of layers that slide, where the cache's other layers have an index, whose steps these share */
    const struct policy *policy;
    struct policy_parameters parameters;
    double least_rate;                    /* pages may be lowered to so many bits per value (method_rates); 0: they stay */
    bool latents;                         /* keys end with the values (method_for_latents): the value codec has nothing to encode */
    uint32_t slices;                      /* of codec transform, that keys are cut into where they end with values; else 0 */
    uint32_t tail_tokens;                 /* least number of newest tokens kept exact in the recent window */
    uint32_t power;                       /* of gradient norms by which samples weigh when its codebook is learned; 0: all alike */
    bool mean;                            /* learning subtracts a mean row from rows before it normalizes them */
    const struct terse_codebook *learned; /* of the options, or of the weights; NULL when it needs none */
    bool
        of_weights; /* `learned` is the profile that the model's weights imply: caches wait until they can fit transforms to their sequences */
    const struct codebook_layouts *layouts; /* of the sides of codec transform, set by method_check_codebook; else NULL */
};

/* Resolves options against the table, for heads of head_dim channels. method_check_codebook checks that the right codebook is
 * there. An unknown name is TERSE_E_ARGUMENT and the message lists the known ones. */
enum terse_status method_resolve(const struct terse_cache_options *options, uint32_t head_dim, struct method *method,
                                 struct terse_error *error);

/* Makes a resolved method one for a model whose keys are `rotated` channels and the values, a latent of `rank` (model/model.h, struct
 * latent_shape). TERSE_E_UNSUPPORTED where it stores keys and values by codecs that differ, or by one that reads no such keys, or
 * leaves tokens out. */
enum terse_status method_for_latents(struct method *method, uint32_t rotated, uint32_t rank, struct terse_error *error);

/* Returns into how many slices codec transform cuts such keys, each as wide as the rotated one, which is the first; 0: it cannot. */
uint32_t method_latent_slices(uint32_t rotated, uint32_t rank);
/* Return how many transforms, and rows of their width, stand for one row of a KV head: more than one where it is cut into slices. */
static inline uint32_t method_slices(const struct method *method) { return method->slices ? method->slices : 1; }
static inline uint32_t method_slice_width(const struct method *method, uint32_t head_dim) {
    return head_dim / method_slices(method);
}

/* Checks that the method's codecs can serve heads of this shape; TERSE_E_UNSUPPORTED says why not. */
enum terse_status method_check(const struct method *method, uint32_t head_dim, uint32_t group, struct terse_error *error);

/* Returns whether the method needs a profile and the options have none: then that of the model's weights serves, and `of_weights`
 * is true. */
bool method_needs_weights(const struct method *method);

/* Writes the rates, in bits per value and falling, at which caches of the method hold pages: its own, and where pages may be lowered
 * those that they are lowered to, one after another. Returns their number; 1: pages stay as they are. */
#define METHOD_RATES TERSE_RATES
#define METHOD_RATE_LEAST 0.25 /* bits per value */
size_t method_rates(const struct method *method, double bits[METHOD_RATES]);
/* Returns the method with pages of another of its rates, by layouts of that rate, and no others. */
struct method method_at_rate(const struct method *method, double bits, const struct codebook_layouts *layouts);
/* Checks that pages of the method may be lowered as the options ask. */
enum terse_status method_check_least_rate(const struct method *method, struct terse_error *error);

/* Transforms are fitted to so many tokens behind the exact ones: where a prompt brings FIT_TOKENS_MOST, to these, else to FIT_TOKENS. Until
 * a sequence has them, they stay in its window. */
#define FIT_TOKENS 2048
#define FIT_TOKENS_MOST 4032

/* Returns whether caches fit the method's transforms to the first tokens of their sequences (kv/plan.h says when). */
static inline bool method_fits_transforms(const struct method *method) {
    return method->key.codec->id == CODEC_TRANSFORM || method->value.codec->id == CODEC_TRANSFORM;
}

/* Checks that the method has the codebook that it needs for this model, and shares the bits of codec transform over the model. Where
 * keys are cut into slices, a codebook knows each as a KV head. */
enum terse_status method_check_codebook(struct method *method, const uint64_t fingerprints[CODEBOOK_FINGERPRINTS], uint32_t layers,
                                        uint32_t kv_heads, uint32_t head_dim, struct terse_error *error);

/* Returns the shape that the method's codec of one side of a layer and KV head sees, `learned` left out. This function alone
 * decides how many bits they have, which may differ between layers, heads and sides. */
struct codec_shape method_shape(const struct method *method, enum codec_side side, uint32_t layer, uint32_t head, uint32_t head_dim,
                                uint32_t group);

/* Returns how many of so many tokens of a prompt a step reads. */
static inline size_t method_tokens_read(const struct method *method, size_t tokens) {
    const struct policy_parameters *p = &method->parameters;
    const double wanted = p->read_count ? p->read_count : (double)tokens * p->read_percent / 100;
    return wanted < (double)tokens ? (size_t)wanted : tokens;
}

/* Returns which of n tokens of a layer and KV head leaves, 0 < result < n, where a step replaces exact rows (struct plan): the tokens
 * are the n - 1 exact ones, in order of age, and as the last the one that leaves the window now. logits[n] are those of each token's
 * own queries to token 0, the mean over the group. */
static inline size_t method_victim(const struct method *method, uint32_t layer, const float *logits, size_t n) {
    return method->policy->pick_victim(&method->parameters, layer, logits, n);
}

/* Returns the method for layers whose queries see the newest `window` keys alone: it has the method's codecs, and nothing of its policy. */
struct method method_of_window(const struct method *method, uint32_t window);

/* Writes all that decides what the bytes of a cache mean and which tokens it holds, but for the codebook, as one line of items with ", "
 * between them, the first the name: "q8_0, keys q8_0, values q8_0, ..., tail 128". */
#define METHOD_IDENTITY 512
#define METHOD_OWN_TRANSFORMS "transforms of the sequence" /* its last part, where caches fit what they need */
void method_identity(const struct method *method, char text[METHOD_IDENTITY]);

#endif
