/* Draws what was measured of methods as a picture, SVG or PNG: divergence from f16 against bits per value, the front, and the pick. */
#ifndef TERSE_TOOLS_FRONT_PLOT_H
#define TERSE_TOOLS_FRONT_PLOT_H

#include "front.h"

enum front_picture { FRONT_SVG, FRONT_PNG, FRONT_NONE };
/* Returns what a file's name asks for, by its ending; PNG takes png.h. */
enum front_picture front_plot_kind(const char *path);
/* Writes the picture of rows[n], as front_find leaves them, to a file, as SVG or what its name asks for. `pick` is one of them, or NULL; `most` is the divergence that
 * it was to keep to; `title` stands above. Returns an exit status. */
int front_plot(const struct front_row *rows, size_t n, const struct front_row *pick, double most, const char *title,
               const char *path);

#endif
