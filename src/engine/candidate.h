/* A candidate is a token that may come next. */
#ifndef TERSE_ENGINE_CANDIDATE_H
#define TERSE_ENGINE_CANDIDATE_H

#include <stdint.h>

struct candidate {
    float logit;
    int32_t token;
    float surprise; /* of the typical filter: how far from what is expected */
};

#endif
