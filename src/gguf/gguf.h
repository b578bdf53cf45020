/* Reads the GGUF container from memory: models and codebooks are both GGUF.
 *
 * It reads versions 2 and 3, little-endian, with every metadata type, arrays of arrays included. The whole file is checked when it
 * is opened (counts, string lengths, offsets, alignment, duplicate names, tensor ends), so that whatever the accessors return lies
 * inside the file. Nothing is copied: strings and tensors point into the file. Source: the GGUF specification (of the ggml
 * project). */
#ifndef TERSE_GGUF_GGUF_H
#define TERSE_GGUF_GGUF_H

#include "base/status.h"

enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

/* Tensor types have the numbers that ggml gives them in the file. */
enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2,
    TENSOR_Q4_1 = 3,
    TENSOR_Q5_0 = 6,
    TENSOR_Q5_1 = 7,
    TENSOR_Q8_0 = 8,
    TENSOR_Q2_K = 10,
    TENSOR_Q3_K = 11,
    TENSOR_Q4_K = 12,
    TENSOR_Q5_K = 13,
    TENSOR_Q6_K = 14,
    TENSOR_IQ4_NL = 20,
    TENSOR_IQ4_XS = 23,
    TENSOR_BF16 = 30,
    TENSOR_MXFP4 = 39
};
#define TENSOR_TYPES 40 /* one past the largest above */

/* A tensor's type says how its elements are stored; every row is whole blocks. */
struct tensor_type_info {
    const char *name; /* "Q8_0" */
    uint32_t block;   /* elements per block */
    uint32_t bytes;   /* bytes per block */
};
/* Returns the description of a type; NULL for one that terse cannot compute with. */
const struct tensor_type_info *tensor_type_info(uint32_t type);
/* Returns a type's name for messages, such as "IQ2_XS", also of a type that terse cannot compute with; NULL for a number without a
 * meaning. */
const char *tensor_type_name(uint32_t type);

struct gguf_string {
    const char *data; /* not zero-terminated */
    uint64_t size;
};

struct gguf_tensor {
    struct gguf_string name;
    uint32_t type;    /* enum tensor_type when tensor_type_info knows it */
    uint32_t n_dims;  /* 0 (one element) to 4 */
    uint64_t dims[4]; /* dims[0] varies fastest; 1 past n_dims; none is 0 and their product is below 2^63 */
    const void *data; /* NULL when the type is unknown */
    uint64_t bytes;   /* 0 when the type is unknown */
    uint64_t offset;  /* of the tensor's description in the file, for messages */
};

struct gguf; /* struct terse_gguf owns one, and the mapping of its file */

/* Opens `size` bytes of data, which must be 32-byte aligned (else TERSE_E_ARGUMENT) and outlive the result. `name` stands for the
 * file in messages, those of the getters included. TERSE_E_FORMAT for a damaged file, TERSE_E_UNSUPPORTED for version 1, an unknown
 * version or big-endian data. Takes O(n log n) time for n keys and tensors and memory of a small multiple of what describes them. */
enum terse_status gguf_open(const void *data, size_t size, const char *name, struct gguf **gguf, struct terse_error *error);
void gguf_free(struct gguf *gguf);

/* Completes a file that was split: `gguf` was opened from `path` as its first part (split.no 0 of split.count), and this maps the parts beside
 * it and adds their tensors. It does nothing to a file that was not split. It fails, and leaves `gguf` as it was, where a part is missing, where
 * parts contradict each other or share a tensor's name, where the file is a later part, or where `path` is NULL (the file is in memory). */
enum terse_status gguf_add_parts(struct gguf *gguf, const char *path, struct terse_error *error);

struct gguf_part_info {
    const char *name; /* as gguf_name */
    uint64_t tensors, bytes;
};
uint32_t gguf_part_count(const struct gguf *gguf); /* 1 where nothing was added */
struct gguf_part_info gguf_part_at(const struct gguf *gguf, uint32_t i);

uint64_t gguf_metadata_count(const struct gguf *gguf);
uint64_t gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint64_t i);
/* Returns the tensor of that name; NULL when there is none. */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);

/* Returns the file's name for messages: printable, and of a long path the end. */
const char *gguf_name(const struct gguf *gguf);

/* These functions read metadata by key. The getters convert between number types where the value fits (for u64: between integers).
 * When the key is missing they leave *value unchanged and set *found to false, or, when `found` is NULL, fail with TERSE_E_FORMAT;
 * a value of the wrong type or range (for f32 and f64: not finite) fails with TERSE_E_FORMAT naming key and offset. */
bool gguf_has(const struct gguf *gguf, const char *key);
enum terse_status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *value, bool *found, struct terse_error *error);
enum terse_status gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t *value, bool *found, struct terse_error *error);
enum terse_status gguf_get_f32(const struct gguf *gguf, const char *key, float *value, bool *found, struct terse_error *error);
enum terse_status gguf_get_f64(const struct gguf *gguf, const char *key, double *value, bool *found, struct terse_error *error);
enum terse_status gguf_get_bool(const struct gguf *gguf, const char *key, bool *value, bool *found, struct terse_error *error);
enum terse_status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *value, bool *found,
                                  struct terse_error *error);

/* Return the i-th key, and its value as it lies in the file: the characters of a string, the elements of an array. */
struct gguf_string gguf_key_at(const struct gguf *gguf, uint64_t i);
struct gguf_string gguf_value_at(const struct gguf *gguf, uint64_t i);

/* Checks that the u64 `key` is XXH64 of the whole file, its own 8 bytes taken as zeros; else TERSE_E_FORMAT. */
enum terse_status gguf_check_sum(const struct gguf *gguf, const char *key, struct terse_error *error);

/* A gguf_array is a typed view of an array in the file. */
struct gguf_array {
    enum gguf_type type; /* of the elements */
    uint64_t count;
    const void *data; /* numbers: packed little-endian elements, maybe unaligned; strings: see gguf_array_strings */
};
/* Finds an array of `type`. It fails when the key's value is not such an array. */
enum terse_status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type type, struct gguf_array *array,
                                 bool *found, struct terse_error *error);
/* Writes the `array->count` strings of a GGUF_STRING array. */
void gguf_array_strings(const struct gguf_array *array, struct gguf_string *strings);

#endif
