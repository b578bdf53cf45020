/* Constrains sampling to JSON text, or the tool calls of a reply to their tools: decides which tokens may come next. */
#ifndef TERSE_ENGINE_CONSTRAINT_H
#define TERSE_ENGINE_CONSTRAINT_H

#include "engine/candidate.h"
#include "text/call_filter.h"

struct constraint {
    const struct tokenizer *tokenizer;
    struct json_schema *schema; /* of a JSON text; or NULL */
    struct call_filter *calls;  /* of a reply; or NULL */
    struct call_state state;    /* of a JSON text its `json` */
    bool left;                  /* tokens were appended that are no such JSON text */
};

/* Begins a JSON text. `schema` is json_schema_new's. A failure leaves the constraint as it was. */
enum terse_status constraint_begin_json(struct constraint *constraint, const struct tokenizer *tokenizer, const char *schema,
                                        struct terse_error *error);
/* Begins a reply, whose filter the constraint owns from now on. */
void constraint_begin_reply(struct constraint *constraint, const struct tokenizer *tokenizer, struct call_filter *calls);
void constraint_end(struct constraint *constraint);
/* Makes *to one more constraint at the same place of the same text; `from` may be no constraint. */
void constraint_fork(const struct constraint *from, struct constraint *to);
bool constraint_holds(const struct constraint *constraint);
/* Takes note of a token that was appended. */
void constraint_take(struct constraint *constraint, int32_t token);
/* Returns whether constraint_filter would leave all tokens as they are. */
bool constraint_is_free(const struct constraint *constraint);
/* Makes the logits of tokens that do not fit -INFINITY: of all but those that end a text where it is whole and nothing more can come. Returns
 * whether any token fits. */
bool constraint_filter(const struct constraint *constraint, struct candidate *candidates, uint32_t n);

#endif
