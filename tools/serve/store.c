#include "store.h"

#include "console.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The store keeps as many files as an engine keeps prefixes. A shorter sequence than LEAST_TOKENS is read again as fast as it is loaded. */
enum { MOST_FILES = 16, LEAST_TOKENS = 128 };

/* A file's name says what it holds: a hash of its tokens, and their number. It contains no text of a request. */
struct saved {
    uint64_t hash, n;
    double used; /* seconds since 1970 */
};

struct store {
    char *folder;
    struct saved files[MOST_FILES];
    size_t n;
    bool complained;
};

/* Returns the FNV-1a hash of tokens[n]. */
static uint64_t hash_of(const int32_t *tokens, size_t n) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((uint32_t)tokens[i] >> shift & 255)) * UINT64_C(0x100000001b3);
    return hash;
}

static char *path_of(const struct store *store, const struct saved *file) {
    size_t size = strlen(store->folder) + 64;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s/%016" PRIx64 "-%" PRIu64 ".state", store->folder, file->hash, file->n);
    return path;
}

static void forget(struct store *store, size_t at) {
    char *path = path_of(store, &store->files[at]);
    if (path) (void)unlink(path); /* a session that is mapped from it lives on */
    free(path);
    store->files[at] = store->files[--store->n];
}

static size_t oldest(const struct store *store) {
    size_t at = 0;
    for (size_t i = 1; i < store->n; i++)
        if (store->files[i].used < store->files[at].used) at = i;
    return at;
}

static void add(struct store *store, struct saved file) {
    if (store->n == MOST_FILES) forget(store, oldest(store));
    store->files[store->n++] = file;
}

/* ---- Opening */

static bool is_saved(const char *name, struct saved *file) {
    int end = 0;
    return sscanf(name, "%16" SCNx64 "-%" SCNu64 ".state%n", &file->hash, &file->n, &end) == 2 && end && !name[end] &&
           strlen(name) > 16 && name[16] == '-';
}

bool store_owns(const char *name) {
    struct saved file;
    return is_saved(name, &file);
}

static bool load(const struct store *store, const struct saved *file, struct terse_engine *engine,
                 const struct terse_session_options *options, struct terse_error *error) {
    struct terse_session *session;
    char *path = path_of(store, file);
    if (!path) return false;
    enum terse_status status = terse_session_load(engine, options, path, &session, error);
    free(path);
    if (status) return false;
    status = terse_engine_keep_prefix(engine, session, error);
    terse_session_free(session);
    return !status;
}

static int compare_used(const void *a, const void *b) {
    const struct saved *x = a, *y = b;
    return (x->used > y->used) - (x->used < y->used);
}

static void list_files(DIR *folder, struct saved **files, size_t *n) {
    struct stat about;
    struct saved file;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!is_saved(entry->d_name, &file) || fstatat(dirfd(folder), entry->d_name, &about, 0)) continue;
        file.used = (double)about.st_mtim.tv_sec + 1e-9 * (double)about.st_mtim.tv_nsec;
        struct saved *larger = realloc(*files, (*n + 1) * sizeof *larger);
        if (!larger) return;
        *files = larger;
        larger[(*n)++] = file;
    }
    if (*n) qsort(*files, *n, sizeof **files, compare_used);
}

/* Loads the oldest first, so that the engine keeps the newest longest. */
static size_t load_files(struct store *store, DIR *folder, struct terse_engine *engine,
                         const struct terse_session_options *options) {
    struct saved *files = NULL;
    struct terse_error error;
    size_t n = 0, others = 0;
    list_files(folder, &files, &n);
    for (size_t i = 0; i < n; i++) {
        if (load(store, &files[i], engine, options, &error))
            add(store, files[i]);
        else
            others++;
    }
    if (others) remark("--state-dir: %zu saved sessions are left alone, as the last of them: %s", others, error.message);
    free(files);
    return store->n;
}

int store_check(const char *option, const char *folder) {
    if (mkdir(folder, 0700) && errno != EEXIST)
        return complain("cannot make the folder of %s, %s: %s", option, folder, strerror(errno));
    DIR *listing = opendir(folder);
    if (!listing) return complain("cannot read the folder of %s, %s: %s", option, folder, strerror(errno));
    closedir(listing);
    if (access(folder, W_OK)) return complain("cannot write to the folder of %s, %s: %s", option, folder, strerror(errno));
    return EXIT_OK;
}

int store_open(const char *folder, struct terse_engine *engine, const struct terse_session_options *options, struct store **out,
               size_t *kept) {
    *out = NULL;
    DIR *listing = opendir(folder);
    if (!listing) return complain("cannot read the folder of --state-dir, %s: %s", folder, strerror(errno));
    struct store *store = calloc(1, sizeof *store);
    if (!store || !(store->folder = strdup(folder))) {
        free(store);
        closedir(listing);
        return complain("no memory for --state-dir");
    }
    *kept = load_files(store, listing, engine, options);
    closedir(listing);
    *out = store;
    return EXIT_OK;
}

void store_close(struct store *store) {
    if (!store) return;
    free(store->folder);
    free(store);
}

/* ---- Saving */

bool store_takes(size_t n) { return n >= LEAST_TOKENS; }

void store_save(struct store *store, const struct terse_session *session, const int32_t *tokens, size_t n) {
    struct timespec now;
    struct terse_error error;
    clock_gettime(CLOCK_REALTIME, &now);
    struct saved file = {hash_of(tokens, n), n, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec};
    char *path = path_of(store, &file);
    if (!path) return;
    enum terse_status status = terse_session_save(session, path, &error);
    free(path);
    if (status) {
        if (!store->complained) remark("--state-dir: %s", error.message);
        store->complained = true;
        return;
    }
    for (size_t i = store->n; i-- > 0;) {
        const struct saved *older = &store->files[i];
        if (older->n == n && older->hash == file.hash)
            store->files[i] = store->files[--store->n]; /* it was written over */
        else if (older->n < n && older->hash == hash_of(tokens, older->n))
            forget(store, i);
    }
    add(store, file);
}
