/* Reads and writes header, sections and checksums of a saved state; writes it beside its place. */
#include "kv/state_file.h"

#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/new_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = "TERSEKV\n";

/* These structs lie in the file as they are, little-endian. */
struct header {
    char magic[8];
    uint32_t version, sections;
    uint64_t size; /* of the file */
    uint64_t model, codebook;
    uint64_t zeros[2];
    uint64_t checksum; /* of header and table, with zeros here */
};

struct entry {
    uint32_t section, zero;
    uint64_t offset, bytes;
    uint64_t checksum; /* of all from `offset` to the next section's, or to the file's end */
};

struct head {
    struct header header;
    struct entry table[STATE_SECTIONS];
};
_Static_assert(sizeof(struct header) == 64 && sizeof(struct entry) == 32 && sizeof(struct head) == 64 + 32 * STATE_SECTIONS,
               "as docs/state-format.md has it");
#define FIRST_OFFSET ((sizeof(struct head) + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN)

static const char *const names[STATE_SECOND] = {[STATE_METHOD] = "method",         [STATE_SESSION] = "session",
                                                [STATE_TOKENS] = "tokens",         [STATE_LOGITS] = "logits",
                                                [STATE_CACHE] = "cache",           [STATE_PAGE_SETS] = "page sets",
                                                [STATE_EXACT] = "exact rows",      [STATE_EXACT_LOGITS] = "logits of exact rows",
                                                [STATE_FITTED] = "fitted numbers", [STATE_ANCHORS] = "anchors",
                                                [STATE_WINDOW] = "window",         [STATE_PAGES] = "pages"};

/* Returns the first part's section that a section of the second part is like; other sections are their own. */
static enum state_section like(uint32_t section) {
    return (enum state_section)(section < STATE_SECOND ? section : section - STATE_SECOND + STATE_CACHE);
}

static enum state_section of_part(enum state_section section, bool second) {
    return second && section >= STATE_CACHE && section < STATE_SECOND ? section - STATE_CACHE + STATE_SECOND : section;
}

static size_t align_of(uint32_t section) { return like(section) == STATE_PAGES ? STATE_PAGES_ALIGN : STATE_ALIGN; }

/* ---- Writing ------------------------------------------------------------------------------------------------------------ */

#define BUFFER ((size_t)1 << 20)

struct state_writer {
    struct new_file file;
    int failed; /* errno of the first failure, or 0 */
    uint64_t size;
    enum state_section section;
    bool begun, second;
    struct entry table[STATE_SECTIONS];
    XXH3_state_t hash; /* of the section */
    size_t buffered;
    uint8_t *buffer; /* [BUFFER] */
};

static void writer_free(struct state_writer *writer) {
    if (!writer) return;
    new_file_drop(&writer->file);
    memory_free(writer->buffer);
    memory_free(writer);
}

enum terse_status state_writer_new(const char *path, struct state_writer **writer, struct terse_error *error) {
    *writer = NULL;
    struct state_writer *w = memory_zeros(1, sizeof *w);
    if (!w) return status_no_memory(error, sizeof *w, "saving the session");
    w->buffer = memory_array(BUFFER, 1);
    enum terse_status status =
        w->buffer ? new_file_open(&w->file, path, error) : status_no_memory(error, BUFFER, "saving the session");
    if (status) {
        writer_free(w);
        return status;
    }
    *writer = w;
    w->size = FIRST_OFFSET; /* the head comes last: before, this is no state */
    if (lseek(w->file.descriptor, (off_t)FIRST_OFFSET, SEEK_SET) < 0) w->failed = errno;
    return TERSE_OK;
}

static void flush(struct state_writer *w) {
    XXH3_64bits_update(&w->hash, w->buffer, w->buffered);
    if (!w->failed) w->failed = new_file_write(&w->file, w->buffer, w->buffered);
    w->buffered = 0;
}

static void put_bytes(struct state_writer *w, const void *data, size_t bytes) {
    const uint8_t *from = data;
    w->size += bytes;
    while (bytes) {
        size_t n = bytes < BUFFER - w->buffered ? bytes : BUFFER - w->buffered;
        if (from) {
            memcpy(w->buffer + w->buffered, from, n);
            from += n;
        } else {
            memset(w->buffer + w->buffered, 0, n);
        }
        w->buffered += n;
        bytes -= n;
        if (w->buffered == BUFFER) flush(w);
    }
}

/* Pads to where the next section, or the file's end, begins. */
static void end_section(struct state_writer *w, size_t align) {
    put_bytes(w, NULL, memory_round_up(w->size, align) - w->size);
    flush(w);
    if (w->begun) w->table[w->section].checksum = XXH3_64bits_digest(&w->hash);
}

