/* Parses a run, and loads its codebook. The library knows the methods and their requirements. */
#include "fidelity_run.h"

#include "base/hash.h"
#include "console.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Codebook files */

static int read_all(const char *path, FILE *file, unsigned char **data, size_t *size) {
    if (fseek(file, 0, SEEK_END) != 0) return complain("cannot read %s: %s", path, strerror(errno));
    long end = ftell(file);
    rewind(file);
    *size = end > 0 ? (size_t)end : 0;
    if (!(*data = malloc(*size + 1))) return complain("no memory for %s (%zu bytes)", path, *size);
    return fread(*data, 1, *size, file) == *size ? EXIT_OK : complain("cannot read %s", path);
}

/* Loads the codebook if there is one. A missing codebook is no error here: the library knows which methods need one, and its
 * message says how to make it. */
static int load_codebook(const char *work, const char *name, bool named, struct run *run) {
    char path[1024];
    struct terse_error error;
    unsigned char *data = NULL;
    size_t size = 0;
    if (named && strcmp(name, "none") == 0) return EXIT_OK;
    if ((size_t)snprintf(path, sizeof path, "%s/codebooks/%s.gguf", work, name) >= sizeof path)
        return complain("%s: the path of the codebook is too long", run->spec);
    FILE *file = fopen(path, "rb");
    if (!file && errno == ENOENT && !named) return EXIT_OK;
    if (!file) return complain("%s: cannot open %s: %s", run->spec, path, strerror(errno));
    int status = read_all(path, file, &data, &size);
    fclose(file);
    if (status == EXIT_OK && terse_codebook_load_memory(data, size, path, &run->codebook, &error) != TERSE_OK)
        status = complain_error(&error);
    if (status == EXIT_OK) {
        XXH64_state_t hash;
        XXH64_reset(&hash, 0);
        XXH64_update(&hash, data, size);
        run->codebook_hash = XXH64_digest(&hash);
        run->cache.codebook = run->codebook;
    }
    free(data);
    return status;
}

/* ---- Options */

static int parse_count(const struct run *run, const char *text, const char *what, uint32_t *count) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (end == text || *end || errno || *text == '-' || value >= UINT32_MAX)
        return complain("%s: %s=%s is not a number", run->spec, what, text);
    *count = (uint32_t)value;
    return EXIT_OK;
}

/* Reads an amount such as "7.5%" or "160". */
static int parse_amount(const struct run *run, const char *text, const char *what, double *percent, uint32_t *count) {
    char *end;
    double value = strtod(text, &end);
    *percent = 0;
    if (end == text || strcmp(end, "%") != 0) return parse_count(run, text, what, count);
    if (!(value >= 0 && value <= 100)) return complain("%s: %s=%s is not in 0%% to 100%%", run->spec, what, text);
    *percent = value;
    return EXIT_OK;
}

static int parse_index(struct run *run, const char *name) {
    run->index = index_variant(name);
    if (run->index) return EXIT_OK;
    return complain("%s: there is no index \"%s\"; there are %s", run->spec, name, INDEX_VARIANTS);
}

#define OPTIONS "anchors=, tail=, read=, index=, evict=, mat-anchors=, mat-shallow= and codebook="

static int parse_option(struct run *run, char *option, const char **codebook) {
    struct terse_cache_options *cache = &run->cache;
    char *value = strchr(option, '=');
    if (!value) return complain("%s: \"%s\" is no option; there are %s", run->spec, option, OPTIONS);
    *value++ = 0;
    if (strcmp(option, "anchors") == 0) return parse_amount(run, value, option, &cache->anchor_percent, &cache->anchor_count);
    if (strcmp(option, "read") == 0) return parse_amount(run, value, option, &cache->read_percent, &cache->read_count);
    if (strcmp(option, "tail") == 0) return parse_count(run, value, option, &cache->tail_tokens);
    if (strcmp(option, "mat-anchors") == 0) return parse_count(run, value, option, &cache->mat_anchors);
    if (strcmp(option, "mat-shallow") == 0) return parse_count(run, value, option, &cache->mat_shallow);
    if (strcmp(option, "index") == 0) return parse_index(run, value);
    if (strcmp(option, "evict") == 0)
        cache->evict = value;
    else if (strcmp(option, "codebook") == 0)
        *codebook = value;
    else
        return complain("%s: there is no option \"%s\"; there are %s", run->spec, option, OPTIONS);
    return EXIT_OK;
}

int run_open(const char *spec, const char *work, const struct terse_model *model, struct run *run) {
    struct terse_cache_report report;
    struct terse_error error;
    const char *codebook = NULL;
    int status = EXIT_OK;
    *run = (struct run){.cache = terse_cache_options_defaults()};
    if (!*spec || strlen(spec) >= sizeof run->spec) return complain("a method in --methods is empty or too long: \"%s\"", spec);
    strcpy(run->spec, spec);
    strcpy(run->fields, spec);
    char *next = strchr(run->fields, ':');
    while (next && status == EXIT_OK) {
        char *option = next + 1;
        *next = 0;
        next = strchr(option, ':');
        if (next) *next = 0;
        status = parse_option(run, option, &codebook);
    }
    run->cache.method = run->fields;
    if (status == EXIT_OK) status = load_codebook(work, codebook ? codebook : run->fields, codebook != NULL, run);
    if (status == EXIT_OK && terse_cache_bytes(model, NULL, &run->cache, 1024, &report, &error) != TERSE_OK)
        status = complain("%s: %s", spec, error.message);
    if (status != EXIT_OK) run_close(run);
    return status;
}

void run_close(struct run *run) {
    terse_codebook_free(run->codebook);
    *run = (struct run){0};
}
