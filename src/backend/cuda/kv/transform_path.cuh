/* Finds the best path through the stream of a token of the codec transform, by Viterbi's algorithm as the CPU's transform_path.c
 * does, a thread for each token. The costs of the eight states stay in registers; for each step 16 bits in shared memory keep from
 * where each state was reached. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORM_PATH_CUH
#define TERSE_BACKEND_CUDA_KV_TRANSFORM_PATH_CUH

#include "backend/cuda/kv/transform_page.cuh"

#define PATH_STATES 8  /* of a stream: its last three bits */
#define PATH_FAR 1e30f /* the cost of a state where no path may begin */

/* A step writes the bits of a plane, of a pair of planes, or, at the end of a round, the rest of a nibble, which may be
 * anything. */
struct alignas(4) path_step {
    uint8_t bits, table;  /* the first plane's; TRANSFORM_TABLES: none */
    uint8_t quad, second; /* of the first plane and of a pair's second */
};

/* A path_term says that a plane's level costs square d^2, where d is x less the level or, if the component has upper levels, the
 * distance of this from the nearest of them. */
struct path_term {
    float x, square;
};

/* Returns how far apart a component's upper levels lie, in units of the plane, as transform_upper_step does. */
static __device__ __forceinline__ constexpr float upper_step_of(uint32_t table) {
    return table >= TRANSFORM_LOWER_1 && table <= TRANSFORM_LOWER_3 ? (float)(4u << (table - TRANSFORM_LOWER_1)) : 0;
}

/* Returns the code of the upper level, step (code - 7.5), nearest to x. */
static __device__ __forceinline__ uint32_t upper_code(float x, float step) {
    float place = x * (1 / step) + 8; /* step is a power of two */
    place = place > 0 ? place : 0;    /* NaN becomes 0, too */
    place = place < 15 ? place : 15;
    return (uint32_t)place;
}

/* Returns d^2 of a level L of a table with upper levels. That these are clamped to 0 to 15, and rounded by a large number's last bit, is
 * upper_code but where two of them are equally far. */
template <int TABLE> static __device__ __forceinline__ float upper_distance(float x, int level) {
    constexpr float step = upper_step_of(TABLE), integer = 12582912.0f; /* 1.5 2^23 */
    const float d = x - (float)level;
    float code = fmaf(d, 1 / step, 7.5f);
    code = fminf(fmaxf(code, 0), 15) + integer;
    return fmaf(-step, code - integer - 7.5f, d);
}

/* Returns the cost of a path that cost `before` and goes on by window w, by the tables of up to two planes; if FIRST is TRANSFORM_TABLES
 * there is none. What all windows would add alike, square x^2, is left out where there are no upper levels: the rest is
 * square L^2 - 2 square x L. */
template <int FIRST> static __device__ __forceinline__ float path_cost(float before, const struct path_term terms[2], int w) {
    constexpr int8_t levels[TRANSFORM_TABLES][16] = TRANSFORM_LEVELS;
    if constexpr (FIRST == TRANSFORM_TABLES) return before;
    if constexpr (upper_step_of(FIRST) > 0) {
        const float d = upper_distance<FIRST>(terms[0].x, levels[FIRST][w]);
        return fmaf(terms[0].square * d, d, before);
    }
    const auto add = [&](float cost, const struct path_term &term, int level) {
        return fmaf((float)level, fmaf((float)level, term.square, -2 * term.square * term.x), cost);
    };
    const float cost = add(before, terms[0], levels[FIRST][w]);
    if constexpr (FIRST != TRANSFORM_PAIR_FIRST) return cost;
    return add(cost, terms[1], levels[TRANSFORM_PAIR_SECOND][w]);
}

/* Takes a step that writes BITS bits: a window is the last 4 - BITS bits of the state before, with which it begins, and those
 * written; its lower three bits are the state after. cost[state] is the least of all paths to it; where paths cost the same, the lower
 * ones are taken. Returns, for state_before, the highest bit of each state's window, and behind these 8 bits BITS - 1 for each
 * beginning: which of the states with it is taken. */
