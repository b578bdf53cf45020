/* Writes base files, none of which is left half-written, and reads them, accepting only whole ones. */
#include "kld_file.h"

#include "console.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
enum { HEADER_BYTES = sizeof magic + 3 * sizeof(uint32_t) };

/* ---- Rows. In float, as the tool that defines the format computes them. */

void kld_encode(const float *logits, uint32_t vocabulary, double log_sum, int32_t next, uint16_t *row) {
    float most = logits[0], least = logits[0];
    for (uint32_t i = 1; i < vocabulary; i++) {
        if (logits[i] > most) most = logits[i];
        if (logits[i] < least) least = logits[i];
    }
    if (least < most - 16) least = most - 16;
    if (logits[next] < least) least = logits[next];
    float minimum = (float)((double)least - log_sum), scale = (most - least) / 65535.f, per_scale = scale > 0 ? 1 / scale : 0;
    uint16_t *codes = row + 4;
    memset(row, 0, kld_row_words(vocabulary) * sizeof *row);
    memcpy(row, &scale, sizeof scale);
    memcpy(row + 2, &minimum, sizeof minimum);
    for (uint32_t i = 0; i < vocabulary; i++)
        if (logits[i] > least) codes[i] = (uint16_t)lrintf(fminf(per_scale * (logits[i] - least), 65535.f));
}

bool kld_row_scale(const uint16_t *row, float *scale, float *minimum) {
    memcpy(scale, row, sizeof *scale);
    memcpy(minimum, row + 2, sizeof *minimum);
    return *scale >= 0 && *scale < 1 && *minimum < 0.01f && *minimum > -1000;
}

/* ---- Writing */

struct kld_writer {
    char *path, *temporary;
    FILE *file;
    size_t row_bytes;
};

static int write_failed(const struct kld_writer *writer) { return complain("cannot write %s: %s", writer->path, strerror(errno)); }

static int write_all(struct kld_writer *writer, const void *data, size_t size, size_t count) {
    return fwrite(data, size, count, writer->file) == count ? EXIT_OK : write_failed(writer);
}

static int open_temporary(struct kld_writer *writer) {
    size_t length = strlen(writer->path) + 32;
    struct stat existing;
    if (stat(writer->path, &existing) == 0 && !S_ISREG(existing.st_mode))
        return complain("cannot write %s: it is there already and not a regular file", writer->path);
    if (!(writer->temporary = malloc(length))) return complain("no memory for a file name");
    snprintf(writer->temporary, length, "%s.%ld.tmp", writer->path, (long)getpid());
    int descriptor = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0 && (writer->file = fdopen(descriptor, "wb"))) return EXIT_OK;
    int status = write_failed(writer);
    if (descriptor >= 0) {
        close(descriptor);
        unlink(writer->temporary);
    }
    return status;
}

int kld_writer_open(const char *path, const struct kld_header *header, const int32_t *tokens, struct kld_writer **writer) {
    const uint32_t fields[3] = {header->context, header->vocabulary, header->chunks};
    int status = EXIT_FAILED;
    *writer = NULL;
    struct kld_writer *w = calloc(1, sizeof *w);
    if (!w || !(w->path = strdup(path))) {
        complain("no memory for the base file");
        goto done;
    }
    w->row_bytes = kld_row_words(header->vocabulary) * sizeof(uint16_t);
    if ((status = open_temporary(w)) != EXIT_OK) goto done;
    if ((status = write_all(w, magic, sizeof magic, 1)) != EXIT_OK) goto done;
    if ((status = write_all(w, fields, sizeof fields, 1)) != EXIT_OK) goto done;
    if ((status = write_all(w, tokens, sizeof *tokens, (size_t)header->chunks * header->context)) != EXIT_OK) goto done;
    *writer = w;
    w = NULL;
done:
    kld_writer_free(w);
    return status;
}

int kld_writer_rows(struct kld_writer *writer, const uint16_t *rows, size_t n_rows) {
    return write_all(writer, rows, writer->row_bytes, n_rows);
}

int kld_writer_commit(struct kld_writer *writer) {
    FILE *file = writer->file;
    bool written = fflush(file) == 0 && fsync(fileno(file)) == 0;
    int problem = errno;
    writer->file = NULL;
    if (fclose(file) != 0 && written) {
        written = false;
        problem = errno;
    }
    if (written && rename(writer->temporary, writer->path) == 0) {
        free(writer->temporary);
        writer->temporary = NULL;
        return EXIT_OK;
    }
    if (!written) errno = problem;
    int status = write_failed(writer);
    unlink(writer->temporary);
    return status;
}

void kld_writer_free(struct kld_writer *writer) {
    if (!writer) return;
    if (writer->file) {
        fclose(writer->file);
        unlink(writer->temporary);
    }
    free(writer->temporary);
    free(writer->path);
    free(writer);
}

