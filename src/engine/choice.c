/* Chooses a method for a model: by what is kept of the model, by what rates of terse-N cost, or by bytes. */
#include "terse_choice.h"

#include "base/options.h"
#include "engine/tuned.h"
#include "method/method.h"
#include "model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char word[] = "auto";
#define RATE_UNKNOWN 4 /* bits of terse-N where no measured costs guide the choice */
#define RATE_EXACT 8   /* bits that stand for more than any that are measured */
#define LEAST_DIVERGENCE 1e-6
#define MOST_DIVERGENCE 10 /* a larger number is one of bytes */

struct terse_choice_options terse_choice_options_defaults(void) {
    return (struct terse_choice_options){
        .size = sizeof(struct terse_choice_options), .kv = word, .cache = terse_cache_options_defaults()};
}

/* ---- What is allowed */

/* An `allowed` says how much divergence or how many bytes a cache may cost: one of the two is 0. */
struct allowed {
    double divergence;
    uint64_t bytes;
    double least;  /* bits per value to which a budget may lower pages; 0: none are named */
    bool anything; /* neither is said: the tuned method may stand for it */
};

static bool is_choice(const char *kv) {
    size_t n = sizeof word - 1;
    return strncmp(kv, word, n) == 0 && (!kv[n] || kv[n] == ':');
}

/* Takes ",min=terse-N" or ":min=terse-N" from the end of a choice's text. */
static bool parse_least(char *text, double *least) {
    static const char name[] = "min=terse-";
    char *at = strstr(text, name), *end;
    if (!at) return true;
    *least = strtod(at + sizeof name - 1, &end);
    if (at == text || (at[-1] != ',' && at[-1] != ':') || *end || !(*least > 0)) return false;
    at[-1] = 0;
    return true;
}

static bool parse_cost(const char *text, struct allowed *allowed) {
    char *end;
    allowed->anything = !*text;
    if (!*text) return true;
    double divergence = strtod(++text, &end);
    if (end != text && !*end && divergence >= LEAST_DIVERGENCE && divergence <= MOST_DIVERGENCE) {
        allowed->divergence = divergence;
        return true;
    }
    allowed->divergence = 0;
    return terse_parse_size(text, &allowed->bytes) && allowed->bytes > MOST_DIVERGENCE;
}

static enum terse_status parse(const char *kv, struct allowed *allowed, struct terse_error *error) {
    char text[128];
    *allowed = (struct allowed){.divergence = TERSE_CHOICE_DIVERGENCE};
    if ((size_t)snprintf(text, sizeof text, "%s", kv + sizeof word - 1) < sizeof text && parse_least(text, &allowed->least) &&
        parse_cost(text, allowed))
        return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT,
                       "%.64s: give auto, auto:0.02 (a mean KL divergence from f16, %g to %d), auto:2G (bytes for a context), or "
                       "auto:min=terse-2 (what a budget may lower pages to)",
                       kv, LEAST_DIVERGENCE, MOST_DIVERGENCE);
}

enum terse_status terse_choice_check(const char *kv, bool *chooses, struct terse_error *error) {
    struct allowed allowed;
    *chooses = is_choice(kv);
    return *chooses ? parse(kv, &allowed, error) : TERSE_OK;
}

/* ---- What was chosen */

static void set_rate(struct terse_choice *choice, double bits, enum terse_choice_reason reason) {
    snprintf(choice->method, sizeof choice->method, "terse-%g", bits);
    choice->reason = reason;
}

/* Adds to the reason. */
__attribute__((format(printf, 2, 3))) static void explain(struct terse_choice *choice, const char *format, ...) {
    size_t length = strlen(choice->why);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(choice->why + length, sizeof choice->why - length, format, arguments);
    va_end(arguments);
}

/* ---- By divergence */

static void choose_by_divergence(const struct terse_codebook_info *profile, double most, struct terse_choice *choice) {
    size_t i = profile->n_costs;
    while (i > 0 && (double)profile->costs[i - 1].divergence > most) i--;
    const struct terse_rate_cost *cost = &profile->costs[i ? i - 1 : 0];
    if (!profile->n_costs) {
        set_rate(choice, RATE_UNKNOWN, TERSE_CHOICE_UNKNOWN);
        explain(choice, "whether fewer bits do as well was not measured on this model");
        return;
    }
    set_rate(choice, i ? (double)cost->bits : RATE_EXACT, TERSE_CHOICE_MEASURED);
    if (i)
        explain(choice, "its measured KL divergence from f16 on this model is %.2g, and at most %g is allowed",
                (double)cost->divergence, most);
    else
        explain(choice, "the measured KL divergence of terse-%g from f16 on this model is %.2g, more than the %g allowed",
                (double)cost->bits, (double)cost->divergence, most);
}

