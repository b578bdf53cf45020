/* Which methods need a codebook, the user's cache directory, and the calibration that fills it. The library does the learning. */
#include "codebooks.h"

#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEARNED_DEFAULT "million-4"
#define PLAIN_DEFAULT "q4_0"

void codebooks_free(struct codebook_entry *entries) {
    while (entries) {
        struct codebook_entry *next = entries->next;
        terse_codebook_free(entries->codebook);
        free(entries);
        entries = next;
    }
}

/* ---- Methods that need one */

/* A capital letter of the pattern, as in "streaming-N", stands for a number. */
static bool matches(const char *pattern, const char *name) {
    for (; *pattern; pattern++) {
        size_t digits = strspn(name, "0123456789");
        bool number = isupper((unsigned char)*pattern);
        if (number ? !digits : *pattern != *name) return false;
        name += number ? digits : 1;
    }
    return !*name;
}

bool codebooks_needed(const struct setup *setup) {
    struct terse_method_info method;
    if (setup->key_type && setup->value_type) return false; /* and neither of them learns */
    for (size_t i = 0; terse_method_describe(i, &method); i++)
        if (matches(method.name, setup->method)) return method.learns;
    return false;
}

/* ---- Where they are kept */

bool codebooks_path(const struct setup *setup, char *path, size_t capacity) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && cache[0] == '/'; /* others are to be ignored, says the XDG Base Directory Specification */
    if (!own && (!home || home[0] != '/')) return false;
    int length = snprintf(path, capacity, "%s%s/terse/%s-%016" PRIx64 ".gguf", own ? cache : home, own ? "" : "/.cache",
                          setup->method, setup->info.fingerprint);
    return length > 0 && (size_t)length < capacity;
}

enum terse_status codebooks_keep(const struct terse_codebook *codebook, const char *path, struct terse_error *error) {
    char folder[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t length = (size_t)(slash - path);
        if (length >= sizeof folder) break;
        memcpy(folder, path, length);
        folder[length] = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) break; /* saving says what is wrong */
    }
    return terse_codebook_save(codebook, path, error);
}

/* ---- Learning */

/* From embedded.S: the validation split of WikiText. */
extern const char calibration_text_begin[], calibration_text_end[];
static const char built_in_corpus[] = "WikiText validation";

struct codebooks_calibration codebooks_calibration_defaults(void) {
    struct terse_calibration defaults = terse_calibration_defaults();
    return (struct codebooks_calibration){.windows = defaults.windows, .seed = (int64_t)defaults.seed};
}

static int read_calibration(const struct setup *setup, const char *file, int32_t **tokens, size_t *n_tokens) {
    char *text;
    size_t n_bytes;
    if (!file)
        return text_tokenize(setup->model, calibration_text_begin, (size_t)(calibration_text_end - calibration_text_begin),
                             TERSE_TOKENIZE_ADD_SPECIAL, tokens, n_tokens);
    int status = text_read(file, &text, &n_bytes);
    if (status != EXIT_OK) return status;
    status = text_tokenize(setup->model, text, n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, tokens, n_tokens);
    free(text);
    return status;
}

/* A calibration in progress. */
struct watch {
    const struct setup *setup;
    const struct terse_calibration *options;
    uint64_t windows;
    double start;
    bool silent; /* nothing more is announced */
};

/* "about 40 seconds" */
static void write_duration(double seconds, char *text, size_t capacity) {
    if (seconds < 90)
        snprintf(text, capacity, "about %.0f seconds", seconds < 1 ? 1 : seconds);
    else if (seconds < 90 * 60)
        snprintf(text, capacity, "about %.0f minutes", seconds / 60);
    else
        snprintf(text, capacity, "about %.1f hours", seconds / 3600);
}

/* Announces the learning after the first window, or after enough of it to tell how long all will take. */
static void announce(struct watch *watch, const char *what, uint64_t done, uint64_t total) {
    enum { SECONDS_TO_TELL = 5 };
    double seconds = console_seconds() - watch->start;
    char left[64];
    if (watch->silent || !done || (done * watch->windows < total && seconds < SECONDS_TO_TELL)) return;
    watch->silent = true;
    write_duration(seconds * (double)(total - done) / (double)done, left, sizeof left);
    remark("%s needs a codebook for %s, and there is none yet: learning one from %s, %" PRIu64 " windows of %u tokens, this once; "
           "%s take %s, then centroids are fitted",
           watch->setup->method, watch->setup->info.name[0] ? watch->setup->info.name : "this model", watch->options->corpus,
           watch->windows, watch->options->window, what, left);
}

