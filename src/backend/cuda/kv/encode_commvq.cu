/* Writes and reads pages of CommVQ's keys: the search that the CPU's codec has (backend/cpu/codec/commvq_search.h), each product summed
 * in its order. Keys come rotated, are rotated back by their own positions and normalized with sums in another order than the CPU's:
 * so now and then another code is nearest, and then the rounds behind it differ, too.
 *
 * A block of 256 threads has a page. In a round of a sub-vector, a thread multiplies four tokens by four entries z and by i z, then
 * looks for the nearest codeword of a token among a quarter of all. */
#include "backend/cuda/kv/encode_shapes.cuh"

template <int HD> constexpr uint32_t PAIRS = HD == 64 ? 32 : 64;
template <int HD> constexpr uint32_t SUBVECTORS = HD / 2 / PAIRS<HD>;
constexpr uint32_t ENTRIES = COMMVQ_ENTRIES, CELLS = ENTRIES * ENTRIES, TOGETHER = 8; /* entries b that a token meets at a time */

template <int HD> struct commvq_memory {
    float numbers[HD][NUMBERS_STRIDE];           /* what is left of the rows */
    float table[2 * PAIRS<HD>][ENTRIES];         /* of the round: real parts, then imaginary parts */
    float products[2 * ENTRIES][NUMBERS_STRIDE]; /* with z, then with i z */
    token_sums sums;
    float least[TOKEN_PARTS][PAGE_TOKENS];
    uint32_t cell[TOKEN_PARTS][PAGE_TOKENS];
    uint16_t codes[PAGE_TOKENS];
};

static __device__ inline struct pair_channels channels_of(const struct commvq_view &view, uint32_t pair) {
    if (!view.adjacent && pair < view.rotated_pairs) return {pair, pair + view.rotated_pairs};
    return {2 * pair, 2 * pair + 1};
}

/* Returns a number of a row in units of its pair's step; `place` is commvq_place's, or 8 more. */
static __device__ inline int number_at(const uint8_t *row, uint32_t place) { return (int)row[place] - COMMVQ_MIDDLE; }

static __device__ inline const uint8_t *row_of(const struct commvq_view &view, uint32_t subvector, uint32_t round, uint32_t entry) {
    return view.rows + (((size_t)subvector * view.rounds + round) * ENTRIES + entry) * COMMVQ_ROW;
}

/* ---- Rows */

/* Rotates numbers in the frame of their run back by their offsets from its position and centres them, or (BACK false) the reverse. */
template <int HD, bool BACK>
static __device__ void turn_by_offsets(const struct encode &e, const struct page_job &job, const float *mean,
                                       float (*numbers)[NUMBERS_STRIDE]) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS, part = threadIdx.x / PAGE_TOKENS, pairs = e.heads.n_rot / 2;
    const float2 *const angles = (const float2 *)e.pre_rope.offsets + (size_t)(job.item->set.first % ROPE_RUN_TOKENS + t) * pairs;
    const bool there = t < job.count;
    for (uint32_t pair = part; pair < pairs; pair += TOKEN_PARTS) {
        const struct pair_channels at = channels_of_pair(e.heads, pair);
        const float scale = BACK ? 1 / e.heads.magnitude : e.heads.magnitude;
        const float2 angle = angles[pair];
        float2 x = make_float2(numbers[at.a][t], numbers[at.b][t]);
        if (!BACK) x = make_float2(x.x + mean[at.a], x.y + mean[at.b]);
        x = BACK ? rotate_back(x, angle) : rotate_forth(x, angle);
        x = make_float2(x.x * scale, x.y * scale);
        if (BACK) x = there ? make_float2(x.x - mean[at.a], x.y - mean[at.b]) : make_float2(0, 0);
        numbers[at.a][t] = x.x, numbers[at.b][t] = x.y;
    }
    for (uint32_t c = 2 * pairs + part; c < HD; c += TOKEN_PARTS)
        numbers[c][t] = !BACK ? numbers[c][t] + mean[c] : there ? numbers[c][t] - mean[c] : 0;
    __syncthreads();
}

/* ---- The search */

template <int HD>
static __device__ void load_table(const struct commvq_view &view, uint32_t subvector, uint32_t round, commvq_memory<HD> &m) {
    const float *const steps = view.steps + subvector * PAIRS<HD>;
    for (uint32_t i = threadIdx.x; i < PAIRS<HD> * ENTRIES; i += TRANSFORM_THREADS) {
        const uint32_t j = i % PAIRS<HD>, entry = i / PAIRS<HD>;
        const uint8_t *const row = row_of(view, subvector, round, entry);
        m.table[j][entry] = steps[j] * (float)number_at(row, commvq_place(j));
        m.table[PAIRS<HD> + j][entry] = steps[j] * (float)number_at(row, commvq_place(j) + 8);
    }
    __syncthreads();
}

static __device__ inline void four_of(const float *from, float (&x)[4]) {
    const float4 f = *(const float4 *)from;
    x[0] = f.x, x[1] = f.y, x[2] = f.z, x[3] = f.w;
}

