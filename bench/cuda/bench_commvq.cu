/* bench_commvq_cuda measures three ways of a decoding step over one layer of CommVQ's pages, 32 query and 8 KV heads of 128, one
 * sequence:
 *
 *     registers  the shipped kernel: codewords summed in registers once for all queries of a KV head; the whole attention
 *     tables     the paper's: products of each query with all codewords, whose sums are rotated by the token's angles; scores alone
 *     naive      pages decoded to rows of halves, which attention then reads
 *
 * It prints lines "METHOD TOKENS registers US tables US naive US", medians, and stops where tables and decoded rows give different
 * scores. Codes are random, and rounds of tables shrink as learned ones do. */
#include "arrays.cuh"
#include "backend/cuda/kv/attend_decode.h"
#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/encode.h"
#include "format/normalization.h"

#include <algorithm>
#include <cmath>

#define QUERY_HEADS 32
#define HEADS 8
#define GROUP (QUERY_HEADS / HEADS)
#define HD 128
#define PAIRS (HD / 2)
#define OFFSETS (ROPE_RUN_TOKENS + PAGE_TOKENS)
#define REPEATS 11
#define TABLE_WARPS 8

static float random_number() { return (float)(random_bits() % 2001) / 1000 - 1; }

/* ---- The paper's way */

struct complex_halves {
    __half2 of[2]; /* two neighbouring pairs, each its real and imaginary part */
};

/* Computes tables[Hq][rounds][entries][PAIRS] of conj(q) z, and behind them means[Hq][PAIRS] of conj(q) mean: a block for each entry
 * of a query head, a thread for each pair. Channels of a pair are neighbours. */
static __global__ void make_tables(const struct commvq_view *views, uint32_t rounds, const float *q, __half2 *tables,
                                   float2 *means) {
    const uint32_t pair = threadIdx.x, entry = blockIdx.x, head = blockIdx.y;
    const struct commvq_view &view = views[head / GROUP];
    const float2 x = ((const float2 *)(q + head * HD))[pair];
    float2 z = ((const float2 *)view.mean)[pair];
    if (entry < rounds * COMMVQ_ENTRIES) {
        const uint8_t *const row = view.rows + (size_t)entry * COMMVQ_ROW + commvq_place(pair);
        z = make_float2(view.steps[pair] * (float)((int)row[0] - COMMVQ_MIDDLE),
                        view.steps[pair] * (float)((int)row[8] - COMMVQ_MIDDLE));
    }
    const float2 product = make_float2(x.x * z.x + x.y * z.y, x.x * z.y - x.y * z.x);
    if (entry < rounds * COMMVQ_ENTRIES)
        tables[((size_t)head * rounds * COMMVQ_ENTRIES + entry) * PAIRS + pair] = __floats2half2_rn(product.x, product.y);
    else
        means[head * PAIRS + pair] = product;
}

/* Computes logits[Hq][tokens]: a warp for each page and KV head, a lane with two pairs. */
static __global__ void __launch_bounds__(TABLE_WARPS * 32)
    score_by_tables(struct page_set_view set, const struct place_view *places, const struct commvq_view *views, uint32_t rounds,
                    uint32_t pages, const __half2 *tables, const float2 *means, const float2 *runs, const float2 *offsets,
                    float *logits) {
    const uint32_t lane = threadIdx.x % 32, page = blockIdx.x * TABLE_WARPS + threadIdx.x / 32, head = blockIdx.y;
    if (page >= pages) return;
    set.index = page;
    const uint8_t *const gains = page_address(&set, &places[head], 0), *const codes = gains + PAGE_TOKENS;
    const uint32_t first = page * PAGE_TOKENS;
    for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
        const float gain = gains[t] ? views[head].gain_scale * exp2f(((float)gains[t] - GAIN_MIDDLE) / GAIN_STEPS) : 0;
        float2 angle[2];
        for (int i = 0; i < 2; i++) {
            const float2 run = runs[(size_t)(first / ROPE_RUN_TOKENS) * PAIRS + 2 * lane + i],
                         offset = offsets[(size_t)(first % ROPE_RUN_TOKENS + t) * PAIRS + 2 * lane + i];
            angle[i] = make_float2(run.x * offset.x - run.y * offset.y, run.x * offset.y + run.y * offset.x);
        }
        for (uint32_t g = 0; g < GROUP; g++) {
            const uint32_t query = head * GROUP + g;
            const complex_halves *const own = (const complex_halves *)(tables + (size_t)query * rounds * COMMVQ_ENTRIES * PAIRS);
            float2 sum[2] = {};
#pragma unroll 4
            for (uint32_t r = 0; r < rounds; r++) {
                const uint8_t *const part = codes + r * COMMVQ_PART;
                const uint32_t code = part[t] | (part[PAGE_TOKENS + t / 2] >> (t % 2 * 4) & 15u) << 8;
                const complex_halves a = own[(r * COMMVQ_ENTRIES + code % COMMVQ_ENTRIES) * (PAIRS / 2) + lane],
                                     b = own[(r * COMMVQ_ENTRIES + code / COMMVQ_ENTRIES) * (PAIRS / 2) + lane];
                for (int i = 0; i < 2; i++) {
                    const float2 x = __half22float2(a.of[i]), y = __half22float2(b.of[i]);
                    sum[i] = make_float2(sum[i].x + x.x - y.y, sum[i].y + x.y + y.x);
                }
            }
            float logit = 0;
            for (int i = 0; i < 2; i++) {
                const float2 mean = means[query * PAIRS + 2 * lane + i];
                logit += (mean.x + gain * sum[i].x) * angle[i].x - (mean.y + gain * sum[i].y) * angle[i].y;
            }
            for (int o = 16; o; o /= 2) logit += __shfl_xor_sync(0xffffffffu, logit, o);
            if (lane == 0) logits[(size_t)query * pages * PAGE_TOKENS + first + t] = logit;
        }
    }
}

