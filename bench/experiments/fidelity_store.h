/* Keeps results in the work folder, so that a later run adds what is missing and the report covers all of them.
 *
 *     setup.json         model, text and context of all results in the folder; a run with others is refused
 *     perplexity.jsonl   a line for each run, protocol and window; "values" names its file of scores
 *     values/            NAME: float32 [4][positions], as enum score_column
 *     needles.jsonl      a line for each run and task
 *     memory.jsonl       a line for each run
 *     codebooks/         NAME.gguf: codebooks of runs (fidelity_run.h)
 *
 * A line is written when its measurement is complete. Later lines replace earlier ones of the same key. Calls return an exit status
 * and have printed a message when it is not EXIT_OK. */
#ifndef TERSE_BENCH_FIDELITY_STORE_H
#define TERSE_BENCH_FIDELITY_STORE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

enum store_table { STORE_PERPLEXITY, STORE_NEEDLES, STORE_MEMORY, STORE_TABLES };

struct store;

/* Opens or makes the folder; frees `setup`. `resume`: results that the folder already holds are kept and not measured again; without it
 * a folder with results is refused. */
int store_open(const char *folder, cJSON *setup, bool resume, struct store **store);
void store_free(struct store *store);

/* Returns whether there is a line with this key. */
bool store_has(const struct store *store, enum store_table table, const char *key);
/* Appends `line` under "key", and frees it. */
int store_add(struct store *store, enum store_table table, const char *key, cJSON *line);
/* Writes values/NAME. */
int store_values(struct store *store, const char *name, const float *values, size_t n);

#endif