static bool watch_calibration(void *user, const char *what, uint64_t done, uint64_t total) {
    announce(user, what, done, total);
    return progress_show(NULL, what, done, total);
}

int codebooks_learn(const struct setup *setup, const struct codebooks_calibration *calibration, struct terse_codebook **codebook) {
    struct terse_calibration options = terse_calibration_defaults();
    struct terse_error error;
    int32_t *tokens;
    size_t n_tokens;
    const char *slash = calibration->file ? strrchr(calibration->file, '/') : NULL;
    *codebook = NULL;
    int status = read_calibration(setup, calibration->file, &tokens, &n_tokens);
    if (status != EXIT_OK) return status;
    options.method = setup->method;
    options.corpus = !calibration->file ? built_in_corpus : slash ? slash + 1 : calibration->file;
    if (calibration->window)
        options.window = (uint32_t)calibration->window;
    else if (options.window > setup->info.context)
        options.window = setup->info.context;
    options.windows = (uint32_t)calibration->windows;
    options.seed = (uint64_t)calibration->seed;
    options.power = (uint32_t)calibration->power;
    options.shared = calibration->shared;
    options.text_labels = calibration->text_labels;
    options.weighting = (enum terse_weighting)calibration->weighting;
    options.threads = (uint32_t)setup->threads;
    struct watch watch = {setup, &options, n_tokens / options.window, console_seconds(), !calibration->announced};
    if (options.windows && options.windows < watch.windows) watch.windows = options.windows;
    options.progress = (struct terse_progress){watch_calibration, &watch};
    if (terse_calibrate(setup->model, &options, tokens, n_tokens, codebook, &error) != TERSE_OK) status = complain_error(&error);
    free(tokens);
    return status;
}

/* ---- Finding one */

/* Whether the codebook is for the method and model that its file's name says. */
static bool is_for(const struct terse_codebook *codebook, const struct setup *setup) {
    struct terse_codebook_info info;
    terse_codebook_describe(codebook, &info);
    return strcmp(info.method, setup->method) == 0 && info.fingerprint == setup->info.fingerprint;
}

/* The codebook at `path`; NULL where there is none or, after a remark, where it is of no use. Lack of memory is a failure: another
 * method in its place would be a surprise. Returns an exit status. */
static int find(const struct setup *setup, const char *path, struct terse_codebook **codebook) {
    struct terse_error error;
    *codebook = NULL;
    if (access(path, F_OK) != 0) return EXIT_OK;
    if (terse_codebook_load(path, codebook, &error) != TERSE_OK) {
        if (error.code == TERSE_E_MEMORY) return complain_error(&error);
        remark("a codebook that was kept cannot be used: %s", error.message);
        return EXIT_OK;
    }
    if (is_for(*codebook, setup)) return EXIT_OK;
    remark("%s is for another method or model than its name says: it is not used", path);
    terse_codebook_free(*codebook);
    *codebook = NULL;
    return EXIT_OK;
}

/* From embedded.S: for the built-in model and the method of LEARNED_DEFAULT. */
extern const char default_codebook_begin[], default_codebook_end[];

static int find_built_in(const struct setup *setup, struct terse_codebook **codebook) {
    struct terse_error error;
    size_t size = (size_t)(default_codebook_end - default_codebook_begin);
    *codebook = NULL;
    if (strcmp(setup->method, LEARNED_DEFAULT) != 0) return EXIT_OK;
    if (terse_codebook_load_memory(default_codebook_begin, size, "the built-in codebook", codebook, &error) != TERSE_OK)
        return complain_error(&error);
    if (is_for(*codebook, setup)) return EXIT_OK;
    terse_codebook_free(*codebook);
    *codebook = NULL;
    return EXIT_OK;
}

static int find_anywhere(const struct setup *setup, struct terse_codebook **codebook) {
    char path[4096];
    int status = EXIT_OK;
    *codebook = NULL;
    if (codebooks_path(setup, path, sizeof path)) status = find(setup, path, codebook);
    return status != EXIT_OK || *codebook ? status : find_built_in(setup, codebook);
}

