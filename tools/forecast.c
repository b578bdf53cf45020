/* Measures a model for a few seconds, however large it is: some decoding steps, and the beginning of a prompt, as much as there is
 * time for. The times for other lengths follow from the model's shape: weights take the same time for each token, attention for
 * each key that a query sees. In a prompt attention's products run about as fast as those of weights (measured with AVX2), so they
 * need not be measured; in a step the counters tell them apart. */
#include "forecast.h"

#include "codebooks.h"
#include "fits.h"
#include "rate_costs.h"

#include <terse_choice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* DEPTH lies past the tokens that a cache holds exactly before it fits itself to them, so that steps read codes. */
enum { DEPTH = TERSE_FIT_TOKENS + 252, PROMPT = 512, STEPS = 16, LEAST = 64 };
#define TRIAL_SECONDS 1.5 /* of each of the two measurements */

/* ---- How work grows */

/* Returns the part of the layers that have keys. */
static double with_keys(const struct terse_model_info *m) { return 1 - (double)m->recurrent_layers / m->layers; }

/* Returns the keys that a query sees behind `depth` tokens, mean of all layers. */
static double keys_at(const struct terse_model_info *m, double depth) {
    double slides = (double)m->sliding_layers / m->layers;
    return (with_keys(m) - slides) * depth + slides * fmin(depth, m->sliding_window);
}

/* Returns the keys that the queries of a prompt of n tokens see together. */
static double keys_of_prompt(const struct terse_model_info *m, double n) {
    double slides = (double)m->sliding_layers / m->layers, w = fmin(n, m->sliding_window);
    return (with_keys(m) - slides) * n * n / 2 + slides * (w * n - w * w / 2);
}

/* Returns the cost of a key that a query sees, in products of a token with the weights, over all layers. */
static double key_in_tokens(const struct terse_model_info *m) {
    double heads = (double)m->query_heads * m->head_dim, experts = m->experts ? m->experts_used : 1;
    double weights = 2 * m->width * (heads + (double)m->kv_heads * m->head_dim) + 3 * (double)m->width * m->feed_forward * experts;
    return 2 * heads / weights;
}

double forecast_prompt(const struct forecast *f, const struct terse_model_info *model, uint32_t n) {
    return f->per_token * (n + key_in_tokens(model) * keys_of_prompt(model, n));
}

double forecast_step(const struct forecast *f, const struct terse_model_info *model, uint32_t depth) {
    return f->step - f->attention + f->attention * keys_at(model, depth) / keys_at(model, f->depth);
}

/* ---- Measuring */

struct trial {
    double start, part, seconds; /* part: of the prompt, 0 to 1, after so many seconds */
};

static bool watch(void *user, const char *what, uint64_t done, uint64_t total) {
    struct trial *trial = user;
    (void)what;
    trial->seconds = console_seconds() - trial->start;
    trial->part = (double)done / (double)total;
    return (trial->seconds < TRIAL_SECONDS || !done) && !console_interrupted();
}

/* Returns the seconds that a prompt of n tokens would take, from as much of it as there is time for; a negative number where none was read. */
static double time_prompt(struct terse_session *session, struct trial *trial, const int32_t *tokens, uint32_t n) {
    terse_session_reset(session);
    *trial = (struct trial){.start = console_seconds()};
    enum terse_status status = terse_session_prefill(session, tokens, n, NULL, NULL);
    if (!status) return console_seconds() - trial->start;
    return status == TERSE_E_INTERRUPTED && trial->part > 0 ? trial->seconds / trial->part : -1;
}

/* Measures the mean seconds of steps behind `depth` tokens, the first left out, which may fetch weights from a disk. */
static bool time_steps(struct terse_session *session, const int32_t *tokens, struct forecast *f) {
    struct terse_counters counters;
    if (terse_session_fill_random(session, f->depth, 1, NULL) || terse_session_decode(session, tokens, 1, NULL, NULL)) return false;
    terse_session_counters(session, &counters, true);
    double start = console_seconds();
    for (int i = 1; i < STEPS && (i == 1 || console_seconds() - start < TRIAL_SECONDS) && !console_interrupted(); i++)
        if (terse_session_decode(session, tokens + i, 1, NULL, NULL)) return false;
    terse_session_counters(session, &counters, true);
    if (!counters.decode_tokens) return false;
    f->step = counters.decode_seconds / (double)counters.decode_tokens;
    f->attention = fmin(f->step, counters.attention_seconds / (double)counters.decode_tokens);
    return true;
}

