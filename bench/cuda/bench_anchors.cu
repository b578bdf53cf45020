/* bench_anchors_cuda measures by CUDA events, medians of several rounds, what the choice of anchors costs beside a prompt's
 * attention, over one layer of 32 query and 8 KV heads, and what the replacement of exact rows (MAT) costs a decoding step, over 32
 * layers of 8 KV heads of 128. Prints lines
 *     anchors HEAD_DIM TOKENS attention US scores US (times attention) choice US
 *     mat-N EXACT step US when no row moves, US when all do
 * `scores` are the halves of the queries, the logarithms that attention leaves, and the kernel of Anchor Scores; `choice` is 1 % of the
 * tokens and the union of both sides, without decoding their pages (bench_encode_cuda). */
#include "backend/cuda/kv/anchor_rows.h"
#include "backend/cuda/kv/anchor_scores.h"
#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/victims.h"
#include "measure.cuh"

#define HEADS 32
#define KV_HEADS 8
#define LAYERS 32

static std::vector<void *> allocated;
template <class T> static T *device(size_t n) {
    void *memory;
    check(cudaMalloc(&memory, n * sizeof(T)), "memory");
    check(cudaMemset(memory, 0, n * sizeof(T)), "memory");
    allocated.push_back(memory);
    return (T *)memory;
}
static float *random_floats(size_t n, uint32_t seed) {
    float *to = device<float>(n);
    fill_floats<<<1024, 256>>>(to, n, seed);
    return to;
}
static __half *random_halves(size_t n, uint32_t seed) {
    __half *to = device<__half>(n);
    fill_halves<<<1024, 256>>>(to, n, seed);
    return to;
}
static void free_all() {
    for (void *memory : allocated) check(cudaFree(memory), "freeing");
    allocated.clear();
}

/* ---- Anchors */

static uint32_t multiprocessors() {
    int n = 1;
    check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0), "the device");
    return (uint32_t)n;
}

static double measure_choice(const struct anchor_scores &scores, const __half *k, const __half *v) {
    const uint32_t n = scores.n_tokens, keep = n / 100, pages = n / 64, hd = scores.heads.head_dim;
    uint64_t *marks = device<uint64_t>((size_t)KV_HEADS * 2 * pages);
    const struct anchor_choice choice = {KV_HEADS, n, keep, scores.scores, marks};
    struct anchor_union anchors = {};
    anchors.to = {KV_HEADS,
                  hd,
                  0,
                  2 * keep,
                  device<__half>((size_t)KV_HEADS * 4 * keep * hd),
                  device<uint32_t>((size_t)KV_HEADS * 2 * keep),
                  device<uint32_t>((size_t)KV_HEADS * 2 * keep),
                  device<uint32_t>(KV_HEADS),
                  device<uint32_t>(KV_HEADS),
                  device<uint64_t>((size_t)KV_HEADS * pages),
                  pages};
    anchors.marks = marks;
    anchors.pages = anchors.here = pages;
    anchors.rows[0] = k, anchors.rows[1] = v;
    return microseconds([&] {
        check(cudaMemsetAsync(marks, 0, (size_t)KV_HEADS * 2 * pages * sizeof *marks, 0), "clearing");
        check(choose_anchors(&choice, 0), "the choice");
        check(unite_anchors(&anchors, 0), "the union");
    });
}

