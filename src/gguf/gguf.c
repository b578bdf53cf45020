/* Answers questions about an opened GGUF file. Every place in it was checked by gguf_open.c. */
#include "base/hash.h"
#include "gguf/gguf_private.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2}, [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4},     [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

size_t gguf_type_bytes(uint32_t type) { return type < sizeof types / sizeof *types ? types[type].bytes : 0; }

const char *gguf_type_name(uint32_t type) { return type < sizeof types / sizeof *types ? types[type].name : NULL; }

int gguf_string_compare(const struct gguf_string *a, const struct gguf_string *b) {
    if (a->size != b->size) return a->size < b->size ? -1 : 1;
    return memcmp(a->data, b->data, a->size);
}

const uint8_t *gguf_read_string(const uint8_t *at, struct gguf_string *string) {
    memcpy(&string->size, at, sizeof string->size);
    string->data = (const char *)at + sizeof string->size;
    return (const uint8_t *)string->data + string->size;
}

const char *gguf_name(const struct gguf *gguf) { return gguf->name; }
uint64_t gguf_metadata_count(const struct gguf *gguf) { return gguf->n_entries; }
uint64_t gguf_tensor_count(const struct gguf *gguf) { return gguf->n_tensors; }
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint64_t i) { return &gguf->tensors[i]; }

struct gguf_string gguf_key_at(const struct gguf *gguf, uint64_t i) {
    return gguf->entries[i].key;
}

struct gguf_string gguf_value_at(const struct gguf *gguf, uint64_t i) {
    return (struct gguf_string){(const char *)gguf->entries[i].value, gguf->entries[i].bytes};
}

static const void *find(const struct gguf_string **index, uint64_t n, const char *name) {
    struct gguf_string wanted = {name, strlen(name)};
    uint64_t first = 0;
    while (n) {
        uint64_t middle = n / 2;
        int order = gguf_string_compare(&wanted, index[first + middle]);
        if (order == 0) return index[first + middle];
        if (order > 0) {
            first += middle + 1;
            n -= middle + 1;
        } else {
            n = middle;
        }
    }
    return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name) {
    return find(gguf->tensor_index, gguf->n_tensors, name);
}

const struct gguf_entry *gguf_find_entry(const struct gguf *gguf, const char *key) {
    return find(gguf->entry_index, gguf->n_entries, key);
}

bool gguf_has(const struct gguf *gguf, const char *key) { return gguf_find_entry(gguf, key) != NULL; }

/* ---- Values ------------------------------------------------------------------------------------------------------------- */

/* Finds the key's entry, or says that a required one is missing. *entry is NULL when there is none. */
static enum terse_status look_up(const struct gguf *gguf, const char *key, bool *found, const struct gguf_entry **entry,
                                 struct terse_error *error) {
    *entry = gguf_find_entry(gguf, key);
    if (found) *found = *entry != NULL;
    if (*entry || found) return TERSE_OK;
    return status_fail(error, TERSE_E_FORMAT, "%.200s: the key '%s' is missing: download or make the file again", gguf->name, key);
}

static enum terse_status wrong(const struct gguf *gguf, const struct gguf_entry *entry, const char *key, const char *wanted,
                               struct terse_error *error) {
    uint64_t offset = (uint64_t)(entry->value - gguf->data);
    char value[40] = "";
    double number;
    if (gguf_entry_number(entry, &number)) snprintf(value, sizeof value, "%.10g of ", number);
    return status_fail_at(error, TERSE_E_FORMAT, offset,
                          "%.160s: the key '%s' (byte %" PRIu64 ") is %stype %s%s, not %s: make the file again", gguf->name, key,
                          offset, value, entry->type == GGUF_ARRAY ? "array of " : "",
                          gguf_type_name(entry->type == GGUF_ARRAY ? entry->element : entry->type), wanted);
}

bool gguf_entry_number(const struct gguf_entry *entry, double *number) {
    /* Little-endian integers of any width are the value's own bytes, followed by zeros or copies of the sign. */
    size_t bytes = gguf_type_bytes(entry->type);
    uint64_t bits = 0;
    if (bytes == 0 || entry->type == GGUF_BOOL) return false;
    memcpy(&bits, entry->value, bytes);
    switch (entry->type) {
    case GGUF_F32: {
        float value;
        memcpy(&value, entry->value, sizeof value);
        *number = value;
        return true;
    }
    case GGUF_F64: memcpy(number, entry->value, sizeof *number); return true;
    case GGUF_I8: *number = (int8_t)bits; return true;
    case GGUF_I16: *number = (int16_t)bits; return true;
    case GGUF_I32: *number = (int32_t)bits; return true;
    case GGUF_I64: *number = (double)(int64_t)bits; return true;
    default: *number = (double)bits; return true;
    }
}

