/* Makes PNG of a picture of SVG, by librsvg where the machine has it. */
#ifndef TERSE_TOOLS_PNG_H
#define TERSE_TOOLS_PNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Returns whether librsvg is here and opens it, which png_write needs. */
bool png_can_be_written(void);
/* Writes the picture svg[n], twice as many pixels wide and high as it says, to a file. Returns false, with a reason in *why that lasts until the
 * next call or, where writing failed, NULL there and errno set. */
bool png_write(FILE *out, const char *svg, size_t n, const char **why);

#endif
