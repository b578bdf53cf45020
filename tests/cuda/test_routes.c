/* Routes of rows to experts against the CPU's: the same experts, of equal ones too, the same shares; slots that hold each pair once, by expert. */
#include "backend/cpu/experts.h"
#include "backend/cuda/device.h"
#include "backend/cuda/expert_kernels.h"
#include "no_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state = 1;
static float uniform(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (1 << 23) - 1;
}

static void *taken(size_t bytes) {
    void *memory;
    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
}

/* The device says this of rows. */
struct routed {
    uint32_t rows, experts, used, items_most;
    float *logits, *share;
    uint32_t *chosen, *slot;
    int32_t *row;
    struct expert_item *items;
};

static void *fetched(void *from, size_t bytes) {
    void *memory = malloc(bytes);
    assert_non_null(memory);
    assert_int_equal(device_fetch(memory, from, bytes), cudaSuccess);
    cudaFree(from);
    return memory;
}

/* Logits of few values, so that some are equal. */
static struct routed route(uint32_t rows, uint32_t experts, uint32_t used, const struct routing *routing, float damage) {
    struct routed r = {rows, experts, used, expert_items_most(rows * used, experts), NULL, NULL, NULL, NULL, NULL, NULL};
    const size_t pairs = (size_t)rows * used, logits = (size_t)rows * experts * sizeof *r.logits;
    assert_non_null(r.logits = malloc(logits));
    for (size_t i = 0; i < (size_t)rows * experts; i++) r.logits[i] = roundf(uniform() * 40) / 8;
    if (damage != 0) r.logits[experts + 1] = damage;
    struct expert_routes to = {experts,
                               used,
                               taken(logits),
                               taken(pairs * sizeof *r.share),
                               taken(pairs * sizeof *r.chosen),
                               taken(pairs * sizeof *r.slot),
                               taken((size_t)r.items_most * EACH_ROWS * sizeof *r.row),
                               taken(r.items_most * sizeof *r.items)};
    assert_int_equal(device_send(to.logits, r.logits, logits), cudaSuccess);
    assert_int_equal(route_rows(&to, routing, rows, device_stream()), cudaSuccess);
    r.share = fetched(to.share, pairs * sizeof *r.share);
    r.chosen = fetched(to.chosen, pairs * sizeof *r.chosen);
    r.slot = fetched(to.slot, pairs * sizeof *r.slot);
    r.row = fetched(to.row, (size_t)r.items_most * EACH_ROWS * sizeof *r.row);
    r.items = fetched(to.items, r.items_most * sizeof *r.items);
    cudaFree(to.logits);
    return r;
}

static void routed_free(struct routed *r) {
    free(r->logits), free(r->share), free(r->chosen), free(r->slot), free(r->row), free(r->items);
}

static void check_slots(const struct routed *r) {
    size_t held = 0;
    for (uint32_t i = 0; i < r->rows * r->used; i++) {
        const struct expert_item *item = &r->items[r->slot[i] / EACH_ROWS];
        assert_in_range(r->slot[i] / EACH_ROWS, 0, r->items_most - 1);
        assert_int_equal(r->row[r->slot[i]], i / r->used);
        assert_int_equal(item->expert, r->chosen[i]);
        assert_true(r->slot[i] % EACH_ROWS < item->rows);
    }
    for (uint32_t i = 0; i < r->items_most; i++) held += r->items[i].rows;
    assert_int_equal(held, r->rows * r->used);
    for (uint32_t slot = 0; slot < r->items_most * EACH_ROWS; slot++)
        assert_true((r->row[slot] >= 0) == (slot % EACH_ROWS < r->items[slot / EACH_ROWS].rows));
}

static void routes_are_the_cpus(void **state) {
    (void)state;
    static const uint32_t shapes[][3] = {{1, 8, 2}, {70, 6, 3}, {5, 130, 8}, {40, 3, 3}}; /* rows, experts, used */
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct routing routing = {.of_all = i % 2, .scale = i == 2 ? 2.5f : 1};
        struct routed r = route(shapes[i][0], shapes[i][1], shapes[i][2], &routing, 0);
        for (uint32_t row = 0; row < r.rows; row++) {
            uint32_t chosen[8];
            float share[8];
            experts_choose(r.logits + row * r.experts, r.experts, r.used, &routing, NULL, chosen, share);
            assert_memory_equal(chosen, r.chosen + row * r.used, r.used * sizeof *chosen);
            for (uint32_t k = 0; k < r.used; k++) assert_true(fabsf(share[k] - r.share[row * r.used + k]) <= 1e-6f * routing.scale);
        }
        check_slots(&r);
        routed_free(&r);
    }
}

/* They choose some expert, lest kernels read what is no expert's. */
static void logits_that_are_not_finite_choose_experts(void **state) {
    (void)state;
    const float damages[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        struct routed r = route(2, 4, 3, &(struct routing){.scale = 1}, damages[i]);
        for (uint32_t pair = 0; pair < 6; pair++) assert_in_range(r.chosen[pair], 0, 3);
        check_slots(&r);
        routed_free(&r);
    }
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(routes_are_the_cpus),
                                       cmocka_unit_test(logits_that_are_not_finite_choose_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
