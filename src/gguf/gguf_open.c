/* Reads and checks a GGUF file once, from its first byte to the end of its last tensor.
 *
 * Nothing in the file is believed before it is compared with what is left of the file: a count, length or offset is used only
 * after it is known to fit, tables grow with what has really been read, and nested arrays have a bounded depth. A file that passes
 * here needs no further check by its readers (gguf.c, gguf_public.c).
 *
 * The file: magic "GGUF", u32 version, u64 tensors, u64 keys, the keys, the tensors' descriptions, padding, the tensors' data.
 */
#include "base/memory.h"
#include "base/text.h"
#include "gguf/gguf_private.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "terse reads the file's little-endian numbers as they are");

enum {
    DATA_ALIGN = 32,        /* of the memory given to us */
    DEFAULT_ALIGNMENT = 32, /* of tensors, when the file has no general.alignment */
    SMALLEST_ALIGNMENT = 8, /* the specification's; keeps every number of a tensor aligned to its size */
    LONGEST_KEY = 65535,    /* the specification's */
    LONGEST_TENSOR_NAME = 64,
    DEEPEST_ARRAY = 8,              /* arrays within arrays */
    SMALLEST_ENTRY = 8 + 1 + 4 + 1, /* bytes in the file: a key of one letter and one byte of value */
    SMALLEST_TENSOR = 8 + 1 + 4 + 4 + 8
};

/* A reader is a place in the file and says what is being read there. Every function that can fail leaves its status here and
 * returns false. */
struct reader {
    struct gguf *gguf;
    uint64_t at;
    const char *what;               /* "key", "tensor": the table being read; NULL before */
    uint64_t number;                /* in that table */
    const struct gguf_string *name; /* NULL until it is read */
    enum terse_status status;
    struct terse_error *error;
};

static bool fail(struct reader *reader, enum terse_status status, uint64_t offset, const char *advice, const char *format,
                 va_list arguments) {
    char problem[160], place[120] = "";
    vsnprintf(problem, sizeof problem, format, arguments);
    if (reader->what && reader->name) {
        char name[80];
        struct text_line line = text_line_begin(name, sizeof name);
        text_line_string(&line, reader->name->data, reader->name->size, false);
        text_line_end(&line);
        snprintf(place, sizeof place, "%s '%s': ", reader->what, name);
    } else if (reader->what) {
        snprintf(place, sizeof place, "%s %" PRIu64 ": ", reader->what, reader->number);
    }
    reader->status = status_fail_at(reader->error, status, offset, "%s: %s%s (byte %" PRIu64 "): %s", reader->gguf->name, place,
                                    problem, offset, advice);
    return false;
}

/* Fails because the file is not what it claims to be. */
__attribute__((format(printf, 3, 4))) static bool damaged(struct reader *reader, uint64_t offset, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail(reader, TERSE_E_FORMAT, offset, "the file is damaged or incomplete, download or make it again", format, arguments);
    va_end(arguments);
    return false;
}

__attribute__((format(printf, 4, 5))) static bool unsupported(struct reader *reader, uint64_t offset, const char *advice,
                                                              const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail(reader, TERSE_E_UNSUPPORTED, offset, advice, format, arguments);
    va_end(arguments);
    return false;
}

static bool no_memory(struct reader *reader, uint64_t bytes, const char *what) {
    reader->status = status_no_memory(reader->error, bytes, what);
    return false;
}

static uint64_t left(const struct reader *reader) { return reader->gguf->size - reader->at; }

static uint64_t offset_of(const struct reader *reader, const void *place) {
    return (uint64_t)((const uint8_t *)place - reader->gguf->data);
}

/* Moves over `bytes` of the file and returns where they begin; NULL when the file is shorter. */
static const uint8_t *take(struct reader *reader, uint64_t bytes, const char *what) {
    if (bytes > left(reader)) {
        damaged(reader, reader->at, "%s needs %" PRIu64 " bytes, but the file ends after %" PRIu64, what, bytes, left(reader));
        return NULL;
    }
    reader->at += bytes;
    return reader->gguf->data + reader->at - bytes;
}