static void measure_anchors(uint32_t hd, uint32_t n) {
    struct head_view heads = {};
    heads.layers = 1, heads.query_heads = HEADS, heads.kv_heads = KV_HEADS, heads.head_dim = hd, heads.scale = 1 / sqrtf((float)hd);
    const size_t width = HEADS * hd;
    const uint32_t rows = anchor_query_rows(&heads, ANCHOR_QUERIES) * KV_HEADS;
    float *q = random_floats(n * width, 1), *out = device<float>(n * width);
    __half *k = random_halves((size_t)n * KV_HEADS * hd, 2), *v = random_halves((size_t)n * KV_HEADS * hd, 3);
    float *parts = device<float>(attend_prefill_part_floats(&heads));
    struct anchor_scores scores = {};
    scores.heads = heads, scores.k = k, scores.n_tokens = n;
    scores.halves = device<__half>((size_t)rows * hd), scores.norms = device<float>(rows), scores.log_sums = device<float>(rows);
    scores.splits = anchor_score_splits(&heads, multiprocessors(), n);
    scores.scores = device<float>((size_t)scores.splits * KV_HEADS * 2 * n);
    auto run = [&](bool attends, bool scored) {
        for (uint32_t first = 0; first < n; first += ANCHOR_QUERIES) {
            const uint32_t count = std::min(n - first, (uint32_t)ANCHOR_QUERIES);
            struct attend_prefill attend = {};
            attend.heads = heads, attend.q = q + first * width, attend.n = count, attend.first_query = first;
            attend.k = k, attend.v = v, attend.out = out + first * width, attend.parts = parts;
            scores.q = attend.q, scores.n = count, scores.first_query = first;
            if (scored) check(prepare_anchor_queries(&scores, 0), "queries");
            if (scored) attend.log_sums = scores.log_sums, attend.log_stride = anchor_query_rows(&heads, count);
            if (attends) check(attend_prefill_launch(&attend, 0), "attention");
            if (scored) check(add_anchor_scores(&scores, 0), "scores");
        }
    };
    const double attention = microseconds([&] { run(true, false); }), both = microseconds([&] { run(true, true); });
    const double choice = measure_choice(scores, k, v);
    printf("anchors %u %u attention %.1f scores %.1f (%.2f) choice %.1f\n", hd, n, attention, both - attention,
           (both - attention) / attention, choice);
    fflush(stdout);
    free_all();
}

/* ---- MAT */

/* Fills logits so that no token that leaves stays, or that each takes the place of row 1. */
static __global__ void fill_logits(float *exact, float *fresh, uint32_t n_exact, uint32_t n_fresh, bool stays) {
    for (uint32_t i = threadIdx.x; i < n_exact; i += blockDim.x) exact[i] = stays ? 1 : 0;
    for (uint32_t i = threadIdx.x; i < n_fresh; i += blockDim.x) fresh[i] = stays ? 1 : 2;
}

static double measure_step(uint32_t budget, uint32_t exact, bool stays) {
    const uint32_t hd = 128, pairs = hd / 2, heads = LAYERS * KV_HEADS;
    struct victims v = {};
    v.heads.layers = LAYERS, v.heads.query_heads = HEADS, v.heads.kv_heads = KV_HEADS, v.heads.head_dim = hd;
    v.rotary = {hd, ROPE_HALF_SPLIT, 1, random_floats(64 * 2 * pairs, 1), random_floats(ROPE_RUN_TOKENS * 2 * pairs, 2)};
    v.n_layers = LAYERS, v.exact = exact, v.budget = budget;
    v.rows = random_halves((size_t)heads * 2 * exact * hd, 3), v.unrotated = random_halves((size_t)heads * exact * hd, 4);
    v.logits = device<float>((size_t)heads * budget), v.moves = device<uint32_t>((size_t)heads * (exact + 1));
    float *fresh = device<float>((size_t)LAYERS * HEADS * FRESH_LOGITS);
    fill_logits<<<1, 1024>>>(v.logits, fresh, heads * budget, LAYERS * HEADS * FRESH_LOGITS, stays);
    v.fresh = fresh, v.fresh_capacity = FRESH_LOGITS;
    const __half *page = random_halves((size_t)heads * 2 * 64 * hd, 5);
    v.leave.from = 1000, v.leave.count = 1, v.leave.source[0] = page, v.leave.source[1] = page + 64 * hd;
    v.leave.origin = 960, v.leave.capacity = 64;
    v.leave.token_stride = hd, v.leave.head_stride = 2 * 64 * hd, v.leave.layer_stride = KV_HEADS * v.leave.head_stride;
    v.first_new = v.leave.from + 1; /* its logit lies in the window's */
    if (!stays) v.first_new = v.leave.from;
    const double us = microseconds([&] { check(replace_victims(&v, 0), "replacing rows"); });
    free_all();
    return us;
}

static void measure_mat(uint32_t budget, uint32_t exact) {
    const double none = measure_step(budget, exact, false), all = measure_step(budget, exact, true);
    printf("mat-%u %u step %.1f when no row moves, %.1f when all do\n", budget, exact, none, all);
    fflush(stdout);
}

int main() {
    static const uint32_t head_dims[] = {128, 64, 256}, lengths[] = {8192, 32768};
    for (uint32_t hd : head_dims)
        for (uint32_t n : lengths) measure_anchors(hd, n);
    measure_mat(256, 64);
    measure_mat(512, 64);
    measure_mat(512, 128);
    measure_mat(1024, 256);
    return 0;
}
