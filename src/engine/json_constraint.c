/* Feeds tokens to the JSON filter as bytes of the text. */
#include "engine/json_constraint.h"

#include <math.h>

enum terse_status json_constraint_begin(struct json_constraint *constraint, const struct tokenizer *tokenizer, const char *schema,
                                        struct terse_error *error) {
    struct json_schema *made;
    enum terse_status status = json_schema_new(schema, &made, error);
    if (status) return status;
    json_constraint_end(constraint);
    *constraint = (struct json_constraint){.tokenizer = tokenizer, .schema = made, .state = json_begin()};
    return TERSE_OK;
}

void json_constraint_end(struct json_constraint *constraint) {
    json_schema_free(constraint->schema);
    constraint->schema = NULL;
}

struct json_constraint json_constraint_fork(const struct json_constraint *from) {
    if (from->schema) json_schema_share(from->schema);
    return *from;
}

void json_constraint_take(struct json_constraint *constraint, int32_t token) {
    size_t n;
    const char *bytes = tokenizer_bytes(constraint->tokenizer, token, false, &n);
    if (!constraint->schema || constraint->left || tokenizer_ends(constraint->tokenizer, token)) return;
    constraint->left = !json_push(constraint->schema, &constraint->state, bytes, n);
}

/* Finds which first bytes are allowed: most tokens fail by their first byte, of which there are few kinds. */
static void find_first_bytes(const struct json_constraint *constraint, bool *allowed) {
    for (unsigned c = 0; c < 256; c++) {
        char byte = (char)(unsigned char)c;
        allowed[c] = json_allows(constraint->schema, &constraint->state, &byte, 1);
    }
}

bool json_constraint_filter(const struct json_constraint *constraint, struct candidate *candidates, uint32_t n) {
    bool first[256], any = false, may_end = json_may_end(constraint->schema, &constraint->state);
    find_first_bytes(constraint, first);
    for (uint32_t i = 0; i < n; i++) {
        size_t size;
        const char *bytes = tokenizer_bytes(constraint->tokenizer, candidates[i].token, false, &size);
        bool fits = tokenizer_ends(constraint->tokenizer, candidates[i].token)
                        ? may_end
                        : size && first[(unsigned char)*bytes] && json_allows(constraint->schema, &constraint->state, bytes, size);
        any |= fits && candidates[i].logit > -INFINITY;
        if (!fits) candidates[i].logit = -INFINITY;
    }
    return any;
}
