/* Implements `terse --version`. */
#ifndef TERSE_TOOLS_VERSION_H
#define TERSE_TOOLS_VERSION_H

/* Prints the version, the instruction set that the kernels are chosen for, and which backends can be opened, or why not. Returns an exit
 * status. */
int version_print(void);

#endif
