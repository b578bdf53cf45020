/* The table of methods: the only place that knows their names. A method is a key codec, a value codec, a policy and parameters. */
#ifndef TERSE_METHOD_H
#define TERSE_METHOD_H

#include "codec/codec.h"
#include "policy/policy.h"

struct method {
    char name[64]; /* as the user would write it: "streaming-512", "q8_0/q4_0" */
    const struct codec *key, *value;
    const struct policy *policy;
    struct policy_parameters parameters;
    uint32_t tail_tokens; /* least number of newest tokens kept exact in the recent window */
};

/* Resolves options against the table. An unknown name is TERSE_E_ARGUMENT and the message lists the known ones. */
enum terse_status method_resolve(const struct terse_cache_options *options, struct method *method, struct terse_error *error);

/* Whether the method's codecs can serve heads of this shape; TERSE_E_UNSUPPORTED says why not. */
enum terse_status method_check(const struct method *method, uint32_t head_dim, uint32_t group, struct terse_error *error);

#endif