/* Computes the products of all tokens with all entries: each a sum over the real parts, then over the imaginary ones. */
template <int HD> static __device__ void find_products(const struct commvq_view &view, uint32_t subvector, commvq_memory<HD> &m) {
    const uint32_t entry = threadIdx.x % 16 * 4, token = threadIdx.x / 16 * 4;
    float z[4][4] = {}, iz[4][4] = {}; /* [entry][token] */
#pragma unroll
    for (int part = 0; part < 2; part++)
        for (uint32_t j = 0; j < PAIRS<HD>; j++) {
            const struct pair_channels at = channels_of(view, subvector * PAIRS<HD> + j);
            float x[4], re[4], im[4];
            four_of(&m.numbers[part ? at.b : at.a][token], x);
            four_of(&m.table[j][entry], re);
            four_of(&m.table[PAIRS<HD> + j][entry], im);
#pragma unroll
            for (int l = 0; l < 4; l++)
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    z[l][t] = fmaf(x[t], part ? im[l] : re[l], z[l][t]);
                    iz[l][t] = fmaf(x[t], part ? re[l] : -im[l], iz[l][t]);
                }
        }
#pragma unroll
    for (int l = 0; l < 4; l++) {
        *(float4 *)&m.products[entry + l][token] = make_float4(z[l][0], z[l][1], z[l][2], z[l][3]);
        *(float4 *)&m.products[ENTRIES + entry + l][token] = make_float4(iz[l][0], iz[l][1], iz[l][2], iz[l][3]);
    }
    __syncthreads();
}

/* Finds the codes of all tokens: of equally near codewords that of the lowest a, then b. Tokens that are not there have code 0. */
template <int HD> static __device__ void find_nearest(const float *half, uint32_t tokens, commvq_memory<HD> &m) {
    constexpr uint32_t own = ENTRIES / TOKEN_PARTS; /* entries a of a thread */
    const uint32_t t = threadIdx.x % PAGE_TOKENS, part = threadIdx.x / PAGE_TOKENS;
    float least = INFINITY;
    uint32_t cell = 0;
    for (uint32_t first = 0; first < ENTRIES; first += TOGETHER) {
        float b[TOGETHER];
#pragma unroll
        for (uint32_t i = 0; i < TOGETHER; i++) b[i] = m.products[ENTRIES + first + i][t];
        for (uint32_t a = part * own; a < (part + 1) * own; a++) {
            const float product = m.products[a][t];
            float low[4], high[4];
            four_of(half + a * ENTRIES + first, low);
            four_of(half + a * ENTRIES + first + 4, high);
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++) {
                const float value = ((i < 4 ? low[i % 4] : high[i % 4]) - b[i]) - product;
                const uint32_t at = a * ENTRIES + first + i;
                if (value < least || (value == least && at < cell)) least = value, cell = at;
            }
        }
    }
    m.least[part][t] = least, m.cell[part][t] = cell;
    __syncthreads();
    if (part == 0) {
        for (uint32_t other = 1; other < TOKEN_PARTS; other++) /* of higher a */
            if (m.least[other][t] < least) least = m.least[other][t], cell = m.cell[other][t];
        m.codes[t] = (uint16_t)(t < tokens ? cell / ENTRIES | cell % ENTRIES << 6 : 0);
    }
    __syncthreads();
}

template <int HD> static __device__ void subtract(const struct commvq_view &view, uint32_t subvector, commvq_memory<HD> &m) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS, a = m.codes[t] % ENTRIES, b = m.codes[t] / ENTRIES;
    for (uint32_t j = threadIdx.x / PAGE_TOKENS; j < PAIRS<HD>; j += TOKEN_PARTS) {
        const struct pair_channels at = channels_of(view, subvector * PAIRS<HD> + j);
        const float(&re)[ENTRIES] = m.table[j], (&im)[ENTRIES] = m.table[PAIRS<HD> + j];
        m.numbers[at.a][t] = m.numbers[at.a][t] - (re[a] - im[b]);
        m.numbers[at.b][t] = m.numbers[at.b][t] - (im[a] + re[b]);
    }
    __syncthreads();
}

/* ---- Shapes */

/* Returns a pair's sum of codewords in units of its step. `codes` are a page's. */
template <int HD>
static __device__ int2 sum_of_pair(const struct commvq_view &view, const uint8_t *codes, uint32_t pair, uint32_t t) {
    const uint32_t subvector = pair / PAIRS<HD>, place = commvq_place(pair % PAIRS<HD>);
    int2 sum = make_int2(0, 0);
    for (uint32_t r = 0; r < view.rounds; r++) {
        const uint32_t code = code_at(codes + (subvector * view.rounds + r) * COMMVQ_PART, COMMVQ_BITS, t);
        const uint8_t *const a = row_of(view, subvector, r, code % ENTRIES), *const b = row_of(view, subvector, r, code / ENTRIES);
        sum =
            make_int2(sum.x + number_at(a, place) - number_at(b, place + 8), sum.y + number_at(a, place + 8) + number_at(b, place));
    }
    return sum;
}

