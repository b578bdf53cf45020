/* Reads files that were split into parts: the first has the keys, all have tensors; each says how many there are and which it is.
 * Their names, PREFIX-00001-of-00003.gguf and so on, tell where the others lie. This file owns the mappings of all parts but the
 * first, and frees a file with all its parts. */
#include "base/memory.h"
#include "gguf/gguf_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_NUMBER "split.no"             /* of this part, from 0 on */
#define KEY_COUNT "split.count"           /* of parts */
#define KEY_TENSORS "split.tensors.count" /* of all parts together */
#define ADVICE "download or split the model again"

enum { MOST_PARTS = 99999, SUFFIX = 21 /* letters of "-00001-of-00003.gguf", and the zero */ };

struct split {
    uint32_t number, count;
};

static void write_suffix(char suffix[SUFFIX], uint32_t number, uint32_t count) {
    snprintf(suffix, SUFFIX, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", number % 100000, count % 100000);
}

/* Reads which part this is and how many there are; split->count is 1 where the file is not split. */
static enum terse_status read_split(const struct gguf *gguf, struct split *split, struct terse_error *error) {
    bool found;
    *split = (struct split){0, 1};
    enum terse_status status = gguf_get_u32(gguf, KEY_COUNT, &split->count, &found, error);
    if (status || !found || split->count == 1) return status;
    if ((status = gguf_get_u32(gguf, KEY_NUMBER, &split->number, NULL, error))) return status;
    if (split->count && split->count <= MOST_PARTS && split->number < split->count) return TERSE_OK;
    return status_fail(error, TERSE_E_FORMAT,
                       "%.200s: says that it is part %" PRIu64 " of %" PRIu32 ", which cannot be (" KEY_NUMBER ", " KEY_COUNT
                       "): " ADVICE,
                       gguf->name, (uint64_t)split->number + 1, split->count);
}

static enum terse_status refuse_later_part(const struct gguf *gguf, const char *path, struct split split,
                                           struct terse_error *error) {
    char own[SUFFIX], first[SUFFIX];
    size_t length = strlen(path);
    write_suffix(own, split.number + 1, split.count);
    write_suffix(first, 1, split.count);
    bool named = length >= SUFFIX - 1 && !strcmp(path + length - (SUFFIX - 1), own);
    return status_fail(error, TERSE_E_ARGUMENT, "%.160s: is part %" PRIu32 " of %" PRIu32 " of a model: give the first, %.160s%s",
                       gguf->name, split.number + 1, split.count, named ? "whose name ends in " : "which has the metadata",
                       named ? first : "");
}

/* Writes the path of a part to *result, which memory_free releases; path[length] is that of the first. */
static enum terse_status part_path(const struct gguf *gguf, const char *path, struct split first, uint32_t number, char **result,
                                   struct terse_error *error) {
    char suffix[SUFFIX];
    size_t length = strlen(path), size = length + 1;
    write_suffix(suffix, 1, first.count);
    if (length < SUFFIX - 1 || strcmp(path + length - (SUFFIX - 1), suffix) != 0)
        return status_fail(error, TERSE_E_FORMAT,
                           "%.200s: is the first of %" PRIu32
                           " parts of a model, but its name does not end in %s, so that the others "
                           "cannot be found: give all parts the names they came with",
                           gguf->name, first.count, suffix);
    if (!(*result = memory_array(size, 1))) return status_no_memory(error, size, "a file's name");
    memcpy(*result, path, size);
    write_suffix(*result + length - (SUFFIX - 1), number + 1, first.count);
    return TERSE_OK;
}

static enum terse_status check_part(const struct gguf *first, const struct gguf *part, uint32_t number, uint32_t count,
                                    struct terse_error *error) {
    struct split split;
    enum terse_status status = read_split(part, &split, error);
    if (status || (split.number == number && split.count == count)) return status;
    return status_fail(error, TERSE_E_FORMAT,
                       "%.160s: says that it is part %" PRIu32 " of %" PRIu32 " where %.160s wants part %" PRIu32 " of %" PRIu32
                       ": the two are of different models, or were renamed",
                       part->name, split.number + 1, split.count, first->name, number + 1, count);
}

static enum terse_status open_part(const struct gguf *gguf, const char *path, struct split first, uint32_t number,
                                   struct gguf_part *part, struct terse_error *error) {
    char *own_path = NULL;
    struct terse_error own;
    enum terse_status status = part_path(gguf, path, first, number, &own_path, error);
    if (status) return status;
    if ((status = mapped_file_open(own_path, &part->file, &own)))
        status_fail(error, status, "%.120s: part %" PRIu32 " of %" PRIu32 ": %.300s; all parts have to lie in one folder",
                    gguf->name, number + 1, first.count, own.message);
    if (!status) status = gguf_open(part->file.data, part->file.size, own_path, &part->gguf, error);
    if (!status) status = check_part(gguf, part->gguf, number, first.count, error);
    memory_free(own_path);
    return status;
}

/* ---- One table of the tensors of all */

static int compare_names(const void *a, const void *b) {
    return gguf_string_compare(*(const struct gguf_string *const *)a, *(const struct gguf_string *const *)b);
}

/* Returns the part in which this tensor's name lies. */
static const struct gguf *part_of(const struct gguf *gguf, const struct gguf_part *parts, uint32_t n,
                                  const struct gguf_string *name) {
    const struct gguf *found = gguf;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *begin = parts[i].gguf->data, *at = (const uint8_t *)name->data;
        if ((uintptr_t)at >= (uintptr_t)begin && (uintptr_t)at - (uintptr_t)begin < parts[i].gguf->size) found = parts[i].gguf;
    }
    return found;
}