void state_writer_begin(struct state_writer *w, enum state_section section) {
    section = of_part(section, w->second);
    end_section(w, align_of(section));
    XXH3_64bits_reset(&w->hash);
    w->begun = true;
    w->section = section;
    w->table[section] = (struct entry){.section = (uint32_t)section, .offset = w->size};
}

void state_writer_second(struct state_writer *w) { w->second = true; }

void state_writer_put(struct state_writer *w, const void *data, size_t bytes) {
    w->table[w->section].bytes += bytes;
    if (bytes) put_bytes(w, data, bytes);
}

void state_writer_fail(struct state_writer *w, int number) {
    if (!w->failed) w->failed = number;
}

static void write_head(struct state_writer *w, const struct state_identity *identity) {
    struct head head = {.header = {.version = STATE_VERSION,
                                   .sections = STATE_SECTIONS,
                                   .size = w->size,
                                   .model = identity->model,
                                   .codebook = identity->codebook}};
    memcpy(head.header.magic, magic, sizeof magic);
    memcpy(head.table, w->table, sizeof head.table);
    head.header.checksum = XXH3_64bits(&head, sizeof head);
    if (!w->failed && pwrite(w->file.descriptor, &head, sizeof head, 0) != (ssize_t)sizeof head) w->failed = errno ? errno : EIO;
}

static enum terse_status refuse_writing(const struct state_writer *w, struct terse_error *error) {
    if (w->failed != ENOMEM) return new_file_refuse(w->file.path, w->failed, error);
    return status_fail(error, TERSE_E_MEMORY,
                       "%s: cannot be written: no memory for copies of its pages: free some memory and save again", w->file.path);
}

enum terse_status state_writer_finish(struct state_writer *w, const struct state_identity *identity, struct terse_error *error) {
    for (uint32_t next = w->begun ? w->section + 1 : 0; next < STATE_SECTIONS; next++)
        state_writer_begin(w, (enum state_section)next);
    errno = 0;
    end_section(w, STATE_ALIGN);
    write_head(w, identity);
    enum terse_status status = w->failed ? refuse_writing(w, error) : new_file_publish(&w->file, error);
    writer_free(w);
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------ */

struct state_file {
    struct mapped_file mapped; /* empty where the bytes are somebody else's */
    const uint8_t *data;
    size_t size;
    char *name;
    uint32_t others; /* owners beside the first */
    bool second;     /* state_file_second */
    struct head head;
};

static enum terse_status refuse_header(const char *what, struct terse_error *error) {
    return status_fail_at(error, TERSE_E_FORMAT, 0, "damaged: %s: save the session again", what);
}

static enum terse_status check_header(const struct state_file *f, struct terse_error *error) {
    const struct header *header = &f->head.header;
    struct head head = f->head;
    head.header.checksum = 0;
    if (header->version != STATE_VERSION)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "a saved state of version %" PRIu32
                           ", terse %s reads version %d: read the text again, or use the terse that saved it",
                           header->version, terse_version(), STATE_VERSION);
    if (XXH3_64bits(&head, sizeof head) != header->checksum) return refuse_header("the checksum of its header is wrong", error);
    if (header->sections != STATE_SECTIONS) return refuse_header("it has another number of sections", error);
    if (header->size != f->size)
        return status_fail(error, TERSE_E_FORMAT,
                           "incomplete: it has %zu bytes of %" PRIu64 ": copy it again, or save the session again", f->size,
                           header->size);
    return TERSE_OK;
}

/* Checks that one section follows another, without gaps but for padding. */
static enum terse_status check_table(const struct state_file *f, struct terse_error *error) {
    uint64_t end = sizeof(struct head);
    for (uint32_t i = 0; i < STATE_SECTIONS; i++) {
        const struct entry *entry = &f->head.table[i];
        uint64_t begin = memory_round_up(end, align_of(i));
        if (entry->section != i || entry->zero || entry->offset != begin || begin > f->size || entry->bytes > f->size - begin)
            return refuse_header("its sections do not follow one another", error);
        end = begin + entry->bytes;
    }
    return memory_round_up(end, STATE_ALIGN) == f->size ? TERSE_OK : refuse_header("its sections do not fill it", error);
}

static uint64_t section_checksum(const struct head *head, const uint8_t *data, size_t size, uint32_t i) {
    uint64_t end = i + 1 < STATE_SECTIONS ? head->table[i + 1].offset : size;
    return XXH3_64bits(data + head->table[i].offset, (size_t)(end - head->table[i].offset));
}