enum terse_status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *value, bool *found, struct terse_error *error) {
    const struct gguf_entry *entry;
    enum terse_status status = look_up(gguf, key, found, &entry, error);
    if (!entry) return status;
    /* A double holds every u32; larger integers may round, but never into the range. */
    double number;
    if (!gguf_entry_number(entry, &number) || !(number >= 0 && number <= UINT32_MAX) || number != floor(number))
        return wrong(gguf, entry, key, "a whole number from 0 to 4294967295", error);
    *value = (uint32_t)number;
    return TERSE_OK;
}

enum terse_status gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t *value, bool *found, struct terse_error *error) {
    const struct gguf_entry *entry;
    enum terse_status status = look_up(gguf, key, found, &entry, error);
    if (!entry) return status;
    /* A double does not hold every u64, so only the sign and the kind of the number are taken from it. */
    double number;
    uint64_t bits = 0;
    if (!gguf_entry_number(entry, &number) || !(number >= 0) || entry->type == GGUF_F32 || entry->type == GGUF_F64)
        return wrong(gguf, entry, key, "a whole number from 0 to 18446744073709551615", error);
    memcpy(&bits, entry->value, gguf_type_bytes(entry->type));
    *value = bits;
    return TERSE_OK;
}

/* Reads a number whose magnitude is at most `limit`. */
static enum terse_status get_finite(const struct gguf *gguf, const char *key, double limit, double *value, bool *found,
                                    struct terse_error *error) {
    const struct gguf_entry *entry;
    enum terse_status status = look_up(gguf, key, found, &entry, error);
    if (!entry) return status;
    double number;
    if (!gguf_entry_number(entry, &number) || !(fabs(number) <= limit)) return wrong(gguf, entry, key, "a finite number", error);
    *value = number;
    return TERSE_OK;
}

enum terse_status gguf_get_f32(const struct gguf *gguf, const char *key, float *value, bool *found, struct terse_error *error) {
    double number = 0;
    enum terse_status status = get_finite(gguf, key, (double)FLT_MAX, &number, found, error);
    if (status == TERSE_OK && (!found || *found)) *value = (float)number;
    return status;
}

enum terse_status gguf_get_f64(const struct gguf *gguf, const char *key, double *value, bool *found, struct terse_error *error) {
    return get_finite(gguf, key, DBL_MAX, value, found, error);
}

enum terse_status gguf_get_bool(const struct gguf *gguf, const char *key, bool *value, bool *found, struct terse_error *error) {
    const struct gguf_entry *entry;
    enum terse_status status = look_up(gguf, key, found, &entry, error);
    if (!entry) return status;
    if (entry->type != GGUF_BOOL) return wrong(gguf, entry, key, "a bool", error);
    *value = entry->value[0] != 0;
    return TERSE_OK;
}

enum terse_status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *value, bool *found,
                                  struct terse_error *error) {
    const struct gguf_entry *entry;
    enum terse_status status = look_up(gguf, key, found, &entry, error);
    if (!entry) return status;
    if (entry->type != GGUF_STRING) return wrong(gguf, entry, key, "a string", error);
    *value = (struct gguf_string){(const char *)entry->value, entry->count};
    return TERSE_OK;
}

enum terse_status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type type, struct gguf_array *array,
                                 bool *found, struct terse_error *error) {
    const struct gguf_entry *entry;
    enum terse_status status = look_up(gguf, key, found, &entry, error);
    if (!entry) return status;
    if (entry->type != GGUF_ARRAY || entry->element != type) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, "array of %s", gguf_type_name(type));
        return wrong(gguf, entry, key, wanted, error);
    }
    *array = (struct gguf_array){type, entry->count, entry->value};
    return TERSE_OK;
}

void gguf_array_strings(const struct gguf_array *array, struct gguf_string *strings) {
    const uint8_t *at = array->data;
    for (uint64_t i = 0; i < array->count; i++) at = gguf_read_string(at, &strings[i]);
}

enum terse_status gguf_check_sum(const struct gguf *gguf, const char *key, struct terse_error *error) {
    static const uint8_t zeros[sizeof(uint64_t)];
    const struct gguf_entry *entry;
    enum terse_status status = look_up(gguf, key, NULL, &entry, error);
    if (!entry) return status;
    if (entry->type != GGUF_U64) return wrong(gguf, entry, key, "a u64", error);
    uint64_t at = (uint64_t)(entry->value - gguf->data), sum;
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    memcpy(&sum, entry->value, sizeof sum);
    XXH64_update(&hash, gguf->data, at);
    XXH64_update(&hash, zeros, sizeof zeros);
    XXH64_update(&hash, gguf->data + at + sizeof zeros, gguf->size - at - sizeof zeros);
    if (sum == XXH64_digest(&hash)) return TERSE_OK;
    return status_fail(error, TERSE_E_FORMAT, "%.200s: its checksum does not match: the file is damaged, download or make it again",
                       gguf->name);
}
