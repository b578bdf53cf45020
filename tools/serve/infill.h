/* Turns the two texts that a reply goes between, and the other files that an editor has, into tokens (fill in the middle). */
#ifndef TERSE_SERVE_INFILL_H
#define TERSE_SERVE_INFILL_H

#include "request.h"

/* Reads "input_prefix", "input_suffix", "input_extra" and "prompt" of the body and writes to the request's first prompt what llama-server makes of
 * them: the other files, the prefix with the prompt behind it, the suffix, and the mark where the reply begins. Of the other files the first are
 * left out that the context has no room for. */
bool infill_read(const struct request_limits *limits, const cJSON *body, struct request *request, struct api_error *error);

#endif