/* Writes the shapes of all tokens, each times its scale of `scales`, to numbers. */
template <int HD>
static __device__ void find_shapes(const struct commvq_view &view, const uint8_t *codes, float scale,
                                   float (*numbers)[NUMBERS_STRIDE]) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    for (uint32_t pair = threadIdx.x / PAGE_TOKENS; pair < HD / 2; pair += TOKEN_PARTS) {
        const struct pair_channels at = channels_of(view, pair);
        const int2 sum = sum_of_pair<HD>(view, codes, pair, t);
        const float unit = scale * view.steps[pair];
        numbers[at.a][t] = unit * (float)sum.x;
        numbers[at.b][t] = unit * (float)sum.y;
    }
    __syncthreads();
}

/* ---- Pages */

static __device__ const struct commvq_view &keys_of(const struct encode &e, const struct page_job &job) {
    return ((const struct commvq_view *)e.learned[job.side])[job.place];
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    encode_commvq_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    commvq_memory<HD> &m = *(commvq_memory<HD> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct commvq_view &view = keys_of(e, job);
    uint8_t *const codes = job.page + PAGE_TOKENS;
    const uint32_t parts = SUBVECTORS<HD> * view.rounds, t = threadIdx.x;
    load_numbers<HD>(e, job, {NULL, NULL}, m.numbers);
    turn_by_offsets<HD, true>(e, job, view.mean, m.numbers);
    const struct row_size size = size_of_row<HD>(m.sums, m.numbers);
    scale_row<HD>(size.inverse, m.numbers);
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t subvector = part / view.rounds;
        load_table<HD>(view, subvector, part % view.rounds, m);
        find_products<HD>(view, subvector, m);
        find_nearest<HD>(view.half + (size_t)part * CELLS, job.count, m);
        if (threadIdx.x < 32) write_codes(m.codes, COMMVQ_BITS, codes + part * COMMVQ_PART);
        subtract<HD>(view, subvector, m);
    }
    for (uint32_t i = parts * COMMVQ_PART + t; i < PAGE_BYTES_COMMVQ(SUBVECTORS<HD>, view.rounds) - PAGE_TOKENS;
         i += TRANSFORM_THREADS)
        codes[i] = 0;
    __syncthreads(); /* codes are written */
    find_shapes<HD>(view, codes, 1, m.numbers);
    const float shape = size_of_row<HD>(m.sums, m.numbers).square;
    if (t < PAGE_TOKENS) job.page[t] = t < job.count ? fit_gain(CODEC_KEYS, size.square, shape, view.gain_scale) : 0;
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    decode_commvq_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    float(*const numbers)[NUMBERS_STRIDE] = (float(*)[NUMBERS_STRIDE])memory;
    const struct page_job job = job_of_block(e, sides);
    const struct commvq_view &view = keys_of(e, job);
    find_shapes<HD>(view, job.page + PAGE_TOKENS, gain_at(view.gain_scale, job.page[threadIdx.x % PAGE_TOKENS]), numbers);
    turn_by_offsets<HD, false>(e, job, view.mean, numbers);
    change_frame<HD, false>(e, job, {}, numbers);
    store_numbers<HD>(e, job, numbers);
}

cudaError_t encode_commvq(const struct encode *encode, struct encode_sides sides, cudaStream_t stream){
#define LAUNCH(hd) launch_shapes<hd>(encode_commvq_kernel<hd>, sizeof(commvq_memory<hd>), encode, sides, stream)
    COMMVQ_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}

cudaError_t decode_commvq(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
#define LAUNCH(hd) launch_shapes<hd>(decode_commvq_kernel<hd>, hd * NUMBERS_STRIDE * sizeof(float), encode, sides, stream)
    COMMVQ_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}

/* ---- What the search needs of a codebook */

/* A block has a round of a sub-vector, a thread a sixteenth of a row of cells at a time. */
static __global__ void __launch_bounds__(TRANSFORM_THREADS) halves_kernel(struct commvq_view view, uint32_t pairs) {
    const uint32_t subvector = blockIdx.x / view.rounds, round = blockIdx.x % view.rounds;
    const float *const steps = view.steps + subvector * pairs;
    for (uint32_t i = threadIdx.x; i < CELLS; i += TRANSFORM_THREADS) {
        const uint8_t *const a = row_of(view, subvector, round, i / ENTRIES), *const b =
                                                                                  row_of(view, subvector, round, i % ENTRIES);
        double square = 0;
        for (uint32_t j = 0; j < pairs; j++) {
            const uint32_t at = commvq_place(j);
            const auto number = [&](const uint8_t *row, uint32_t place) {
                return (double)(steps[j] * (float)number_at(row, place));
            };
            const double re = number(a, at) - number(b, at + 8), im = number(a, at + 8) + number(b, at);
            square = square + (re * re + im * im);
        }
        view.half[(size_t)blockIdx.x * CELLS + i] = (float)(square / 2);
    }
}

cudaError_t commvq_find_halves(const struct commvq_view *view, uint32_t pairs, cudaStream_t stream) {
    halves_kernel<<<view->subvectors * view->rounds, TRANSFORM_THREADS, 0, stream>>>(*view, pairs);
    return cudaGetLastError();
}
