/* The GPU's table of codecs: every row is whole, and what is chosen by rows is so for every pair of codecs. Needs no GPU. */
#include "backend/cuda/kv/attend_decode.h"
#include "backend/cuda/kv/attend_sizes.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/encode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct head_view HEADS = {.layers = 1, .query_heads = 8, .kv_heads = 2, .head_dim = 128};
static const struct centroid_shape CODES[2] = {{4, 8}, {4, 8}};

/* The i-th codec that the GPU has a row of; NULL past the last. */
static const struct cuda_codec *row_at(size_t i) {
    for (size_t c = 0; codec_at(c); c++)
        if (cuda_codec_of(codec_at(c)->id) && i-- == 0) return cuda_codec_of(codec_at(c)->id);
    return NULL;
}

static void rows_are_whole(void **state) {
    (void)state;
    size_t n = 0;
    for (const struct cuda_codec *row; (row = row_at(n)); n++) {
        assert_ptr_equal(cuda_codec_of(row->format->id), row);
        assert_true(row->encodes && row->encode && row->decode && row->attend && row->form);
        assert_true(row->form->resident);
        assert_true((row->learned_new != NULL) == codec_learns(row->format));
    }
    assert_true(n >= 9);
}

static bool reads_codes(const struct cuda_codec *row, enum codec_side side) {
    return !row->attends || row->attends(&HEADS, side, CODES[side]);
}

/* A pair is read by the codecs' own launch, by one that both may be mixed in, or not at all. */
static void pairs_are_those_of_the_rows(void **state) {
    (void)state;
    size_t mixed = 0, none = 0, mixable = 0;
    for (size_t i = 0; row_at(i); i++) mixable += row_at(i)->attend_mixed != NULL;
    assert_true(mixable >= 5); /* f16, q8_0, q4_0 and two of kivi */
    for (size_t i = 0; codec_at(i); i++) {
        for (size_t j = 0; codec_at(j); j++) {
            const enum codec_id pair[2] = {codec_at(i)->id, codec_at(j)->id};
            const struct cuda_codec *keys = cuda_codec_of(pair[0]), *values = cuda_codec_of(pair[1]);
            bool both = keys && values, alike = both && keys->attend == values->attend;
            bool together = both && keys->attend_mixed && keys->attend_mixed == values->attend_mixed;
            bool codes = both && reads_codes(keys, CODEC_KEYS) && reads_codes(values, CODEC_VALUES);
            assert_true(attend_decode_supports(&HEADS, pair, CODES) == (codes && (alike || together)));
            assert_true(encode_supports(&HEADS, pair) == both);
            mixed += !alike && together;
            none += !alike && !together;
            if (!together) continue;
            assert_ptr_equal(keys->form, values->form); /* sizes are those of the keys' row */
        }
    }
    assert_int_equal(mixed, mixable * (mixable - 1));
    assert_true(none > 0);
}

