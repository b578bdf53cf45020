/* Says how long replies took, in the form of llama-server's `timings`, and how far a prompt is read, in that of its `prompt_progress`. */
#ifndef TERSE_SERVE_TIMINGS_H
#define TERSE_SERVE_TIMINGS_H

#include "task.h"

#include <cjson/cJSON.h>

/* Returns {cache_n, prompt_n, prompt_ms, ..., predicted_n, predicted_ms, ...} of replies[n], as sums; a prompt that several of them answer counts
 * once. prompt_n leaves out the cache_n tokens that a prefix brought. */
cJSON *timings_json(const struct generation *replies, size_t n);

/* Returns {total, cache, processed, time_ms} of a reply whose prompt is being read; `processed` includes `cache`. */
cJSON *timings_progress(const struct generation *g);

#endif
