/* These functions do with an oracle's cache what comes between steps: cut it, fork it, save it and load it on any backend. A failure is the running test's. */
#ifndef TESTS_ORACLE_COPIES_H
#define TESTS_ORACLE_COPIES_H

#include "support/cache_oracle.h"

/* Cuts the sequence at n tokens. */
void oracle_cut(struct oracle *oracle, size_t n);

/* Return a second oracle of the same sequence, whose tokens from there on are drawn from `seed`: its cache is a fork, or a new one on backend `kv` of
 * what the file says. oracle_free_copy frees it, before the first. */
struct oracle *oracle_fork(const struct oracle *from, uint64_t seed);
struct oracle *oracle_load(const struct oracle *from, const struct kv_ops *kv, const char *path, uint64_t seed);
void oracle_free_copy(struct oracle *copy);

/* Writes the sections of any cache, with nothing before them. */
void cache_save_to(const struct cache *cache, const char *path);
void oracle_save(const struct oracle *oracle, const char *path);

/* Returns a whole file, to be freed. */
char *state_contents(const char *path, size_t *n);
/* A test's set-up and tear-down: its state is the path of an empty file. */
int make_state_path(void **state);
int remove_state_path(void **state);

#endif
