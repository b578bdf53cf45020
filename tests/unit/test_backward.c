/* The gradients of every key and value against differences of a loss in double precision, on a tiny model of every architecture;
 * the loss and the rows against the same naive pass; that pass against Hugging Face transformers' logits. And what a caller may do
 * wrong, threads, interruption, refused memory.
 *
 *     test_backward --bench MODEL [N]     seconds per window of N (2048) random tokens
 */
#include "base/memory.h"
#include "support/fixture_model.h"
#include "support/model_oracle.h"
#include "train/backward.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Largest differences: of the loss, of rows over the largest number of their layer, of gradients over the largest of their layer,
 * KV head and side (of a direction's slope over the gradient's length). What is left is rounding to fp32: the worst met is 6e-6. */
#define LOSS_BOUND 1e-5
#define ROW_BOUND 1e-5
#define GRADIENT_BOUND 5e-5

/* ---- This program's own base/memory, which can refuse. */

static size_t live, asked, refused_after = SIZE_MAX; /* arrays there are, bytes of all that were ever made, */
static bool refused_once;                            /* and whether it is one array after so many, not all */

void *memory_array(size_t count, size_t size) {
    void *memory;
    bool refused = refused_after == 0;
    if (refused && refused_once) refused_after = SIZE_MAX;
    if (refused || (size && count > (SIZE_MAX - MEMORY_ALIGN) / size)) return NULL;
    if (posix_memalign(&memory, MEMORY_ALIGN, count * size + 1)) return NULL;
    if (refused_after != SIZE_MAX) refused_after--;
    live++;
    asked += count * size;
    return memory;
}

void *memory_zeros(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void memory_free(void *memory) {
    if (memory) live--;
    free(memory);
}

/* ---- Windows */

static uint32_t random_state = 1;
static uint32_t next_random(void) { return (random_state = random_state * 1664525u + 1013904223u) >> 8; }

static const char *const names[] = {"llama",
                                    "llama-untied",
                                    "llama-linear",
                                    "llama-yarn",
                                    "llama-yarn-given",
                                    "llama-3",
                                    "mistral",
                                    "qwen2",
                                    "qwen3",
                                    "gpt2",
                                    "mpt",
                                    "mixtral",
                                    "qwen2moe",
                                    "qwen3moe",
                                    "gpt-oss",
                                    "starcoder2-window",
                                    "command-r",
                                    "command-r-norms",
                                    "gemma2",
                                    "gemma3"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static int32_t *random_tokens(const struct terse_model *model, size_t n) {
    int32_t *tokens = malloc(n * sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)(next_random() % model->vocabulary);
    return tokens;
}

/* Keeps the rows that a window delivers. */
enum { K, K_ROTATED, V, DK, DV, KEPT };
struct kept {
    const struct terse_model *model;
    size_t n, per_layer;
    uint32_t next;     /* layers still to come */
    float *rows[KEPT]; /* [layers][n][Hk][hd] */
    double loss;
};

static void keep_layer(void *user, uint32_t layer, const struct captured *rows) {
    struct kept *kept = user;
    const float *from[KEPT] = {rows->k, rows->k_rotated, rows->v, rows->dk, rows->dv};
    assert_int_equal(layer, --kept->next);
    assert_int_equal(rows->n, kept->n);
    for (int i = 0; i < KEPT; i++) memcpy(kept->rows[i] + layer * kept->per_layer, from[i], kept->per_layer * sizeof(float));
}

static struct kept new_kept(const struct terse_model *model, size_t n) {
    struct kept kept = {.model = model, .n = n, .per_layer = n * model->kv_heads * model->head_dim, .next = model->layers};
    for (int i = 0; i < KEPT; i++) {
        kept.rows[i] = malloc(model->layers * kept.per_layer * sizeof(float));
        assert_non_null(kept.rows[i]);
    }
    return kept;
}

static void free_kept(struct kept *kept) {
    for (int i = 0; i < KEPT; i++) free(kept->rows[i]);
}

static struct kept run(struct backward *backward, const struct terse_model *model, const int32_t *tokens, size_t n) {
    struct terse_error error;
    struct kept kept = new_kept(model, n);
    struct backward_sink sink = {keep_layer, &kept};
    if (backward_run(backward, tokens, n, &sink, NULL, &kept.loss, &error)) fail_msg("%s", error.message);
    assert_int_equal(kept.next, 0);
    return kept;
}

static struct backward *new_backward(const struct terse_model *model, size_t tokens) {
    struct backward *backward;
    struct terse_error error;
    if (backward_new(NULL, model, tokens, true, NULL, &backward, &error)) fail_msg("%s", error.message);
    return backward;
}

/* ---- Against the naive pass */

/* NAME.logits: i32 n, i32 vocabulary, i32 tokens[n], f32 logits[n][vocabulary]. */
static void test_oracle_equals_transformers(void **state) {
    const char *name = *state;
    struct terse_model *model = fixture_model(name);
    char path[512];
    int32_t n, vocabulary, tokens[256];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/models/%s.logits", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&n, 4, 1, file) + fread(&vocabulary, 4, 1, file), 2);
    assert_in_range(n, 2, 256);
    assert_int_equal(fread(tokens, 4, (size_t)n, file), n);
    struct model_oracle oracle = model_oracle_new(model, tokens, (size_t)n);
    model_oracle_run(&oracle, 0);
    double apart = 0, size = 0;
    for (size_t i = 0; i < (size_t)n * (size_t)vocabulary; i++) {
        float logit;
        assert_int_equal(fread(&logit, 4, 1, file), 1);
        apart = fmax(apart, fabs((double)logit - oracle.logits[i]));
        size = fmax(size, fabs((double)logit));
    }
    fclose(file);
    if (!(apart <= 5e-5 * size)) fail_msg("%s: logits are %g of the largest apart", name, apart / size);
    model_oracle_free(&oracle);
    terse_model_free(model);
}

static void check_rows(const char *name, const char *what, const float *rows, const double *expected, size_t count) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(rows[i]));
        apart = fmax(apart, fabs((double)rows[i] - expected[i]));
        size = fmax(size, fabs(expected[i]));
    }
    if (!(apart <= ROW_BOUND * size)) fail_msg("%s: %s are %g of the largest apart", name, what, apart / size);
}