/* Measures both. Returns false where something cannot be done, as after an interrupt, or without the memory. */
static bool measure(struct terse_session *session, struct trial *trial, const struct setup *setup, struct forecast *f) {
    uint32_t most = f->context - STEPS, n = most < PROMPT ? most : PROMPT;
    int32_t tokens[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++) tokens[i] = (int32_t)(i * 7919u % setup->info.vocabulary);
    f->depth = most < DEPTH ? most : DEPTH;
    if (!time_steps(session, tokens, f)) return false;
    double seconds = time_prompt(session, trial, tokens, n);
    f->per_token = seconds / (n + key_in_tokens(&setup->info) * keys_of_prompt(&setup->info, n));
    return seconds > 0;
}

static int measure_model(struct setup *setup, const struct terse_session_options *options, struct forecast *f) {
    struct terse_session_options own = *options;
    struct terse_session *session;
    struct terse_error error;
    struct trial trial = {0};
    double start = console_seconds();
    own.context = f->context;
    own.progress = (struct terse_progress){watch, &trial};
    if (terse_session_new(setup->engine, &own, &session, &error) != TERSE_OK) return complain_error(&error);
    bool known = measure(session, &trial, setup, f);
    terse_session_free(session);
    f->measured = console_seconds() - start;
    if (!known) f->depth = 0;
    return console_interrupted() ? EXIT_INTERRUPTED : EXIT_OK;
}

/* ---- Memory */

/* Counts the bytes of the methods' caches, and of what a prompt holds beside them. */
static int count_bytes(const struct setup *setup, const struct terse_session_options *options, struct forecast *f) {
    struct terse_cache_options half = terse_cache_options_defaults();
    struct terse_cache_report report;
    struct fits_bytes bytes;
    struct terse_error error;
    if (fits_count(setup, &options->cache, f->context, &bytes, &error) != TERSE_OK ||
        terse_cache_peak(setup->model, setup_device(setup), &options->cache, f->context, &f->peak, &error) != TERSE_OK)
        return complain_error(&error);
    /* terse_cache_peak says what a budget must allow; without one, such a prompt is fitted to more tokens, which it holds until then. */
    if (f->context >= TERSE_FIT_TOKENS_MOST) {
        if (setup_cache_bytes(setup, &options->cache, TERSE_FIT_TOKENS_MOST, &report, &error) != TERSE_OK)
            return complain_error(&error);
        if (report.resident > f->peak) f->peak = report.resident;
    }
    f->cache = bytes.cache;
    f->buffers = bytes.working;
    if (setup_cache_bytes(setup, &half, f->context, &report, &error) != TERSE_OK) return complain_error(&error);
    f->half = report.resident;
    return EXIT_OK;
}

/* ---- All of it */

int forecast_make(struct setup *setup, uint32_t context, const struct terse_codebook *profile, struct forecast *f) {
    int status = setup_engine(setup);
    if (status != EXIT_OK) return status;
    struct terse_session_options options = setup_session_options(setup);
    options.cache.codebook = profile;
    *f = (struct forecast){
        .context = context, .threads = terse_engine_threads(setup->engine), .method = setup->method, .profile = profile != NULL};
    status = count_bytes(setup, &options, f);
    if (status == EXIT_OK && context >= LEAST + STEPS) status = measure_model(setup, &options, f);
    const double windows = codebooks_profile_windows() + (double)rate_costs_tokens(&setup->info) / CODEBOOKS_WINDOW;
    f->learning = windows * forecast_prompt(f, &setup->info, CODEBOOKS_WINDOW);
    return status;
}

/* Returns seconds as text: "0.84 s", "12 s", "3.1 minutes". */
static const char *seconds_text(double seconds, char *text, size_t capacity) {
    if (seconds < 90)
        snprintf(text, capacity, "%.2g s", seconds < 10 ? seconds : round(seconds));
    else if (seconds < 90 * 60)
        snprintf(text, capacity, "%.0f minutes", seconds / 60);
    else
        snprintf(text, capacity, "%.1f hours", seconds / 3600);
    return text;
}

