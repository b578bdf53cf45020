/* Writes GGUF: keys and descriptions grow in memory, data pass through. */
#include "gguf/gguf_writer.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/new_file.h"
#include "gguf/gguf_private.h"

#include <string.h>

struct gguf_writer_tensor {
    const void *data;
    uint64_t bytes;  /* without padding */
    uint64_t offset; /* in the data section */
    uint32_t unit;   /* bytes per block: pieces are whole blocks */
};

/* ---- Bytes -------------------------------------------------------------------------------------------------------------- */

void gguf_bytes_put(struct gguf_bytes *bytes, const void *data, size_t size) {
    if (bytes->failed) return;
    if (size > bytes->capacity - bytes->size) {
        bool sane = size <= PTRDIFF_MAX / 4 && bytes->capacity <= PTRDIFF_MAX / 4; /* far from overflow */
        size_t capacity = sane ? memory_round_up(bytes->size + size + bytes->capacity, 256) : 0;
        uint8_t *larger = sane ? memory_array(capacity, 1) : NULL;
        if (!larger) {
            bytes->failed = true;
            return;
        }
        if (bytes->size) memcpy(larger, bytes->data, bytes->size);
        memory_free(bytes->data);
        bytes->data = larger;
        bytes->capacity = capacity;
    }
    if (size) memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void gguf_bytes_u32(struct gguf_bytes *bytes, uint32_t value) { gguf_bytes_put(bytes, &value, sizeof value); }
void gguf_bytes_u64(struct gguf_bytes *bytes, uint64_t value) { gguf_bytes_put(bytes, &value, sizeof value); }

void gguf_bytes_string(struct gguf_bytes *bytes, const char *data, size_t size) {
    gguf_bytes_u64(bytes, size);
    gguf_bytes_put(bytes, data, size);
}

/* ---- Keys --------------------------------------------------------------------------------------------------------------- */

void gguf_writer_value(struct gguf_writer *writer, const char *key, uint32_t type, const void *value, size_t bytes) {
    gguf_bytes_string(&writer->keys, key, strlen(key));
    gguf_bytes_u32(&writer->keys, type);
    gguf_bytes_put(&writer->keys, value, bytes);
    writer->n_keys++;
}

void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value) {
    gguf_writer_value(writer, key, GGUF_U32, &value, sizeof value);
}

void gguf_writer_u64(struct gguf_writer *writer, const char *key, uint64_t value) {
    gguf_writer_value(writer, key, GGUF_U64, &value, sizeof value);
}

void gguf_writer_f32(struct gguf_writer *writer, const char *key, float value) {
    gguf_writer_value(writer, key, GGUF_F32, &value, sizeof value);
}

void gguf_writer_f64(struct gguf_writer *writer, const char *key, double value) {
    gguf_writer_value(writer, key, GGUF_F64, &value, sizeof value);
}

void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value) {
    uint8_t byte = value;
    gguf_writer_value(writer, key, GGUF_BOOL, &byte, sizeof byte);
}

void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value) {
    gguf_writer_value(writer, key, GGUF_STRING, NULL, 0);
    gguf_bytes_string(&writer->keys, value, strlen(value));
}

static void array_head(struct gguf_writer *writer, const char *key, enum gguf_type type, uint64_t count) {
    gguf_writer_value(writer, key, GGUF_ARRAY, NULL, 0);
    gguf_bytes_u32(&writer->keys, type);
    gguf_bytes_u64(&writer->keys, count);
}

void gguf_writer_array(struct gguf_writer *writer, const char *key, enum gguf_type type, uint64_t count, const void *values) {
    size_t bytes;
    array_head(writer, key, type, count);
    if (__builtin_mul_overflow(count, gguf_type_bytes(type), &bytes))
        writer->failed = true;
    else
        gguf_bytes_put(&writer->keys, values, bytes);
}

void gguf_writer_strings(struct gguf_writer *writer, const char *key, uint64_t count, const char *const *strings) {
    array_head(writer, key, GGUF_STRING, count);
    for (uint64_t i = 0; i < count; i++) gguf_bytes_string(&writer->keys, strings[i], strlen(strings[i]));
}

