/* Reads what --kv auto allows, and looks for the fewest bits that keep to it. */
#include "rate_choice.h"

#include "codebooks.h"
#include "forecast.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char word[] = "auto";
#define EXACT_RATE 8 /* bits that stand for more than any that are measured */
#define LEAST_DIVERGENCE 1e-6
#define MOST_DIVERGENCE 10 /* a larger number is one of bytes */

/* An `allowed` says how much divergence or how many bytes a cache may cost: one of the two is 0. */
struct allowed {
    double divergence;
    uint64_t bytes;
};

static bool parse(const char *text, struct allowed *allowed) {
    char *end;
    *allowed = (struct allowed){RATE_CHOICE_DIVERGENCE, 0};
    if (!*text) return true;
    double divergence = strtod(++text, &end);
    if (end != text && !*end && divergence >= LEAST_DIVERGENCE && divergence <= MOST_DIVERGENCE) {
        allowed->divergence = divergence;
        return true;
    }
    *allowed = (struct allowed){0};
    return options_parse_size(text, &allowed->bytes) && allowed->bytes > MOST_DIVERGENCE;
}

static bool is_choice(const char *method) {
    size_t n = sizeof word - 1;
    return method && strncmp(method, word, n) == 0 && (!method[n] || method[n] == ':');
}

int rate_choice_take(struct setup *setup) {
    struct allowed allowed;
    const bool types = setup->key_type || setup->value_type;
    setup->by_default = !setup->method && !types;
    if (!setup->method) setup->method = types ? METHOD_DEFAULT : word;
    if (!is_choice(setup->method)) return EXIT_OK;
    if (!parse(setup->method + sizeof word - 1, &allowed))
        return complain("--kv %s: give auto, auto:0.02 (a mean KL divergence from f16, %g to %d) or auto:2G (bytes for a context)",
                        setup->method, LEAST_DIVERGENCE, MOST_DIVERGENCE);
    if (types) return complain("--kv %s chooses for keys and values: omit -ctk and -ctv, or name a method", setup->method);
    setup->choice = setup->method;
    setup->method = METHOD_DEFAULT;
    return EXIT_OK;
}

static void choose(struct setup *setup, double bits) {
    snprintf(setup->chosen, sizeof setup->chosen, "terse-%g", bits);
    setup->method = setup->chosen;
}

/* Keeps the reason, which is printed when all else is ready: a run that is refused prints only the refusal. */
__attribute__((format(printf, 2, 3))) static void explain(struct setup *setup, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(setup->why, sizeof setup->why, format, arguments);
    va_end(arguments);
}

/* ---- By divergence */

static void choose_by_divergence(struct setup *setup, const struct terse_codebook_info *profile, double most) {
    char command[4096 + 64];
    size_t i = profile->n_costs;
    while (i > 0 && (double)profile->costs[i - 1].divergence > most) i--;
    const struct terse_rate_cost *cost = &profile->costs[i ? i - 1 : 0];
    if (!profile->n_costs) {
        setup_calibrate_command(setup, METHOD_DEFAULT, command, sizeof command);
        explain(setup, "whether fewer bits do as well was not measured on this model (%s does)", command);
        return;
    }
    choose(setup, i ? (double)cost->bits : EXACT_RATE);
    if (i)
        explain(setup, "its measured KL divergence from f16 on this model is %.2g, and at most %g is allowed",
                (double)cost->divergence, most);
    else
        explain(setup, "the measured KL divergence of terse-%g from f16 on this model is %.2g, more than the %g allowed",
                (double)cost->bits, (double)cost->divergence, most);
}

/* ---- By bytes */

/* Returns the bytes that a cache of the method takes at most on the way to a full context. */
static enum terse_status peak_of(const struct setup *setup, const struct terse_codebook *profile, uint32_t context, uint64_t *bytes,
                                 struct terse_error *error) {
    struct terse_session_options options = setup_session_options(setup);
    options.cache.codebook = profile;
    return forecast_peak(setup, &options.cache, context, bytes, error);
}

