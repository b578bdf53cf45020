/* Finds the codebook that a method needs, in the user's cache directory or elsewhere, and calibrates one where it is missing. The library does the
 * learning. */
#include "codebooks.h"

#include "rate_costs.h"
#include "text.h"

#include <terse_choice.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void codebooks_free(struct codebook_entry *entries) {
    while (entries) {
        struct codebook_entry *next = entries->next;
        terse_codebook_free(entries->codebook);
        free(entries);
        entries = next;
    }
}

/* ---- Methods that need one */

static const char profile_name[] = "terse"; /* of every terse-N */

/* Writes the codebook's name as terse_cache_codebook does; "" also if the options name an unknown method, about which a session
 * complains better. */
static void name_codebook(const struct setup *setup, char name[64]) {
    struct terse_session_options options = setup_session_options(setup);
    if (terse_cache_codebook(&options.cache, name, 64, NULL) != TERSE_OK) name[0] = 0;
}

bool codebooks_needed(const struct setup *setup) {
    char name[64];
    name_codebook(setup, name);
    return name[0];
}

bool codebooks_is_profile(const struct setup *setup) {
    char name[64];
    name_codebook(setup, name);
    return strcmp(name, profile_name) == 0;
}

/* Returns a method whose codebook it is: the setup's own may learn nothing where -ctk or -ctv does. */
static const char *learned_method(const struct setup *setup) { return codebooks_is_profile(setup) ? "terse-2" : setup->method; }

/* ---- Where they are kept */

bool codebooks_path(const struct setup *setup, char *path, size_t capacity) {
    char name[64];
    name_codebook(setup, name);
    return terse_kept_path(setup->model, name, ".gguf", path, capacity, NULL) == TERSE_OK;
}

/* Makes the folders on the way to a file. Returns false, with errno, where one cannot be made. */
static bool make_folders(const char *path) {
    char folder[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t length = (size_t)(slash - path);
        if (length >= sizeof folder) return false;
        memcpy(folder, path, length);
        folder[length] = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) return false;
    }
    return true;
}

enum terse_status codebooks_keep(const struct terse_codebook *codebook, const char *path, struct terse_error *error) {
    make_folders(path); /* saving says what is wrong */
    return terse_codebook_save(codebook, path, error);
}

int codebooks_check_place(const char *path, bool makes_folders) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    int length = snprintf(folder, sizeof folder, "%.*s.", slash ? (int)(slash - path) + 1 : 0, path);
    if (length < 0 || (size_t)length >= sizeof folder) return complain("%s: the path is too long", path);
    if ((makes_folders && !make_folders(path)) || access(folder, W_OK) != 0)
        return complain("cannot write %s: %s", path, strerror(errno));
    return EXIT_OK;
}

/* ---- What is kept there */

/* Returns whether the codebook is for the method and model that its file's name says: a kept codebook serves all files of the
 * model, whatever the types of their weights. */
static bool is_for(const struct terse_codebook *codebook, const struct setup *setup) {
    struct terse_codebook_info info;
    char name[64];
    terse_codebook_describe(codebook, &info);
    name_codebook(setup, name);
    return strcmp(info.method, name) == 0 && info.of_norms && info.fingerprint == setup->info.norms_fingerprint;
}

/* Loads the codebook at `path`; NULL where there is none or, after a remark, where it is of no use. Lack of memory is a failure,
 * because using another method instead would surprise the user. Returns an exit status. */
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

/* Complains where a codebook of so many tokens must not replace the one that is kept at `path`. One that is of no use may be
 * replaced by any. */
static int check_replacing(const struct setup *setup, const char *path, uint64_t tokens) {
    struct terse_codebook *kept;
    struct terse_codebook_info info;
    int status = find(setup, path, &kept);
    if (status != EXIT_OK || !kept) return status;
    terse_codebook_describe(kept, &info);
    if (tokens < info.tokens)
        status = complain("%s is there already, learned from %" PRIu64 " tokens of %s, and this one would be learned from %" PRIu64
                          ": give -o FILE for it, learn from as many, or remove that file",
                          path, info.tokens, info.corpus, tokens);
    terse_codebook_free(kept);
    return status;
}

/* ---- Learning */

