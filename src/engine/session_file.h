/* Saves and loads sessions: terse_session_save and terse_session_load of terse.h, and loading from a file that is open. */
#ifndef TERSE_ENGINE_SESSION_FILE_H
#define TERSE_ENGINE_SESSION_FILE_H

#include "engine/engine.h"
#include "kv/state_file.h"

/* Makes a new session in the file's state, which becomes an owner of the file where pages stay in it. TERSE_E_ARGUMENT where the file is of another
 * model, method or codebook; TERSE_E_FORMAT where what it says cannot be; TERSE_E_CONTEXT where it holds more tokens than the context. */
enum terse_status session_load(struct terse_engine *engine, const struct terse_session_options *options, struct state_file *file,
                               struct terse_session **session, struct terse_error *error);

#endif