static bool take_u32(struct reader *reader, const char *what, uint32_t *value) {
    const uint8_t *start = take(reader, sizeof *value, what);
    if (start) memcpy(value, start, sizeof *value);
    return start != NULL;
}

static bool take_u64(struct reader *reader, const char *what, uint64_t *value) {
    const uint8_t *start = take(reader, sizeof *value, what);
    if (start) memcpy(value, start, sizeof *value);
    return start != NULL;
}

static bool take_string(struct reader *reader, const char *what, struct gguf_string *string) {
    if (!take_u64(reader, what, &string->size)) return false;
    string->data = (const char *)take(reader, string->size, what);
    return string->data != NULL;
}

/* Reads a key or a tensor's name, which must be fit for messages, look-ups and C strings. */
static bool take_name(struct reader *reader, uint64_t longest, struct gguf_string *name) {
    uint64_t offset = reader->at;
    if (!take_string(reader, "its name", name)) return false;
    if (name->size == 0) return damaged(reader, offset, "its name is empty");
    if (name->size > longest)
        return damaged(reader, offset, "its name is %" PRIu64 " bytes long, more than the %" PRIu64 " allowed", name->size,
                       longest);
    if (!text_is_printable(name->data, name->size)) return damaged(reader, offset, "its name is not printable UTF-8");
    reader->name = name;
    return true;
}

/* ---- Keys --------------------------------------------------------------------------------------------------------------- */

static bool take_type(struct reader *reader, const char *what, uint32_t *type) {
    if (!take_u32(reader, what, type)) return false;
    if (!gguf_type_name(*type))
        return damaged(reader, reader->at - sizeof *type, "%s is %" PRIu32 ", which is unknown", what, *type);
    return true;
}

static bool take_numbers(struct reader *reader, uint32_t type, uint64_t count) {
    size_t bytes = gguf_type_bytes(type);
    if (count > left(reader) / bytes)
        return damaged(reader, reader->at, "%" PRIu64 " values of type %s do not fit the %" PRIu64 " bytes left of the file", count,
                       gguf_type_name(type), left(reader));
    const uint8_t *start = take(reader, count * bytes, "its value");
    for (uint64_t i = 0; type == GGUF_BOOL && i < count; i++)
        if (start[i] > 1) return damaged(reader, offset_of(reader, start + i), "a bool is %u, neither 0 nor 1", start[i]);
    return true;
}

/* Reads `count` values of a type: the elements of an array inside `depth` arrays. */
static bool take_values(struct reader *reader, uint32_t type, uint64_t count, unsigned depth) {
    if (gguf_type_bytes(type)) return take_numbers(reader, type, count);
    for (uint64_t i = 0; i < count; i++) {
        if (type == GGUF_STRING) {
            struct gguf_string string;
            if (!take_string(reader, "a string", &string)) return false;
            continue;
        }
        uint32_t element;
        uint64_t elements;
        if (depth >= DEEPEST_ARRAY) return damaged(reader, reader->at, "its arrays are nested more than %d deep", DEEPEST_ARRAY);
        if (!take_type(reader, "an array's type", &element) || !take_u64(reader, "an array's length", &elements) ||
            !take_values(reader, element, elements, depth + 1))
            return false;
    }
    return true;
}

static bool take_entry(struct reader *reader, struct gguf_entry *entry) {
    uint32_t type;
    *entry = (struct gguf_entry){.count = 1};
    if (!take_name(reader, LONGEST_KEY, &entry->key) || !take_type(reader, "its type", &type)) return false;
    entry->type = (enum gguf_type)type;
    if (type == GGUF_STRING) {
        struct gguf_string string;
        if (!take_string(reader, "its value", &string)) return false;
        entry->count = string.size;
        entry->value = (const uint8_t *)string.data;
        entry->bytes = string.size;
        return true;
    }
    if (type == GGUF_ARRAY) {
        if (!take_type(reader, "its array's type", &type) || !take_u64(reader, "its array's length", &entry->count)) return false;
        entry->element = (enum gguf_type)type;
    }
    entry->value = reader->gguf->data + reader->at;
    if (!take_values(reader, type, entry->count, 1)) return false;
    entry->bytes = reader->at - offset_of(reader, entry->value);
    return true;
}

