/* Implements terse_gguf, a GGUF file opened for inspection. It owns the mapping and zero-terminated copies of the names; values are
 * written as text straight from the file. */
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/text.h"
#include "gguf/gguf_private.h"
#include "terse_gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_NAME = 24 }; /* "type 4294967295" */

struct terse_gguf {
    struct mapped_file file; /* empty when the caller owns the memory */
    struct gguf *gguf;
    char *names; /* all keys, then all tensors' names */
    const char **keys, **tensors;
    char (*unnamed_types)[TYPE_NAME]; /* by tensor; used where the type has no name */
};

static char *copy_name(char *to, const struct gguf_string *name) {
    memcpy(to, name->data, name->size);
    to[name->size] = '\0';
    return to + name->size + 1;
}

static enum terse_status copy_names(struct terse_gguf *gguf, struct terse_error *error) {
    const struct gguf *file = gguf->gguf;
    size_t bytes = 0;
    for (uint64_t i = 0; i < file->n_entries; i++) bytes += file->entries[i].key.size + 1;
    for (uint64_t i = 0; i < file->n_tensors; i++) bytes += file->tensors[i].name.size + 1;
    gguf->names = memory_array(bytes, 1);
    gguf->keys = memory_array(file->n_entries, sizeof *gguf->keys);
    gguf->tensors = memory_array(file->n_tensors, sizeof *gguf->tensors);
    gguf->unnamed_types = memory_array(file->n_tensors, sizeof *gguf->unnamed_types);
    if (!gguf->names || !gguf->keys || !gguf->tensors || !gguf->unnamed_types)
        return status_no_memory(error, bytes, "the names in the file");

    char *at = gguf->names;
    for (uint64_t i = 0; i < file->n_entries; i++) {
        gguf->keys[i] = at;
        at = copy_name(at, &file->entries[i].key);
    }
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        gguf->tensors[i] = at;
        at = copy_name(at, &file->tensors[i].name);
        snprintf(gguf->unnamed_types[i], TYPE_NAME, "type %" PRIu32, file->tensors[i].type);
    }
    return TERSE_OK;
}

/* Opens what `file` has mapped, or, when it is empty, the caller's memory; takes the mapping over, also on failure. */
static enum terse_status open_data(struct mapped_file *file, const void *data, size_t size, const char *name,
                                   struct terse_gguf **result, struct terse_error *error) {
    enum terse_status status;
    struct terse_gguf *gguf = memory_zeros(1, sizeof *gguf);
    if (!gguf) {
        mapped_file_close(file);
        return status_no_memory(error, sizeof *gguf, name);
    }
    gguf->file = *file;
    if ((status = gguf_open(data, size, name, &gguf->gguf, error)) != TERSE_OK) goto done;
    if (file->data) (void)gguf_add_parts(gguf->gguf, name, NULL); /* where it cannot be, this part is shown alone */
    if ((status = copy_names(gguf, error)) != TERSE_OK) goto done;
    *result = gguf;
    gguf = NULL;
done:
    terse_gguf_free(gguf);
    return status;
}

enum terse_status terse_gguf_open(const char *path, struct terse_gguf **gguf, struct terse_error *error) {
    struct mapped_file file;
    *gguf = NULL;
    enum terse_status status = mapped_file_open(path, &file, error);
    if (status != TERSE_OK) return status;
    return open_data(&file, file.data, file.size, path, gguf, error);
}

enum terse_status terse_gguf_open_memory(const void *data, size_t size, const char *name, struct terse_gguf **gguf,
                                         struct terse_error *error) {
    struct mapped_file none = {0};
    *gguf = NULL;
    return open_data(&none, data, size, name, gguf, error);
}

void terse_gguf_free(struct terse_gguf *gguf) {
    if (!gguf) return;
    gguf_free(gguf->gguf);
    mapped_file_close(&gguf->file);
    memory_free(gguf->names);
    memory_free((void *)gguf->keys);
    memory_free((void *)gguf->tensors);
    memory_free(gguf->unnamed_types);
    memory_free(gguf);
}

uint32_t terse_gguf_part_count(const struct terse_gguf *gguf) { return gguf_part_count(gguf->gguf); }

void terse_gguf_part(const struct terse_gguf *gguf, uint32_t i, struct terse_gguf_part *part) {
    struct gguf_part_info info = gguf_part_at(gguf->gguf, i);
    *part = (struct terse_gguf_part){info.name, info.tensors, info.bytes};
}

uint32_t terse_gguf_version(const struct terse_gguf *gguf) { return gguf->gguf->version; }
uint64_t terse_gguf_metadata_count(const struct terse_gguf *gguf) { return gguf->gguf->n_entries; }
uint64_t terse_gguf_tensor_count(const struct terse_gguf *gguf) { return gguf->gguf->n_tensors; }

