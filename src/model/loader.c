/* Reads tensors and metadata of a model's file. */
#include "model/loader.h"

#include "base/half.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static enum terse_status shape_mismatch(struct loader *l, const struct gguf_tensor *tensor, const char *name, uint64_t columns,
                                        uint64_t rows) {
    return status_fail_at(l->error, TERSE_E_FORMAT, tensor->offset,
                          "tensor %s is %" PRIu64 " x %" PRIu64 " where the metadata asks for %" PRIu64 " x %" PRIu64
                          ": the file is damaged or wrongly converted",
                          name, tensor->dims[0], tensor->dims[1], columns, rows);
}

enum terse_status loader_missing(struct loader *l, const char *name) {
    return status_fail(l->error, TERSE_E_FORMAT, "tensor %s is missing: the file is incomplete; download or convert it again",
                       name);
}

const struct gguf_tensor *loader_use(struct loader *l, const char *name) {
    const struct gguf_tensor *tensor = gguf_find_tensor(l->model->gguf, name);
    if (tensor) l->used[tensor - gguf_tensor_at(l->model->gguf, 0)] = true;
    return tensor;
}

enum terse_status loader_matrices(struct loader *l, const char *name, uint32_t columns, uint32_t rows, uint32_t count,
                                  enum presence presence, struct matrix *matrix) {
    const struct gguf_tensor *tensor = presence == PRESENCE_NONE ? NULL : loader_use(l, name);
    if (!tensor) return presence == PRESENCE_REQUIRED ? loader_missing(l, name) : TERSE_OK;
    const struct tensor_type_info *info = tensor_type_info(tensor->type);
    if (!info)
        return status_fail_at(l->error, TERSE_E_UNSUPPORTED, tensor->offset,
                              "tensor %s has type %u, which terse cannot read; quantize the model to Q8_0, Q4_0 or Q4_K_M", name,
                              tensor->type);
    if (tensor->n_dims != (count ? 3 : 2) || tensor->dims[0] != columns || tensor->dims[1] != rows)
        return shape_mismatch(l, tensor, name, columns, rows);
    if (count && tensor->dims[2] != count)
        return status_fail_at(l->error, TERSE_E_FORMAT, tensor->offset,
                              "tensor %s has %" PRIu64 " experts where the metadata has %u: the file is damaged", name,
                              tensor->dims[2], count);
    *matrix = (struct matrix){.data = tensor->data,
                              .type = (enum tensor_type)tensor->type,
                              .rows = rows * (count ? count : 1),
                              .columns = columns,
                              .row_bytes = (size_t)(columns / info->block) * info->bytes};
    return TERSE_OK;
}

enum terse_status loader_matrix(struct loader *l, const char *name, uint32_t columns, uint32_t rows, enum presence presence,
                                struct matrix *matrix) {
    return loader_matrices(l, name, columns, rows, 0, presence, matrix);
}

