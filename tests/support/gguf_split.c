/* Splitting GGUF files with the writer. */
#include "support/gguf_split.h"

#include "base/mapped_file.h"
#include "gguf/gguf_private.h"
#include "gguf/gguf_writer.h"

#include <stdio.h>
#include <string.h>

/* Copies the entry as it stands in the file: before a string stands its length, before an array the elements' type and number. */
static void copy_entry(struct gguf_writer *writer, const struct gguf_entry *entry) {
    char key[256];
    size_t before = entry->type == GGUF_STRING ? 8 : entry->type == GGUF_ARRAY ? 12 : 0;
    snprintf(key, sizeof key, "%.*s", (int)entry->key.size, entry->key.data);
    gguf_writer_value(writer, key, entry->type, entry->value - before, entry->bytes + before);
}

static void add_tensor(struct gguf_writer *writer, const struct gguf_tensor *t) {
    char name[80];
    snprintf(name, sizeof name, "%.*s", (int)t->name.size, t->name.data);
    gguf_writer_tensor(writer, name, t->type, t->n_dims, t->dims, t->data);
}

static enum terse_status write_part(const struct gguf *gguf, const char *prefix, uint32_t part, uint32_t count,
                                    const struct gguf_split_damage *damage, struct terse_error *error) {
    char path[600];
    struct gguf_writer writer = {0};
    uint32_t first_with = count > 2, shares = count - first_with;
    bool damaged = damage && damage->part == part;
    uint16_t number = (uint16_t)(part + (uint32_t)(damaged ? damage->number : 0));
    uint16_t parts = (uint16_t)(count + (uint32_t)(damaged ? damage->count : 0));
    int32_t tensors = (int32_t)gguf->n_tensors + (damaged ? damage->tensors : 0);
    for (uint64_t i = 0; i < gguf->n_entries && part == 0; i++) copy_entry(&writer, &gguf->entries[i]);
    gguf_writer_value(&writer, "split.no", GGUF_U16, &number, sizeof number);
    gguf_writer_value(&writer, "split.count", GGUF_U16, &parts, sizeof parts);
    gguf_writer_value(&writer, "split.tensors.count", GGUF_I32, &tensors, sizeof tensors);
    if (part >= first_with) {
        uint64_t share = part - first_with, begin = gguf->n_tensors * share / shares, end = gguf->n_tensors * (share + 1) / shares;
        for (uint64_t i = begin - (damaged && damage->repeats && begin); i < end; i++) add_tensor(&writer, &gguf->tensors[i]);
    }
    snprintf(path, sizeof path, "%s-%05u-of-%05u.gguf", prefix, part + 1, count);
    enum terse_status status = gguf_writer_save(&writer, path, NULL, NULL, error);
    gguf_writer_free(&writer);
    return status;
}

enum terse_status gguf_split(const char *path, const char *prefix, uint32_t count, const struct gguf_split_damage *damage,
                             struct terse_error *error) {
    struct mapped_file file;
    struct gguf *gguf = NULL;
    enum terse_status status = mapped_file_open(path, &file, error);
    if (!status) status = gguf_open(file.data, file.size, path, &gguf, error);
    for (uint32_t i = 0; i < count && !status; i++) status = write_part(gguf, prefix, i, count, damage, error);
    gguf_free(gguf);
    mapped_file_close(&file);
    return status;
}
