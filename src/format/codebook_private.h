/* The inside of struct terse_codebook, shared by codebook.c (makes it and answers questions) and codebook_file.c (its file). */
#ifndef TERSE_FORMAT_CODEBOOK_PRIVATE_H
#define TERSE_FORMAT_CODEBOOK_PRIVATE_H

#include "format/codebook.h"
#include "gguf/gguf_writer.h"

/* A side's parameters of one layer and KV head: 2^bits centroids of each sub-vector, head_dim * 2^bits numbers, then what the codec
 * keeps beside them, its frame. They are apart in memory and in the file. */
enum codebook_part { CODEBOOK_CENTROIDS, CODEBOOK_NORMALIZATION };

struct terse_codebook {
    struct codebook_info info;
    size_t sets;            /* codebook_sets */
    uint16_t *halves[2][2]; /* [side][part], each [sets][codebook_part_floats] as in the file; NULL where there is none */
    void **learned[2];      /* [side], each [sets]: what the codec made of them; NULL: the side learns nothing */
};

/* The side's coding; its codec is NULL when it learns nothing. */
struct coding codebook_coding(const struct codebook_info *info, enum codec_side side);
struct codec_shape codebook_shape(const struct codebook_info *info, enum codec_side side);
/* Of one layer and KV head; 0: the side has no such part. */
size_t codebook_part_floats(const struct codebook_info *info, enum codec_side side, enum codebook_part part);

/* Sets of parameters of a side: layers * kv_heads, or 1 when shared. */
size_t codebook_sets(const struct codebook_info *info);
/* Whether there can be such a codebook, before anything else is asked of its shape: TERSE_E_FORMAT, TERSE_E_UNSUPPORTED. */
enum terse_status codebook_check_info(const struct codebook_info *info, struct terse_error *error);

/* A codebook is made in two steps: memory for the halves, then, once the caller has filled them, the codecs' objects. The first checks
 * the info; if the second fails the caller releases the codebook. */
enum terse_status codebook_begin(const struct codebook_info *info, struct terse_codebook **codebook, struct terse_error *error);
enum terse_status codebook_open(struct terse_codebook *codebook, struct terse_error *error);

/* The file's contents; they point into the codebook. */
void codebook_write(const struct terse_codebook *codebook, struct gguf_writer *writer);

#endif
