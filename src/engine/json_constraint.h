/* Constrains sampling to JSON text: decides which tokens may come next. */
#ifndef TERSE_ENGINE_JSON_CONSTRAINT_H
#define TERSE_ENGINE_JSON_CONSTRAINT_H

#include "engine/candidate.h"
#include "text/json_filter.h"
#include "text/tokenizer.h"

struct json_constraint {
    const struct tokenizer *tokenizer;
    struct json_schema *schema; /* NULL: no constraint */
    struct json_state state;
    bool left; /* tokens were appended that do not fit */
};

/* Begins a text. `schema` is json_schema_new's. A failure leaves the constraint as it was. */
enum terse_status json_constraint_begin(struct json_constraint *constraint, const struct tokenizer *tokenizer, const char *schema,
                                        struct terse_error *error);
void json_constraint_end(struct json_constraint *constraint);
/* Returns one more constraint at the same place of the same text; `from` may be no constraint. */
struct json_constraint json_constraint_fork(const struct json_constraint *from);
/* Takes note of a token that was appended. */
void json_constraint_take(struct json_constraint *constraint, int32_t token);
/* Makes the logits of tokens that do not fit -INFINITY: of all but those that end a text where the JSON text is whole and nothing more can
 * come. Returns whether any token fits. */
bool json_constraint_filter(const struct json_constraint *constraint, struct candidate *candidates, uint32_t n);

#endif
