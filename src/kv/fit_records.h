/* Fits a sequence's transforms (kv/fitted.h) by what a backend finds in its window. Ranks to which the pages are dealt all have the window, so that each
 * fits a share of the records, and all gather them. */
#ifndef TERSE_KV_FIT_RECORDS_H
#define TERSE_KV_FIT_RECORDS_H

#include "kv/cache.h"

/* A record_fit fits a record, on the thread-th of the cache's threads. */
typedef enum terse_status record_fit(void *user, size_t thread, uint32_t layer, uint32_t head, enum codec_side side, void *record,
                                     struct terse_error *error);
struct layer_range {
    uint32_t first, end;
};
/* Returns the layers, [first, end), of which this process fits records, some or all. */
struct layer_range fit_layers(const struct cache_base *base);

/* Fits the records of all layers, KV heads and sides that have transforms, makes their layouts the method's, and calls the backend's layouts_changed.
 * After a failure nothing is fitted.
 *
 * All ranks call it in the same step, one that has failed in this before with its failure, `ready`, and *error; otherwise that is TERSE_OK. If one of them
 * fails, all do: that is agreed on (collective_conclude). */
enum terse_status fit_records(struct cache *cache, enum terse_status ready, record_fit *fit, void *user, struct terse_error *error);

#endif