/* Picks an element of a KV head: sample 0 is the first token's, 1 one of the last token that matters, 2 the largest, the others are random. */
static size_t pick(const struct kept *kept, const float *gradients, size_t head, size_t sample) {
    size_t hd = kept->model->head_dim, width = kept->model->kv_heads * hd, largest = head * hd;
    size_t channel = head * hd + next_random() % hd;
    if (sample == 0) return channel;
    if (sample == 1) return (kept->n - 2) * width + channel;
    if (sample > 2) return next_random() % kept->n * width + channel;
    for (size_t i = 0; i < kept->per_layer; i++)
        if (i % width / hd == head && fabsf(gradients[i]) > fabsf(gradients[largest])) largest = i;
    return largest;
}

static double check_elements(const char *name, const struct kept *kept, struct model_oracle *oracle, int side, uint32_t layer,
                             size_t samples) {
    size_t hd = kept->model->head_dim;
    const float *gradients = kept->rows[DK + side] + layer * kept->per_layer;
    double *direction = calloc(kept->per_layer, sizeof *direction), worst = 0;
    assert_non_null(direction);
    for (size_t head = 0; head < kept->model->kv_heads; head++) {
        double size = fabs((double)gradients[pick(kept, gradients, head, 2)]);
        assert_true(size > 0);
        for (size_t sample = 0; sample < samples; sample++) {
            size_t at = pick(kept, gradients, head, sample);
            direction[at] = 1;
            double slope = model_oracle_slope(oracle, (enum model_oracle_side)side, layer, direction);
            direction[at] = 0;
            double apart = fabs((double)gradients[at] - slope) / size;
            worst = fmax(worst, apart);
            if (!(apart <= GRADIENT_BOUND))
                fail_msg("%s, layer %u, %s, head %zu, token %zu, channel %zu: %g, not %g; the largest is %g", name, layer,
                         side ? "values" : "keys", head, at / hd / kept->model->kv_heads, at % hd, (double)gradients[at], slope,
                         size);
        }
    }
    free(direction);
    return worst;
}

