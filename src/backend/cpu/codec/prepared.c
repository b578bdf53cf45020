/* Prepares codebooks for the CPU. */
#include "backend/cpu/codec/prepared.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

static void free_form(void *form) {
    struct cpu_codebook *prepared = form;
    const struct codebook_info *info = codebook_info(prepared->codebook);
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        if (!prepared->learned[side]) continue;
        const struct cpu_codec *codec = cpu_codec_of(codebook_coding(info, (enum codec_side)side).codec);
        for (size_t set = 0; set < prepared->sets; set++) codec->learned->free(prepared->learned[side][set]);
        memory_free(prepared->learned[side]);
    }
    memory_free(prepared);
}

/* Reads the parameters of a set as floats; `vector_ops` converts faster than the format's own functions. */
static void read_parameters(const struct terse_codebook *codebook, enum codec_side side, size_t set, float *floats) {
    for (int part = CODEBOOK_CENTROIDS; part <= CODEBOOK_NORMALIZATION; part++) {
        size_t n = codebook_part_floats(codebook_info(codebook), side, (enum codebook_part)part);
        if (n) vector_ops()->half_to_float(codebook_halves(codebook, side, (enum codebook_part)part, set), floats, n);
        floats += n;
    }
}

static enum terse_status make_side(struct cpu_codebook *prepared, enum codec_side side, struct terse_error *error) {
    const struct codebook_info *info = codebook_info(prepared->codebook);
    const struct codec *codec = codebook_coding(info, side).codec;
    if (!codec) return TERSE_OK;
    struct codec_shape shape = codebook_shape(info, side);
    size_t n = codec_parameters(codec, shape);
    enum terse_status status = TERSE_OK;
    float *floats = memory_array(n, sizeof *floats);
    prepared->learned[side] = memory_zeros(prepared->sets, sizeof(void *));
    if (!floats || !prepared->learned[side])
        status = status_no_memory(error, n * sizeof *floats + prepared->sets * sizeof(void *), "a codebook");
    for (size_t set = 0; set < prepared->sets && !status; set++) {
        read_parameters(prepared->codebook, side, set, floats);
        status = cpu_codec_of(codec)->learned->make(shape, side, floats, &prepared->learned[side][set], error);
    }
    memory_free(floats);
    return status;
}

static enum terse_status make_form(const struct terse_codebook *codebook, void **form, struct terse_error *error) {
    const struct codebook_info *info = codebook_info(codebook);
    struct cpu_codebook *prepared = memory_zeros(1, sizeof *prepared);
    *form = NULL;
    if (!prepared) return status_no_memory(error, sizeof *prepared, "a codebook");
    prepared->codebook = codebook;
    prepared->shared = info->shared;
    prepared->kv_heads = info->kv_heads;
    prepared->sets = codebook_sets(info);
    enum terse_status status = make_side(prepared, CODEC_KEYS, error);
    if (!status) status = make_side(prepared, CODEC_VALUES, error);
    if (status)
        free_form(prepared);
    else
        *form = prepared;
    return status;
}

/* Returns the bytes of the learned objects of all sets: those of `made`, or, if it is NULL, those that would be made. */
static uint64_t form_bytes_of(const struct terse_codebook *codebook, const struct cpu_codebook *made) {
    const struct codebook_info *info = codebook_info(codebook);
    size_t sets = codebook_sets(info);
    uint64_t bytes = sizeof *made;
    for (int i = CODEC_KEYS; i <= CODEC_VALUES; i++) {
        enum codec_side side = (enum codec_side)i;
        struct coding coding = codebook_coding(info, side);
        if (!coding.codec) continue;
        const struct cpu_codec *codec = cpu_codec_of(coding.codec);
        bytes += sets * sizeof(void *);
        for (size_t set = 0; set < sets; set++)
            bytes += made ? codec->learned->bytes(made->learned[side][set])
                          : codec->learned->predict_bytes(codebook_shape(info, side), side,
                                                          codebook_halves(codebook, side, CODEBOOK_CENTROIDS, set));
    }
    return bytes;
}

static uint64_t form_bytes(const void *form) {
    const struct cpu_codebook *made = form;
    return form_bytes_of(made->codebook, made);
}

static const struct codebook_form_ops form_ops = {make_form, free_form, form_bytes};

enum terse_status cpu_codebook_prepare(const struct terse_codebook *codebook, const struct cpu_codebook **prepared,
                                       struct terse_error *error) {
    const void *form;
    enum terse_status status = codebook_form(codebook, &form_ops, &form, error);
    *prepared = form;
    return status;
}

uint64_t cpu_codebook_bytes(const struct terse_codebook *codebook) {
    uint64_t bytes = codebook_bytes(codebook);
    return codebook_form_made(codebook, &form_ops) ? bytes : bytes + form_bytes_of(codebook, NULL);
}
