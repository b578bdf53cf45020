/* Sends replies in the form of OpenAI's /v1/responses: a response of output items, or the events by which a stream builds one. */
#ifndef TERSE_SERVE_RESPONSES_REPLY_H
#define TERSE_SERVE_RESPONSES_REPLY_H

#include "generation.h"

/* Tells a stream that the response is in progress. */
void responses_begin(struct generation *g);
/* Sends what the newest token added; with `finish` set, also the end of the response. */
void responses_piece(struct generation *g);
/* Sends the whole response to a client that asked for no stream. */
void responses_whole(struct generation *g);

#endif