/* embedded.S has the validation split of WikiText. */
extern const char calibration_text_begin[], calibration_text_end[];

int codebooks_read_text(const struct setup *setup, const char *file, const char **name, int32_t **tokens, size_t *n_tokens) {
    const char *slash = file ? strrchr(file, '/') : NULL;
    *name = !file ? "WikiText validation" : slash ? slash + 1 : file;
    if (file) return text_read_tokens(setup->model, file, tokens, n_tokens);
    return text_tokenize(setup->model, calibration_text_begin, (size_t)(calibration_text_end - calibration_text_begin),
                         TERSE_TOKENIZE_ADD_SPECIAL, tokens, n_tokens);
}

struct codebooks_calibration codebooks_calibration_defaults(void) {
    struct terse_calibration defaults = terse_calibration_defaults();
    return (struct codebooks_calibration){.windows = defaults.windows, .seed = (int64_t)defaults.seed};
}

/* A watch follows a calibration in progress. */
struct watch {
    const struct setup *setup;
    const struct terse_calibration *options;
    uint64_t windows;
    double start;
    double most;   /* seconds that it may take, or it is given up; 0: any time */
    double needed; /* seconds that it would take, where it was given up */
    bool silent;   /* nothing more is announced */
};

#define PROFILE_TOKENS 20480 /* that a profile is learned from: terse_calibrate.h */
#define CODEBOOK_WINDOWS 128
#define UNASKED_SECONDS 60 /* that learning a codebook may take where the user did not ask for it */

double codebooks_profile_windows(void) { return (double)PROFILE_TOKENS / CODEBOOKS_WINDOW; }

/* Returns how many windows calibration reads where no number is asked for. */
static uint64_t default_windows(const struct setup *setup, uint32_t window) {
    if (!codebooks_is_profile(setup)) return CODEBOOK_WINDOWS;
    return PROFILE_TOKENS / window ? PROFILE_TOKENS / window : 1;
}

/* Writes a duration like "about 40 seconds". */
static void write_duration(double seconds, char *text, size_t capacity) {
    if (seconds < 90)
        snprintf(text, capacity, "about %.0f second%s", seconds < 1 ? 1 : seconds, seconds < 1.5 ? "" : "s");
    else if (seconds < 90 * 60)
        snprintf(text, capacity, "about %.0f minutes", seconds / 60);
    else
        snprintf(text, capacity, "about %.1f hours", seconds / 3600);
}

static const char *model_name(const struct setup *setup) { return setup->info.name[0] ? setup->info.name : "this model"; }

/* Announces the learning after the first window, or after enough of it to estimate the whole time; gives it up only after
 * enough. */
static void announce(struct watch *watch, const char *what, uint64_t done, uint64_t total) {
    enum { SECONDS_TO_TELL = 5 };
    double seconds = console_seconds() - watch->start;
    char left[64];
    if (watch->silent || !done || (done * watch->windows < total && seconds < SECONDS_TO_TELL)) return;
    double rest = seconds * (double)(total - done) / (double)done;
    bool too_long = watch->most > 0 && rest > watch->most;
    if (too_long && seconds < SECONDS_TO_TELL) return; /* something else may have held up so short a beginning */
    watch->silent = true;
    if (too_long) {
        watch->needed = rest;
        return;
    }
    write_duration(rest, left, sizeof left);
    if (codebooks_is_profile(watch->setup))
        remark("there is no profile of %s yet: learning one from %s, %" PRIu64
               " windows of %u tokens, this once and for every terse-N; it takes %s",
               model_name(watch->setup), watch->options->corpus, watch->windows, watch->options->window, left);
    else
        remark("%s needs a codebook for %s, and there is none yet: learning one from %s, %" PRIu64
               " windows of %u tokens, this once; %s take %s, then centroids are fitted",
               watch->setup->method, model_name(watch->setup), watch->options->corpus, watch->windows, watch->options->window, what,
               left);
}

static bool watch_calibration(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct watch *watch = user;
    announce(user, what, done, total);
    return watch->needed > 0 ? false : progress_show(NULL, what, done, total);
}

