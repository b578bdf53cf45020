/* Finds the best path through the stream of a page of the codec transform (format/transform.h), for 64 tokens at a time. */
#ifndef TERSE_BACKEND_CPU_CODEC_TRANSFORM_PATH_H
#define TERSE_BACKEND_CPU_CODEC_TRANSFORM_PATH_H

#include "format/page_layout.h"
#include "format/transform.h"

#define PATH_NIBBLES_MAX (3 * TRANSFORM_QUADS_MAX / 4 + 1) /* of a stream: of 3 bits of each quad at most */

struct transform_path {
    uint8_t nibble[PATH_NIBBLES_MAX][TRANSFORM_QUAD][PAGE_TOKENS]; /* of the stream: four bits of each component and token */
    uint8_t upper[CODEC_HEAD_DIM_MAX][PAGE_TOKENS];                /* of components of 5 to 7 bits: the upper 4 */
};

/* Chooses the stream whose windows, with the upper bits that go with them, come nearest to wanted[component][64], in units of the
 * components' sizes, in the sum of squares of errors times size[component]. Planes from `first` on are the stream's; their levels
 * and those of the upper bits are added to found[component][64]. */
void transform_path_find(const struct transform_layout *layout, size_t first, const float *size, const float (*wanted)[PAGE_TOKENS],
                         float (*found)[PAGE_TOKENS], struct transform_path *path);

#endif
