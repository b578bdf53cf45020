/* bench_million_tables_cuda [SHAPE...|check] measures a decoding step's attention over one layer of million-4's pages, 32 query heads, beside the
 * two parts of MILLION's own way (million_tables.cuh), each alone:
 *
 *     shipped  the whole attention by the kernel that ships, which is both parts of the tables with 32 KV heads, and with 8 looks centroids up for
 *              tensor cores
 *     scores   logits by tables of the queries' products with all centroids, which each CTA makes, left in memory
 *     sums     values: given weights added up by code, whose sums are then multiplied by the centroids; parts are not merged
 *
 * A SHAPE is SEQUENCESxTOKENS/KV_HEADS, as bench_attend_cuda has it, with 8 or 32 KV heads of 128 channels, or SEQUENCESxTOKENS/32/64, with 32 of 64. It
 * prints lines "million-4 SHAPE shipped US scores US sums US", medians of launches that are replayed as a graph over copies of the cache that together are
 * larger than the L2. It stops where results differ from those of decoded rows in double precision; `check` does that alone, for small shapes. Codes and
 * centroids are random. */
#include "arrays.cuh"
#include "backend/cuda/kv/attend_decode.h"
#include "million_tables.cuh"
#include "replay.h"

#include <cmath>
#include <cstring>
#include <string>

#define ROTATED 300e6 /* bytes of all copies together, at least */
#define LAUNCHES 24   /* of a graph, at least */

struct shape {
    uint32_t rows, tokens, kv_heads, group, head_dim;

    size_t page_bytes() const { return (size_t)PAGE_TOKENS * head_dim / 2; } /* of a side */
};
static const struct shape long_shapes[] = {{1, 8192, 8, 4, 128},  {1, 32768, 8, 4, 128},  {8, 32768, 8, 4, 128},
                                           {1, 8192, 32, 1, 128}, {1, 32768, 32, 1, 128}, {8, 32768, 32, 1, 128},
                                           {1, 8192, 32, 1, 64},  {1, 32768, 32, 1, 64},  {8, 32768, 32, 1, 64}};
/* Pages that fill the rings several times, and such as leave warps without any. */
static const struct shape short_shapes[] = {{2, 3392, 2, 4, 128}, {1, 640, 3, 4, 128}, {2, 3392, 3, 1, 128},
                                            {1, 640, 2, 1, 128},  {2, 3392, 3, 1, 64}, {1, 640, 2, 1, 64}};

static float random_number() { return (float)(random_bits() % 2001) / 1000 - 1; }
static int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

/* A layer has the caches of all rows, which are alike, and of all copies. */
struct layer {
    struct shape shape;
    uint32_t pages, query_heads, copies;
    std::vector<uint8_t> chunk; /* of a row */
    std::vector<struct place_view> places;
    std::vector<__half> centroids[2]; /* by side, [Hk][codes][hd] */
    std::vector<float> q, weights;
    struct million_step step; /* of the first copy */
    struct attend_decode attend;
};

static const __half *decoded(const struct layer &l, uint32_t head, int side, uint32_t token, uint32_t channel) {
    const struct place_view &place = l.places[head];
    const size_t page = l.pages * (place.offset + side * place.bytes[0]) + token / PAGE_TOKENS * l.shape.page_bytes();
    const uint8_t code = l.chunk[page + channel / 2 * PAGE_TOKENS + token % PAGE_TOKENS];
    return &l.centroids[side][((size_t)head * TABLES_CODES + code) * l.shape.head_dim + channel];
}

/* ---- Making a layer */

static const struct centroid_view *make_centroids(struct layer &l, int side) {
    const size_t head_halves = (size_t)TABLES_CODES * l.shape.head_dim;
    l.centroids[side].resize(l.shape.kv_heads * head_halves);
    for (__half &x : l.centroids[side]) x = __float2half(random_number());
    const __half *const there = sent(l.centroids[side]);
    std::vector<struct centroid_view> views(l.shape.kv_heads);
    for (uint32_t h = 0; h < l.shape.kv_heads; h++)
        views[h].shape.width = 2, views[h].shape.bits = 8, views[h].centroids = there + h * head_halves;
    return sent(views);
}

/* Makes one copy, or as many as timing needs. */
static void make_pages(struct layer &l, bool timed) {
    l.places.resize(l.shape.kv_heads);
    const size_t side = l.shape.page_bytes();
    for (uint32_t h = 0; h < l.shape.kv_heads; h++)
        l.places[h].offset = h * 2 * side, l.places[h].bytes[0] = l.places[h].bytes[1] = (uint32_t)side;
    const size_t bytes = l.pages * l.shape.kv_heads * 2 * side, all = bytes * l.shape.rows;
    l.chunk.resize(bytes);
    for (size_t i = 0; i < bytes; i++) l.chunk[i] = (uint8_t)random_bits();
    l.copies = !timed ? 1 : (double)all > ROTATED / 2 ? 2 : (uint32_t)(ROTATED / (double)all) + 1;
    void *pool;
    check(cudaMalloc(&pool, l.copies * all), "memory");
    const uint8_t *const one = sent(l.chunk);
    for (size_t i = 0; i < l.copies * l.shape.rows; i++)
        check(cudaMemcpy((uint8_t *)pool + i * bytes, one, bytes, cudaMemcpyDeviceToDevice), "copying pages");
    l.step.pool = (const uint8_t *)pool, l.step.row_bytes = bytes;
}