/* All elements at once, with random signs. */
static double check_direction(const char *name, const struct kept *kept, struct model_oracle *oracle, int side, uint32_t layer) {
    const float *gradients = kept->rows[DK + side] + layer * kept->per_layer;
    double *direction = calloc(kept->per_layer, sizeof *direction), along = 0, square = 0;
    assert_non_null(direction);
    for (size_t i = 0; i < kept->per_layer; i++) {
        direction[i] = next_random() & 64 ? 1 : -1;
        along += direction[i] * (double)gradients[i];
        square += (double)gradients[i] * (double)gradients[i];
    }
    double slope = model_oracle_slope(oracle, (enum model_oracle_side)side, layer, direction);
    double apart = fabs(along - slope) / sqrt(square);
    if (!(apart <= GRADIENT_BOUND))
        fail_msg("%s, layer %u, %s: slope %g, not %g; the gradient's length is %g", name, layer, side ? "values" : "keys", along,
                 slope, sqrt(square));
    free(direction);
    return apart;
}

static void check_window(const char *name, size_t n, size_t samples) {
    struct terse_model *model = fixture_model(name);
    int32_t *tokens = random_tokens(model, n);
    struct backward *backward = new_backward(model, n + 3);
    struct kept kept = run(backward, model, tokens, n);
    struct model_oracle oracle = model_oracle_new(model, tokens, n);
    double loss = model_oracle_run(&oracle, 0), worst = 0;
    if (!(fabs(kept.loss - loss) <= LOSS_BOUND * loss)) fail_msg("%s: loss %.9g, not %.9g", name, kept.loss, loss);
    size_t all = model->layers * kept.per_layer;
    check_rows(name, "keys", kept.rows[K], oracle.sides[MODEL_ORACLE_KEYS], all);
    check_rows(name, "rotated keys", kept.rows[K_ROTATED], oracle.rotated, all);
    check_rows(name, "values", kept.rows[V], oracle.sides[MODEL_ORACLE_VALUES], all);
    for (uint32_t layer = model->layers; layer-- > 0;) { /* so that what enters a layer is always of the model not moved */
        for (int side = 0; side < 2; side++) {
            worst = fmax(worst, check_elements(name, &kept, &oracle, side, layer, samples));
            worst = fmax(worst, check_direction(name, &kept, &oracle, side, layer));
        }
        /* No prediction is made from the last token. */
        size_t last = (layer + 1) * kept.per_layer - model->kv_heads * model->head_dim;
        for (size_t i = last; i < (layer + 1) * kept.per_layer; i++) assert_true(kept.rows[DK][i] == 0 && kept.rows[DV][i] == 0);
    }
    print_message("%s, %zu tokens: loss off by %.1e, gradients by %.1e\n", name, n, fabs(kept.loss / loss - 1), worst);
    model_oracle_free(&oracle);
    free_kept(&kept);
    backward_free(backward);
    free(tokens);
    terse_model_free(model);
}

static void test_gradients(void **state) { check_window(*state, 40, 6); }

/* Two query heads to a KV head: tiles of 96 tokens. */
static void test_past_a_tile_of_queries(void **state) {
    (void)state;
    check_window("llama", 150, 3);
    check_window("qwen3", 150, 3);
    check_window("gpt-oss", 150, 3);
    check_window("gemma2", 150, 3);
    check_window("gemma3", 150, 3);
    check_window("command-r-norms", 150, 3);
}

/* Past a tile of keys (384) and a panel (512); four query heads to a KV head. */
static void test_past_a_panel(void **state) {
    (void)state;
    check_window("llama-untied", 520, 1);
    check_window("starcoder2-window", 520, 1);
}

