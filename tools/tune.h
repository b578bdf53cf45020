/* Measures KV methods for `terse tune`: how fast they decode behind a full context, and how far they move the probabilities of the next
 * token from those with an f16 cache. */
#ifndef TERSE_TOOLS_TUNE_H
#define TERSE_TOOLS_TUNE_H

#include "front.h"
#include "setup.h"
#include "windows.h"

enum {
    TUNE_METHODS = WINDOWS_CACHES, /* at most, f16 among them */
    TUNE_LEAST_TOKENS = 64         /* of a text, and of a context */
};

/* A candidate is a method that is measured; f16 comes first, because the others are compared with it. */
struct tune_candidate {
    char name[64];
    struct terse_session_options options; /* its codebook belongs to the setup */
    struct front_row row;
    bool codes; /* its cache of a full context has any */
};

struct tune {
    struct setup *setup;
    uint32_t context; /* tokens of the cache */
    struct tune_candidate candidates[TUNE_METHODS];
    size_t n;
    double until; /* of console_seconds: measuring ends then */
    struct windows windows;
};

/* Adds a candidate, whose bytes are known from here on. Returns TERSE_OK, or why the model cannot use it. *status is an exit status:
 * another one than EXIT_OK after a failure that is no fault of the method. */
enum terse_status tune_add(struct tune *tune, const char *method, int *status, struct terse_error *error);

/* Measures the speed of each candidate by turns with f16's, for at most so many seconds. Returns an exit status; what was measured before
 * an interrupt is there. */
int tune_speed(struct tune *tune, double seconds);

/* Measures divergences over tokens[n >= TUNE_LEAST_TOKENS] of a text until the time is over, of the first candidates alone where there is no time for all;
 * `name` says in messages where the text comes from. Returns as tune_speed. */
int tune_divergence(struct tune *tune, const int32_t *tokens, size_t n, const char *name);

void tune_free(struct tune *tune);

#endif
