#include "timings.h"

#include "console.h"

#include <stdio.h>

static void add_rate(cJSON *timings, const char *what, double n, double seconds) {
    const struct {
        const char *ending;
        double value;
    } members[] = {{"n", n},
                   {"ms", 1e3 * seconds},
                   {"per_token_ms", n > 0 ? 1e3 * seconds / n : 0},
                   {"per_second", seconds > 0 ? n / seconds : 0}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char name[48];
        snprintf(name, sizeof name, "%s_%s", what, members[i].ending);
        cJSON_AddNumberToObject(timings, name, members[i].value);
    }
}

cJSON *timings_json(const struct generation *replies, size_t n) {
    double cached = 0, prompt = 0, prompt_seconds = 0, written = 0, seconds = 0;
    for (const struct generation *g = replies; g < replies + n; g++) {
        written += (double)g->tokens;
        if (g->newest_token > g->read_at) seconds += g->newest_token - g->read_at;
        if (g > replies && g->prompt == g[-1].prompt) continue;
        cached += (double)g->cached;
        prompt += (double)(g->prompt->n - g->cached);
        if (g->read_at > g->began) prompt_seconds += g->read_at - g->began;
    }
    cJSON *timings = cJSON_CreateObject();
    cJSON_AddNumberToObject(timings, "cache_n", cached);
    add_rate(timings, "prompt", prompt, prompt_seconds);
    add_rate(timings, "predicted", written, seconds);
    return timings;
}

cJSON *timings_progress(const struct generation *g) {
    cJSON *progress = cJSON_CreateObject();
    cJSON_AddNumberToObject(progress, "total", (double)g->prompt->n);
    cJSON_AddNumberToObject(progress, "cache", (double)g->cached);
    cJSON_AddNumberToObject(progress, "processed", (double)g->read);
    cJSON_AddNumberToObject(progress, "time_ms", 1e3 * (console_seconds() - g->began));
    return progress;
}
