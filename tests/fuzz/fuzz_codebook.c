/* Fuzz target of the codebook loader: loads the input as it is and again with its checksum made right, so that what lies behind the
 * checksum is reached, and checks whatever loads against its contract. Run it with the corpus in corpus/codebook; see CMakeLists.txt. */
#include "backend/cpu/codec/codec.h"
#include "base/memory.h"
#include "format/codebook_private.h"
#include "support/codebook_sample.h"
#include "support/prepared.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

/* Every object is there and encodes and decodes. */
static void look_at_side(const struct terse_codebook *codebook, enum codec_side side) {
    static _Alignas(64) uint8_t block[PAGE_TOKENS * CODEC_HEAD_DIM_MAX * 2];
    static float rows[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    const struct codebook_info *info = codebook_info(codebook);
    struct codec_shape shape = codebook_shape(info, side);
    const struct codec *codec = codebook_coding(info, side).codec;
    require((codec != NULL) == (prepared_learned(codebook, side, 0, 0) != NULL));
    require((codec != NULL) == (codebook_floats(info, side) > 0));
    if (!codec) return;
    shape.learned = prepared_learned(codebook, side, info->layers - 1, info->kv_heads - 1);
    require(shape.learned && codec_page_bytes(codec, shape, side) <= sizeof block);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i] = (float)(i % 17) - 8;
    cpu_codec_of(codec)->encode(shape, side, rows, PAGE_TOKENS, block);
    cpu_codec_of(codec)->decode(shape, side, block, rows);
    for (size_t i = 0; i < PAGE_TOKENS * info->head_dim; i++) require(isfinite(rows[i]));
}

static void look_at(const struct terse_codebook *codebook, size_t size) {
    struct terse_codebook_info shown;
    struct terse_codebook *again = NULL;
    size_t first_size, second_size;
    terse_codebook_describe(codebook, &shown);
    require(!strpbrk(shown.method, "\n\x1b") && !strpbrk(shown.model, "\n\x1b") && !strpbrk(shown.corpus, "\n\x1b"));
    require(shown.bytes > codebook_floats(codebook_info(codebook), CODEC_KEYS) * 2);
    require(codebook_floats(codebook_info(codebook), CODEC_KEYS) + codebook_floats(codebook_info(codebook), CODEC_VALUES) <=
            size / 2);
    look_at_side(codebook, CODEC_KEYS);
    look_at_side(codebook, CODEC_VALUES);
    /* Written and loaded again it is written as the same bytes. */
    uint8_t *first = codebook_sample_build(codebook, &first_size);
    require(first && terse_codebook_load_memory(first, first_size, "again", &again, NULL) == TERSE_OK);
    uint8_t *second = codebook_sample_build(again, &second_size);
    require(second && first_size == second_size && memcmp(first, second, first_size) == 0);
    terse_codebook_free(again);
    memory_free(first);
    memory_free(second);
}

static void load(const uint8_t *file, size_t size) {
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    enum terse_status status = terse_codebook_load_memory(file, size, "input", &codebook, &error);
    require((status == TERSE_OK) == (codebook != NULL));
    if (codebook)
        look_at(codebook, size);
    else
        require(error.code == status && strncmp(error.message, "input: ", 7) == 0 && !strpbrk(error.message, "\n\x1b"));
    terse_codebook_free(codebook);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *file = memory_array(size, 1); /* aligned, and ends where the input ends */
    require(file != NULL);
    if (size) memcpy(file, data, size);
    load(file, size);
    if (codebook_sample_seal(file, size)) load(file, size);
    memory_free(file);
    return 0;
}
