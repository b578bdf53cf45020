/* Declares the inside of struct gguf for gguf_open.c (reads it), gguf_parts.c (adds the other parts of a split file), gguf.c
 * (answers questions) and gguf_public.c (shows it). */
#ifndef TERSE_GGUF_GGUF_PRIVATE_H
#define TERSE_GGUF_GGUF_PRIVATE_H

#include "base/mapped_file.h"
#include "gguf/gguf.h"

/* An entry is a key with its value. `value` points to the value's first byte in the file: of a string the first character, of an
 * array the first element. */
struct gguf_entry {
    struct gguf_string key;
    enum gguf_type type;
    enum gguf_type element; /* of an array */
    uint64_t count;         /* elements of an array, bytes of a string, else 1 */
    const uint8_t *value;
    uint64_t bytes; /* of the value in the file, from its first byte on */
};

/* A gguf_part is a further part of a file that was split; its keys say no more than which part it is. */
struct gguf_part {
    struct mapped_file file;
    struct gguf *gguf;
};

struct gguf {
    char name[160];
    const uint8_t *data;
    uint64_t size;
    uint32_t version;
    uint64_t n_entries, n_tensors;
    struct gguf_entry *entries;
    struct gguf_tensor *tensors;
    /* The indices hold names in order of gguf_string_compare: each points at the first member of an entry or a tensor. They are
     * sorted rather than hashed, so that no choice of names makes them slow. */
    const struct gguf_string **entry_index, **tensor_index;
    /* With parts, `tensors` are those of all parts: the first own_tensors are this file's, the others lie in the parts. */
    struct gguf_part *parts; /* [n_parts], without the first, which this is */
    uint32_t n_parts;
    uint64_t own_tensors;
};

/* Releases one file, which has no parts or whose parts somebody else releases. Accepts NULL. */
void gguf_free_one(struct gguf *gguf);

/* Returns the bytes of a number or bool; 0 for strings, arrays and unknown types. */
size_t gguf_type_bytes(uint32_t type);
/* Returns a type's name, such as "u32"; NULL for unknown types. */
const char *gguf_type_name(uint32_t type);
int gguf_string_compare(const struct gguf_string *a, const struct gguf_string *b);
/* Returns the entry of a key; NULL when there is none. */
const struct gguf_entry *gguf_find_entry(const struct gguf *gguf, const char *key);
/* Writes the value of a number of any type, rounded to double; returns false when the entry is no number. */
bool gguf_entry_number(const struct gguf_entry *entry, double *number);
/* Reads the string at `at`; returns what follows it. The file has been checked. */
const uint8_t *gguf_read_string(const uint8_t *at, struct gguf_string *string);

#endif
