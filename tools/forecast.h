/* Estimates what running a model on this machine takes: memory, seconds of a prompt, tokens a second, and how long a profile takes
 * to learn. It estimates from the model's shape and a few seconds of computing with it. */
#ifndef TERSE_TOOLS_FORECAST_H
#define TERSE_TOOLS_FORECAST_H

#include "setup.h"

#include <cjson/cJSON.h>

struct forecast {
    uint32_t context, threads;
    const char *method;     /* that terse run takes without --kv */
    bool profile;           /* there is one of the model */
    uint64_t cache, half;   /* bytes of a full context's cache, by the method and by f16 */
    uint64_t peak;          /* most bytes of the method's cache on the way there */
    uint64_t buffers;       /* bytes that a prompt which fills the context takes beside its cache: fits.h */
    double per_token;       /* seconds that a prompt takes for each token, but for its attention */
    double step, attention; /* seconds of a step with `depth` tokens in the cache, and of them those of attention */
    uint32_t depth;
    double learning; /* seconds that a profile takes */
    double measured; /* seconds that measuring took */
};

/* Makes the forecasts for the model of *setup, whose method is set, with a context of so many tokens and the model's profile; NULL: there is
 * none. A context too short to measure anything is no failure: `depth` is 0 then, and the seconds are not known. Returns an exit status. */
int forecast_make(struct setup *setup, uint32_t context, const struct terse_codebook *profile, struct forecast *forecast);

/* Return the seconds of a prompt of n tokens, and of a step with `depth` tokens in the cache. */
double forecast_prompt(const struct forecast *forecast, const struct terse_model_info *model, uint32_t n);
double forecast_step(const struct forecast *forecast, const struct terse_model_info *model, uint32_t depth);

void forecast_print(const struct forecast *forecast, const struct setup *setup);
/* Returns the same as an object. */
cJSON *forecast_json(const struct forecast *forecast, const struct setup *setup);

#endif