/* Returns whether terse-N cannot serve the latents of the model's attention. */
static bool has_other_latents(const struct terse_model *model) {
    return model->latent.rank && !method_latent_slices(model->rope.n_rot, model->latent.rank);
}

static void choose_for_latents(struct terse_choice *choice) {
    snprintf(choice->method, sizeof choice->method, "q8_0");
    choice->reason = TERSE_CHOICE_LATENTS;
    explain(choice, "terse-N cannot cut the keys of this model's attention into slices of one width");
}

/* ---- By bytes */

enum terse_status terse_cache_peak(const struct terse_model *model, const char *device, const struct terse_cache_options *options,
                                   uint64_t tokens, uint64_t *bytes, struct terse_error *error) {
    struct terse_cache_report all, exact;
    const uint64_t fit = tokens < TERSE_FIT_TOKENS ? tokens : TERSE_FIT_TOKENS;
    enum terse_status status = terse_cache_bytes(model, device, options, tokens, &all, error);
    if (!status) status = terse_cache_bytes(model, device, options, fit, &exact, error);
    if (!status) *bytes = all.resident > exact.resident ? all.resident : exact.resident;
    return status;
}

/* Writes what the rates on both sides of the chosen one cost, where that was measured. */
static void explain_costs(const struct terse_codebook_info *profile, double bits, struct terse_choice *choice) {
    const struct terse_rate_cost *above = NULL, *below = NULL;
    for (size_t i = profile->n_costs; i-- > 0;)
        if ((double)profile->costs[i].bits >= bits && !above) above = &profile->costs[i];
    for (size_t i = 0; i < profile->n_costs && !below; i++)
        if ((double)profile->costs[i].bits <= bits) below = &profile->costs[i];
    const struct terse_rate_cost *cost = below ? below : above;
    if (above && below && above != below)
        explain(choice, "; measured KL divergence from f16 %.2g to %.2g", (double)above->divergence, (double)below->divergence);
    else if (cost)
        explain(choice, "; measured KL divergence of terse-%g from f16 %.2g", (double)cost->bits, (double)cost->divergence);
}

static enum terse_status choose_by_bytes(const struct terse_model *model, const struct terse_choice_options *options,
                                         const struct terse_codebook_info *profile, uint64_t most, struct terse_choice *choice,
                                         struct terse_error *error) {
    enum { QUARTERS = 4 };
    struct terse_cache_options cache = options->cache;
    struct terse_model_info info;
    uint64_t bytes = 0;
    terse_model_describe(model, &info);
    uint32_t context = options->context ? options->context : info.context;
    cache.method = choice->method;
    for (int quarters = RATE_EXACT * QUARTERS; quarters >= QUARTERS; quarters--) {
        double bits = (double)quarters / QUARTERS;
        set_rate(choice, bits, TERSE_CHOICE_BYTES);
        enum terse_status status = terse_cache_peak(model, options->device, &cache, context, &bytes, error);
        if (status) return status;
        if (bytes > most) continue;
        explain(choice, "the most bits with which %u tokens take no more than %.2f MiB (%.2f MiB)", context, (double)most / 0x1p20,
                (double)bytes / 0x1p20);
        explain_costs(profile, bits, choice);
        return TERSE_OK;
    }
    return status_fail(error, TERSE_E_ARGUMENT, "%s: %u tokens take %.2f MiB with %s: allow as much, or lower -c", options->kv,
                       context, (double)bytes / 0x1p20, choice->method);
}

/* ---- The tuned method */

/* Returns whether the caller's context is no longer than what the method was tuned for, and whether a cache of it keeps to the bytes
 * that the caller allows, and to those that it was tuned for; says in the choice why not. */
static bool fits(const struct terse_model *model, const struct terse_choice_options *options, const struct terse_tuned *tuned,
                 struct terse_choice *choice) {
    struct terse_cache_options cache = options->cache;
    char codebook[64];
    struct terse_error error;
    uint64_t bytes = 0, most = tuned->budget;
    uint32_t context = options->context ? options->context : tuned->context;
    if (context > tuned->context) {
        explain(choice, "; the tuned %s is not used: it was picked for %u tokens, and %u are asked for", tuned->method,
                tuned->context, context);
        return false;
    }
    cache.method = tuned->method;
    enum terse_status status = terse_cache_codebook(&cache, codebook, sizeof codebook, &error);
    if (strcmp(codebook, "terse") != 0) cache.codebook = NULL; /* another's than the profile */
    if (!status) status = terse_cache_peak(model, options->device, &cache, context, &bytes, &error);
    if (options->kv_budget && (!most || options->kv_budget < most)) most = options->kv_budget;
    if (!status && (!most || bytes <= most)) return true;
    if (status)
        explain(choice, "; the tuned %s is not used: %.200s", tuned->method, error.message);
    else
        explain(choice, "; the tuned %s is not used: %u tokens take %.2f MiB with it, more than %.2f", tuned->method, context,
                (double)bytes / 0x1p20, (double)most / 0x1p20);
    return false;
}

