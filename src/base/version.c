/* Returns the version as text. */
#include "terse.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *terse_version(void) { return TEXT(TERSE_VERSION_MAJOR) "." TEXT(TERSE_VERSION_MINOR) "." TEXT(TERSE_VERSION_PATCH); }
