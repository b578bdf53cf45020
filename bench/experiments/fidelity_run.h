/* A run: one way to keep the KV cache, as the command line names it,
 *
 *     METHOD[:OPTION=VALUE]...
 *
 *     METHOD as in `terse run --kv`
 *     anchors=P%|N      that part of a prompt's tokens, or so many, stay exact
 *     tail=N            newest tokens kept exact
 *     read=P%|N         that part of a prompt's tokens, or so many, are read at each step
 *     index=NAME        found by this index (fidelity_index.h) instead of the method's; goes with methods that choose, and with read
 *     evict=METHOD      tokens leave as with this method
 *     mat-anchors=N, mat-shallow=N   its parameters where it is mat-N
 *     codebook=NAME     codebooks/NAME.gguf of the work folder instead of codebooks/METHOD.gguf
 *
 * The text names the run in all results. */
#ifndef TERSE_BENCH_FIDELITY_RUN_H
#define TERSE_BENCH_FIDELITY_RUN_H

#include "fidelity_index.h"
#include "terse.h"

struct run {
    char spec[96];   /* as given */
    char fields[96]; /* cut to pieces: the strings of `cache` */
    struct terse_cache_options cache;
    const struct index *index;       /* or NULL: the method's own */
    struct terse_codebook *codebook; /* or NULL */
    uint64_t codebook_hash;          /* of its file; 0: none */
};

/* Parses `spec`, loads its codebook from the work folder if there is one, and asks the library whether `model` can keep its cache so.
 * Returns an exit status; a complaint was made when it is not EXIT_OK. */
int run_open(const char *spec, const char *work, const struct terse_model *model, struct run *run);
void run_close(struct run *run);

#endif
