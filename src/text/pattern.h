/* Matches regular expressions character by character and tells whether a text that has begun can still be continued to one that matches. They
 * are the "pattern" of a JSON schema.
 *
 * As in ECMA-262: literals; . and classes ([a-z], [^,], \d \w \s and \D \W \S); escapes (\t \n \r \f, \xHH, \uHHHH, a backslash before
 * punctuation); groups ( ) and (?: ); | ? * + {n} {n,} {n,m}, also lazy, which changes nothing of what matches; ^ at the beginning and $ at
 * the end of the whole, or of one of its branches. Without them any text may stand before or behind. Anything else is refused: look-around,
 * references, \b, \p, flags. A character is a code point that a JSON string can hold without \u, so no control character but \b \t \n \f
 * \r. */
#ifndef TERSE_TEXT_PATTERN_H
#define TERSE_TEXT_PATTERN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define PATTERN_PLACES 1024 /* instructions; a{9} has nine of one character */
#define PATTERN_WORDS (PATTERN_PLACES / 64)

struct pattern;

/* Compiles UTF-8 text. TERSE_E_ARGUMENT, with the character's number, where it is no expression of those above, too large, or a class of it
 * has no character. Released by pattern_free, which takes NULL. Immutable: any number of threads may use it. */
enum terse_status pattern_new(const char *text, struct pattern **pattern, struct terse_error *error);
void pattern_free(struct pattern *pattern);

/* A pattern_state holds the places in a pattern that a text may have reached. It is plain data and may be copied. */
struct pattern_state {
    uint64_t active[PATTERN_WORDS]; /* instructions, as bits */
};

void pattern_begin(const struct pattern *pattern, struct pattern_state *state);
/* Returns whether one of the characters from `low` to `high` may come next. */
bool pattern_allows(const struct pattern *pattern, const struct pattern_state *state, uint32_t low, uint32_t high);
/* Takes a character. Returns false where it may not come next; the state is then of no more use. */
bool pattern_take(const struct pattern *pattern, struct pattern_state *state, uint32_t character);
/* Returns whether the text may end here. From every state that is reached some text leads to such an end. */
bool pattern_may_end(const struct pattern *pattern, const struct pattern_state *state);

#endif
