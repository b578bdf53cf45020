/* Reads a vocabulary and builds the hash table that finds the token of a text. The tokenizer interprets the texts. */
#include "text/vocabulary.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

static uint64_t hash(const char *data, size_t size) {
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t h = size, word;
    for (; size >= sizeof word; data += sizeof word, size -= sizeof word) {
        memcpy(&word, data, sizeof word);
        h = (h ^ word) * odd;
        h ^= h >> 29;
    }
    word = 0;
    memcpy(&word, data, size);
    h = (h ^ word) * odd;
    return h ^ h >> 32;
}

static bool same(struct gguf_string text, const char *data, size_t size) {
    return text.size == size && memcmp(text.data, data, size) == 0;
}

/* Returns the bucket in which the token of data[size] stands in the table or would stand. */
static uint64_t find_bucket(const struct vocabulary *v, const char *data, size_t size) {
    uint64_t bucket = hash(data, size) & v->mask;
    while (v->buckets[bucket] && !same(v->text[v->buckets[bucket] - 1], data, size)) bucket = (bucket + 1) & v->mask;
    return bucket;
}

int32_t vocabulary_find(const struct vocabulary *v, const char *data, size_t size) {
    if (size == 0 || size > v->longest) return -1;
    return (int32_t)v->buckets[find_bucket(v, data, size)] - 1;
}

static enum terse_status fill_table(struct vocabulary *v, struct terse_error *error) {
    for (uint32_t i = 0; i < v->n; i++) {
        struct gguf_string text = v->text[i];
        if (text.size == 0) continue;
        uint64_t bucket = find_bucket(v, text.data, text.size);
        if (v->buckets[bucket])
            return status_fail(error, TERSE_E_FORMAT,
                               "tokens %" PRIu32 " and %" PRIu32 " have the same text: convert the model again",
                               v->buckets[bucket] - 1, i);
        v->buckets[bucket] = i + 1;
        if (text.size > v->longest) v->longest = text.size;
    }
    return TERSE_OK;
}

static enum terse_status load_types(struct vocabulary *v, const struct gguf *gguf, struct terse_error *error) {
    struct gguf_array types;
    bool found;
    enum terse_status status = gguf_get_array(gguf, "tokenizer.ggml.token_type", GGUF_I32, &types, &found, error);
    if (status) return status;
    if (found && types.count != v->n)
        return status_fail(error, TERSE_E_FORMAT,
                           "tokenizer.ggml.token_type has %" PRIu64 " entries for %" PRIu32 " tokens: convert the model again",
                           types.count, v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        int32_t type = TOKEN_NORMAL;
        if (found) memcpy(&type, (const char *)types.data + i * sizeof type, sizeof type);
        v->type[i] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_NORMAL;
    }
    return TERSE_OK;
}

enum terse_status vocabulary_load(struct vocabulary *v, const struct gguf *gguf, struct terse_error *error) {
    struct gguf_array tokens;
    enum terse_status status = gguf_get_array(gguf, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, NULL, error);
    if (status) return status;
    if (tokens.count == 0 || tokens.count > INT32_MAX)
        return status_fail(error, TERSE_E_FORMAT, "tokenizer.ggml.tokens has %" PRIu64 " tokens: convert the model again",
                           tokens.count);
    v->n = (uint32_t)tokens.count;
    uint64_t buckets = 2;
    while (buckets < 2 * tokens.count) buckets *= 2;
    v->mask = buckets - 1;
    v->text = memory_array(v->n, sizeof *v->text);
    v->type = memory_array(v->n, sizeof *v->type);
    v->buckets = memory_zeros(buckets, sizeof *v->buckets);
    if (!v->text || !v->type || !v->buckets)
        return status_no_memory(error, v->n * sizeof *v->text + buckets * sizeof *v->buckets, "the vocabulary");
    gguf_array_strings(&tokens, v->text);
    if ((status = load_types(v, gguf, error))) return status;
    return fill_table(v, error);
}

void vocabulary_destroy(struct vocabulary *v) {
    memory_free(v->text);
    memory_free(v->type);
    memory_free(v->buckets);
    *v = (struct vocabulary){0};
}