/* Writes what the rates on both sides of the chosen one cost, where that was measured. */
static void write_costs(const struct terse_codebook_info *profile, double bits, char *text, size_t capacity) {
    const struct terse_rate_cost *above = NULL, *below = NULL;
    text[0] = 0;
    for (size_t i = profile->n_costs; i-- > 0;)
        if ((double)profile->costs[i].bits >= bits && !above) above = &profile->costs[i];
    for (size_t i = 0; i < profile->n_costs && !below; i++)
        if ((double)profile->costs[i].bits <= bits) below = &profile->costs[i];
    const struct terse_rate_cost *cost = below ? below : above;
    if (above && below && above != below)
        snprintf(text, capacity, "; measured KL divergence from f16 %.2g to %.2g", (double)above->divergence,
                 (double)below->divergence);
    else if (cost)
        snprintf(text, capacity, "; measured KL divergence of terse-%g from f16 %.2g", (double)cost->bits,
                 (double)cost->divergence);
}

static int choose_by_bytes(struct setup *setup, const struct terse_codebook *profile, const struct terse_codebook_info *info,
                           uint64_t most) {
    enum { QUARTERS = 4 };
    uint32_t context = setup->context ? (uint32_t)setup->context : setup->info.context;
    uint64_t bytes = 0;
    struct terse_error error;
    char costs[128];
    for (int quarters = EXACT_RATE * QUARTERS; quarters >= QUARTERS; quarters--) {
        choose(setup, (double)quarters / QUARTERS);
        if (peak_of(setup, profile, context, &bytes, &error) != TERSE_OK) return complain_error(&error);
        if (bytes > most) continue;
        write_costs(info, (double)quarters / QUARTERS, costs, sizeof costs);
        explain(setup, "the most bits with which %u tokens take no more than %.2f MiB (%.2f MiB)%s", context, (double)most / 0x1p20,
                (double)bytes / 0x1p20, costs);
        return EXIT_OK;
    }
    return complain("--kv %s: %u tokens take %.2f MiB with %s: allow as much, or lower -c", setup->choice, context,
                    (double)bytes / 0x1p20, setup->method);
}

/* ---- All of it */

/* Takes the method of a saved session, which no other can go on with. */
static int choose_by_state(struct setup *setup, const char *state) {
    struct terse_error error;
    if (terse_state_method(state, setup->chosen, sizeof setup->chosen, &error) != TERSE_OK) return complain_error(&error);
    setup->method = setup->chosen;
    explain(setup, "that of the saved state");
    return EXIT_OK;
}

/* Learns a profile, and what rates cost, where there is none. */
static int learn(struct setup *setup) {
    int status = setup_engine(setup);
    struct terse_session_options options = setup_session_options(setup);
    return status == EXIT_OK ? codebooks_provide(setup, &options) : status;
}

int rate_choice_make(struct setup *setup, const char *state) {
    const struct terse_codebook *profile = NULL;
    struct terse_codebook_info info = {0};
    struct allowed allowed;
    if (!setup->choice) return EXIT_OK;
    if (state) return choose_by_state(setup, state);
    int status = setup->auto_calibrate ? learn(setup) : EXIT_OK;
    if (status == EXIT_OK) status = codebooks_find(setup, &profile);
    if (status != EXIT_OK) return status;
    if (profile) terse_codebook_describe(profile, &info);
    parse(setup->choice + sizeof word - 1, &allowed);
    if (allowed.bytes)
        status = choose_by_bytes(setup, profile, &info, allowed.bytes);
    else
        choose_by_divergence(setup, &info, allowed.divergence);
    return status;
}

void rate_choice_say(const struct setup *setup) {
    bool usual = setup->by_default && strcmp(setup->method, METHOD_DEFAULT) == 0;
    if (setup->why[0] && !usual) remark("KV cache %s: %s", setup->method, setup->why);
}