static double mib(uint64_t bytes) { return (double)bytes / 0x1p20; }

static void print_speed(const struct forecast *f, const struct terse_model_info *m) {
    uint32_t some = f->context < 512 ? f->context : 512;
    double first = forecast_prompt(f, m, some), all = forecast_prompt(f, m, f->context);
    char first_text[32], all_text[32];
    printf("prompt:      %u tokens in %s, %u in %s (%.0f and %.0f tokens/s)\n", some,
           seconds_text(first, first_text, sizeof first_text), f->context, seconds_text(all, all_text, sizeof all_text),
           some / first, f->context / all);
    printf("reply:       %.1f tokens/s at first, %.1f behind %u tokens\n", 1 / forecast_step(f, m, 1),
           1 / forecast_step(f, m, f->context), f->context);
}

static void print_advice(const struct forecast *f, const struct setup *setup) {
    char text[32], command[4096 + 64];
    const bool latents = setup->info.latent > 0;
    if (latents && strncmp(f->method, "terse-", 6) != 0) {
        printf("method:      %s; terse-N does not serve the latents of this model's attention\n", f->method);
        return;
    }
    if (f->profile)
        printf("method:      %s, which fits itself to prompts of %d tokens and more; others by the profile that there is of the "
               "model\n",
               f->method, TERSE_FIT_TOKENS);
    else
        printf("method:      %s, which fits itself to each text from %d tokens on; shorter ones stay as they are\n", f->method,
               TERSE_FIT_TOKENS);
    if (f->profile || !f->depth || latents) return; /* no profile is learned of latents */
    printf("calibration: to compress shorter texts too, and to choose the rate (--kv auto): %s (%s, once)\n",
           setup_calibrate_command(setup, METHOD_DEFAULT, command, sizeof command), seconds_text(f->learning, text, sizeof text));
}

void forecast_print(const struct forecast *f, const struct setup *setup) {
    const struct terse_model_info *m = &setup->info;
    char most[48] = "";
    if (f->peak > f->cache) snprintf(most, sizeof most, ", %.0f on the way", mib(f->peak));
    printf("\n## On this machine, with %u tokens of context\n\n", f->context);
    printf("memory:      %.0f MiB: weights %.0f, KV cache %.0f by %s%s (f16: %.0f), buffers of a full prompt %.0f\n",
           mib(m->bytes + f->cache + f->buffers), mib(m->bytes), mib(f->cache), f->method, most, mib(f->half), mib(f->buffers));
    if (f->depth) print_speed(f, m);
    print_advice(f, setup);
    if (f->depth)
        printf(
            "These are estimates from %.1f seconds of computing with %u thread%s (%s): other work on the machine slows it down.\n",
            f->measured, f->threads, f->threads == 1 ? "" : "s", terse_cpu_name());
}

cJSON *forecast_json(const struct forecast *f, const struct setup *setup) {
    const struct terse_model_info *m = &setup->info;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "context", f->context);
    cJSON_AddStringToObject(json, "method", f->method);
    cJSON_AddBoolToObject(json, "profile", f->profile);
    cJSON_AddNumberToObject(json, "weight_bytes", (double)m->bytes);
    cJSON_AddNumberToObject(json, "cache_bytes", (double)f->cache);
    cJSON_AddNumberToObject(json, "cache_peak_bytes", (double)f->peak);
    cJSON_AddNumberToObject(json, "buffer_bytes", (double)f->buffers);
    if (!f->depth) return json;
    cJSON_AddNumberToObject(json, "threads", f->threads);
    cJSON_AddNumberToObject(json, "prompt_512_seconds", forecast_prompt(f, m, 512));
    cJSON_AddNumberToObject(json, "prompt_seconds", forecast_prompt(f, m, f->context));
    cJSON_AddNumberToObject(json, "tokens_per_second", 1 / forecast_step(f, m, 1));
    cJSON_AddNumberToObject(json, "tokens_per_second_at_context", 1 / forecast_step(f, m, f->context));
    cJSON_AddNumberToObject(json, "calibration_seconds", f->learning);
    cJSON_AddNumberToObject(json, "measured_seconds", f->measured);
    return json;
}