/* Makes the sequences of all copies, with windows of zeros, of which one row is read. */
static const struct sequence_view *make_sequences(const struct layer &l) {
    const uint32_t n = l.copies * l.shape.rows;
    std::vector<struct page_set_view> sets((size_t)n * l.pages);
    for (size_t i = 0; i < sets.size(); i++) {
        sets[i].chunk = (uint8_t *)l.step.pool + i / l.pages * l.step.row_bytes;
        sets[i].sets = l.pages, sets[i].index = (uint32_t)(i % l.pages);
        sets[i].first = sets[i].index * PAGE_TOKENS, sets[i].count = PAGE_TOKENS;
    }
    std::vector<struct read_page> list(l.pages);
    for (uint32_t i = 0; i < l.pages; i++) list[i].live = READ_ALL, list[i].page = i;
    const struct page_set_view *const sets_there = sent(sets);
    const struct read_page *const list_there = sent(list);
    __half *const window = sent(std::vector<__half>((size_t)l.shape.kv_heads * 2 * PAGE_TOKENS * l.shape.head_dim));
    std::vector<struct sequence_view> sequences(n);
    for (uint32_t i = 0; i < n; i++) {
        sequences[i].page_sets = sets_there + (size_t)i * l.pages;
        sequences[i].list.pages = list_there, sequences[i].list.n_pages = l.pages, sequences[i].list.window_first = l.shape.tokens;
        sequences[i].window = window, sequences[i].window_capacity = PAGE_TOKENS, sequences[i].window_origin = l.shape.tokens;
    }
    return sent(sequences);
}

static void make_attention(struct layer &l) {
    struct attend_decode &a = l.attend;
    const uint32_t n = l.shape.rows, sm = (uint32_t)multiprocessors();
    a.heads.layers = 1, a.heads.query_heads = l.query_heads, a.heads.kv_heads = l.shape.kv_heads,
    a.heads.head_dim = l.shape.head_dim;
    a.heads.scale = l.step.scale, a.heads.magnitude = 1;
    for (int side = 0; side < 2; side++) {
        a.codec[side] = CODEC_PQ, a.centroid[side].width = 2, a.centroid[side].bits = 8;
        a.learned[side] = l.step.centroids[side], a.page_bytes[side] = (uint32_t)l.shape.page_bytes();
    }
    a.places = l.step.places, a.run_step = 1, a.sequences = make_sequences(l);
    a.runs = (l.shape.tokens + ROPE_RUN_TOKENS - 1) / ROPE_RUN_TOKENS;
    a.n_rows = n, a.splits = attend_decode_splits(&a.heads, CODEC_PQ, sm, 1, l.pages);
    a.multiprocessors = sm, a.multiprocessor_parts = attend_decode_multiprocessor_parts(&a.heads, sm, n * a.splits);
    std::vector<struct query_row_view> rows(n);
    for (uint32_t i = 0; i < n; i++)
        rows[i].sequence = i, rows[i].position = l.shape.tokens, rows[i].splits = a.splits, rows[i].first_part = i * a.splits;
    a.rows = sent(rows), a.q = a.q_exact = l.step.q;
    a.out = sent(std::vector<float>(l.q.size()));
    a.parts = sent(std::vector<float>(attend_decode_part_floats(&a.heads, CODEC_PQ, n, a.splits)));
    a.arrived = sent(std::vector<uint32_t>(n * l.shape.kv_heads));
}

/* Returns how many parts leave each multiprocessor a CTA, of `ctas` for each. */
static uint32_t parts_of(const struct layer &l, uint32_t ctas) {
    const uint32_t parts = (uint32_t)multiprocessors() / (l.shape.rows * l.shape.kv_heads * ctas);
    const uint32_t most = (l.pages + TABLES_WARPS - 1) / TABLES_WARPS; /* as many as keep every warp busy */
    return parts < 1 ? 1 : parts < most ? parts : most;
}
static uint32_t sum_parts(const struct layer &l) {
    return parts_of(l, l.shape.group == 1 ? sum_layout<128, 1>::halves : sum_layout<128, 4>::halves);
}

