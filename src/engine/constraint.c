/* Feeds tokens to the filters of JSON and of tool calls as bytes of the text. */
#include "engine/constraint.h"

#include <math.h>
#include <string.h>

enum terse_status constraint_begin_json(struct constraint *constraint, const struct tokenizer *tokenizer, const char *schema,
                                        struct terse_error *error) {
    struct json_schema *made;
    enum terse_status status = json_schema_new(schema, JSON_STRICT, &made, error);
    if (status) return status;
    constraint_end(constraint);
    constraint->tokenizer = tokenizer;
    constraint->schema = made;
    constraint->state.json = json_begin();
    return TERSE_OK;
}

void constraint_begin_reply(struct constraint *constraint, const struct tokenizer *tokenizer, struct call_filter *calls) {
    constraint_end(constraint);
    constraint->tokenizer = tokenizer;
    constraint->calls = calls;
    call_begin(calls, &constraint->state);
}

void constraint_end(struct constraint *constraint) {
    json_schema_free(constraint->schema);
    call_filter_free(constraint->calls);
    constraint->schema = NULL;
    constraint->calls = NULL;
    constraint->left = false;
}

void constraint_fork(const struct constraint *from, struct constraint *to) {
    if (from->schema) json_schema_share(from->schema);
    if (from->calls) call_filter_share(from->calls);
    *to = *from;
}

bool constraint_holds(const struct constraint *constraint) { return constraint->schema || constraint->calls; }

/* Returns the bytes that a token adds to the text. */
static const char *bytes_of(const struct constraint *c, int32_t token, size_t *n) {
    return c->calls ? chat_format_bytes(&c->calls->format, c->tokenizer, token, n) : tokenizer_bytes(c->tokenizer, token, false, n);
}

void constraint_take(struct constraint *constraint, int32_t token) {
    size_t n;
    if (!constraint_holds(constraint) || constraint->left || tokenizer_ends(constraint->tokenizer, token)) return;
    const char *bytes = bytes_of(constraint, token, &n);
    if (constraint->calls)
        (void)call_push(constraint->calls, &constraint->state, bytes, n);
    else
        constraint->left = !json_push(constraint->schema, &constraint->state.json, bytes, n);
}

bool constraint_is_free(const struct constraint *constraint) {
    return constraint->calls && call_is_free(constraint->calls, &constraint->state);
}

static bool allows(const struct constraint *c, const char *bytes, size_t n) {
    return c->calls ? call_allows(c->calls, &c->state, bytes, n) : json_allows(c->schema, &c->state.json, bytes, n);
}

/* Finds which first bytes are allowed: most tokens fail by their first byte, of which there are few kinds. */
static void find_first_bytes(const struct constraint *constraint, bool *allowed) {
    for (unsigned c = 0; c < 256; c++) {
        char byte = (char)(unsigned char)c;
        allowed[c] = allows(constraint, &byte, 1);
    }
}

bool constraint_filter(const struct constraint *constraint, struct candidate *candidates, uint32_t n) {
    const struct call_filter *calls = constraint->calls;
    bool first[256], any = false;
    bool may_end = calls ? call_may_end(calls, &constraint->state) : json_may_end(constraint->schema, &constraint->state.json);
    bool in_text = calls && call_in_text(&constraint->state); /* where tokens that are no text are allowed, too */
    find_first_bytes(constraint, first);
    for (uint32_t i = 0; i < n; i++) {
        size_t size;
        const char *bytes = bytes_of(constraint, candidates[i].token, &size);
        bool fits = tokenizer_ends(constraint->tokenizer, candidates[i].token) ? may_end
                    : size ? first[(unsigned char)*bytes] && allows(constraint, bytes, size)
                           : in_text;
        any |= fits && candidates[i].logit > -INFINITY;
        if (!fits) candidates[i].logit = -INFINITY;
    }
    return any;
}