/* Checks the header and the contents of the first `sections` sections. */
static enum terse_status check_file(struct state_file *f, uint32_t sections, struct terse_error *error) {
    if (f->size < sizeof magic || memcmp(f->data, magic, sizeof magic) != 0)
        return status_fail_at(error, TERSE_E_FORMAT, 0,
                              "not a saved state (it does not begin with \"TERSEKV\"): give a file that terse_session_save or "
                              "terse run --save-state wrote");
    if (f->size < FIRST_OFFSET)
        return status_fail(error, TERSE_E_FORMAT, "incomplete: it ends after %zu bytes: copy it again, or save the session again",
                           f->size);
    memcpy(&f->head, f->data, sizeof f->head);
    enum terse_status status = check_header(f, error);
    if (!status) status = check_table(f, error);
    for (size_t i = sizeof(struct head); !status && i < FIRST_OFFSET; i++)
        if (f->data[i]) status = refuse_header("bytes behind its header are not zeros", error);
    for (uint32_t i = 0; !status && i < sections; i++)
        if (section_checksum(&f->head, f->data, f->size, i) != f->head.table[i].checksum)
            status = status_fail_at(error, TERSE_E_FORMAT, f->head.table[i].offset,
                                    "damaged: the checksum of its %s is wrong: save the session again", names[like(i)]);
    return status;
}

static enum terse_status open_file(struct mapped_file mapped, const void *data, size_t size, const char *name, uint32_t sections,
                                   struct state_file **file, struct terse_error *error) {
    struct state_file *f = memory_zeros(1, sizeof *f);
    size_t name_bytes = strlen(name) + 1;
    if (f) f->name = memory_array(name_bytes, 1);
    if (!f || !f->name) {
        memory_free(f);
        mapped_file_close(&mapped);
        return status_no_memory(error, sizeof *f + name_bytes, "loading a saved state");
    }
    memcpy(f->name, name, name_bytes);
    f->mapped = mapped;
    f->data = data;
    f->size = size;
    enum terse_status status = check_file(f, sections, error);
    if (status) {
        status_name_file(error, name);
        state_file_close(f);
        return status;
    }
    *file = f;
    return TERSE_OK;
}

enum terse_status state_file_open(const char *path, struct state_file **file, struct terse_error *error) {
    struct mapped_file mapped;
    *file = NULL;
    enum terse_status status = mapped_file_open(path, &mapped, error);
    if (status) return status;
    if (mapped.size) mapped_file_fetch(mapped.data, mapped.size);
    return open_file(mapped, mapped.data, mapped.size, path, STATE_SECTIONS, file, error);
}

enum terse_status state_file_open_method(const char *path, struct state_file **file, struct terse_error *error) {
    struct mapped_file mapped;
    *file = NULL;
    enum terse_status status = mapped_file_open(path, &mapped, error);
    return status ? status : open_file(mapped, mapped.data, mapped.size, path, STATE_METHOD + 1, file, error);
}

enum terse_status state_file_open_memory(const void *data, size_t size, const char *name, struct state_file **file,
                                         struct terse_error *error) {
    *file = NULL;
    return open_file((struct mapped_file){0}, data, size, name, STATE_SECTIONS, file, error);
}

void state_file_share(struct state_file *file) { file->others++; }

void state_file_close(struct state_file *file) {
    if (!file || file->others--) return;
    mapped_file_close(&file->mapped);
    memory_free(file->name);
    memory_free(file);
}

struct state_identity state_file_identity(const struct state_file *file) {
    return (struct state_identity){file->head.header.model, file->head.header.codebook};
}

void state_file_second(struct state_file *file, bool second) { file->second = second; }

const void *state_file_section(const struct state_file *file, enum state_section section, size_t *bytes) {
    section = of_part(section, file->second);
    *bytes = (size_t)file->head.table[section].bytes;
    return file->data + file->head.table[section].offset;
}

enum terse_status state_file_refuse(const struct state_file *file, enum state_section section, const char *what,
                                    struct terse_error *error) {
    return status_fail_at(error, TERSE_E_FORMAT, file->head.table[of_part(section, file->second)].offset,
                          "%s: its %s cannot be: %s: save the session again", file->name, names[section], what);
}

uint64_t state_file_checksum(const struct state_file *file) { return file->head.header.checksum; }

const char *state_file_name(const struct state_file *file) { return file->name; }

bool state_file_reseal(void *file, size_t size) {
    struct state_file f = {.data = file, .size = size};
    if (size < FIRST_OFFSET) return false;
    memcpy(&f.head, file, sizeof f.head);
    f.head.header.size = size;
    if (check_table(&f, NULL)) return false;
    for (uint32_t i = 0; i < STATE_SECTIONS; i++) f.head.table[i].checksum = section_checksum(&f.head, file, size, i);
    f.head.header.checksum = 0;
    f.head.header.checksum = XXH3_64bits(&f.head, sizeof f.head);
    memcpy(file, &f.head, sizeof f.head);
    return true;
}
