/* Declares the codebook of an oracle whose method learns. */
#ifndef TESTS_SUPPORT_ORACLE_CODEBOOK_H
#define TESTS_SUPPORT_ORACLE_CODEBOOK_H

#include "support/cache_oracle.h"

/* Returns whether the oracle takes a side's codes from the codec itself: tests of the codec hold its pages to what they should be. */
static inline bool oracle_codec_decides(const struct codec *codec) { return codec->learner > CODEC_LEARNS_KMEANS; }

/* Makes the codebook that the method reads: centroids drawn as the keys and values are, or random parameters. */
void oracle_make_codebook(struct oracle *o);

#endif
