/* Sequences of steps, and lists of methods to run them with. */
#include "support/oracle_runs.h"

#include "backend/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Returns whether the oracle can tell which codes a step of the papers' protocol reads before it knows the cache's pages. Of CommVQ's keys
 * each round codes what the ones before have left: where rounding decides between two codes, all behind it differ. */
static bool tells_codes(const struct oracle *o) { return o->kv == backend_cpu.kv || o->method.key.codec != &codec_commvq; }

void oracle_run(const struct oracle_setup *setup, const struct oracle_run_step *steps, size_t n) {
    size_t tokens = 0;
    for (size_t i = 0; i < n; i++) tokens += steps[i].n;
    struct oracle *o = oracle_new(setup, tokens);
    for (size_t i = 0; i < n; i++) {
        if (steps[i].kind == CACHE_STEP_PAPER && !tells_codes(o))
            oracle_skip(o, steps[i].kind, steps[i].n); /* the next steps compare what its pages give */
        else
            oracle_step(o, steps[i].kind, steps[i].n, steps[i].piece);
    }
    assert_true(o->compared > 0);
    oracle_free(o);
}

/* ---- Lists of methods */

static bool is_named(const char *const (*methods)[3], size_t n, const char *name) {
    for (size_t i = 0; i < 3 * n; i++)
        if (methods[i / 3][i % 3] && strcmp(methods[i / 3][i % 3], name) == 0) return true;
    return false;
}

size_t oracle_methods(const char *const (*named)[3], size_t n, bool (*served)(const struct codec *codec),
                      const char *(*methods)[3]) {
    const struct codec *codec;
    size_t all = n;
    memcpy(methods, named, n * sizeof *methods);
    for (size_t i = 0; (codec = codec_at(i)); i++) {
        if (!codec_find(codec->name) || (served && !served(codec)) || is_named(named, n, codec->name)) continue;
        methods[all][0] = "f16";
        methods[all][1] = methods[all][2] = codec->name;
        all++;
    }
    return all;
}

struct oracle_setup oracle_setup_of(const struct oracle_setup *setup, const char *const method[3], uint32_t tail, uint64_t seed) {
    struct oracle_setup own = *setup;
    own.method = method[0];
    own.key = method[1];
    own.value = method[2];
    own.tail = tail;
    own.seed = seed;
    return own;
}