/* ---- Tensors ------------------------------------------------------------------------------------------------------------ */

/* Reads a tensor's description. Its `data` stay NULL until all descriptions are read, because the data begin after them. */
static bool take_tensor(struct reader *reader, struct gguf_tensor *tensor, uint64_t *data_offset) {
    uint64_t elements = 1;
    *tensor = (struct gguf_tensor){.offset = reader->at, .dims = {1, 1, 1, 1}};
    if (!take_name(reader, LONGEST_TENSOR_NAME, &tensor->name) || !take_u32(reader, "its number of dimensions", &tensor->n_dims))
        return false;
    if (tensor->n_dims > 4)
        return damaged(reader, reader->at - 4, "it has %" PRIu32 " dimensions, more than the 4 allowed", tensor->n_dims);
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        if (!take_u64(reader, "a dimension", &tensor->dims[i])) return false;
        if (tensor->dims[i] == 0) return damaged(reader, reader->at - 8, "dimension %" PRIu32 " is 0", i);
        if (__builtin_mul_overflow(elements, tensor->dims[i], &elements) || elements > INT64_MAX)
            return damaged(reader, reader->at - 8, "its dimensions multiply to 2^63 elements or more");
    }
    if (!take_u32(reader, "its type", &tensor->type)) return false;
    const struct tensor_type_info *info = tensor_type_info(tensor->type);
    if (info) {
        if (tensor->dims[0] % info->block)
            return damaged(reader, tensor->offset, "its rows of %" PRIu64 " elements are not whole %s blocks of %" PRIu32,
                           tensor->dims[0], info->name, info->block);
        if (__builtin_mul_overflow(elements / info->block, info->bytes, &tensor->bytes))
            return damaged(reader, tensor->offset, "its %" PRIu64 " elements take 2^64 bytes or more", elements);
    }
    return take_u64(reader, "its data offset", data_offset);
}

/* Finds a tensor's data. `data_begin` is where the data section begins, aligned; it lies past the file's end when the file has no
 * such section. */