/* Some rows say more of heads and codes. */
static void rows_refuse_what_their_kernels_do_not_read(void **state) {
    (void)state;
    struct head_view heads = HEADS;
    const struct centroid_shape odd[2] = {{4, 8}, {3, 8}};
    assert_false(attend_decode_supports(&HEADS, (enum codec_id[2]){CODEC_PQ, CODEC_VQ}, odd));
    assert_false(attend_decode_supports(&HEADS, (enum codec_id[2]){CODEC_PQ, CODEC_PQ}, NULL));
    const struct centroid_shape commvq[2] = {{128, 21 * 12}, {128, 256}}, narrow[2] = {{64, 11 * 12}, {128, 256}},
                                other_rounds[2] = {{128, 16 * 12}, {128, 256}};
    assert_true(attend_decode_supports(&HEADS, (enum codec_id[2]){CODEC_COMMVQ, CODEC_ADDITIVE}, commvq));
    assert_false(attend_decode_supports(&HEADS, (enum codec_id[2]){CODEC_COMMVQ, CODEC_ADDITIVE}, other_rounds));
    assert_false(attend_decode_supports(&HEADS, (enum codec_id[2]){CODEC_ADDITIVE, CODEC_COMMVQ}, commvq));
    assert_false(attend_decode_supports(&HEADS, (enum codec_id[2]){CODEC_COMMVQ, CODEC_ADDITIVE}, narrow));
    assert_false(attend_decode_supports(&HEADS, (enum codec_id[2]){CODEC_COMMVQ, CODEC_F16}, commvq));
    heads.head_dim = 96;
    assert_false(encode_supports(&heads, (enum codec_id[2]){CODEC_COMMVQ, CODEC_ADDITIVE}));
    assert_true(attend_decode_supports(&heads, (enum codec_id[2]){CODEC_KIVI_2, CODEC_F16}, NULL));
    assert_false(attend_decode_supports(&heads, (enum codec_id[2]){CODEC_F16, CODEC_KIVI_2}, NULL));
    heads.head_dim = 160;
    assert_true(encode_supports(&heads, (enum codec_id[2]){CODEC_F16, CODEC_Q8_0}));
    assert_false(encode_supports(&heads, (enum codec_id[2]){CODEC_F16, CODEC_TRANSFORM}));
    assert_false(attend_decode_supports(&heads, (enum codec_id[2]){CODEC_F16, CODEC_F16}, NULL));
}

/* A split has a partial state of a sum and four numbers, and centroids as many for each of its stretches; the transform has one partial state
 * more. */
static void sizes_are_those_of_the_form(void **state) {
    (void)state;
    assert_int_equal(attend_decode_part_floats(&HEADS, CODEC_Q8_0, 3, 5), 3 * 8 * 5 * (128 + 4));
    assert_int_equal(attend_decode_part_floats(&HEADS, CODEC_PQ, 3, 5), 3 * 8 * 5 * (1 + ATTEND_STRETCHES) * (128 + 4));
    assert_int_equal(attend_decode_part_floats(&HEADS, CODEC_PQ, 3, 1), 3 * 8 * (1 + ATTEND_STRETCHES) * (128 + 4));
    assert_int_equal(attend_decode_part_floats(&HEADS, CODEC_PQ, 1, 1), 8 * (128 + 4)); /* no CTA reads several parts */
    assert_int_equal(attend_decode_part_floats(&HEADS, CODEC_TRANSFORM, 3, 5), 3 * 8 * 6 * (128 + 4));
    assert_int_equal(attend_decode_run_words(&HEADS, CODEC_Q8_0, 3, 7), 0);
    assert_int_equal(attend_decode_run_words(&HEADS, CODEC_TRANSFORM, 3, 7),
                     3 * 2 * (7 + 1) * (12 + 4 * 128)); /* four queries a KV head */
    assert_int_equal(attend_decode_splits(&HEADS, CODEC_F16, 132, 1, 4096), 132);
    assert_int_equal(attend_decode_splits(&HEADS, CODEC_PQ, 132, 1, 4096), 66);
    assert_int_equal(attend_decode_splits(&HEADS, CODEC_TRANSFORM, 132, 1, 4096), 131);
    assert_int_equal(attend_decode_splits(&HEADS, CODEC_PQ, 132, 1, 16), 2);
    assert_int_equal(attend_decode_splits(&HEADS, CODEC_VQ, 132, 1, 16), 1);
    assert_int_equal(attend_decode_splits(&HEADS, CODEC_GAIN_SHAPE, 132, 1, 16), 1);
    assert_int_equal(attend_decode_splits(&HEADS, CODEC_GAIN_SHAPE, 132, 1, 17), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_whole),
        cmocka_unit_test(pairs_are_those_of_the_rows),
        cmocka_unit_test(rows_refuse_what_their_kernels_do_not_read),
        cmocka_unit_test(sizes_are_those_of_the_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
