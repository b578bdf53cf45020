/* Implements `terse calibrate`: learns a method's codebook for a model from a text, and keeps it where the other commands look for
 * it or in a file of its own. */
#include "codebooks.h"
#include "commands.h"
#include "rate_costs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define GAIN_TOKENS 1024 /* of the text whose bytes say what a profile gains */

struct calibrate {
    struct setup setup;
    struct codebooks_calibration calibration;
    const char *output; /* NULL: the user's cache directory */
};

static void list_learners(char *text, size_t capacity) {
    struct terse_method_info method;
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; terse_method_describe(i, &method) && length < capacity; i++)
        if (method.learns) length += (size_t)snprintf(text + length, capacity - length, "%s%s", length ? ", " : "", method.name);
}

static int check_options(const struct calibrate *c) {
    char learners[512];
    if (c->setup.method) return EXIT_OK;
    list_learners(learners, sizeof learners);
    return complain("no method given: pass --kv with one of %s", learners);
}

static enum options_result parse(struct calibrate *c, int argc, char **argv) {
    const struct option options[] = {
        {"--kv", "METHOD", OPTION_TEXT, &c->setup.method, 0, 0,
         "the method to learn a codebook for; any terse-N: a profile for all of them"},
        {"-f, --file", "FILE", OPTION_TEXT, &c->calibration.file, 0, 0,
         "text to learn from; without it a built-in one, from Wikipedia"},
        {"-o, --output", "FILE", OPTION_TEXT, &c->output, 0, 0,
         "where to put the codebook; without it, where terse run finds it, unless one from more tokens is there"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &c->calibration.window, 0, INT32_MAX,
         "tokens of a window; 0: 2048, or the model's context where that is less"},
        {"--chunks", "K", OPTION_INTEGER, &c->calibration.windows, 0, INT32_MAX,
         "windows to learn from, taken evenly from the text; 0: 128, for terse-N 10"},
        {"--shared", NULL, OPTION_FLAG, &c->calibration.shared, 0, 0, "the same centroids for all layers and heads"},
        {"--weighting", "own|none|part|head", OPTION_CHOICE, &c->calibration.weighting, 0, 0,
         "samples weigh by the loss's gradient of the sub-vector or of the whole head; own: the method's own"},
        {"--power", "P", OPTION_INTEGER, &c->calibration.power, 0, 2, "of the gradient's norm, 1 or 2; 0: the method's own"},
        {"--text-labels", NULL, OPTION_FLAG, &c->calibration.text_labels, 0, 0,
         "gradients of the loss against the text instead of labels drawn from the model's predictions"},
        {"--mean", "own|none|subtract", OPTION_CHOICE, &c->calibration.mean, 0, 0,
         "antkv, commvq: whether a mean row is subtracted from rows before they are normalized; own: as the method does"},
        {"-s, --seed", "N", OPTION_INTEGER, &c->calibration.seed, 0, INT32_MAX, "of the centroids that learning begins with"},
    };
    const struct option_set set = {
        .usage = "terse calibrate --kv METHOD [-m MODEL] [-f TEXT] [-o FILE] [options]",
        .about = "Learns the codebook that a method needs for a model. The other commands do so by themselves, once, where that\n"
                 "takes less than a minute; this command lets you choose the text and how it is learned. For terse-N it learns\n"
                 "a profile, with which that compresses texts of fewer than 2052 tokens too; longer ones need none.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = c->setup.common,
        .n_common = SETUP_DEVICE,
    };
    return options_parse(&set, argc, argv);
}

/* Writes the codebook's path to `path`, and checks that it can be written there before minutes are spent on learning. */
static int choose_output(struct calibrate *c, char *path, size_t capacity) {
    if (!c->output) c->calibration.kept_at = path;
    if (c->output && strlen(c->output) >= capacity) return complain("-o: the path is too long");
    if (c->output)
        snprintf(path, capacity, "%s", c->output);
    else if (!codebooks_path(&c->setup, path, capacity))
        return complain("neither XDG_CACHE_HOME nor HOME names a place for the codebook: give -o FILE");
    return codebooks_check_place(path, !c->output);
}