/* Adds it to the list; releases it when there is no memory for that. */
static bool remember(struct setup *setup, struct terse_codebook *codebook) {
    struct codebook_entry *entry = calloc(1, sizeof *entry);
    if (!entry) {
        terse_codebook_free(codebook);
        return false;
    }
    snprintf(entry->method, sizeof entry->method, "%s", setup->method);
    entry->codebook = codebook;
    entry->next = setup->codebooks;
    setup->codebooks = entry;
    return true;
}

int codebooks_choose_method(struct setup *setup) {
    bool own_types = setup->key_type || setup->value_type;
    setup->method = LEARNED_DEFAULT;
    if (setup->codebook_path && !(setup->key_type && setup->value_type)) return EXIT_OK;
    struct terse_codebook *codebook = NULL;
    int status = own_types ? EXIT_OK : find_anywhere(setup, &codebook);
    if (!codebook || !remember(setup, codebook)) setup->method = PLAIN_DEFAULT;
    return status;
}

/* Whether a session of these options would be possible with some codebook, so that wrong options fail before minutes are spent on
 * learning. */
static int try_options(const struct setup *setup, const struct terse_session_options *options) {
    struct terse_session_options plain = *options;
    struct terse_session *session;
    struct terse_error error;
    plain.cache = terse_cache_options_defaults();
    if (terse_session_new(setup->engine, &plain, &session, &error) != TERSE_OK) return complain_error(&error);
    terse_session_free(session);
    return EXIT_OK;
}

static int learn_and_keep(const struct setup *setup, const struct terse_session_options *options, const char *path,
                          struct terse_codebook **codebook) {
    struct codebooks_calibration calibration = codebooks_calibration_defaults();
    struct terse_error error;
    calibration.announced = true;
    int status = try_options(setup, options);
    if (status == EXIT_OK) status = codebooks_learn(setup, &calibration, codebook);
    if (status != EXIT_OK) return status;
    if (!path)
        remark("the codebook is not kept, since neither XDG_CACHE_HOME nor HOME names a place for it: the next run will learn it "
               "again");
    else if (codebooks_keep(*codebook, path, &error) != TERSE_OK)
        remark("the codebook is not kept, and the next run will learn it again: %s", error.message);
    return EXIT_OK;
}

static int find_or_learn(const struct setup *setup, const struct terse_session_options *options, struct terse_codebook **codebook) {
    char path[4096];
    bool place = codebooks_path(setup, path, sizeof path);
    int status = find_anywhere(setup, codebook);
    if (status != EXIT_OK || *codebook) return status;
    if (!setup->no_auto_calibrate) return learn_and_keep(setup, options, place ? path : NULL, codebook);
    return complain("%s needs a codebook for this model, and there is none in %s; make it with: terse calibrate%s%s --kv %s",
                    setup->method, place ? path : "~/.cache", setup->model_path ? " -m " : "",
                    setup->model_path ? setup->model_path : "", setup->method);
}

int codebooks_provide(struct setup *setup, struct terse_session_options *options) {
    struct codebook_entry *entry;
    struct terse_codebook *codebook = NULL;
    struct terse_error error;
    int status = EXIT_OK;
    if (!codebooks_needed(setup)) return EXIT_OK;
    /* Once for each method: bench asks for many. */
    for (entry = setup->codebooks; entry && strcmp(entry->method, setup->method) != 0;) entry = entry->next;
    if (!entry) {
        if (setup_try_cache(setup, &error) != TERSE_OK) return complain_error(&error);
        if (setup->random_codebooks) {
            if (terse_codebook_random(setup->model, setup->method, &codebook, &error) != TERSE_OK) status = complain_error(&error);
        } else if (!setup->codebook_path)
            status = find_or_learn(setup, options, &codebook);
        else if (terse_codebook_load(setup->codebook_path, &codebook, &error) != TERSE_OK)
            status = complain_error(&error);
        if (status != EXIT_OK) return status;
        if (!remember(setup, codebook)) return complain("no memory for a codebook");
        entry = setup->codebooks;
    }
    options->cache.codebook = entry->codebook;
    return EXIT_OK;
}
