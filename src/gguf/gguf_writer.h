/* Writes GGUF files: codebooks, and for tests and benchmarks models, vocabularies and, from the same small pieces, damaged files.
 *
 *     struct gguf_writer writer = {0};
 *     gguf_writer_string(&writer, "general.architecture", "llama");
 *     gguf_writer_tensor(&writer, "token_embd.weight", TENSOR_F16, 2, (uint64_t[]){width, vocabulary}, data);
 *     void *file = gguf_writer_build(&writer, &size);       in memory (memory_free), or
 *     gguf_writer_save(&writer, path, NULL, NULL, &error);  to a file
 *     gguf_writer_free(&writer);
 *
 * Nothing is checked, so that what the reader must refuse can be written. The calls between cannot fail: when memory runs out, build
 * returns NULL and save fails with TERSE_E_MEMORY.
 */
#ifndef TERSE_GGUF_GGUF_WRITER_H
#define TERSE_GGUF_GGUF_WRITER_H

#include "gguf/gguf.h"

/* A gguf_bytes collects growing bytes and little-endian numbers, also for damaged files that are written from nothing. It begins as
 * zeros. */
struct gguf_bytes {
    uint8_t *data; /* memory_free */
    size_t size, capacity;
    bool failed; /* no memory */
};
void gguf_bytes_put(struct gguf_bytes *bytes, const void *data, size_t size);
void gguf_bytes_u32(struct gguf_bytes *bytes, uint32_t value);
void gguf_bytes_u64(struct gguf_bytes *bytes, uint64_t value);
/* Writes a length and the characters, as everywhere in GGUF. */
void gguf_bytes_string(struct gguf_bytes *bytes, const char *data, size_t size);

struct gguf_writer_tensor; /* what the writer remembers of a tensor */

struct gguf_writer {
    uint32_t version;   /* 0: 3 */
    uint32_t alignment; /* 0: 32, and no key says so */
    struct gguf_bytes keys, descriptions;
    uint64_t n_keys, n_tensors, data_bytes;
    size_t checksum_at; /* in keys: of the checksum's value; 0: there is none */
    struct gguf_writer_tensor *tensors;
    bool failed;
};

/* These calls add keys. `value` is written as it stands in the file. */
void gguf_writer_value(struct gguf_writer *writer, const char *key, uint32_t type, const void *value, size_t bytes);
void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value);
void gguf_writer_u64(struct gguf_writer *writer, const char *key, uint64_t value);
void gguf_writer_f32(struct gguf_writer *writer, const char *key, float value);
void gguf_writer_f64(struct gguf_writer *writer, const char *key, double value);
void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value);
void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value);
/* Adds an array of numbers or bools, packed. */
void gguf_writer_array(struct gguf_writer *writer, const char *key, enum gguf_type type, uint64_t count, const void *values);
void gguf_writer_strings(struct gguf_writer *writer, const char *key, uint64_t count, const char *const *strings);
/* Adds a u64 that build and save compute: XXH64 of the whole file, its own 8 bytes taken as zeros. Tensors without `data` count as
 * zeros. */
void gguf_writer_checksum(struct gguf_writer *writer, const char *key);
/* Sets the alignment and writes general.alignment. It must be called before the first tensor is added. */
void gguf_writer_align(struct gguf_writer *writer, uint32_t alignment);

/* Adds a tensor of dims[n_dims], dims[0] varying fastest. `data` are not copied and must last until build or save; where they are
 * NULL, save's `fill` gives them, or they are zeros. A type that terse does not know gets no data. */
void gguf_writer_tensor(struct gguf_writer *writer, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                        const void *data);

/* Returns the whole file in memory aligned to MEMORY_ALIGN, released by memory_free; NULL when memory is refused. */
void *gguf_writer_build(const struct gguf_writer *writer, size_t *size);

/* A source gives the data of tensors without `data`: fill writes bytes[size] of tensor `tensor` (counted from 0 in order of
 * writing), whole blocks from byte `offset` on. It is called in order. */
struct gguf_writer_source {
    void (*fill)(void *user, uint64_t tensor, uint64_t offset, void *bytes, size_t size);
    void *user;
};
/* Writes the file in pieces of some MiB; it is in its place when it is whole, and on failure what was there stays (base/new_file.h). `source`
 * and `progress` may be NULL. */
enum terse_status gguf_writer_save(const struct gguf_writer *writer, const char *path, const struct gguf_writer_source *source,
                                   const struct terse_progress *progress, struct terse_error *error);
void gguf_writer_free(struct gguf_writer *writer);

#endif