static void test_shortest_window(void **state) {
    (void)state;
    check_window("qwen3", 3, 6);
    struct terse_model *model = fixture_model("qwen2");
    struct backward *backward = new_backward(model, 2);
    struct kept kept = run(backward, model, (const int32_t[]){3, 5}, 2);
    assert_true(isfinite(kept.loss) && kept.loss > 0);
    free_kept(&kept);
    backward_free(backward);
    terse_model_free(model);
}

/* ---- Threads, and one object for many windows */

static void check_same(const struct kept *a, const struct kept *b) {
    assert_true(fabs(a->loss - b->loss) <= 1e-6 * a->loss);
    for (int i = 0; i < KEPT; i++) {
        double apart = 0, size = 0;
        for (size_t j = 0; j < a->model->layers * a->per_layer; j++) {
            apart = fmax(apart, fabs((double)a->rows[i][j] - (double)b->rows[i][j]));
            size = fmax(size, fabs((double)a->rows[i][j]));
        }
        if (!(apart <= 1e-5 * size)) fail_msg("rows %d are %g of the largest apart", i, apart / size);
    }
}

static void test_threads(void **state) {
    (void)state;
    const char *of[] = {"llama", "llama-untied"}; /* two KV heads, one */
    int before = omp_get_max_threads();
    for (int i = 0; i < 2; i++) {
        enum { N = 300 };
        struct terse_model *model = fixture_model(of[i]);
        int32_t *tokens = random_tokens(model, N);
        struct kept first = {0};
        for (int threads = 1; threads <= 5; threads += threads == 3 ? 2 : 1) {
            omp_set_num_threads(threads);
            struct backward *backward = new_backward(model, N);
            struct kept kept = run(backward, model, tokens, N);
            backward_free(backward);
            if (threads > 1) check_same(&first, &kept);
            if (threads > 1)
                free_kept(&kept);
            else
                first = kept;
        }
        free_kept(&first);
        free(tokens);
        terse_model_free(model);
    }
    omp_set_num_threads(before);
}

static void test_windows_leave_no_trace(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    int32_t *tokens = random_tokens(model, 90);
    struct backward *backward = new_backward(model, 90), *fresh = new_backward(model, 30);
    struct kept other = run(backward, model, tokens, 90), again = run(backward, model, tokens + 40, 30);
    struct kept single = run(fresh, model, tokens + 40, 30);
    check_same(&single, &again);
    struct kept *all[] = {&other, &again, &single};
    for (int i = 0; i < 3; i++) free_kept(all[i]);
    backward_free(backward);
    backward_free(fresh);
    free(tokens);
    terse_model_free(model);
}

/* ---- Rows that stay from the forward sweep, and rows that the backward sweep makes again */

static void check_equal(const struct kept *a, const struct kept *b) {
    assert_true(a->loss == b->loss);
    for (int i = 0; i < KEPT; i++) assert_memory_equal(a->rows[i], b->rows[i], a->model->layers * a->per_layer * sizeof(float));
}