static enum terse_status check_names(const struct gguf *gguf, const struct gguf_part *parts, uint32_t n,
                                     const struct gguf_string **names, uint64_t n_names, struct terse_error *error) {
    for (uint64_t i = 1; i < n_names; i++)
        if (!gguf_string_compare(names[i - 1], names[i]))
            return status_fail(error, TERSE_E_FORMAT, "%.160s: the tensor '%.*s' is in %.160s too: " ADVICE,
                               part_of(gguf, parts, n, names[i - 1])->name, (int)names[i]->size, names[i]->data,
                               part_of(gguf, parts, n, names[i])->name);
    return TERSE_OK;
}

static enum terse_status check_count(const struct gguf *gguf, uint64_t n_tensors, struct terse_error *error) {
    uint64_t wanted = n_tensors;
    enum terse_status status = gguf_get_u64(gguf, KEY_TENSORS, &wanted, &(bool){false}, error);
    if (status || wanted == n_tensors) return status;
    return status_fail(error, TERSE_E_FORMAT,
                       "%.200s: its parts have %" PRIu64 " tensors, not the %" PRIu64 " it speaks of: " ADVICE, gguf->name,
                       n_tensors, wanted);
}

/* Adds the parts' tensors to gguf, which then owns the parts unless this fails. */
static enum terse_status join(struct gguf *gguf, struct gguf_part *parts, uint32_t n, struct terse_error *error) {
    uint64_t n_tensors = gguf->n_tensors, at = gguf->n_tensors;
    for (uint32_t i = 0; i < n; i++) n_tensors += parts[i].gguf->n_tensors;
    enum terse_status status;
    struct gguf_tensor *tensors = memory_array(n_tensors, sizeof *tensors);
    const struct gguf_string **names = memory_array(n_tensors, sizeof *names);
    if (!tensors || !names) {
        status = status_no_memory(error, n_tensors * (sizeof *tensors + sizeof *names), "the tables of a model's parts");
        goto failed;
    }
    if (gguf->n_tensors) memcpy(tensors, gguf->tensors, gguf->n_tensors * sizeof *tensors);
    for (uint32_t i = 0; i < n; at += parts[i++].gguf->n_tensors)
        if (parts[i].gguf->n_tensors) memcpy(tensors + at, parts[i].gguf->tensors, parts[i].gguf->n_tensors * sizeof *tensors);
    for (uint64_t i = 0; i < n_tensors; i++) names[i] = &tensors[i].name;
    qsort(names, n_tensors, sizeof *names, compare_names);
    if ((status = check_names(gguf, parts, n, names, n_tensors, error))) goto failed;
    if ((status = check_count(gguf, n_tensors, error))) goto failed;
    gguf->own_tensors = gguf->n_tensors;
    memory_free(gguf->tensors);
    memory_free((void *)gguf->tensor_index);
    gguf->tensors = tensors;
    gguf->tensor_index = names;
    gguf->n_tensors = n_tensors;
    gguf->parts = parts;
    gguf->n_parts = n;
    return TERSE_OK;
failed:
    memory_free(tensors);
    memory_free((void *)names);
    return status;
}

static void free_parts(struct gguf_part *parts, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        gguf_free_one(parts[i].gguf);
        mapped_file_close(&parts[i].file);
    }
    memory_free(parts);
}

void gguf_free(struct gguf *gguf) {
    if (!gguf) return;
    free_parts(gguf->parts, gguf->n_parts);
    gguf_free_one(gguf);
}

enum terse_status gguf_add_parts(struct gguf *gguf, const char *path, struct terse_error *error) {
    struct split split;
    struct gguf_part *parts;
    uint32_t n = 0;
    enum terse_status status = read_split(gguf, &split, error);
    if (status || split.count == 1) return status;
    if (!path)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%.200s: is one of %" PRIu32
                           " parts of a model, which are read from their files alone, not from memory: "
                           "give the path (without --no-mmap)",
                           gguf->name, split.count);
    if (split.number) return refuse_later_part(gguf, path, split, error);
    if (!(parts = memory_zeros(split.count - 1, sizeof *parts)))
        return status_no_memory(error, (split.count - 1) * sizeof *parts, "a model's parts");
    for (; n < split.count - 1 && !status; n++) status = open_part(gguf, path, split, n + 1, &parts[n], error);
    if (!status) status = join(gguf, parts, n, error);
    if (status) free_parts(parts, n);
    return status;
}

/* ---- The parts and their names */

uint32_t gguf_part_count(const struct gguf *gguf) { return gguf->n_parts + 1; }

struct gguf_part_info gguf_part_at(const struct gguf *gguf, uint32_t i) {
    const struct gguf *part = i ? gguf->parts[i - 1].gguf : gguf;
    return (struct gguf_part_info){part->name, !i && gguf->n_parts ? gguf->own_tensors : part->n_tensors, part->size};
}
