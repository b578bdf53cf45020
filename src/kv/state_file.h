/* Declares the file of a saved session: docs/state-format.md. Owns the container: header, sections, checksums, and that a file is
 * whole or not there. Sessions (engine/session_file.c) and caches (kv/saved_cache.c) define the contents of the sections; the
 * caches of all backends write the same bytes.
 *
 * A file is written beside its place and put there when it is on the disk, so that whatever happens the old file or the new one is
 * there. It is mapped when it is read, and pages of a cache may stay in the mapping. */
#ifndef TERSE_KV_STATE_FILE_H
#define TERSE_KV_STATE_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATE_VERSION 8
#define STATE_ALIGN 64         /* of sections */
#define STATE_PAGES_ALIGN 4096 /* of those with pages */

/* Sections stand in this order in the file, which has all of them. */
enum state_section {
    STATE_METHOD,
    STATE_SESSION,
    STATE_TOKENS,
    STATE_LOGITS,
    STATE_CACHE,
    STATE_PAGE_SETS,
    STATE_EXACT,
    STATE_EXACT_LOGITS,
    STATE_FITTED,
    STATE_ANCHORS,
    STATE_WINDOW,
    STATE_PAGES,
    STATE_SECOND, /* from STATE_CACHE to STATE_PAGES once more, of layers that slide beside others that do not; else all empty */
    STATE_SECTIONS = STATE_SECOND + STATE_PAGES - STATE_CACHE + 1
};

/* The identity says which model and codebook the state is of. */
struct state_identity {
    uint64_t model;    /* the model's fingerprint, of its weights */
    uint64_t codebook; /* codebook_hash; 0: the method needs none */
};

/* ---- Writing. The writer keeps failures until the end. */

struct state_writer;

/* Makes a writer, which `path` outlives. */
enum terse_status state_writer_new(const char *path, struct state_writer **writer, struct terse_error *error);
/* Begins a section. Sections come in their order, each once; those after the last that is written are empty. */
void state_writer_begin(struct state_writer *writer, enum state_section section);
/* Makes sections from STATE_CACHE on stand for those of STATE_SECOND from now on. */
void state_writer_second(struct state_writer *writer);
void state_writer_put(struct state_writer *writer, const void *data, size_t bytes);
/* Records that the data to be written could not be had: `number` is an errno, ENOMEM where memory for them was refused. */
void state_writer_fail(struct state_writer *writer, int number);
/* Puts the file in its place and releases the writer. After a failure, of this or of an earlier call, the old file stays. */
enum terse_status state_writer_finish(struct state_writer *writer, const struct state_identity *identity,
                                      struct terse_error *error);

/* ---- Reading */

struct state_file;

/* Opens a whole file of this version, and checks its checksums: where they agree, every bit is as it was written. */
enum terse_status state_file_open(const char *path, struct state_file **file, struct terse_error *error);
/* Does the same, but checks only the header and STATE_METHOD, so that a large file is not read; no other section may be asked
 * for. */
enum terse_status state_file_open_method(const char *path, struct state_file **file, struct terse_error *error);
/* Does what state_file_open does with `size` bytes in memory, aligned to STATE_PAGES_ALIGN, which outlive the file and stay as they
 * are. */
enum terse_status state_file_open_memory(const void *data, size_t size, const char *name, struct state_file **file,
                                         struct terse_error *error);
/* Adds one owner, who closes the file too; not thread-safe. */
void state_file_share(struct state_file *file);
void state_file_close(struct state_file *file); /* accepts NULL */

struct state_identity state_file_identity(const struct state_file *file);
/* Returns a section's bytes, aligned to STATE_ALIGN; *bytes is their number. */
const void *state_file_section(const struct state_file *file, enum state_section section, size_t *bytes);
/* Sets whether sections from STATE_CACHE on stand for those of STATE_SECOND; at first they do not. */
void state_file_second(struct state_file *file, bool second);
/* Returns TERSE_E_FORMAT for a section whose contents cannot be right. */
enum terse_status state_file_refuse(const struct state_file *file, enum state_section section, const char *what,
                                    struct terse_error *error);
/* Returns the checksum of its header, which has those of its sections: files of the same one are the same. */
uint64_t state_file_checksum(const struct state_file *file);
/* Returns its name, for messages. */
const char *state_file_name(const struct state_file *file);
/* Corrects the checksums of file[size], if its header and table can be read, so that tests reach the checks behind them. */
bool state_file_reseal(void *file, size_t size);

#endif