/* ---- A layer */

static std::vector<float> angles(size_t n, size_t step) {
    std::vector<float> to(n * HD);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < PAIRS; i++) {
            const double angle = (double)(t * step) * pow(500000, -2.0 * (double)i / HD);
            to[t * HD + 2 * i] = (float)cos(angle), to[t * HD + 2 * i + 1] = (float)sin(angle);
        }
    return to;
}

static struct commvq_view random_keys(uint32_t rounds) {
    const size_t rows = (size_t)rounds * COMMVQ_ENTRIES;
    std::vector<int8_t> numbers(rows * HD);
    std::vector<uint8_t> units(rows * COMMVQ_ROW);
    std::vector<float> floats(PAIRS + HD);
    struct commvq_view view = {};
    for (size_t i = 0; i < numbers.size(); i++)
        numbers[i] = (int8_t)(COMMVQ_LARGEST * random_number() * powf((float)(1 + i / (COMMVQ_ENTRIES * HD)), -0.85f));
    for (size_t row = 0; row < rows; row++)
        for (uint32_t j = 0; j < PAIRS; j++)
            for (uint32_t part = 0; part < 2; part++)
                units[row * COMMVQ_ROW + commvq_place(j) + 8 * part] =
                    (uint8_t)(COMMVQ_MIDDLE + numbers[row * HD + part * PAIRS + j]);
    for (float &x : floats) x = 0.015f + 0.005f * random_number();
    view.subvectors = 1, view.rounds = rounds, view.rotated_pairs = PAIRS, view.adjacent = true;
    view.rows = sent(units), view.steps = sent(floats), view.mean = view.steps + PAIRS, view.gain_scale = 0.2f;
    return view;
}

static struct additive_view random_values(uint32_t codes) {
    std::vector<uint8_t> levels((size_t)codes * HD);
    std::vector<float> floats(3 * HD);
    struct additive_view view = {};
    for (uint8_t &level : levels) level = (uint8_t)(random_bits() % 128);
    for (size_t c = 0; c < floats.size(); c++) floats[c] = c < HD ? -0.06f : 0.001f;
    view.codes = codes, view.levels = sent(levels), view.low = sent(floats), view.step = view.low + HD, view.mean = view.step + HD;
    view.gain_scale = 0.2f;
    return view;
}

template <class Launch> static double time_of(Launch launch, const char *what) {
    cudaEvent_t begin, end;
    std::vector<float> took;
    check(cudaEventCreate(&begin), "an event"), check(cudaEventCreate(&end), "an event");
    for (int i = -2; i < REPEATS; i++) {
        float ms;
        check(cudaEventRecord(begin, 0), "timing");
        check(launch(), what);
        check(cudaEventRecord(end, 0), "timing");
        check(cudaEventSynchronize(end), what);
        check(cudaEventElapsedTime(&ms, begin, end), "timing");
        if (i >= 0) took.push_back(ms);
    }
    check(cudaEventDestroy(begin), "an event"), check(cudaEventDestroy(end), "an event");
    std::sort(took.begin(), took.end());
    return took[REPEATS / 2] * 1e3;
}

/* Compares the logits of some tokens with products of queries and decoded keys[tokens][Hk][HD]. */
static void compare(size_t tokens, const std::vector<float> &q, const float *logits, const __half *keys) {
    const std::vector<float> found = fetched(logits, QUERY_HEADS * tokens);
    const std::vector<__half> rows = fetched(keys, tokens * HEADS * HD);
    for (size_t head = 0; head < QUERY_HEADS; head += 5)
        for (size_t t = 0; t < tokens; t += 97) {
            double product = 0, size = 0;
            for (size_t c = 0; c < HD; c++) {
                const double term = (double)q[head * HD + c] * (double)__half2float(rows[(t * HEADS + head / GROUP) * HD + c]);
                product += term, size += term * term;
            }
            if (fabs(product - (double)found[head * tokens + t]) <= 1e-2 * sqrt(size) + 1e-4) continue;
            fprintf(stderr, "bench_commvq_cuda: tables give %g for query head %zu and token %zu, decoded keys %g\n",
                    (double)found[head * tokens + t], head, t, product);
            exit(1);
        }
}