static struct terse_calibration options_of(const struct setup *setup, const struct codebooks_calibration *calibration) {
    struct terse_calibration options = terse_calibration_defaults();
    options.method = learned_method(setup);
    if (calibration->window)
        options.window = (uint32_t)calibration->window;
    else if (options.window > setup->info.context)
        options.window = setup->info.context;
    options.windows = (uint32_t)calibration->windows;
    options.seed = (uint64_t)calibration->seed;
    options.power = (uint32_t)calibration->power;
    options.shared = calibration->shared;
    options.text_labels = calibration->text_labels;
    options.mean = (enum terse_mean)calibration->mean;
    options.weighting = (enum terse_weighting)calibration->weighting;
    options.threads = (uint32_t)setup->threads;
    options.device = setup_device(setup);
    return options;
}

int codebooks_learn(struct setup *setup, const struct codebooks_calibration *calibration, struct terse_codebook **codebook,
                    double *needed) {
    struct terse_calibration options = options_of(setup, calibration);
    const bool if_there = setup->gpu_layers > 0 && !setup->engine; /* -ngl asks for a GPU, and does without one, but says so */
    struct terse_error error;
    int32_t *tokens;
    size_t n_tokens;
    *codebook = NULL;
    if (if_there) options.device = "gpu";
    int status = codebooks_read_text(setup, calibration->file, &options.corpus, &tokens, &n_tokens);
    if (status != EXIT_OK) return status;
    struct watch watch = {
        setup, &options, n_tokens / options.window, console_seconds(), calibration->most_seconds, 0, !calibration->announced};
    uint64_t windows = options.windows ? options.windows : default_windows(setup, options.window);
    if (windows < watch.windows) watch.windows = windows;
    options.progress = (struct terse_progress){watch_calibration, &watch};
    if (watch.windows && calibration->kept_at) /* a text too short for any window is the library's to refuse */
        status = check_replacing(setup, calibration->kept_at, watch.windows * options.window);
    enum terse_status learned =
        status == EXIT_OK ? terse_calibrate(setup->model, &options, tokens, n_tokens, codebook, &error) : TERSE_OK;
    const bool no_gpu = learned == TERSE_E_UNSUPPORTED && if_there,
               no_room =
                   learned == TERSE_E_MEMORY && setup->engine && strcmp(options.device, "cpu") != 0; /* the engine has most of it */
    if (no_gpu || no_room) {
        remark("the processor learns: %s", error.message);
        options.device = "cpu";
        watch.start = console_seconds();
        learned = terse_calibrate(setup->model, &options, tokens, n_tokens, codebook, &error);
    }
    if (learned != TERSE_OK && !(watch.needed > 0)) status = complain_error(&error);
    if (needed) *needed = watch.needed;
    if (*codebook && codebooks_is_profile(setup)) {
        const struct rate_costs_text text = {options.corpus, tokens, n_tokens, options.window, watch.windows};
        status = rate_costs_measure(setup, &text, *codebook);
    }
    free(tokens);
    return status;
}

/* ---- Finding one, or learning it */

/* embedded.S has the built-in model's profile. */
extern const char default_profile_begin[], default_profile_end[];

static int find_built_in(const struct setup *setup, struct terse_codebook **codebook) {
    struct terse_error error;
    size_t size = (size_t)(default_profile_end - default_profile_begin);
    *codebook = NULL;
    if (!codebooks_is_profile(setup)) return EXIT_OK;
    if (terse_codebook_load_memory(default_profile_begin, size, "the built-in profile", codebook, &error) != TERSE_OK)
        return complain_error(&error);
    if (is_for(*codebook, setup)) return EXIT_OK;
    terse_codebook_free(*codebook);
    *codebook = NULL;
    return EXIT_OK;
}

/* Finds the codebook that is kept, or is built in. */
static int find_kept(const struct setup *setup, struct terse_codebook **codebook) {
    char path[4096];
    int status = EXIT_OK;
    *codebook = NULL;
    if (codebooks_path(setup, path, sizeof path)) status = find(setup, path, codebook);
    return status != EXIT_OK || *codebook ? status : find_built_in(setup, codebook);
}

static bool without_codebook(const struct setup *setup) {
    return setup->codebook_path && strcmp(setup->codebook_path, "none") == 0;
}

