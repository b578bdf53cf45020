/* A run is one configuration of the KV cache, in the command line's notation
 *
 *     METHOD[:OPTION=VALUE]...
 *
 *     METHOD as in `terse run --kv`
 *     anchors=P%|N      this share or number of a prompt's tokens stays exact
 *     tail=N            newest tokens kept exact
 *     read=P%|N         this share or number of a prompt's tokens is read at each step
 *     index=NAME        selection by this index (fidelity_index.h) instead of the method's; for methods that select tokens, and with read
 *     evict=METHOD      tokens are evicted as with this method
 *     mat-anchors=N, mat-shallow=N   parameters of mat-N
 *     codebook=NAME     codebooks/NAME.gguf of the work folder instead of codebooks/METHOD.gguf; none: terse-N without a profile
 *
 * The text of a run is its name in all results. */
#ifndef TERSE_BENCH_FIDELITY_RUN_H
#define TERSE_BENCH_FIDELITY_RUN_H

#include "fidelity_index.h"
#include "terse.h"

struct run {
    char spec[96];   /* as given */
    char fields[96]; /* a copy split into the strings that `cache` points to */
    struct terse_cache_options cache;
    const struct cpu_index *index;   /* or NULL: the method's own */
    struct terse_codebook *codebook; /* or NULL */
    uint64_t codebook_hash;          /* of its file; 0: none */
};

/* Parses `spec`, loads its codebook from the work folder if there is one, and asks the library whether it supports this cache for `model`.
 * Returns an exit status, and has printed a message when it is not EXIT_OK. */
int run_open(const char *spec, const char *work, const struct terse_model *model, struct run *run);
void run_close(struct run *run);

#endif
