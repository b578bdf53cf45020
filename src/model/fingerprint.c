/* Reads a little of every tensor, so that the time depends on the number of tensors and not on their size. */
#include "model/fingerprint.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "model/architecture.h"

#include <string.h>

enum { SAMPLES = 5, SAMPLE_BYTES = 4096 };

static void put_u64(XXH64_state_t *hash, uint64_t value) { XXH64_update(hash, &value, sizeof value); }

/* Hashes a string with its length, so that no part of what follows can be mistaken for a part of it. */
static void put_string(XXH64_state_t *hash, struct gguf_string string) {
    put_u64(hash, string.size);
    XXH64_update(hash, string.data, string.size);
}

/* Returns whether the key is "general.architecture" or "ARCHITECTURE.*", which change what the same weights compute. */
static bool is_of_architecture(const struct terse_model *model, struct gguf_string key) {
    static const char general[] = "general.architecture";
    const char *name = model->architecture->name;
    size_t length = strlen(name);
    if (key.size == sizeof general - 1 && memcmp(key.data, general, key.size) == 0) return true;
    return key.size > length && memcmp(key.data, name, length) == 0 && key.data[length] == '.';
}

static uint64_t hash_key(const struct gguf *gguf, uint64_t i) {
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    put_string(&hash, gguf_key_at(gguf, i));
    put_string(&hash, gguf_value_at(gguf, i));
    return XXH64_digest(&hash);
}

/* Returns how many samples a tensor has. The whole of a small one is one sample; a larger one has several at equal distances, its first and
 * last bytes among them. */
static uint64_t samples_of(const struct gguf_tensor *tensor) {
    return !tensor->data ? 0 : tensor->bytes <= SAMPLES * SAMPLE_BYTES ? 1 : SAMPLES;
}

static const char *sample(const struct gguf_tensor *tensor, uint64_t i, size_t *size) {
    bool whole = tensor->bytes <= SAMPLES * SAMPLE_BYTES;
    *size = whole ? (size_t)tensor->bytes : SAMPLE_BYTES;
    return (const char *)tensor->data + (whole ? 0 : (tensor->bytes - SAMPLE_BYTES) * i / (SAMPLES - 1));
}

static void fetch_tensor(const struct gguf_tensor *tensor) {
    for (uint64_t i = 0; i < samples_of(tensor); i++) {
        size_t size;
        const char *data = sample(tensor, i, &size);
        mapped_file_fetch(data, size);
    }
}

/* Hashes a tensor; without `weights` only its name and shape. */
static uint64_t hash_tensor(const struct gguf_tensor *tensor, bool weights) {
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    put_string(&hash, tensor->name);
    if (weights) put_u64(&hash, tensor->type);
    for (int i = 0; i < 4; i++) put_u64(&hash, tensor->dims[i]);
    for (uint64_t i = 0; i < samples_of(tensor) && weights; i++) {
        size_t size;
        const char *data = sample(tensor, i, &size);
        XXH64_update(&hash, data, size);
    }
    return XXH64_digest(&hash);
}

static bool is_vector(const struct gguf_tensor *tensor) {
    return tensor->dims[1] <= 1 && tensor->dims[2] <= 1 && tensor->dims[3] <= 1;
}

/* Sums hashes, so that the order of tensors and keys does not matter. */
static uint64_t fingerprint(const struct terse_model *model, bool vectors_only) {
    const struct gguf *gguf = model->gguf;
    uint64_t sum = 0, tensors = gguf_tensor_count(gguf);
    /* Samples lie far apart: a disk delivers them much sooner when all are asked for at once than one after another, each with its
     * surroundings. */
    for (uint64_t i = 0; i < tensors; i++)
        if (!vectors_only || is_vector(gguf_tensor_at(gguf, i))) fetch_tensor(gguf_tensor_at(gguf, i));
    for (uint64_t i = 0; i < gguf_metadata_count(gguf); i++)
        if (is_of_architecture(model, gguf_key_at(gguf, i))) sum += hash_key(gguf, i);
    for (uint64_t i = 0; i < tensors; i++)
        sum += hash_tensor(gguf_tensor_at(gguf, i), !vectors_only || is_vector(gguf_tensor_at(gguf, i)));
    return sum;
}

uint64_t model_fingerprint(const struct terse_model *model) { return fingerprint(model, false); }
uint64_t model_norms_fingerprint(const struct terse_model *model) { return fingerprint(model, true); }

static void put_rope(XXH64_state_t *hash, const struct rope *rope) {
    XXH64_update(hash, rope->frequency, rope->n_rot / 2 * sizeof *rope->frequency);
    XXH64_update(hash, &rope->magnitude, sizeof rope->magnitude);
}

uint64_t model_rotation_fingerprint(const struct terse_model *model) {
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    put_rope(&hash, &model->rope);
    if (model->rope_context) put_rope(&hash, &model->long_rope);
    return XXH64_digest(&hash);
}
