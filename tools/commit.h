/* Declares which sources a program was built from. */
#ifndef TERSE_TOOLS_COMMIT_H
#define TERSE_TOOLS_COMMIT_H

/* Returns the commit that the build found, 12 digits, with "-dirty" where tracked files differed from it; "unknown" outside of the
 * project's repository. cmake/commit.cmake writes it. */
const char *build_commit(void);

#endif
