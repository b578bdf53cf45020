/* A small sound GGUF file with everything the format has: for tests of the reader and as a seed of its fuzz target. */
#ifndef TERSE_TESTS_SUPPORT_GGUF_SAMPLE_H
#define TERSE_TESTS_SUPPORT_GGUF_SAMPLE_H

#include "gguf/gguf_writer.h"

/* Data of the tensors "floats" (all), "scalar" (the first) and "blocks". */
extern const float gguf_sample_floats[64];
extern const uint8_t gguf_sample_blocks[34 * 4];

/* Every metadata type, as a value and in an array, arrays in arrays, and tensors of known and unknown types. `writer` is begun. */
void gguf_sample_write(struct gguf_writer *writer, uint32_t version);
/* The same as a file in memory (memory_free); NULL when memory is refused. */
void *gguf_sample_build(uint32_t version, size_t *size);

#endif
