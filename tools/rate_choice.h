/* `--kv auto`: chooses the rate of terse-N by what rates cost on the model, or by the bytes that a cache may take. */
#ifndef TERSE_TOOLS_RATE_CHOICE_H
#define TERSE_TOOLS_RATE_CHOICE_H

#include "setup.h"

/* Mean KL divergence from an f16 cache, nats, that --kv auto allows. */
#define RATE_CHOICE_DIVERGENCE 0.005

/* After the options are parsed into setup->method: takes "auto", "auto:DIVERGENCE" or "auto:BYTES" to setup->choice, and puts METHOD_DEFAULT in its
 * place until the choice is made, so that what is checked before is checked of a terse-N. Other methods stay. NULL, of a user who named none, is
 * "auto", or METHOD_DEFAULT where a type of keys or values was named. Returns an exit status. */
int rate_choice_take(struct setup *setup);

/* Makes the choice, if there is one to make; the model is loaded. `state`: the file of a session that goes on, whose own method it is then; or
 * NULL. Returns an exit status. */
int rate_choice_make(struct setup *setup, const char *state);

/* Says in a line what was chosen and why; nothing where the user chose nothing and gets METHOD_DEFAULT. */
void rate_choice_say(const struct setup *setup);

#endif