template <int BITS, int FIRST>
static __device__ __forceinline__ uint32_t take_step(const struct path_term terms[2], float (&cost)[PATH_STATES]) {
    constexpr int BEGINNINGS = 16 >> BITS;
    float best[BEGINNINGS], after[PATH_STATES];
    uint32_t from = 0;
#pragma unroll
    for (int b = 0; b < BEGINNINGS && b < PATH_STATES; b++) {
        uint32_t taken = 0;
        best[b] = cost[b];
#pragma unroll
        for (int s = b + BEGINNINGS; s < PATH_STATES; s += BEGINNINGS) {
            const bool less = cost[s] < best[b];
            taken = less ? (uint32_t)(s / BEGINNINGS) << (PATH_STATES + (BITS - 1) * b) : taken;
            best[b] = less ? cost[s] : best[b];
        }
        from |= taken;
    }
#pragma unroll
    for (int s = 0; s < PATH_STATES; s++) {
        const float x = path_cost<FIRST>(best[s >> BITS], terms, s),
                    y = path_cost<FIRST>(best[(s + PATH_STATES) >> BITS], terms, s + PATH_STATES);
        const bool less = y < x;
        from |= less ? 1u << s : 0;
        after[s] = less ? y : x;
    }
#pragma unroll
    for (int s = 0; s < PATH_STATES; s++) cost[s] = after[s];
    return from;
}

/* Returns the window by which a step reached a state, by what take_step has returned. */
static __device__ __forceinline__ uint32_t window_to(uint32_t from, uint32_t state) {
    return state | (from >> state & 1) * PATH_STATES;
}

/* Returns the state before that window. */
static __device__ __forceinline__ uint32_t state_before(uint32_t from, uint32_t bits, uint32_t window) {
    const uint32_t beginning = window >> bits, others = bits - 1;
    return beginning | (from >> (PATH_STATES + others * beginning) & ((1u << others) - 1)) << (4 - bits);
}

static __device__ __forceinline__ uint32_t take_step_of(const struct path_step &step, const struct path_term terms[2],
                                                        float (&cost)[PATH_STATES]) {
    switch (step.table) {
    case TRANSFORM_TRELLIS_1: return take_step<1, TRANSFORM_TRELLIS_1>(terms, cost);
    case TRANSFORM_TRELLIS_2: return take_step<2, TRANSFORM_TRELLIS_2>(terms, cost);
    case TRANSFORM_TRELLIS_3: return take_step<3, TRANSFORM_TRELLIS_3>(terms, cost);
    case TRANSFORM_PAIR_FIRST: return take_step<2, TRANSFORM_PAIR_FIRST>(terms, cost);
    case TRANSFORM_LOWER_1: return take_step<1, TRANSFORM_LOWER_1>(terms, cost);
    case TRANSFORM_LOWER_2: return take_step<2, TRANSFORM_LOWER_2>(terms, cost);
    case TRANSFORM_LOWER_3: return take_step<3, TRANSFORM_LOWER_3>(terms, cost);
    default: break;
    }
    if (step.bits == 1) return take_step<1, TRANSFORM_TABLES>(terms, cost);
    if (step.bits == 2) return take_step<2, TRANSFORM_TABLES>(terms, cost);
    return take_step<3, TRANSFORM_TABLES>(terms, cost);
}

/* Makes the steps of a round and returns their number; one thread does this. */
static __device__ inline uint32_t set_path_steps(const struct transform_layout &layout, struct path_step *steps) {
    constexpr uint8_t new_bits[TRANSFORM_TABLES] = {4, 4, 1, 2, 3, 1, 2, 3, 2, 0};
    uint32_t n = 0, written = 0, p = 0;
    while (p < layout.planes && layout.plane[p].nibble < layout.stream) p++;
    if (p == layout.planes) return 0;
    while (p < layout.planes) {
        const uint32_t table = layout.plane[p].table / 4u, planes = table == TRANSFORM_PAIR_FIRST ? 2 : 1;
        steps[n++] = {new_bits[table], (uint8_t)table, (uint8_t)layout.plane[p].quad, (uint8_t)layout.plane[p + planes - 1].quad};
        written += new_bits[table];
        p += planes;
    }
    const uint32_t rest = TRANSFORM_NIBBLE_BITS * (uint32_t)(layout.nibbles - layout.stream) - written;
    if (rest) steps[n++] = {(uint8_t)rest, TRANSFORM_TABLES, 0, 0};
    return n;
}