void gguf_writer_checksum(struct gguf_writer *writer, const char *key) {
    gguf_writer_u64(writer, key, 0);
    writer->checksum_at = writer->keys.size - sizeof(uint64_t);
}

void gguf_writer_align(struct gguf_writer *writer, uint32_t alignment) {
    writer->alignment = alignment;
    gguf_writer_u32(writer, "general.alignment", alignment);
}

/* ---- Tensors ------------------------------------------------------------------------------------------------------------ */

static uint64_t alignment_of(const struct gguf_writer *writer) { return writer->alignment ? writer->alignment : 32; }

/* Grows the table for one more tensor: it is full at every power of 2. */
static bool grow_tensors(struct gguf_writer *writer) {
    uint64_t n = writer->n_tensors;
    if (n & (n - 1)) return true;
    struct gguf_writer_tensor *larger = memory_array(n ? 2 * n : 1, sizeof *larger);
    if (!larger) return false;
    if (n) memcpy(larger, writer->tensors, n * sizeof *larger);
    memory_free(writer->tensors);
    writer->tensors = larger;
    return true;
}

void gguf_writer_tensor(struct gguf_writer *writer, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                        const void *data) {
    const struct tensor_type_info *info = tensor_type_info(type);
    struct gguf_writer_tensor tensor = {.data = data, .offset = writer->data_bytes, .unit = info ? info->bytes : 1};
    uint64_t elements = 1;
    for (uint32_t i = 0; i < n_dims; i++) elements *= dims[i];
    if (info) tensor.bytes = elements / info->block * info->bytes;

    gguf_bytes_string(&writer->descriptions, name, strlen(name));
    gguf_bytes_u32(&writer->descriptions, n_dims);
    gguf_bytes_put(&writer->descriptions, dims, n_dims * sizeof *dims);
    gguf_bytes_u32(&writer->descriptions, type);
    gguf_bytes_u64(&writer->descriptions, tensor.offset);
    writer->data_bytes += memory_round_up(tensor.bytes ? tensor.bytes : 1, alignment_of(writer));

    writer->failed = writer->failed || !grow_tensors(writer);
    if (!writer->failed) writer->tensors[writer->n_tensors++] = tensor;
}

/* Returns how many zeros stand between the end of tensor i and the beginning of the next, or the file's end. */
static size_t padding_after(const struct gguf_writer *writer, uint64_t i) {
    const struct gguf_writer_tensor *tensor = &writer->tensors[i];
    uint64_t end = i + 1 < writer->n_tensors ? writer->tensors[i + 1].offset : writer->data_bytes;
    return (size_t)(end - tensor->offset - tensor->bytes);
}

/* ---- The file ----------------------------------------------------------------------------------------------------------- */

static const uint8_t zeros[64];

static void put_zeros(XXH64_state_t *hash, uint64_t n) {
    for (; n > sizeof zeros; n -= sizeof zeros) XXH64_update(hash, zeros, sizeof zeros);
    XXH64_update(hash, zeros, (size_t)n);
}

/* Returns the checksum of the whole file; `head` has zeros where the checksum will be. */
static uint64_t checksum_of(const struct gguf_writer *writer, const struct gguf_bytes *head) {
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    XXH64_update(&hash, head->data, head->size);
    for (uint64_t i = 0; i < writer->n_tensors; i++) {
        const struct gguf_writer_tensor *tensor = &writer->tensors[i];
        if (tensor->data)
            XXH64_update(&hash, tensor->data, (size_t)tensor->bytes);
        else
            put_zeros(&hash, tensor->bytes);
        put_zeros(&hash, padding_after(writer, i));
    }
    return XXH64_digest(&hash);
}

/* Builds everything before the data section, padded to where that begins. */
static struct gguf_bytes head_of(const struct gguf_writer *writer) {
    struct gguf_bytes head = {0};
    gguf_bytes_put(&head, "GGUF", 4);
    gguf_bytes_u32(&head, writer->version ? writer->version : 3);
    gguf_bytes_u64(&head, writer->n_tensors);
    gguf_bytes_u64(&head, writer->n_keys);
    size_t keys_at = head.size;
    gguf_bytes_put(&head, writer->keys.data, writer->keys.size);
    gguf_bytes_put(&head, writer->descriptions.data, writer->descriptions.size);
    size_t end = memory_round_up(head.size, alignment_of(writer));
    while (head.size < end && !head.failed)
        gguf_bytes_put(&head, zeros, end - head.size < sizeof zeros ? end - head.size : sizeof zeros);
    head.failed |= writer->failed || writer->keys.failed || writer->descriptions.failed;
    if (writer->checksum_at && !head.failed) {
        uint64_t sum = checksum_of(writer, &head);
        memcpy(head.data + keys_at + writer->checksum_at, &sum, sizeof sum);
    }
    return head;
}