/* Returns a chunk of random pages with usual gains. */
static std::vector<uint8_t> random_pages(uint32_t pages, const std::vector<struct place_view> &places) {
    const uint32_t *const bytes = places[0].bytes;
    std::vector<uint8_t> chunk((size_t)pages * HEADS * (bytes[0] + bytes[1]));
    for (uint8_t &byte : chunk) byte = (uint8_t)random_bits();
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t side = 0; side < 2; side++)
            for (uint32_t page = 0; page < pages; page++)
                for (uint32_t t = 0; t < PAGE_TOKENS; t++)
                    chunk[pages * (places[h].offset + side * bytes[0]) + (size_t)page * bytes[side] + t] =
                        (uint8_t)(GAIN_MIDDLE + random_bits() % 16);
    return chunk;
}

/* Returns the attention of a query to pages of random codes, all of which are read. */
static struct attend_decode make_attention(uint32_t bits, uint32_t rounds, const std::vector<struct page_set_view> &sets,
                                           const std::vector<struct place_view> &places, const std::vector<float> &q) {
    const uint32_t pages = (uint32_t)sets.size(), tokens = pages * PAGE_TOKENS;
    struct attend_decode attend = {};
    struct head_view &heads = attend.heads;
    heads.layers = 1, heads.query_heads = QUERY_HEADS, heads.kv_heads = HEADS, heads.head_dim = HD;
    heads.scale = 1 / sqrtf(HD), heads.n_rot = HD, heads.pairing = ROPE_ADJACENT, heads.magnitude = 1;
    std::vector<struct commvq_view> keys(HEADS);
    std::vector<struct additive_view> values(HEADS);
    for (uint32_t h = 0; h < HEADS; h++) keys[h] = random_keys(rounds), values[h] = random_values(HD * bits);
    attend.run_step = 1;
    attend.codec[0] = CODEC_COMMVQ, attend.codec[1] = CODEC_ADDITIVE;
    attend.centroid[0].width = HD, attend.centroid[0].bits = COMMVQ_BITS * rounds;
    attend.centroid[1].width = HD, attend.centroid[1].bits = HD * bits;
    attend.places = sent(places);
    attend.learned[0] = sent(keys), attend.learned[1] = sent(values);
    attend.run_angles = sent(angles(tokens / ROPE_RUN_TOKENS + 1, ROPE_RUN_TOKENS));
    attend.pre_rope.offsets = sent(angles(OFFSETS, 1));
    attend.page_bytes[0] = places[0].bytes[0], attend.page_bytes[1] = places[0].bytes[1];
    std::vector<struct read_page> list(pages);
    for (uint32_t i = 0; i < pages; i++) list[i].live = READ_ALL, list[i].page = i;
    std::vector<struct sequence_view> sequence(1);
    std::vector<__half> window((size_t)HEADS * 2 * PAGE_TOKENS * HD);
    sequence[0].page_sets = sent(sets);
    sequence[0].list.pages = sent(list), sequence[0].list.n_pages = pages, sequence[0].list.window_first = tokens;
    sequence[0].window = sent(window), sequence[0].window_capacity = PAGE_TOKENS, sequence[0].window_origin = tokens;
    attend.sequences = sent(sequence);
    int multiprocessors = 1;
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "the device");
    attend.n_rows = 1, attend.splits = attend_decode_splits(&heads, CODEC_COMMVQ, (uint32_t)multiprocessors, 1, pages);
    std::vector<struct query_row_view> row(1);
    row[0].position = tokens, row[0].splits = attend.splits;
    attend.rows = sent(row);
    attend.q = attend.q_exact = sent(q);
    attend.out = sent(q);
    attend.parts = sent(std::vector<float>(attend_decode_part_floats(&heads, CODEC_COMMVQ, 1, attend.splits)));
    attend.arrived = sent(std::vector<uint32_t>(HEADS));
    return attend;
}

