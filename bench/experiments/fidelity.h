/* Declares what the parts of the fidelity program share: the command's options, the model, the text and the work folder. */
#ifndef TERSE_BENCH_FIDELITY_H
#define TERSE_BENCH_FIDELITY_H

#include "fidelity_run.h"
#include "fidelity_store.h"

#include <stdint.h>

enum { FIDELITY_LENGTHS = 4 }; /* of retrieval tasks */

struct fidelity {
    const char *model_path, *file, *work, *methods, *parts, *tasks, *words;
    int64_t context, scored, chunks, ubatch, threads, memory_tokens;
    bool resume;

    struct terse_model *model;
    struct terse_engine *engine;
    struct terse_model_info info;
    char *text;
    size_t n_bytes;
    int32_t *tokens;
    size_t n_tokens;
    uint32_t windows; /* to score */
    struct run *runs;
    size_t n_runs;
    uint32_t n_tasks[FIDELITY_LENGTHS]; /* of each kind */
    struct store *store;
};

/* Returns the options of a session with the cache of `run`. They also set the index of the caches that are made next, so the
 * session must be made before the next call. */
struct terse_session_options fidelity_session_options(const struct run *run, uint32_t context);
/* Writes the key of a measurement in the store: "SPEC|HASH|what", HASH being the codebook's. */
const char *fidelity_key(const struct run *run, const char *what, char *key, size_t capacity);
/* Returns a line of the store that describes the run. */
cJSON *fidelity_line(const struct run *run);
/* Adds the report of a cache: "resident", "codes", ... */
void fidelity_add_report(cJSON *line, const struct terse_cache_report *report);

/* These are the parts. Each returns an exit status, and has printed a message when it is not EXIT_OK. */
int fidelity_perplexity(struct fidelity *f, bool steps, bool paper);
int fidelity_needles(struct fidelity *f);
int fidelity_memory(struct fidelity *f);

#endif
