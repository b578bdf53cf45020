/* The likeliest tokens of rows of logits are those by the definition of struct device_logits, exactly, and rows are held as they were. */
#include "backend/cuda/device.h"
#include "backend/cuda/top_logits.h"
#include "base/random.h"
#include "no_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 4, MOST = 40000 };

static float logits[ROWS * MOST], held[MOST];
static struct token_logit sorted[MOST], got[ROWS * TOP_LOGITS];

static float number(float x) { return isnan(x) ? -INFINITY : x; }

static int by_rank(const void *left, const void *right) {
    const struct token_logit *a = left, *b = right;
    if (number(a->logit) > number(b->logit)) return -1;
    if (number(a->logit) < number(b->logit)) return 1;
    return (a->token > b->token) - (a->token < b->token);
}

static int by_token(const void *left, const void *right) {
    const struct token_logit *a = left, *b = right;
    return (a->token > b->token) - (a->token < b->token);
}

/* Rows of different kinds: distinct, many alike, peaked, and with what is no number, infinities and zeros of both signs. */
static void fill(uint64_t *random, uint32_t vocabulary) {
    static const float odd[] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, -1e-40f, 1e-40f};
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < vocabulary; i++) {
            float x = (float)(random_uniform(random_next(random)) * 40 - 20);
            if (row == 1) x = floorf(x / 8);
            if (row == 2) x = -powf(fabsf(x), 3);
            if (row == 3) x = random_next(random) % 64 ? -0.0f : odd[random_next(random) % 7];
            logits[row * vocabulary + i] = x;
        }
}

static void *device_copy(const void *data, size_t bytes) {
    struct terse_error error;
    void *memory = device_alloc(NULL, bytes, "a test", &error);
    if (!memory) fail_msg("%s", error.message);
    if (data) assert_int_equal(device_send(memory, data, bytes), cudaSuccess);
    return memory;
}

static void run(uint32_t vocabulary, uint64_t *random) {
    uint32_t wanted = vocabulary < TOP_LOGITS ? vocabulary : TOP_LOGITS;
    size_t row_bytes = vocabulary * sizeof(float), list_bytes = TOP_LOGITS * sizeof(struct token_logit);
    fill(random, vocabulary);
    void *in = device_copy(logits, ROWS * row_bytes), *row = device_copy(NULL, row_bytes);
    float *places[ROWS] = {NULL, NULL, row, NULL};
    void *to = device_copy(places, sizeof places), *out = device_copy(NULL, ROWS * list_bytes),
         *parts = device_copy(NULL, ROWS * top_logits_parts(vocabulary) * list_bytes);
    const struct find_top_logits find = {
        .logits = in, .n = ROWS, .vocabulary = vocabulary, .held = to, .parts = parts, .top_logits = out};
    assert_int_equal(find_top_logits(&find, device_stream()), cudaSuccess);
    assert_int_equal(device_fetch(got, out, ROWS * list_bytes), cudaSuccess);
    assert_int_equal(device_fetch(held, row, row_bytes), cudaSuccess);
    assert_memory_equal(held, logits + 2 * vocabulary, row_bytes);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < vocabulary; i++) sorted[i] = (struct token_logit){logits[r * vocabulary + i], (int32_t)i};
        qsort(sorted, vocabulary, sizeof *sorted, by_rank);
        qsort(sorted, wanted, sizeof *sorted, by_token);
        for (uint32_t i = 0; i < wanted; i++)
            if (memcmp(&got[r * TOP_LOGITS + i], &sorted[i], sizeof *sorted) != 0)
                fail_msg("vocabulary %u, row %u: %u. is token %d (%g) instead of %d (%g)", vocabulary, r, i,
                         got[r * TOP_LOGITS + i].token, (double)got[r * TOP_LOGITS + i].logit, sorted[i].token,
                         (double)sorted[i].logit);
    }
    void *all[] = {in, row, to, out, parts};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) device_free(NULL, all[i], 0);
}

static void the_likeliest_are_found(void **state) {
    (void)state;
    static const uint32_t vocabularies[] = {1, 100, 255, 256, 257, 3000, 8192, 8193, 8300, 16384, MOST};
    uint64_t random = 3;
    for (size_t i = 0; i < sizeof vocabularies / sizeof vocabularies[0]; i++) run(vocabularies[i], &random);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_likeliest_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
