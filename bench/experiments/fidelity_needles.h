/* Generates retrieval tasks of the kinds that the lab model was trained on: a fact is planted in a long text, or the whole prompt
 * is a long list, and the model is asked for one line of it. Tasks are generated from a text and a list of words and depend on
 * their number alone. */
#ifndef TERSE_BENCH_FIDELITY_NEEDLES_H
#define TERSE_BENCH_FIDELITY_NEEDLES_H

#include "terse.h"

/* A task has one planted line; 16 planted lines with different keys, one of which is asked for; or a list of keys and values and
 * nothing else. */
enum needle_kind { NEEDLE_SINGLE, NEEDLE_MULTIKEY, NEEDLE_KV, NEEDLE_KINDS };
const char *needle_kind_name(enum needle_kind kind);

struct needle {
    int32_t *tokens; /* [n_tokens]: the whole prompt in the model's chat format */
    size_t n_tokens;
    char answer[128];
};

/* A haystack is the text by lines, with their numbers of tokens, and the words. */
struct haystack;
/* Makes a haystack. `words` is the JSON file with "adjectives" and "nouns". `text` must outlive the haystack. Returns an exit
 * status, after a complaint. */
int haystack_new(const struct terse_model *model, const char *text, size_t n_bytes, const char *words, struct haystack **haystack);
void haystack_free(struct haystack *haystack);

/* Makes the task `number` of a kind, with a prompt of slightly less than `length` tokens. Returns an exit status, after a
 * complaint. */
int needle_new(const struct haystack *haystack, enum needle_kind kind, uint32_t length, uint32_t number, struct needle *needle);
void needle_free(struct needle *needle);

#endif
