/* Declares calls that inspect GGUF files. It is a part of libterse; the conventions of terse.h hold. */
#ifndef TERSE_GGUF_H
#define TERSE_GGUF_H

#include "terse.h"

#ifdef __cplusplus
extern "C" {
#endif

struct terse_gguf;
struct terse_gguf_tensor {
    const char *name;
    const char *type; /* "Q8_0", or "type 99" when unknown */
    bool supported;   /* terse has kernels for this type */
    uint32_t n_dims;
    uint64_t dims[4];
    uint64_t bytes;
};
struct terse_gguf_part {
    const char *name; /* the file's, printable */
    uint64_t tensors, bytes;
};
/* Opens a GGUF file. The first part of a file that was split (NAME-00001-of-00003.gguf) is opened with all parts that lie beside it, as one file.
 * A later part, or a first part beside which one is missing or is another file's, is opened alone: terse_model_load says why. */
TERSE_API enum terse_status terse_gguf_open(const char *path, struct terse_gguf **gguf, struct terse_error *error);
/* Does the same for a file in memory, which must be as terse_model_load_memory takes it. */
TERSE_API enum terse_status terse_gguf_open_memory(const void *data, size_t size, const char *name, struct terse_gguf **gguf,
                                                   struct terse_error *error);
TERSE_API void terse_gguf_free(struct terse_gguf *gguf);
TERSE_API uint32_t terse_gguf_part_count(const struct terse_gguf *gguf); /* 1 where the file was not split */
TERSE_API void terse_gguf_part(const struct terse_gguf *gguf, uint32_t i, struct terse_gguf_part *part);
TERSE_API uint32_t terse_gguf_version(const struct terse_gguf *gguf);
TERSE_API uint64_t terse_gguf_metadata_count(const struct terse_gguf *gguf);
TERSE_API uint64_t terse_gguf_tensor_count(const struct terse_gguf *gguf);
/* Reads the i-th key and its type ("u32", "string", "array of string", ...). */
TERSE_API void terse_gguf_metadata(const struct terse_gguf *gguf, uint64_t i, const char **key, const char **type);
/* Writes the i-th value as one line of text, cut with "..." to fit buffer[capacity]. */
TERSE_API void terse_gguf_metadata_text(const struct terse_gguf *gguf, uint64_t i, char *buffer, size_t capacity);
TERSE_API void terse_gguf_tensor(const struct terse_gguf *gguf, uint64_t i, struct terse_gguf_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
