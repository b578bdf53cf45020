#include "metrics.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double bounds[METRICS_BOUNDS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300};

static const struct {
    const char *name, *help;
} latencies[METRICS_LATENCIES] = {
    {"request", "from the arrival of a request to the end of its replies"},
    {"queue", "from the arrival of a request until its first prompt begins"},
    {"first_token", "from the arrival of a request to the first token of a reply"},
    {"inter_token", "between two tokens of a reply"},
};

void metrics_begin(struct metrics *metrics) {
    *metrics = (struct metrics){0};
    pthread_mutex_init(&metrics->lock, NULL);
}

void metrics_end(struct metrics *metrics) { pthread_mutex_destroy(&metrics->lock); }

void metrics_add(struct metrics *metrics, uint64_t *counter, uint64_t n) {
    pthread_mutex_lock(&metrics->lock);
    *counter += n;
    pthread_mutex_unlock(&metrics->lock);
}

void metrics_observe(struct metrics *metrics, enum metrics_latency latency, double seconds) {
    size_t i = 0;
    while (i < METRICS_BOUNDS && seconds > bounds[i]) i++;
    pthread_mutex_lock(&metrics->lock);
    metrics->latency[latency].count[i]++;
    metrics->latency[latency].sum += seconds;
    pthread_mutex_unlock(&metrics->lock);
}

/* ---- Text */

static void write_head(struct buffer *text, const char *name, const char *type, const char *help) {
    buffer_print(text, "# HELP terse_%s %s\n# TYPE terse_%s %s\n", name, help, name, type);
}

static void write_one(struct buffer *text, const char *name, const char *type, const char *help, double value) {
    write_head(text, name, type, help);
    buffer_print(text, "terse_%s %.17g\n", name, value);
}

static void write_histogram(struct buffer *text, const struct histogram *h, const char *what, const char *help) {
    char name[48];
    uint64_t n = 0;
    snprintf(name, sizeof name, "%s_seconds", what);
    write_head(text, name, "histogram", help);
    for (size_t i = 0; i <= METRICS_BOUNDS; i++) {
        char bound[32] = "+Inf";
        if (i < METRICS_BOUNDS) snprintf(bound, sizeof bound, "%g", bounds[i]);
        n += h->count[i];
        buffer_print(text, "terse_%s_bucket{le=\"%s\"} %llu\n", name, bound, (unsigned long long)n);
    }
    buffer_print(text, "terse_%s_sum %.17g\nterse_%s_count %llu\n", name, h->sum, name, (unsigned long long)n);
}

static double resident_bytes(void) {
    unsigned long total, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    int got = file ? fscanf(file, "%lu %lu", &total, &resident) : 0;
    if (file) fclose(file);
    return got == 2 ? (double)resident * (double)sysconf(_SC_PAGESIZE) : 0;
}

static void write_cache(struct buffer *text, const struct terse_cache_report *c) {
    const struct {
        const char *kind;
        uint64_t bytes;
    } kinds[] = {{"codes", c->codes}, {"exact", c->exact}, {"window", c->window}, {"tables", c->tables}};
    write_head(text, "slots_kv_bytes", "gauge",
               "KV caches of the replies that are being written, by kind; shared pages count in each");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        buffer_print(text, "terse_slots_kv_bytes{kind=\"%s\"} %llu\n", kinds[i].kind, (unsigned long long)kinds[i].bytes);
}

static void write_answers(struct buffer *text, const struct metrics *m) {
    write_head(text, "answers_total", "counter", "answers by HTTP's status");
    for (size_t i = 0; i < sizeof m->answers / sizeof *m->answers; i++)
        if (m->answers[i]) buffer_print(text, "terse_answers_total{code=\"%zu\"} %llu\n", i, (unsigned long long)m->answers[i]);
}

void metrics_write(struct metrics *metrics, const struct metrics_state *state, struct buffer *text) {
    pthread_mutex_lock(&metrics->lock);
    struct metrics m = *metrics;
    pthread_mutex_unlock(&metrics->lock);
    write_one(text, "prompt_tokens_total", "counter", "tokens of prompts", (double)m.prompt_tokens);
    write_one(text, "cached_tokens_total", "counter", "tokens of prompts that a prefix had already", (double)m.cached_tokens);
    write_one(text, "written_tokens_total", "counter", "tokens written", (double)m.written_tokens);
    write_one(text, "prompts_total", "counter", "prompts begun", (double)m.prompts);
    write_one(text, "prefix_hits_total", "counter", "prompts that began with a prefix", (double)m.prefix_hits);
    write_one(text, "cancelled_total", "counter", "requests whose clients went away", (double)m.cancelled);
    write_one(text, "preemptions_total", "counter", "replies whose caches the budget needed for others, and that were read again",
              (double)m.preempted);
    write_answers(text, &m);
    for (size_t i = 0; i < METRICS_LATENCIES; i++) write_histogram(text, &m.latency[i], latencies[i].name, latencies[i].help);
    write_one(text, "slots", "gauge", "replies that can be written at the same time", state->slots);
    write_one(text, "slots_busy", "gauge", "replies that are being written, or whose prompts are being read", state->busy);
    write_one(text, "requests_waiting", "gauge", "requests in the queue", state->waiting);
    write_one(text, "kv_bytes", "gauge", "all KV caches, prefixes included, shared pages once", (double)state->kv_bytes);
    write_one(text, "kv_budget_bytes", "gauge", "what they may take; 0: no limit", (double)state->kv_budget);
    write_cache(text, &state->cache);
    write_one(text, "slots_kv_bits_per_value", "gauge", "bits of a key's or value's component in busy slots",
              state->bits_per_value);
    write_one(text, "resident_memory_bytes", "gauge", "resident memory of the process", resident_bytes());
}
