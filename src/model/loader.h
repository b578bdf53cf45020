/* Declares how the files of a model's loading read tensors and metadata: by name, with every shape checked. Failures name the tensor
 * or key, and are TERSE_E_FORMAT unless it says otherwise. */
#ifndef TERSE_MODEL_LOADER_H
#define TERSE_MODEL_LOADER_H

#include "model/architecture.h"

#define MODEL_MAX_LAYERS 1024
#define MODEL_MAX_WIDTH (1u << 20) /* channels, heads: bounds that keep sizes far from overflow */

struct loader {
    struct terse_model *model;
    struct terse_error *error;
    const struct terse_model_options *options;
    float norm_epsilon, logit_scale;
    uint32_t expert_width, shared_width, dense_width; /* of feed-forward layers; dense: without experts, where others have them */
    uint32_t window_pattern;                          /* struct architecture's */
    float *next_vector, *last_vector;                 /* what is left of model->vectors */
    bool *used;                                       /* by tensor */
};

/* ---- Tensors. Where a presence allows it, one that is missing is left as it is. */

enum terse_status loader_missing(struct loader *l, const char *name);
/* Returns the tensor; NULL when the file has none of the name. */
const struct gguf_tensor *loader_use(struct loader *l, const char *name);
enum terse_status loader_matrix(struct loader *l, const char *name, uint32_t columns, uint32_t rows, enum presence presence,
                                struct matrix *matrix);
/* Loads `count` matrices in one tensor, their rows one after the other; of 0 it is one matrix. TERSE_E_UNSUPPORTED of a type that cannot
 * be read. */
enum terse_status loader_matrices(struct loader *l, const char *name, uint32_t columns, uint32_t rows, uint32_t count,
                                  enum presence presence, struct matrix *matrix);
/* Load vectors [rows][n], or one. They are small and read all the time: always F32. */
enum terse_status loader_vectors(struct loader *l, const char *name, uint32_t n, uint32_t rows, enum presence presence,
                                 const float **vector);
enum terse_status loader_vector(struct loader *l, const char *name, uint32_t n, enum presence presence, const float **vector);
/* Loads NAME.weight and NAME.bias. */
enum terse_status loader_linear(struct loader *l, const char *name, uint32_t columns, uint32_t rows, enum presence weight,
                                enum presence bias, struct matrix *matrix);
/* Loads a norm; `heads` is struct norm's. */
enum terse_status loader_norm(struct loader *l, const char *name, uint32_t n, uint32_t heads, enum presence gain,
                              enum presence bias, struct norm *norm);

/* ---- Metadata of the architecture */

/* Reads one u32; `fallback` when missing. */
enum terse_status loader_u32(struct loader *l, const char *name, uint32_t fallback, uint32_t *value);
/* Reads one u32, 1..most; `fallback` when missing, which 0 makes an error. */
enum terse_status loader_size(struct loader *l, const char *name, uint32_t fallback, uint32_t most, uint32_t *value);
/* Reads a truth value into *value, as 0 or 1; leaves it when missing. */
enum terse_status loader_flag(struct loader *l, const char *name, uint32_t *value);
/* Reads one number, 0..most; `fallback` when missing, which a negative one makes an error. */
enum terse_status loader_number(struct loader *l, const char *name, float fallback, float most, float *value);

#endif