static bool place_tensor(struct reader *reader, struct gguf_tensor *tensor, uint64_t data_begin, uint64_t alignment,
                         uint64_t data_offset) {
    const struct gguf *gguf = reader->gguf;
    uint64_t section = gguf->size > data_begin ? gguf->size - data_begin : 0;
    if (data_offset % alignment)
        return damaged(reader, tensor->offset, "its data offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
                       data_offset, alignment);
    if (data_offset >= section || tensor->bytes > section - data_offset)
        return damaged(reader, tensor->offset,
                       "its %" PRIu64 " bytes of data at offset %" PRIu64 " of %" PRIu64 " end past the file's end", tensor->bytes,
                       data_offset, section);
    if (tensor_type_info(tensor->type)) tensor->data = gguf->data + data_begin + data_offset;
    return true;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------------- */

/* Grows the table to hold item n of at most `limit`. It doubles as it fills, so that a file with a false count cannot make it large. */
static bool grow(struct reader *reader, void **table, uint64_t n, uint64_t *capacity, uint64_t limit, size_t size) {
    if (n < *capacity) return true;
    uint64_t wanted = *capacity ? *capacity * 2 : 64;
    if (wanted > limit) wanted = limit;
    void *larger = memory_array(wanted, size);
    if (!larger) return no_memory(reader, wanted * size, "the file's table of contents");
    if (n) memcpy(larger, *table, n * size);
    memory_free(*table);
    *table = larger;
    *capacity = wanted;
    return true;
}

static int compare_indexed(const void *a, const void *b) {
    return gguf_string_compare(*(const struct gguf_string *const *)a, *(const struct gguf_string *const *)b);
}

/* Sorts pointers to the names at the head of the items, and refuses a name that occurs twice. */
static bool build_index(struct reader *reader, const void *items, uint64_t n, size_t size, const struct gguf_string ***index) {
    const struct gguf_string **names = memory_array(n, sizeof *names);
    if (!names) return no_memory(reader, n * sizeof *names, "the index of the file's names");
    *index = names;
    for (uint64_t i = 0; i < n; i++) names[i] = (const void *)((const char *)items + i * size);
    qsort(names, n, sizeof *names, compare_indexed);
    for (uint64_t i = 1; i < n; i++) {
        if (gguf_string_compare(names[i - 1], names[i]) != 0) continue;
        reader->name = names[i - 1]->data > names[i]->data ? names[i - 1] : names[i];
        return damaged(reader, offset_of(reader, reader->name->data), "it occurs twice");
    }
    return true;
}

static int compare_data(const void *a, const void *b) {
    const struct gguf_tensor *s = *(const struct gguf_tensor *const *)a, *t = *(const struct gguf_tensor *const *)b;
    uintptr_t s_data = (uintptr_t)s->data, t_data = (uintptr_t)t->data;
    if (s_data != t_data) return s_data < t_data ? -1 : 1;
    return s->offset < t->offset ? -1 : s->offset > t->offset;
}

/* Checks that no two tensors of known size share bytes. */
static bool check_overlap(struct reader *reader) {
    const struct gguf *gguf = reader->gguf;
    uint64_t n = 0;
    bool good = true;
    const struct gguf_tensor **order = memory_array(gguf->n_tensors, sizeof *order);
    if (!order) return no_memory(reader, gguf->n_tensors * sizeof *order, "the order of the file's tensors");
    for (uint64_t i = 0; i < gguf->n_tensors; i++)
        if (gguf->tensors[i].data) order[n++] = &gguf->tensors[i];
    qsort(order, n, sizeof *order, compare_data);
    for (uint64_t i = 1; i < n && good; i++) {
        const struct gguf_tensor *before = order[i - 1], *tensor = order[i];
        if (offset_of(reader, before->data) + before->bytes <= offset_of(reader, tensor->data)) continue;
        reader->name = &tensor->name;
        good = damaged(reader, tensor->offset, "its data overlap those of '%.*s'", (int)before->name.size, before->name.data);
    }
    memory_free(order);
    return good;
}

/* ---- The file ----------------------------------------------------------------------------------------------------------- */

static bool take_header(struct reader *reader, uint64_t *n_tensors, uint64_t *n_entries) {
    uint32_t version;
    if (reader->gguf->size == 0) return damaged(reader, 0, "it is empty");
    if (reader->gguf->size < 4 || memcmp(reader->gguf->data, "GGUF", 4) != 0) {
        reader->status = status_fail_at(reader->error, TERSE_E_FORMAT, 0,
                                        "%s: not a GGUF file (it does not begin with \"GGUF\"): give a model in GGUF format",
                                        reader->gguf->name);
        return false;
    }
    if (!take(reader, 4, "the magic number") || !take_u32(reader, "the version", &version)) return false;
    if (version && (version & 0xffff) == 0)
        return unsupported(reader, 4, "terse reads little-endian files, convert the model again without the big-endian option",
                           "a big-endian file of version %" PRIu32, __builtin_bswap32(version));
    if (version == 1)
        return unsupported(reader, 4, "convert the model again with a present-day tool", "GGUF version 1 is no longer read");
    if (version != 2 && version != 3)
        return unsupported(reader, 4, "convert the model to one of these, or use a newer terse",
                           "GGUF version %" PRIu32 "; terse reads versions 2 and 3", version);
    reader->gguf->version = version;
    if (!take_u64(reader, "the number of tensors", n_tensors) || !take_u64(reader, "the number of keys", n_entries)) return false;
    if (*n_tensors > left(reader) / SMALLEST_TENSOR)
        return damaged(reader, 8, "%" PRIu64 " tensors do not fit the file", *n_tensors);
    if (*n_entries > left(reader) / SMALLEST_ENTRY) return damaged(reader, 16, "%" PRIu64 " keys do not fit the file", *n_entries);
    return true;
}

static bool take_entries(struct reader *reader, uint64_t n_entries) {
    struct gguf *gguf = reader->gguf;
    uint64_t capacity = 0;
    void *entries = NULL;
    reader->what = "key";
    for (; gguf->n_entries < n_entries; gguf->n_entries++) {
        reader->number = gguf->n_entries;
        reader->name = NULL;
        if (!grow(reader, &entries, gguf->n_entries, &capacity, n_entries, sizeof *gguf->entries)) return false;
        gguf->entries = entries;
        if (!take_entry(reader, &gguf->entries[gguf->n_entries])) return false;
    }
    return build_index(reader, gguf->entries, n_entries, sizeof *gguf->entries, &gguf->entry_index);
}

/* Reads the alignment, and leaves *alignment as it is when the file names none. */
static bool find_alignment(struct reader *reader, uint64_t *alignment) {
    static const char key[] = "general.alignment";
    uint32_t value = (uint32_t)*alignment;
    bool found;
    reader->status = gguf_get_u32(reader->gguf, key, &value, &found, reader->error);
    if (reader->status != TERSE_OK) return false;
    if (value < SMALLEST_ALIGNMENT || (value & (value - 1))) {
        const struct gguf_entry *entry = gguf_find_entry(reader->gguf, key);
        reader->name = &entry->key;
        return damaged(reader, offset_of(reader, entry->value), "it is %" PRIu32 ", not a power of 2 of at least %d", value,
                       SMALLEST_ALIGNMENT);
    }
    *alignment = value;
    return true;
}

static bool take_tensors(struct reader *reader, uint64_t n_tensors, uint64_t alignment) {
    struct gguf *gguf = reader->gguf;
    uint64_t capacity = 0, offset_capacity = 0;
    void *tensors = NULL, *offsets = NULL;
    bool good = false;
    reader->what = "tensor";
    for (; gguf->n_tensors < n_tensors; gguf->n_tensors++) {
        reader->number = gguf->n_tensors;
        reader->name = NULL;
        if (!grow(reader, &tensors, gguf->n_tensors, &capacity, n_tensors, sizeof *gguf->tensors)) goto done;
        gguf->tensors = tensors;
        if (!grow(reader, &offsets, gguf->n_tensors, &offset_capacity, n_tensors, sizeof(uint64_t))) goto done;
        if (!take_tensor(reader, &gguf->tensors[gguf->n_tensors], (uint64_t *)offsets + gguf->n_tensors)) goto done;
    }
    uint64_t data_begin = (reader->at + alignment - 1) / alignment * alignment;
    for (uint64_t i = 0; i < n_tensors; i++) {
        reader->name = &gguf->tensors[i].name;
        if (!place_tensor(reader, &gguf->tensors[i], data_begin, alignment, ((uint64_t *)offsets)[i])) goto done;
    }
    good = build_index(reader, gguf->tensors, n_tensors, sizeof *gguf->tensors, &gguf->tensor_index) && check_overlap(reader);
done:
    memory_free(offsets);
    return good;
}

enum terse_status gguf_open(const void *data, size_t size, const char *name, struct gguf **result, struct terse_error *error) {
    uint64_t n_tensors = 0, n_entries = 0, alignment = DEFAULT_ALIGNMENT;
    *result = NULL;
    struct gguf *gguf = memory_zeros(1, sizeof *gguf);
    if (!gguf) return status_no_memory(error, sizeof *gguf, name);
    text_file_name(gguf->name, sizeof gguf->name, name);
    gguf->data = data;
    gguf->size = size;
    if ((uintptr_t)data % DATA_ALIGN) {
        gguf_free_one(gguf);
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%.200s: the data in memory are not aligned to %d bytes: copy them to memory that is", name, DATA_ALIGN);
    }

    struct reader reader = {.gguf = gguf, .error = error};
    if (take_header(&reader, &n_tensors, &n_entries) && take_entries(&reader, n_entries) && find_alignment(&reader, &alignment) &&
        take_tensors(&reader, n_tensors, alignment))
        *result = gguf;
    else
        gguf_free_one(gguf);
    return reader.status;
}

void gguf_free_one(struct gguf *gguf) {
    if (!gguf) return;
    memory_free(gguf->entries);
    memory_free(gguf->tensors);
    memory_free((void *)gguf->entry_index);
    memory_free((void *)gguf->tensor_index);
    memory_free(gguf);
}
