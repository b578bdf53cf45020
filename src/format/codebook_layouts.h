/* Makes a profile's layouts: how the bits of a method are shared over the layers, KV heads and sides of a model. A profile serves
 * every rate; for each that is asked for, layouts are made once, kept with the codebook and freed with it. Layouts are immutable,
 * and the functions thread-safe. */
#ifndef TERSE_FORMAT_CODEBOOK_LAYOUTS_H
#define TERSE_FORMAT_CODEBOOK_LAYOUTS_H

#include "format/codebook_importance.h"
#include "format/transform.h"

struct codebook_layouts {
    struct codebook_layouts *next;      /* of the same codebook */
    double rate[2];                     /* by enum codec_side, bits per value; 0: the side is of another codec */
    struct transform_layout *layout[2]; /* [sets]; NULL: as above */
    size_t sets;
};

/* Makes the layouts of `codebook`, whose coded sides are of codec transform, at these rates. Keys and values of the same rate share
 * their bits; at two rates each side has its own. */
enum terse_status codebook_layouts(const struct terse_codebook *codebook, const double rate[2],
                                   const struct codebook_layouts **layouts, struct terse_error *error);

/* Makes layouts of a sequence's own rows[side][sets], of the sets that have any, by their importance (codebook_importance.h).
 * codebook_layouts_free releases the layouts. */
enum terse_status codebook_layouts_of_rows(const struct terse_codebook *codebook, const double rate[2],
                                           const struct codebook_rows *const rows[2], bool normalized,
                                           struct codebook_layouts **layouts, struct terse_error *error);
void codebook_layouts_free(struct codebook_layouts *layouts); /* accepts NULL */
uint64_t codebook_layouts_bytes(const struct codebook_layouts *layouts);

#endif