static struct layer make_layer(const struct shape &shape, bool timed) {
    struct layer l = {};
    struct million_step &s = l.step;
    l.shape = shape, l.query_heads = shape.kv_heads * shape.group, l.pages = shape.tokens / PAGE_TOKENS;
    make_pages(l, timed);
    l.q.resize((size_t)shape.rows * l.query_heads * shape.head_dim),
        l.weights.resize((size_t)shape.rows * l.query_heads * shape.tokens);
    for (float &x : l.q) x = random_number();
    for (float &x : l.weights) x = exp2f(-4 * (1 + random_number()));
    s.pages = l.pages, s.scale = 1 / sqrtf((float)shape.head_dim), s.one = 1u << 31;
    const uint32_t parts = sum_parts(l), most = (l.pages + parts - 1) / parts * PAGE_TOKENS; /* tokens of a CTA */
    for (uint32_t tokens = 1; tokens < most; tokens *= 2) s.one /= 2;
    for (int side = 0; side < 2; side++) s.centroids[side] = make_centroids(l, side);
    s.places = sent(l.places), s.q = sent(l.q), s.weights = sent(l.weights);
    s.logits = sent(std::vector<float>(l.weights.size()));
    s.sums = sent(std::vector<float>(l.q.size() * parts));
    make_attention(l);
    return l;
}

/* ---- Launches, of copy i */

static cudaError_t launch_shipped(const struct layer &l, uint32_t i, cudaStream_t stream) {
    struct attend_decode attend = l.attend;
    attend.sequences += i * l.shape.rows;
    return attend_decode_launch(&attend, stream);
}