/* Reads x[n] of a tensor's data, which is F32, F16 or BF16. */
static void read_vector(const struct gguf_tensor *tensor, float *x, uint32_t n) {
    const uint16_t *halves = tensor->data;
    if (tensor->type == TENSOR_F32) memcpy(x, tensor->data, n * sizeof *x);
    for (uint32_t i = 0; tensor->type == TENSOR_F16 && i < n; i++) x[i] = half_to_float(halves[i]);
    for (uint32_t i = 0; tensor->type == TENSOR_BF16 && i < n; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

enum terse_status loader_vectors(struct loader *l, const char *name, uint32_t n, uint32_t rows, enum presence presence,
                                 const float **vector) {
    const struct gguf_tensor *tensor = presence == PRESENCE_NONE ? NULL : loader_use(l, name);
    if (!tensor) return presence == PRESENCE_REQUIRED ? loader_missing(l, name) : TERSE_OK;
    if (tensor->type != TENSOR_F32 && tensor->type != TENSOR_F16 && tensor->type != TENSOR_BF16)
        return status_fail_at(l->error, TERSE_E_UNSUPPORTED, tensor->offset, "tensor %s is not F32, F16 or BF16 as vectors must be",
                              name);
    if (tensor->n_dims > 2 || tensor->dims[0] != n || tensor->dims[1] != rows) return shape_mismatch(l, tensor, name, n, rows);
    assert((size_t)(l->last_vector - l->next_vector) >= (size_t)n * rows);
    read_vector(tensor, l->next_vector, n * rows);
    *vector = l->next_vector;
    l->next_vector += (size_t)n * rows;
    return TERSE_OK;
}

enum terse_status loader_vector(struct loader *l, const char *name, uint32_t n, enum presence presence, const float **vector) {
    return loader_vectors(l, name, n, 1, presence, vector);
}

enum terse_status loader_linear(struct loader *l, const char *name, uint32_t columns, uint32_t rows, enum presence weight,
                                enum presence bias, struct matrix *matrix) {
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    enum terse_status status = loader_matrix(l, full, columns, rows, weight, matrix);
    if (status || !matrix->data) return status;
    snprintf(full, sizeof full, "%s.bias", name);
    return loader_vector(l, full, rows, bias, &matrix->bias);
}

enum terse_status loader_norm(struct loader *l, const char *name, uint32_t n, uint32_t heads, enum presence gain,
                              enum presence bias, struct norm *norm) {
    char full[80];
    norm->kind = l->model->architecture->norm;
    norm->epsilon = l->norm_epsilon;
    norm->heads = heads;
    snprintf(full, sizeof full, "%s.weight", name);
    enum terse_status status = loader_vectors(l, full, n, heads ? heads : 1, gain, &norm->gain);
    if (status || !norm->gain) return status;
    snprintf(full, sizeof full, "%s.bias", name);
    return loader_vector(l, full, n, bias, &norm->bias);
}

/* A metadata_key is an architecture's name, a point, and the name within it. */
struct metadata_key {
    char text[128];
};

static struct metadata_key key_of(const struct loader *l, const char *name) {
    struct metadata_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", l->model->architecture->name, name);
    return key;
}

enum terse_status loader_u32(struct loader *l, const char *name, uint32_t fallback, uint32_t *value) {
    const struct metadata_key key = key_of(l, name);
    bool found;
    *value = fallback;
    return gguf_get_u32(l->model->gguf, key.text, value, &found, l->error);
}

enum terse_status loader_flag(struct loader *l, const char *name, uint32_t *value) {
    const struct metadata_key key = key_of(l, name);
    bool found, flag = *value;
    enum terse_status status = gguf_get_bool(l->model->gguf, key.text, &flag, &found, l->error);
    *value = flag;
    return status;
}

enum terse_status loader_size(struct loader *l, const char *name, uint32_t fallback, uint32_t most, uint32_t *value) {
    const struct metadata_key key = key_of(l, name);
    bool found;
    *value = fallback;
    enum terse_status status = gguf_get_u32(l->model->gguf, key.text, value, &found, l->error);
    if (status) return status;
    if (!found && !fallback)
        return status_fail(l->error, TERSE_E_FORMAT, "metadata %s is missing: convert the model again", key.text);
    if (*value < 1 || *value > most)
        return status_fail(l->error, TERSE_E_FORMAT, "metadata %s is %u, outside 1 to %u: the file is damaged", key.text, *value,
                           most);
    return TERSE_OK;
}

enum terse_status loader_number(struct loader *l, const char *name, float fallback, float most, float *value) {
    const struct metadata_key key = key_of(l, name);
    bool found;
    *value = fallback;
    enum terse_status status = gguf_get_f32(l->model->gguf, key.text, value, &found, l->error);
    if (!status && !(*value >= 0 && *value <= most))
        return status_fail(l->error, TERSE_E_FORMAT, "metadata %s is missing or out of range: convert the model again", key.text);
    return status;
}