/* Loads the codebook of --codebook. */
static int load_given(const struct setup *setup, struct terse_codebook **codebook) {
    struct terse_error error;
    return terse_codebook_load(setup->codebook_path, codebook, &error) == TERSE_OK ? EXIT_OK : complain_error(&error);
}

/* Adds the codebook to the list; releases it when there is no memory for that. */
static bool remember(struct setup *setup, struct terse_codebook *codebook) {
    struct codebook_entry *entry = calloc(1, sizeof *entry);
    if (!entry) {
        terse_codebook_free(codebook);
        return false;
    }
    name_codebook(setup, entry->name);
    entry->codebook = codebook;
    entry->next = setup->codebooks;
    setup->codebooks = entry;
    return true;
}

/* Returns the entry of the codebook that the method needs; NULL where it was not asked for yet. */
static struct codebook_entry *remembered(const struct setup *setup) {
    char name[64];
    struct codebook_entry *entry = setup->codebooks;
    name_codebook(setup, name);
    while (entry && strcmp(entry->name, name) != 0) entry = entry->next;
    return entry;
}

int codebooks_find(struct setup *setup, const struct terse_codebook **found) {
    struct codebook_entry *entry = remembered(setup);
    struct terse_codebook *codebook = NULL;
    int status = EXIT_OK;
    *found = entry ? entry->codebook : NULL;
    if (entry || without_codebook(setup)) return EXIT_OK;
    status = setup->codebook_path ? load_given(setup, &codebook) : find_kept(setup, &codebook);
    if (status != EXIT_OK || !codebook) return status;
    if (!remember(setup, codebook)) return complain("no memory for a codebook");
    *found = codebook;
    return EXIT_OK;
}

/* Checks that a session of these options is possible with some codebook, so that wrong options fail before minutes are spent on learning.
 * Returns an exit status. */
static int try_options(const struct setup *setup, const struct terse_session_options *options) {
    struct terse_session_options some = *options;
    struct terse_codebook *random;
    struct terse_session *session;
    struct terse_error error;
    if (terse_codebook_random(setup->model, learned_method(setup), &random, &error) != TERSE_OK) return complain_error(&error);
    some.cache.codebook = random;
    enum terse_status status = terse_session_new(setup->engine, &some, &session, &error);
    if (status == TERSE_OK) terse_session_free(session);
    terse_codebook_free(random);
    return status ? complain_error(&error) : EXIT_OK;
}

/* Tries to open a session of the options, which name no codebook. */
static enum terse_status try_without(const struct setup *setup, const struct terse_session_options *options,
                                     struct terse_error *error) {
    struct terse_session *session;
    enum terse_status status = terse_session_new(setup->engine, options, &session, error);
    if (status == TERSE_OK) terse_session_free(session);
    return status;
}

/* Returns the seconds that learning a codebook takes at least: with products at 100 GFLOP/s a thread, which few processors exceed, or
 * 500 TFLOP/s of a GPU. If these are too many, no trial is needed. */
static double least_seconds(const struct setup *setup) {
    double threads = setup->threads > 0 ? (double)setup->threads : (double)sysconf(_SC_NPROCESSORS_ONLN);
    double window = setup->info.context < CODEBOOKS_WINDOW ? setup->info.context : CODEBOOKS_WINDOW;
    double tokens = 4 * CODEBOOK_WINDOWS * window; /* all with gradients */
    double speed = strcmp(setup_device(setup), "cpu") == 0 ? 1e11 * threads : 5e14;
    return 2 * (double)setup->info.parameters * tokens / speed;
}

/* Returns whether the user asked for a method that compresses nothing without a profile, because the text is too short to fit it
 * to. */
static bool compresses_nothing(const struct setup *setup, const struct terse_session_options *options) {
    uint64_t tokens = options->context ? options->context : setup->info.context;
    if (setup->text_tokens && setup->text_tokens < tokens) tokens = setup->text_tokens;
    return !setup->choice && tokens <= TERSE_FIT_TOKENS;
}

