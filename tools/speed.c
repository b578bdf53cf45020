/* Owns how a repeat is timed; which repeats there are is the commands'. */
#include "speed.h"

#include "console.h"

#include <terse_calibrate.h>

#include <math.h>

int speed_fill(struct terse_session *session, uint32_t depth, uint64_t seed) {
    struct terse_error error;
    terse_session_reset(session);
    if (depth && terse_session_fill_random(session, depth, seed, &error) != TERSE_OK) return complain_error(&error);
    return EXIT_OK;
}

int speed_decode(const struct speed_batch *batch, const int32_t *tokens, uint32_t n) {
    struct terse_error error;
    for (uint32_t i = 0; i < n; i++) {
        if (console_interrupted()) return EXIT_INTERRUPTED;
        for (size_t s = 0; s < batch->n; s++) {
            batch->items[s].tokens = tokens + i;
            batch->items[s].n = 1;
        }
        if (terse_engine_step(batch->engine, batch->items, batch->n, &error) != TERSE_OK) return complain_error(&error);
    }
    return EXIT_OK;
}

double speed_begin(const struct speed_batch *batch) {
    struct terse_counters counters;
    for (size_t s = 0; s < batch->n; s++) terse_session_counters(batch->items[s].session, &counters, true);
    return console_seconds();
}

void speed_end(const struct speed_batch *batch, double begin, uint32_t n, struct speed_samples *samples) {
    double seconds = console_seconds() - begin, attention = 0;
    samples->resident = 0;
    for (size_t s = 0; s < batch->n; s++) {
        struct terse_counters counters;
        terse_session_counters(batch->items[s].session, &counters, true);
        terse_session_cache(batch->items[s].session, &samples->cache);
        samples->resident += samples->cache.resident;
        samples->counters.attention_bytes += counters.attention_bytes;
        attention += counters.attention_seconds;
    }
    samples->counters.attention_seconds += attention;
    if (!samples->n || attention < samples->attention) samples->attention = attention;
    samples->rate[samples->n++] = n * (double)batch->n / seconds;
    samples->seconds += seconds;
}

double speed_fastest(const struct speed_samples *s) {
    double best = 0;
    for (size_t i = 0; i < s->n; i++) best = s->rate[i] > best ? s->rate[i] : best;
    return best;
}

void speed_mean(const struct speed_samples *s, double *mean, double *deviation) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < s->n; i++) sum += s->rate[i];
    *mean = sum / (double)s->n;
    for (size_t i = 0; i < s->n; i++) squares += (s->rate[i] - *mean) * (s->rate[i] - *mean);
    *deviation = s->n > 1 ? sqrt(squares / (double)(s->n - 1)) : 0;
}

void speed_tokens(uint32_t vocabulary, int32_t *tokens, size_t n) {
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
        tokens[i] = (int32_t)((state >> 33) % vocabulary);
    }
}
