/* A small codebook for tests and fuzzing. */
#ifndef TERSE_TESTS_SUPPORT_CODEBOOK_SAMPLE_H
#define TERSE_TESTS_SUPPORT_CODEBOOK_SAMPLE_H

#include "format/codebook.h"

/* Two layers of one KV head of 32 channels; keys vq of 32 channels, values pq of 16, 4 bits: some 5 KB of file. */
struct codebook_info codebook_sample_info(void);
/* Fills floats[n]: none is exactly a half float, and all are different as halves. */
void codebook_sample_fill(float *floats, size_t n, uint64_t seed);
/* Makes a codebook whose parameters codebook_sample_fill makes. */
enum terse_status codebook_sample_new(const struct codebook_info *info, struct terse_codebook **codebook,
                                      struct terse_error *error);
/* Builds the codebook's file in memory (memory_free); NULL when memory is refused. */
void *codebook_sample_build(const struct terse_codebook *codebook, size_t *size);
/* Corrects the checksum of a file that was changed, so that what was changed is what gets refused. False when there is none. */
bool codebook_sample_seal(void *file, size_t size);

#endif