/* ---- Reading */

struct kld_reader {
    char *path;
    FILE *file;
    struct kld_header header;
    int32_t *tokens;
};

/* Checks the header against itself and against the file's size, so that what follows allocates and reads what is there. */
static int check_header(struct kld_reader *r, const char found[sizeof magic], const uint32_t fields[3]) {
    struct stat stat;
    r->header = (struct kld_header){fields[0], fields[1], fields[2]};
    if (memcmp(found, magic, sizeof magic) != 0)
        return complain("%s is not a base file for --kl-divergence: it does not begin with \"_logits_\"", r->path);
    if (fields[0] < KLD_LEAST_CONTEXT || fields[0] > INT32_MAX || !fields[1] || fields[1] > INT32_MAX || !fields[2] ||
        fields[2] > INT32_MAX)
        return complain("%s is damaged: context %u, vocabulary %u, %u chunks; write it again", r->path, fields[0], fields[1],
                        fields[2]);
    if (fstat(fileno(r->file), &stat) != 0) return complain("cannot read %s: %s", r->path, strerror(errno));
    long double chunk = 4.0L * fields[0] + 2.0L * (long double)kld_rows(fields[0]) * (long double)kld_row_words(fields[1]);
    long double expected = HEADER_BYTES + chunk * fields[2];
    if ((long double)stat.st_size != expected)
        return complain("%s is %s: %lld bytes, and %u chunks of %u tokens with a vocabulary of %u are %.0Lf; write it again",
                        r->path, (long double)stat.st_size < expected ? "truncated" : "longer than it should be",
                        (long long)stat.st_size, fields[2], fields[0], fields[1], expected);
    return EXIT_OK;
}

static int read_failed(const struct kld_reader *r) {
    if (console_interrupted()) return EXIT_INTERRUPTED;
    return complain("cannot read %s: %s", r->path, ferror(r->file) ? strerror(errno) : "it ends too early");
}

static int read_tokens(struct kld_reader *r) {
    size_t n = (size_t)r->header.chunks * r->header.context;
    if (!(r->tokens = malloc(n * sizeof *r->tokens))) return complain("no memory for the %zu tokens of %s", n, r->path);
    if (fread(r->tokens, sizeof *r->tokens, n, r->file) != n) return read_failed(r);
    for (size_t i = 0; i < n; i++)
        if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= r->header.vocabulary)
            return complain("%s is damaged: token %zu is %d, outside the vocabulary of %u; write it again", r->path, i,
                            r->tokens[i], r->header.vocabulary);
    return EXIT_OK;
}

int kld_reader_open(const char *path, struct kld_reader **reader) {
    char found[sizeof magic];
    uint32_t fields[3];
    int status = EXIT_FAILED;
    *reader = NULL;
    struct kld_reader *r = calloc(1, sizeof *r);
    if (!r || !(r->path = strdup(path))) {
        complain("no memory for the base file");
        goto done;
    }
    if (!(r->file = fopen(path, "rb"))) {
        complain("cannot open %s: %s", path, strerror(errno));
        goto done;
    }
    if (fread(found, sizeof found, 1, r->file) != 1 || fread(fields, sizeof fields, 1, r->file) != 1) {
        status = ferror(r->file) ? read_failed(r) : complain("%s is not a base file for --kl-divergence: it is too short", path);
        goto done;
    }
    if ((status = check_header(r, found, fields)) != EXIT_OK) goto done;
    if ((status = read_tokens(r)) != EXIT_OK) goto done;
    *reader = r;
    r = NULL;
done:
    kld_reader_free(r);
    return status;
}

void kld_reader_free(struct kld_reader *reader) {
    if (!reader) return;
    if (reader->file) fclose(reader->file);
    free(reader->tokens);
    free(reader->path);
    free(reader);
}

const struct kld_header *kld_reader_header(const struct kld_reader *reader) { return &reader->header; }
const int32_t *kld_reader_tokens(const struct kld_reader *reader) { return reader->tokens; }

int kld_reader_rows(struct kld_reader *reader, uint16_t *rows, size_t n_rows) {
    size_t words = kld_row_words(reader->header.vocabulary);
    float scale, minimum;
    if (fread(rows, words * sizeof *rows, n_rows, reader->file) != n_rows) return read_failed(reader);
    for (size_t i = 0; i < n_rows; i++)
        if (!kld_row_scale(rows + i * words, &scale, &minimum))
            return complain("%s is damaged before byte %lld: a row with scale %g and minimum %g; write it again", reader->path,
                            (long long)ftello(reader->file), (double)scale, (double)minimum);
    return EXIT_OK;
}