/* Returns the place of the n-th nibble of the stream. */
static __device__ inline uint32_t stream_place(const struct transform_layout &layout, uint32_t n) {
    return layout.stream + (n + 1) % (uint32_t)(layout.nibbles - layout.stream);
}

/* Finds the path of token t and writes its nibbles[nibble][64], those of the stream. term(c) is of the plane of component c
 * that is in the stream. from[4 steps or 2 TRANSFORM_PATH_WARM_UP][64] is scratch. A stream is a ring: one round for each
 * component i of quads, from the first plane to the last. */
template <class Term>
static __device__ void find_path(const struct transform_layout &layout, const struct path_step *step, uint32_t steps, uint32_t t,
                                 Term term, uint16_t (*from)[PAGE_TOKENS], uint16_t (*nibbles)[PAGE_TOKENS]) {
    const uint32_t all = TRANSFORM_QUAD * steps;
    uint32_t seam = 0;
    for (int pass = 0; pass < 2; pass++) { /* over the seam, to find the state there; then all around from it */
        const uint32_t n = pass ? all : 2 * TRANSFORM_PATH_WARM_UP, begin = pass ? 0 : (all - TRANSFORM_PATH_WARM_UP % all) % all;
        uint32_t at = begin % steps, i = begin / steps;
        float cost[PATH_STATES];
#pragma unroll
        for (uint32_t s = 0; s < PATH_STATES; s++) cost[s] = !pass || s == seam ? 0 : PATH_FAR;
        for (uint32_t k = 0; k < n; k++) {
            const struct path_step own = step[at];
            struct path_term terms[2] = {};
            if (own.table < TRANSFORM_TABLES) terms[0] = term(own.quad * TRANSFORM_QUAD + i);
            if (own.table == TRANSFORM_PAIR_FIRST) terms[1] = term(own.second * TRANSFORM_QUAD + i);
            from[k][t] = (uint16_t)take_step_of(own, terms, cost);
            if (++at == steps) at = 0, i = (i + 1) % TRANSFORM_QUAD;
        }
        if (pass) break;
        float least = cost[0];
#pragma unroll
        for (uint32_t s = 1; s < PATH_STATES; s++)
            if (cost[s] < least) seam = s, least = cost[s];
        for (uint32_t k = 2 * TRANSFORM_PATH_WARM_UP; k-- > TRANSFORM_PATH_WARM_UP;)
            seam = state_before(from[k][t], step[(begin + k) % steps].bits, window_to(from[k][t], seam));
    }
    /* The path is followed back. Each component's bits gather from the last written to the first. */
    uint32_t state = seam;
    for (uint32_t i = TRANSFORM_QUAD; i-- > 0;) {
        uint32_t bits = 0, written = 0, n = layout.nibbles - layout.stream;
        for (uint32_t at = steps; at-- > 0;) {
            const uint32_t own = from[i * steps + at][t], new_bits = step[at].bits, window = window_to(own, state);
            bits |= (window & ((1u << new_bits) - 1)) << written;
            written += new_bits;
            state = state_before(own, new_bits, window);
            if (written < TRANSFORM_NIBBLE_BITS) continue;
            uint16_t *to = &nibbles[stream_place(layout, --n)][t];
            *to = (uint16_t)((i == TRANSFORM_QUAD - 1 ? 0 : *to) | (bits & 15) << (4 * i));
            bits >>= TRANSFORM_NIBBLE_BITS;
            written -= TRANSFORM_NIBBLE_BITS;
        }
    }
}

#endif