void *gguf_writer_build(const struct gguf_writer *writer, size_t *size) {
    struct gguf_bytes head = head_of(writer);
    uint8_t *file = head.failed ? NULL : memory_zeros(head.size + writer->data_bytes, 1);
    if (file) {
        memcpy(file, head.data, head.size);
        for (uint64_t i = 0; i < writer->n_tensors; i++) {
            const struct gguf_writer_tensor *tensor = &writer->tensors[i];
            if (tensor->data && tensor->bytes) memcpy(file + head.size + tensor->offset, tensor->data, tensor->bytes);
        }
    }
    *size = file ? head.size + writer->data_bytes : 0;
    memory_free(head.data);
    return file;
}

/* Writes one tensor and its padding; `piece` holds `piece_bytes`. Returns TERSE_E_INTERRUPTED, or TERSE_OK with an errno or 0 in
 * *failed. */
static enum terse_status write_tensor(const struct gguf_writer *writer, uint64_t i, struct new_file *file,
                                      const struct gguf_writer_source *source, uint8_t *piece, size_t piece_bytes,
                                      const struct terse_progress *progress, int *failed) {
    const struct gguf_writer_tensor *tensor = &writer->tensors[i];
    size_t whole = piece_bytes / tensor->unit * tensor->unit;
    for (uint64_t at = 0; at < tensor->bytes; at += whole) {
        size_t n = tensor->bytes - at < whole ? (size_t)(tensor->bytes - at) : whole;
        const uint8_t *from = piece;
        if (progress && progress->report && !progress->report(progress->user, "writing", tensor->offset + at, writer->data_bytes))
            return TERSE_E_INTERRUPTED;
        if (tensor->data)
            from = (const uint8_t *)tensor->data + at;
        else if (source)
            source->fill(source->user, i, at, piece, n);
        else
            memset(piece, 0, n);
        if ((*failed = new_file_write(file, from, n))) return TERSE_OK;
    }
    size_t padding = padding_after(writer, i);
    memset(piece, 0, padding);
    *failed = new_file_write(file, piece, padding);
    return TERSE_OK;
}

enum terse_status gguf_writer_save(const struct gguf_writer *writer, const char *path, const struct gguf_writer_source *source,
                                   const struct terse_progress *progress, struct terse_error *error) {
    size_t piece_bytes = (size_t)4 << 20;
    if (alignment_of(writer) > piece_bytes) piece_bytes = alignment_of(writer); /* padding is written from the piece */
    struct new_file file;
    struct gguf_bytes head = head_of(writer);
    uint8_t *piece = memory_array(piece_bytes, 1);
    enum terse_status status =
        head.failed || !piece ? status_no_memory(error, piece_bytes, "writing the file") : new_file_open(&file, path, error);
    if (status) goto done;
    int failed = new_file_write(&file, head.data, head.size);
    for (uint64_t i = 0; i < writer->n_tensors && !failed && !status; i++)
        status = write_tensor(writer, i, &file, source, piece, piece_bytes, progress, &failed);
    if (status)
        status_fail(error, status, "%s: not written: interrupted", path);
    else
        status = failed ? new_file_refuse(path, failed, error) : new_file_publish(&file, error);
    if (status)
        new_file_drop(&file);
    else if (progress && progress->report)
        progress->report(progress->user, "writing", writer->data_bytes, writer->data_bytes);
done:
    memory_free(piece);
    memory_free(head.data);
    return status;
}

void gguf_writer_free(struct gguf_writer *writer) {
    memory_free(writer->keys.data);
    memory_free(writer->descriptions.data);
    memory_free(writer->tensors);
    *writer = (struct gguf_writer){0};
}
