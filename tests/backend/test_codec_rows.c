/* The tables of codecs, of formats and the CPU's, have no holes: every number of a codec has a format, every format a row, every row its whole core and
 * the optional parts that its format calls for, whole. */
#include "backend/cpu/codec/codec.h"
#include "format/index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A codec without a place would end the loops of other tests before the codecs behind it. */
static void every_number_has_a_format_in_its_place(void **state) {
    (void)state;
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        assert_non_null(codec_at(i));
        assert_int_equal(codec_at(i)->id, i);
    }
    assert_null(codec_at(CODEC_COUNT));
}

static void every_format_has_a_row_with_a_core(void **state) {
    (void)state;
    for (size_t i = 0; codec_at(i); i++) {
        const struct cpu_codec *row = cpu_codec_of(codec_at(i));
        assert_non_null(row);
        assert_ptr_equal(row->format, codec_at(i));
        assert_true(row->encode && row->decode);
        assert_true(row->score || row->accumulate_values); /* of keys, of values, or of both */
        assert_true((row->score != NULL) == (row->channels != NULL));
        assert_true((row->gather_tokens != NULL) == (codec_at(i)->gather != CODEC_GATHERS_NOTHING));
    }
}

static void parts_are_those_that_the_format_calls_for(void **state) {
    (void)state;
    for (size_t i = 0; codec_at(i); i++) {
        const struct codec *format = codec_at(i);
        const struct cpu_codec *row = cpu_codec_of(format);
        assert_true((row->learned != NULL) == codec_learns(format));
        assert_true((row->fit != NULL) == format->fitted);
        assert_true((row->ranks != NULL) == (format->index == &index_components));
        if (row->score_rotated) assert_int_equal(format->rope, CODEC_ROPE_BEFORE);
        if (row->queries || row->ranks) assert_non_null(row->score);
        if (row->code_sums || row->accumulate_values_int8) assert_non_null(row->accumulate_values);
        if (row->prefetch_tokens) assert_non_null(row->gather_tokens);
    }
}

static void parts_are_whole(void **state) {
    (void)state;
    for (size_t i = 0; codec_at(i); i++) {
        const struct cpu_codec *row = cpu_codec_of(codec_at(i));
        const struct codec_code_sums *sums = row->code_sums;
        if (row->learned)
            assert_true(row->learned->make && row->learned->free && row->learned->bytes && row->learned->predict_bytes);
        if (row->queries) assert_true(row->queries->floats && row->queries->prepare);
        if (row->ranks) assert_true(row->ranks->bytes && row->ranks->prepare && row->ranks->rank);
        if (sums) assert_true(sums->floats && sums->add && sums->finish);
        if (sums && sums->integer) assert_true(sums->integer->suffice && sums->integer->add && sums->integer->add_logits);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_has_a_format_in_its_place),
        cmocka_unit_test(every_format_has_a_row_with_a_core),
        cmocka_unit_test(parts_are_those_that_the_format_calls_for),
        cmocka_unit_test(parts_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