/* Takes the tuned method, if there is one and it fits. Else *aside says why one is left aside, if there is one. */
static bool choose_tuned(const struct terse_model *model, const struct terse_choice_options *options, struct terse_choice *choice,
                         struct terse_choice *aside) {
    char path[4096];
    struct tuned_file file = {0};
    struct terse_error error;
    if (terse_kept_path(model, "tuned", ".json", path, sizeof path, NULL) != TERSE_OK) return false;
    enum terse_status status = tuned_load(model, path, &file, &error);
    if (status && status != TERSE_E_IO) explain(aside, "; %.300s, and is not used", error.message);
    if (status || !fits(model, options, &file.tuned, aside)) return false;
    const struct terse_tuned *t = &file.tuned;
    snprintf(choice->method, sizeof choice->method, "%s", t->method);
    choice->reason = TERSE_CHOICE_TUNED;
    explain(choice, "terse tune picked it for this model: %.2f bits per value at %u tokens, KL divergence %.2g from f16", t->bits,
            t->context, t->divergence);
    if (t->speed > 0) explain(choice, ", %.1f times its speed", t->speed);
    return true;
}

/* ---- How far a budget may lower pages */

/* Sets the least rate that the chosen method and the device can have. One that the caller names is refused where they cannot have it;
 * else pages stay as they are. */
static enum terse_status choose_least(const struct terse_model *model, const struct terse_choice_options *options, double named,
                                      struct terse_choice *choice, struct terse_error *error) {
    static const char family[] = "terse-";
    const bool lowers = strncmp(choice->method, family, sizeof family - 1) == 0;
    const double rate = lowers ? strtod(choice->method + sizeof family - 1, NULL) : 0;
    struct terse_cache_options cache = options->cache;
    struct terse_cache_report report;
    if (!options->kv_budget || !lowers || (named <= 0 && rate <= TERSE_CHOICE_LEAST)) return TERSE_OK;
    if (named > rate) set_rate(choice, named, choice->reason);
    cache.method = choice->method;
    cache.least_rate = named > 0 ? named : TERSE_CHOICE_LEAST;
    enum terse_status status = terse_cache_bytes(model, options->device, &cache, 1, &report, error);
    if (!status) choice->least_rate = cache.least_rate;
    return named > 0 ? status : TERSE_OK;
}

/* ---- All of it */

static enum terse_status choose(const struct terse_model *model, const struct terse_choice_options *options,
                                const struct allowed *allowed, struct terse_choice *choice, struct terse_error *error) {
    struct terse_codebook_info profile = {0};
    struct terse_choice aside = {0};
    if (options->state_method) {
        snprintf(choice->method, sizeof choice->method, "%s", options->state_method);
        choice->reason = TERSE_CHOICE_STATE;
        return TERSE_OK;
    }
    if (allowed->anything && choose_tuned(model, options, choice, &aside)) return TERSE_OK;
    if (options->cache.codebook) terse_codebook_describe(options->cache.codebook, &profile);
    if (allowed->bytes) return choose_by_bytes(model, options, &profile, allowed->bytes, choice, error);
    if (has_other_latents(model))
        choose_for_latents(choice);
    else
        choose_by_divergence(&profile, allowed->divergence, choice);
    choice->left_aside = aside.why[0];
    explain(choice, "%s", aside.why);
    return TERSE_OK;
}

enum terse_status terse_choose(const struct terse_model *model, const struct terse_choice_options *options,
                               struct terse_choice *choice, struct terse_error *error) {
    const char *kv = options->kv ? options->kv : word;
    struct allowed allowed;
    *choice = (struct terse_choice){.reason = TERSE_CHOICE_NAMED};
    enum terse_status status = OPTIONS_CHECK(options, terse_choice_options, error);
    if (status) return status;
    if (!is_choice(kv)) {
        if (strlen(kv) >= sizeof choice->method)
            return status_fail(error, TERSE_E_ARGUMENT, "a method's name of %zu bytes is too long", strlen(kv));
        snprintf(choice->method, sizeof choice->method, "%s", kv);
        return TERSE_OK;
    }
    status = parse(kv, &allowed, error);
    if (!status && allowed.least > 0 && !options->kv_budget)
        status = status_fail(error, TERSE_E_ARGUMENT,
                             "%s: min= says to what a budget may lower pages: give a budget (--kv-budget), too", kv);
    if (!status) status = choose(model, options, &allowed, choice, error);
    return status ? status : choose_least(model, options, allowed.least, choice, error);
}
