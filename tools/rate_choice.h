/* Implements `--kv auto` of the commands; the library chooses (terse_choice.h). */
#ifndef TERSE_TOOLS_RATE_CHOICE_H
#define TERSE_TOOLS_RATE_CHOICE_H

#include "setup.h"

/* Takes "auto", "auto:DIVERGENCE" or "auto:BYTES", each perhaps with ",min=terse-N" (or alone, "auto:min=terse-N"), from setup->method,
 * after the options are parsed, to setup->choice.
 * METHOD_DEFAULT stands in its place until the choice is made, so that earlier checks are made for a terse-N. Other methods stay.
 * NULL, where the user named none, means "auto", or METHOD_DEFAULT where a type of keys or values was named. Returns an exit
 * status. */
int rate_choice_take(struct setup *setup);

/* Makes the choice, if there is one to make; the model is loaded. `state` is the file of a session that goes on, whose own method
 * is then taken; or NULL. Returns an exit status. */
int rate_choice_make(struct setup *setup, const char *state);

/* Prints in a line what was chosen and why; nothing where the user chose nothing and gets METHOD_DEFAULT, unless there is a tuned
 * method. */
void rate_choice_say(const struct setup *setup);

#endif