/* Rows of every layer, of one, or of none stay in memory, depending on the announced windows' tokens. The same window gives the same bits. */
static void test_staying_rows_change_nothing(void **state) {
    (void)state;
    /* Norms of heads; a clamp and no gate; experts, whose inner rows never stay; norms after; both parts of a layer beside each other. */
    const char *of[] = {"llama", "qwen3", "mpt", "mixtral", "gemma2", "command-r-norms"};
    for (int i = 0; i < 6; i++) {
        enum { N = 130 };
        struct terse_model *model = fixture_model(of[i]);
        int32_t *tokens = random_tokens(model, N);
        size_t q = (size_t)model->query_heads * model->head_dim, kv = (size_t)model->kv_heads * model->head_dim;
        size_t raw = model->layer[0].q_norm.gain || model->clamp > 0 ? q + kv : 0, gate = model->experts              ? 0
                                                                                          : model->layer[0].gate.data ? 2
                                                                                                                      : 1;
        size_t added = model->layer[0].attention_post_norm.gain ? 2 * (size_t)model->width : 0;
        size_t row_bytes = (q + 3 * kv + raw + model->width + added + gate * model->feed_forward) * sizeof(float);
        size_t fitting = ((size_t)512 << 20) / row_bytes, announced[3] = {10000, fitting - fitting / 10, fitting + 1};
        struct kept kept[3];
        double per_token[3];
        assert_true(model->layers > 1 && model->layers < fitting / 10000);
        for (int j = 0; j < 3; j++) {
            asked = 0;
            struct backward *backward = new_backward(model, announced[j]);
            per_token[j] = (double)asked / (double)announced[j];
            kept[j] = run(backward, model, tokens, N);
            backward_free(backward);
            if (j) check_equal(&kept[0], &kept[j]);
        }
        assert_true(per_token[0] > per_token[1] + 0.5 * (double)row_bytes);
        assert_true(per_token[1] > per_token[2] + 0.5 * (double)row_bytes);
        for (int j = 0; j < 3; j++) free_kept(&kept[j]);
        free(tokens);
        terse_model_free(model);
    }
}

/* Without memory for the rows that stay, the pass goes on without them. */
static void test_no_memory_for_staying_rows(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    int32_t *tokens = random_tokens(model, 30);
    struct backward *backward = new_backward(model, 30);
    struct kept whole = run(backward, model, tokens, 30);
    size_t arrays = live;
    backward_free(backward);
    refused_once = true;
    for (size_t i = 1; i <= arrays - live; i++) { /* the first one of all was the matrix library's */
        refused_after = i;
        backward = new_backward(model, 30);
        assert_true(refused_after == SIZE_MAX);
        struct kept kept = run(backward, model, tokens, 30);
        check_equal(&whole, &kept);
        free_kept(&kept);
        backward_free(backward);
    }
    refused_once = false;
    free_kept(&whole);
    free(tokens);
    terse_model_free(model);
}

/* ---- Interruption and errors */

struct watch {
    uint64_t calls, allowed, done, total;
};

static bool watch_report(void *user, const char *what, uint64_t done, uint64_t total) {
    struct watch *watch = user;
    assert_non_null(what);
    assert_true(done > watch->done && done <= total);
    watch->done = done;
    watch->total = total;
    return ++watch->calls <= watch->allowed;
}

static void test_interruption(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("llama");
    int32_t *tokens = random_tokens(model, 50);
    struct backward *backward = new_backward(model, 50);
    struct kept whole = run(backward, model, tokens, 50);
    enum terse_status status = TERSE_E_INTERRUPTED;
    for (uint64_t allowed = 0; status; allowed++) {
        struct terse_error error;
        struct kept kept = new_kept(model, 50);
        struct watch watch = {.allowed = allowed};
        struct backward_sink sink = {keep_layer, &kept};
        status = backward_run(backward, tokens, 50, &sink, &(struct terse_progress){watch_report, &watch}, &kept.loss, &error);
        if (status) {
            assert_int_equal(status, TERSE_E_INTERRUPTED);
            assert_int_equal(watch.calls, allowed + 1);
            assert_null(strchr(error.message, '\n'));
        } else {
            assert_int_equal(watch.done, watch.total);
            assert_int_equal(watch.calls, 2 * model->layers);
            check_same(&whole, &kept);
        }
        free_kept(&kept);
    }
    free_kept(&whole);
    backward_free(backward);
    free(tokens);
    terse_model_free(model);
}