template <int HD, int GROUP> static cudaError_t launch_scores(const struct layer &l, uint32_t i, cudaStream_t stream) {
    struct million_step step = l.step;
    step.pool += i * l.shape.rows * step.row_bytes;
    const uint32_t bytes = score_layout<HD, GROUP>::memory::bytes;
    const cudaError_t result =
        cudaFuncSetAttribute(score_by_tables<HD, GROUP>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    score_by_tables<HD, GROUP><<<dim3(parts_of(l, 1), l.shape.kv_heads, l.shape.rows), TABLES_WARPS * 32, bytes, stream>>>(step);
    return cudaGetLastError();
}

template <int HD, int GROUP> static cudaError_t launch_sums(const struct layer &l, uint32_t i, cudaStream_t stream) {
    using layout = sum_layout<HD, GROUP>;
    struct million_step step = l.step;
    step.pool += i * l.shape.rows * step.row_bytes;
    const uint32_t bytes = layout::memory::bytes;
    const cudaError_t result =
        cudaFuncSetAttribute(sum_by_code<HD, GROUP>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    const dim3 grid(sum_parts(l) * layout::halves, l.shape.kv_heads, l.shape.rows);
    sum_by_code<HD, GROUP><<<grid, TABLES_WARPS * 32, bytes, stream>>>(step);
    return cudaGetLastError();
}

typedef cudaError_t launch_copy(const struct layer &l, uint32_t i, cudaStream_t stream);

static double time_of(const struct layer &l, launch_copy *launch, const char *what) {
    cudaStream_t stream;
    cudaGraph_t graph;
    double microseconds;
    const uint32_t launches = (LAUNCHES + l.copies - 1) / l.copies * l.copies;
    check(cudaStreamCreate(&stream), "a stream");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (uint32_t i = 0; i < launches; i++) check(launch(l, i % l.copies, stream), what);
    check(cudaStreamEndCapture(stream, &graph), "capturing");
    check(replay_graph(graph, stream, &microseconds), what);
    check(cudaStreamDestroy(stream), "a stream");
    return microseconds / launches;
}

/* ---- Results, beside decoded rows */

static void compare(const char *what, size_t row, uint32_t head, size_t i, double found, double right, double allowed) {
    if (fabs(found - right) <= allowed) return;
    fprintf(stderr, "%s: %s are %g for row %zu, query head %u, at %zu, decoded rows give %g\n", program_invocation_short_name, what,
            found, row, head, i, right);
    exit(1);
}

/* Returns the logits of a query head and, as `sizes`, the roots of the sums of their terms' squares. */
static std::vector<double> logits_of(const struct layer &l, size_t row, uint32_t head, std::vector<double> &sizes) {
    std::vector<double> logits(l.shape.tokens);
    const uint32_t hd = l.shape.head_dim;
    const float *const q = &l.q[(row * l.query_heads + head) * hd];
    sizes.assign(l.shape.tokens, 0);
    for (uint32_t t = 0; t < l.shape.tokens; t++) {
        for (uint32_t c = 0; c < hd; c++) {
            const double term = (double)l.step.scale * q[c] * __half2float(*decoded(l, head / l.shape.group, 0, t, c));
            logits[t] += term, sizes[t] += term * term;
        }
        sizes[t] = sqrt(sizes[t]);
    }
    return logits;
}

/* Returns the sums of values times weights of a query head, and their sizes. */
template <class WEIGHT>
static std::vector<double> sums_of(const struct layer &l, uint32_t head, const WEIGHT *weights, std::vector<double> &sizes) {
    const uint32_t hd = l.shape.head_dim;
    std::vector<double> sums(hd);
    sizes.assign(hd, 0);
    for (uint32_t t = 0; t < l.shape.tokens; t++)
        for (uint32_t c = 0; c < hd; c++) {
            const double term = (double)weights[t] * __half2float(*decoded(l, head / l.shape.group, 1, t, c));
            sums[c] += term, sizes[c] += term * term;
        }
    for (double &size : sizes) size = sqrt(size);
    return sums;
}

/* Tables hold products of halves as halves, each off by 2^-11 at most; the sums of weights are nearly exact, and the shipped kernel weighs by
 * halves. A wrong code or a token left out is off by several hundredths of a size or more, but among 32,768 tokens by 1/181. */
static void compare_all(const struct layer &l) {
    const uint32_t tokens = l.shape.tokens, group = l.shape.group, hd = l.shape.head_dim, parts = sum_parts(l);
    const std::vector<float> logits = fetched(l.step.logits, l.weights.size()), out = fetched(l.attend.out, l.q.size()),
                             sums = fetched(l.step.sums, l.q.size() * parts);
    std::vector<double> sizes;
    const uint32_t heads = l.query_heads > 8 ? 11 : 1; /* every eleventh head of long shapes, other ones of each row */
    for (size_t row = 0; row < l.shape.rows; row++)
        for (uint32_t head = row % heads; head < l.query_heads; head += heads) {
            const size_t query = row * l.query_heads + head;
            std::vector<double> right = logits_of(l, row, head, sizes);
            for (uint32_t t = 0; t < tokens; t++)
                compare("scores", row, head, t, logits[query * tokens + t], right[t], 2e-3 * sizes[t]);
            double all = 1; /* of the window's token */
            for (double &x : right) x = exp(x), all += x;
            const std::vector<double> attended = sums_of(l, head, right.data(), sizes);
            for (size_t c = 0; c < hd; c++)
                compare("shipped outputs", row, head, c, out[query * hd + c], attended[c] / all, 1e-2 * sizes[c] / all);
            const std::vector<double> given = sums_of(l, head, &l.weights[query * tokens], sizes);
            for (size_t c = 0; c < hd; c++) {
                double found = 0;
                for (uint32_t part = 0; part < parts; part++)
                    found += sums[((query / group * parts + part) * group + head % group) * hd + c];
                compare("sums", row, head, c, found, given[c], 2e-4 * sizes[c]);
            }
        }
}

static std::string name_of(const struct shape &s) {
    const std::string name = std::to_string(s.rows) + "x" + std::to_string(s.tokens) + "/" + std::to_string(s.kv_heads);
    return s.head_dim == 128 ? name : name + "/" + std::to_string(s.head_dim);
}

/* Computes all three on the first copy, compares them, and then times them. */
template <int HD, int GROUP> static void measure(const struct shape &shape, bool timed) {
    const struct layer l = make_layer(shape, timed);
    check(launch_shipped(l, 0, 0), "shipped"), check(launch_scores<HD, GROUP>(l, 0, 0), "scores");
    check(launch_sums<HD, GROUP>(l, 0, 0), "sums"), check(cudaDeviceSynchronize(), "attention");
    compare_all(l);
    if (!timed) return;
    const double shipped = time_of(l, launch_shipped, "shipped"), scores = time_of(l, launch_scores<HD, GROUP>, "scores"),
                 sums = time_of(l, launch_sums<HD, GROUP>, "sums");
    printf("million-4 %s shipped %.1f scores %.1f sums %.1f\n", name_of(shape).c_str(), shipped, scores, sums);
    fflush(stdout);
}

static void measure_shape(const struct shape &shape, bool timed) {
    if (shape.group == 4)
        measure<128, 4>(shape, timed);
    else if (shape.head_dim == 128)
        measure<128, 1>(shape, timed);
    else
        measure<64, 1>(shape, timed);
}

/* What is allocated lives as long as the program. */
int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "check")) {
        for (const struct shape &shape : short_shapes) measure_shape(shape, false);
        puts("scores, sums and shipped outputs are those of decoded rows");
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (const struct shape &shape : long_shapes) known |= name_of(shape) == argv[i];
        if (!known)
            return fprintf(stderr,
                           "bench_million_tables_cuda: does not time '%s': name shapes as 8x32768/8 or 8x32768/32/64, or check\n",
                           argv[i]),
                   1;
    }
    for (const struct shape &shape : long_shapes) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++) wanted |= name_of(shape) == argv[i];
        if (wanted) measure_shape(shape, true);
    }
    return 0;
}