/* Computes logits[Hq][tokens] by tables. */
static double time_tables(const struct attend_decode &attend, const struct page_set_view &set, uint32_t rounds, float *logits) {
    const uint32_t pages = set.sets;
    __half2 *const tables = sent(std::vector<__half2>((size_t)QUERY_HEADS * rounds * COMMVQ_ENTRIES * PAIRS));
    float2 *const means = sent(std::vector<float2>(QUERY_HEADS * PAIRS));
    const struct commvq_view *const views = (const struct commvq_view *)attend.learned[0];
    return time_of(
        [&] {
            make_tables<<<dim3(rounds * COMMVQ_ENTRIES + 1, QUERY_HEADS), PAIRS>>>(views, rounds, attend.q, tables, means);
            score_by_tables<<<dim3((pages + TABLE_WARPS - 1) / TABLE_WARPS, HEADS), TABLE_WARPS * 32>>>(
                set, attend.places, views, rounds, pages, tables, means, (const float2 *)attend.run_angles,
                (const float2 *)attend.pre_rope.offsets, logits);
            return cudaGetLastError();
        },
        "tables");
}

/* Decodes pages to rows[keys, values][tokens][Hk][HD] and attends to these. */
static double time_naive(const struct attend_decode &attend, const std::vector<struct page_set_view> &sets, __half *rows) {
    const size_t tokens = sets.size() * PAGE_TOKENS, side = tokens * HEADS * HD;
    std::vector<struct encode_item> items(sets.size());
    for (size_t i = 0; i < sets.size(); i++) {
        items[i].set = sets[i];
        for (int s = 0; s < 2; s++) items[i].rows[s] = rows + s * side + i * PAGE_TOKENS * HEADS * HD;
    }
    struct encode decode = {};
    decode.heads = attend.heads, decode.n_layers = 1, decode.places = attend.places;
    decode.items = sent(items), decode.n = (uint32_t)items.size();
    decode.run_angles = attend.run_angles, decode.pre_rope = attend.pre_rope;
    decode.head_stride = HD, decode.token_stride = HEADS * HD;
    for (int s = 0; s < 2; s++) decode.codec[s] = attend.codec[s], decode.learned[s] = attend.learned[s];
    struct attend_prefill prefill = {};
    prefill.heads = attend.heads, prefill.q = attend.q, prefill.n = 1, prefill.first_query = tokens - 1;
    prefill.k = rows, prefill.v = rows + side, prefill.out = attend.out;
    prefill.parts = sent(std::vector<float>(attend_prefill_part_floats(&attend.heads)));
    return time_of(
        [&] {
            const cudaError_t result = decode_pages(&decode, 0);
            return result == cudaSuccess ? attend_prefill_launch(&prefill, 0) : result;
        },
        "naive");
}

static void measure(uint32_t bits, uint32_t tokens) {
    const uint32_t rounds = bits == 1 ? 11 : 21, pages = tokens / PAGE_TOKENS;
    const uint32_t bytes[2] = {(uint32_t)PAGE_BYTES_COMMVQ(1, rounds), (uint32_t)PAGE_BYTES_ADDITIVE(HD * bits)};
    std::vector<struct place_view> places(HEADS);
    for (uint32_t h = 0; h < HEADS; h++) {
        places[h].offset = (uint64_t)h * (bytes[0] + bytes[1]);
        places[h].bytes[0] = bytes[0], places[h].bytes[1] = bytes[1];
    }
    struct page_set_view set = {};
    set.chunk = sent(random_pages(pages, places)), set.sets = pages, set.count = PAGE_TOKENS;
    std::vector<struct page_set_view> sets(pages, set);
    for (uint32_t i = 0; i < pages; i++) sets[i].index = i, sets[i].first = i * PAGE_TOKENS;
    std::vector<float> q(QUERY_HEADS * HD);
    for (float &x : q) x = random_number();
    const struct attend_decode attend = make_attention(bits, rounds, sets, places, q);
    float *const logits = sent(std::vector<float>((size_t)QUERY_HEADS * tokens));
    __half *const rows = sent(std::vector<__half>((size_t)2 * tokens * HEADS * HD));
    const double registers = time_of([&] { return attend_decode_launch(&attend, 0); }, "registers"),
                 tables = time_tables(attend, set, rounds, logits), naive = time_naive(attend, sets, rows);
    compare(tokens, q, logits, rows);
    printf("commvq-%u %u registers %.1f tables %.1f naive %.1f\n", bits, tokens, registers, tables, naive);
    fflush(stdout);
}

/* Runs bench_commvq_cuda [TOKENS...], multiples of 256; what it allocates lives as long as the program. */
int main(int argc, char **argv) {
    std::vector<uint32_t> lengths;
    for (int i = 1; i < argc; i++) {
        const int tokens = atoi(argv[i]);
        if (tokens <= 0 || tokens % 256)
            return fprintf(stderr, "bench_commvq_cuda: does not time '%s' tokens: name multiples of 256\n", argv[i]), 1;
        lengths.push_back((uint32_t)tokens);
    }
    if (lengths.empty()) lengths = {8192, 32768, 131072};
    for (uint32_t bits = 2; bits; bits--)
        for (const uint32_t tokens : lengths) measure(bits, tokens);
    return 0;
}