static void test_wrong_windows(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("llama");
    struct terse_error error;
    struct backward *backward = new_backward(model, 4), *none = backward;
    struct kept kept = new_kept(model, 4);
    struct backward_sink sink = {keep_layer, &kept};
    int32_t tokens[5] = {1, 2, 3, 4, 5};
    assert_int_equal(backward_run(backward, tokens, 1, &sink, NULL, &kept.loss, &error), TERSE_E_ARGUMENT);
    assert_int_equal(backward_run(backward, tokens, 5, &sink, NULL, &kept.loss, &error), TERSE_E_ARGUMENT);
    tokens[2] = (int32_t)model->vocabulary;
    assert_int_equal(backward_run(backward, tokens, 4, &sink, NULL, &kept.loss, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "at 2"));
    tokens[2] = -1;
    assert_int_equal(backward_run(backward, tokens, 4, &sink, NULL, &kept.loss, &error), TERSE_E_ARGUMENT);
    assert_int_equal(kept.next, model->layers);
    struct terse_model *learned = fixture_model("gpt2"); /* as many positions as its context has */
    assert_int_equal(backward_new(NULL, learned, learned->context + (size_t)1, true, NULL, &none, &error), TERSE_E_CONTEXT);
    assert_null(none);
    terse_model_free(learned);
    assert_int_equal(backward_new(NULL, model, 1, true, NULL, &none, &error), TERSE_E_ARGUMENT);
    assert_null(none);
    assert_int_equal(backward_new(NULL, model, SIZE_MAX / 4, true, NULL, &none, &error), TERSE_E_MEMORY);
    assert_null(none);
    backward_free(NULL);
    backward_free(backward);
    free_kept(&kept);
    terse_model_free(model);
}

static void test_refused_memory(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    enum terse_status status = TERSE_E_MEMORY;
    size_t before = live;
    for (size_t allowed = 0; status; allowed++) {
        struct backward *backward;
        struct terse_error error;
        refused_after = allowed;
        status = backward_new(NULL, model, 20, true, NULL, &backward, &error);
        refused_after = SIZE_MAX;
        assert_true(status == (backward ? TERSE_OK : TERSE_E_MEMORY));
        backward_free(backward);
        assert_int_equal(live, before);
    }
    terse_model_free(model);
}

/* ---- Speed */

static void ignore_layer(void *user, uint32_t layer, const struct captured *rows) { (void)user, (void)layer, (void)rows; }

static int bench(const char *path, size_t n) {
    struct terse_model *model;
    struct backward *backward = NULL;
    struct terse_error error;
    struct backward_sink sink = {ignore_layer, NULL};
    double loss = 0;
    if (terse_model_load(path, &model, &error) || backward_new(NULL, model, n, true, NULL, &backward, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    int32_t *tokens = random_tokens(model, n);
    for (int i = 0; i < 4; i++) {
        double start = omp_get_wtime();
        if (backward_run(backward, tokens, n, &sink, NULL, &loss, &error)) fprintf(stderr, "%s\n", error.message);
        printf("%zu tokens, %d threads: %.2f s, loss %.4f\n", n, omp_get_max_threads(), omp_get_wtime() - start, loss);
    }
    free(tokens);
    backward_free(backward);
    terse_model_free(model);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "--bench")) return bench(argv[2], argc > 3 ? strtoul(argv[3], NULL, 10) : 2048);
    const struct CMUnitTest single[] = {
        cmocka_unit_test(test_past_a_tile_of_queries),
        cmocka_unit_test(test_past_a_panel),
        cmocka_unit_test(test_shortest_window),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_windows_leave_no_trace),
        cmocka_unit_test(test_staying_rows_change_nothing),
        cmocka_unit_test(test_no_memory_for_staying_rows),
        cmocka_unit_test(test_interruption),
        cmocka_unit_test(test_wrong_windows),
        cmocka_unit_test(test_refused_memory),
    };
    enum { N_SINGLE = sizeof single / sizeof single[0] };
    struct CMUnitTest tests[2 * N_NAMES + N_SINGLE];
    for (size_t i = 0; i < N_NAMES; i++) {
        tests[2 * i] = (struct CMUnitTest){"oracle", test_oracle_equals_transformers, NULL, NULL, (void *)names[i]};
        tests[2 * i + 1] = (struct CMUnitTest){"gradients", test_gradients, NULL, NULL, (void *)names[i]};
    }
    memcpy(tests + 2 * N_NAMES, single, sizeof single);
    return cmocka_run_group_tests_name("backward", tests, NULL, NULL);
}