/* Goes on without the missing profile, with a remark where it would make a difference that the user would not expect. Returns an exit status. */
static int go_without(const struct setup *setup, const struct terse_session_options *options) {
    char method[256], command[4096 + 64];
    bool paper = options->prefill == TERSE_PREFILL_PAPER;
    struct terse_error error;
    if (!paper && !compresses_nothing(setup, options)) return EXIT_OK;
    if (try_without(setup, options, &error) != TERSE_OK) return complain_error(&error);
    setup_method_text(setup, method, sizeof method);
    setup_calibrate_command(setup, METHOD_DEFAULT, command, sizeof command);
    if (paper)
        remark("without a profile of %s %s goes by the weights alone with --paper, and is much worse (%s learns one)",
               model_name(setup), method, command);
    else
        remark("%s fits itself to each text from %d tokens on; shorter ones stay as they are (%s lets it compress these too)",
               method, TERSE_FIT_TOKENS, command);
    return EXIT_OK;
}

/* Keeps a codebook that was just learned where the next run finds it. */
static void keep(const struct terse_codebook *codebook, const char *path) {
    struct terse_error error;
    if (!path)
        remark("the codebook is not kept, since neither XDG_CACHE_HOME nor HOME names a place for it: the next run will learn it "
               "again");
    else if (codebooks_keep(codebook, path, &error) != TERSE_OK)
        remark("the codebook is not kept, and the next run will learn it again: %s", error.message);
}

/* Learns the codebook and keeps it. *codebook stays NULL where that would take longer than is done unasked; *needed is then how
 * many seconds. */
static int learn_and_keep(struct setup *setup, const struct terse_session_options *options, const char *path,
                          struct terse_codebook **codebook, double *needed) {
    struct codebooks_calibration calibration = codebooks_calibration_defaults();
    double least = least_seconds(setup);
    calibration.announced = true;
    calibration.most_seconds = setup->auto_calibrate ? 0 : UNASKED_SECONDS;
    int status = try_options(setup, options);
    *needed = least;
    if (status == EXIT_OK && (setup->auto_calibrate || least <= UNASKED_SECONDS))
        status = codebooks_learn(setup, &calibration, codebook, needed);
    if (status == EXIT_OK && *codebook) keep(*codebook, path);
    return status;
}

static int find_or_learn(struct setup *setup, const struct terse_session_options *options, struct terse_codebook **codebook) {
    char path[4096], duration[64], command[4096 + 64];
    bool place = codebooks_path(setup, path, sizeof path), profile = codebooks_is_profile(setup);
    double needed = least_seconds(setup);
    int status = find_kept(setup, codebook);
    if (status != EXIT_OK || *codebook) return status;
    /* terse-N works without a profile, and is then closer to f16 on real models, so a profile is learned only where the user asks
     * for one. */
    bool learns = !setup->no_auto_calibrate && (!profile || setup->auto_calibrate);
    if (learns) status = learn_and_keep(setup, options, place ? path : NULL, codebook, &needed);
    if (status != EXIT_OK || *codebook) return status;
    if (profile) return go_without(setup, options);
    write_duration(needed, duration, sizeof duration);
    setup_calibrate_command(setup, setup->method, command, sizeof command);
    return complain("%s needs a codebook for this model, and there is none in %s; make it with %s (%s or more)%s", setup->method,
                    place ? path : "~/.cache", command, duration, learns ? ", or now with --auto-calibrate" : "");
}

int codebooks_provide(struct setup *setup, struct terse_session_options *options) {
    struct terse_codebook *codebook = NULL;
    struct terse_error error;
    int status = EXIT_OK;
    if (!codebooks_needed(setup)) return EXIT_OK;
    struct codebook_entry *entry = remembered(setup); /* once for each: bench asks for many methods */
    if (!entry) {
        if (setup_try_cache(setup, &error) != TERSE_OK) return complain_error(&error);
        if (without_codebook(setup)) {
            if (!codebooks_is_profile(setup))
                return complain("--codebook none is for terse-N: %s cannot do without", setup->method);
        } else if (setup->random_codebooks) {
            if (terse_codebook_random(setup->model, learned_method(setup), &codebook, &error) != TERSE_OK)
                status = complain_error(&error);
        } else if (!setup->codebook_path)
            status = find_or_learn(setup, options, &codebook);
        else
            status = load_given(setup, &codebook);
        if (status != EXIT_OK) return status;
        if (!remember(setup, codebook)) return complain("no memory for a codebook");
        entry = setup->codebooks;
    }
    options->cache.codebook = entry->codebook;
    return EXIT_OK;
}