void terse_gguf_tensor(const struct terse_gguf *gguf, uint64_t i, struct terse_gguf_tensor *tensor) {
    const struct gguf_tensor *source = &gguf->gguf->tensors[i];
    const char *type = tensor_type_name(source->type);
    *tensor = (struct terse_gguf_tensor){
        .name = gguf->tensors[i],
        .type = type ? type : gguf->unnamed_types[i],
        .supported = tensor_type_info(source->type) != NULL,
        .n_dims = source->n_dims,
        .bytes = source->bytes,
    };
    memcpy(tensor->dims, source->dims, sizeof tensor->dims);
}

/* ---- Metadata as text ---------------------------------------------------------------------------------------------------- */

void terse_gguf_metadata(const struct terse_gguf *gguf, uint64_t i, const char **key, const char **type) {
    static const char *const arrays[] = {
        [GGUF_U8] = "array of u8",       [GGUF_I8] = "array of i8",     [GGUF_U16] = "array of u16",
        [GGUF_I16] = "array of i16",     [GGUF_U32] = "array of u32",   [GGUF_I32] = "array of i32",
        [GGUF_F32] = "array of f32",     [GGUF_BOOL] = "array of bool", [GGUF_STRING] = "array of string",
        [GGUF_ARRAY] = "array of array", [GGUF_U64] = "array of u64",   [GGUF_I64] = "array of i64",
        [GGUF_F64] = "array of f64",
    };
    const struct gguf_entry *entry = &gguf->gguf->entries[i];
    *key = gguf->keys[i];
    *type = entry->type == GGUF_ARRAY ? arrays[entry->element] : gguf_type_name(entry->type);
}

/* Writes the fewest digits that read back as the same number, so that 1e-5 is not 9.99999975e-06. */
static void float_text(char text[40], double value, bool single) {
    for (int digits = single ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, 40, "%.*g", digits, value);
        if (single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value) return;
    }
}

/* Writes the number or bool at `at`, of `type`. */
static void number_text(enum gguf_type type, const uint8_t *at, struct text_line *line) {
    char text[40];
    float single;
    double number;
    uint64_t bits = 0;
    memcpy(&bits, at, gguf_type_bytes(type));
    switch (type) {
    case GGUF_BOOL: snprintf(text, sizeof text, "%s", bits ? "true" : "false"); break;
    case GGUF_F32:
        memcpy(&single, at, sizeof single);
        float_text(text, (double)single, true);
        break;
    case GGUF_F64:
        memcpy(&number, at, sizeof number);
        float_text(text, number, false);
        break;
    case GGUF_I8: snprintf(text, sizeof text, "%d", (int8_t)bits); break;
    case GGUF_I16: snprintf(text, sizeof text, "%d", (int16_t)bits); break;
    case GGUF_I32: snprintf(text, sizeof text, "%" PRId32, (int32_t)bits); break;
    case GGUF_I64: snprintf(text, sizeof text, "%" PRId64, (int64_t)bits); break;
    default: snprintf(text, sizeof text, "%" PRIu64, bits); break;
    }
    text_line_unit(line, text, strlen(text));
}

/* Writes `count` elements in brackets; returns what follows them, or anything once the line is full. */
static const uint8_t *array_text(enum gguf_type type, uint64_t count, const uint8_t *at, struct text_line *line) {
    size_t bytes = gguf_type_bytes(type);
    text_line_unit(line, "[", 1);
    for (uint64_t i = 0; i < count && !line->cut; i++) {
        if (i) text_line_unit(line, ", ", 2);
        if (type == GGUF_STRING) {
            struct gguf_string string;
            at = gguf_read_string(at, &string);
            text_line_string(line, string.data, string.size, true);
        } else if (type == GGUF_ARRAY) {
            uint32_t element;
            uint64_t elements;
            memcpy(&element, at, sizeof element);
            memcpy(&elements, at + sizeof element, sizeof elements);
            at = array_text((enum gguf_type)element, elements, at + sizeof element + sizeof elements, line);
        } else {
            number_text(type, at, line);
            at += bytes;
        }
    }
    text_line_unit(line, "]", 1);
    return at;
}

void terse_gguf_metadata_text(const struct terse_gguf *gguf, uint64_t i, char *buffer, size_t capacity) {
    const struct gguf_entry *entry = &gguf->gguf->entries[i];
    struct text_line line = text_line_begin(buffer, capacity);
    if (entry->type == GGUF_STRING) {
        text_line_string(&line, (const char *)entry->value, entry->count, false);
    } else if (entry->type == GGUF_ARRAY) {
        char count[32];
        snprintf(count, sizeof count, "%" PRIu64 ": ", entry->count);
        text_line_unit(&line, count, strlen(count));
        array_text(entry->element, entry->count, entry->value, &line);
    } else {
        number_text(entry->type, entry->value, &line);
    }
    text_line_end(&line);
}