/* Says what a profile gains: bytes of texts that are too short for a cache to fit itself to. */
static void print_gain(const struct setup *setup, const struct terse_codebook *profile) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_cache_report without, with;
    const uint64_t tokens = setup->info.context < GAIN_TOKENS ? setup->info.context : GAIN_TOKENS;
    options.method = METHOD_DEFAULT;
    if (setup_cache_bytes(setup, &options, tokens, &without, NULL) != TERSE_OK) return;
    options.codebook = profile;
    if (setup_cache_bytes(setup, &options, tokens, &with, NULL) != TERSE_OK) return;
    printf("gained: a text of %llu tokens takes %.2f MiB with " METHOD_DEFAULT
           " instead of %.2f; texts of %d and more fit themselves, as before\n",
           (unsigned long long)tokens, (double)with.resident / 0x1p20, (double)without.resident / 0x1p20, TERSE_FIT_TOKENS);
}

static void print_results(const struct setup *setup, const struct terse_codebook *codebook, const char *path, double seconds) {
    struct terse_codebook_info info;
    struct stat file;
    terse_codebook_describe(codebook, &info);
    double bytes = stat(path, &file) == 0 ? (double)file.st_size : 0;
    printf("%s = %s, %.2f MiB (%s for %s, fingerprint %016" PRIx64 ")\n", info.profile ? "profile" : "codebook", path,
           bytes / 0x1p20, info.profile ? "every terse-N" : info.method, info.model[0] ? info.model : "a model without a name",
           info.fingerprint);
    printf("learned from %" PRIu64 " tokens of %s%s in %.1f s; weights: %s, effective samples: %.0f\n", info.tokens, info.corpus,
           info.n_costs ? ", and measured," : "", seconds, info.weighting, info.effective_samples);
    if (info.profile) print_gain(setup, codebook);
    rate_costs_print(codebook);
}

/* Checks that there are caches of the method, on the CPU, which has all: a codebook serves whatever device. */
static int try_cache(const struct calibrate *c) {
    struct setup on_cpu = c->setup;
    struct terse_error error;
    on_cpu.device = "cpu";
    on_cpu.gpu_layers = -1;
    return setup_try_cache(&on_cpu, &error) == TERSE_OK ? EXIT_OK : complain_error(&error);
}

static int calibrate(struct calibrate *c) {
    char path[4096];
    const char *device; /* that of the setup */
    struct terse_codebook *codebook = NULL;
    struct terse_error error;
    double start = console_seconds();
    int status = setup_load(&c->setup);
    if (status == EXIT_OK) status = setup_choose_device(&c->setup, &device);
    if (status == EXIT_OK) status = try_cache(c);
    if (status == EXIT_OK && !codebooks_needed(&c->setup))
        status = complain("%s learns nothing: it needs no codebook", c->setup.method);
    if (status == EXIT_OK) status = choose_output(c, path, sizeof path);
    if (status == EXIT_OK) status = codebooks_learn(&c->setup, &c->calibration, &codebook, NULL);
    if (status == EXIT_OK && codebooks_keep(codebook, path, &error) != TERSE_OK) status = complain_error(&error);
    if (status == EXIT_OK) print_results(&c->setup, codebook, path, console_seconds() - start);
    terse_codebook_free(codebook);
    return status == EXIT_OK && console_interrupted() ? EXIT_INTERRUPTED : status;
}

int cmd_calibrate(int argc, char **argv) {
    struct calibrate c = {.calibration = codebooks_calibration_defaults()};
    setup_init(&c.setup);
    c.setup.method = NULL;
    enum options_result parsed = parse(&c, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    int status = check_options(&c);
    if (status == EXIT_OK) status = calibrate(&c);
    setup_free(&c.setup);
    return status;
}
