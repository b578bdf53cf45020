/* Finds the best path through the stream of a token of the codec transform, by Viterbi's algorithm as the CPU's transform_path.c
 * does, a thread for each token. The costs of the eight states stay in registers; for each step a word in shared memory keeps from
 * where each state was reached. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORM_PATH_CUH
#define TERSE_BACKEND_CUDA_KV_TRANSFORM_PATH_CUH

#include "backend/cuda/kv/transform_page.cuh"

#define PATH_STATES 8  /* of a stream: its last three bits */
#define PATH_FAR 1e30f /* the cost of a state where no path may begin */

/* A step writes the bits of a plane, of a pair of planes, or, at the end of a round, the rest of a nibble, which may be
 * anything. */
struct alignas(4) path_step {
    uint8_t bits, table, plane, planes; /* `table`: the first plane's */
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

/* Returns d of window w. */
template <int TABLE> static __device__ __forceinline__ float level_distance(const struct path_term &term, int w) {
    constexpr int8_t levels[TRANSFORM_TABLES][16] = TRANSFORM_LEVELS;
    constexpr float step = upper_step_of(TABLE);
    const float d = term.x - (float)levels[TABLE][w];
    if constexpr (step > 0) return d - step * ((float)upper_code(d, step) - 7.5f);
    return d;
}

/* Returns the cost of window w by the tables of up to two planes; if FIRST is TRANSFORM_TABLES there is none. */
template <int FIRST> static __device__ __forceinline__ float path_error(const struct path_term terms[2], int w) {
    if constexpr (FIRST < TRANSFORM_TABLES) {
        const float d = level_distance<FIRST>(terms[0], w), error = terms[0].square * d * d;
        if constexpr (FIRST != TRANSFORM_PAIR_FIRST) return error;
        const float second = level_distance<TRANSFORM_PAIR_SECOND>(terms[1], w);
        return fmaf(terms[1].square * second, second, error);
    }
    return 0;
}

/* Takes a step that writes BITS bits: a window is the last 4 - BITS bits of the state before and those written, its lower three
 * bits the state after. cost[state] is the least of all paths to it. Returns for each state after, in four bits, the state before
 * and above it the window's highest bit; where paths cost the same, the lower ones. */
template <int BITS, int FIRST>
static __device__ __forceinline__ uint32_t take_step(const struct path_term terms[2], float (&cost)[PATH_STATES]) {
    constexpr int BEGINNINGS = 16 >> BITS;
    float best[BEGINNINGS], after[PATH_STATES];
    uint32_t state[BEGINNINGS], from = 0;
#pragma unroll
    for (int b = 0; b < BEGINNINGS && b < PATH_STATES; b++) {
        best[b] = cost[b];
        state[b] = (uint32_t)b;
#pragma unroll
        for (int s = b + BEGINNINGS; s < PATH_STATES; s += BEGINNINGS) {
            const bool less = cost[s] < best[b];
            state[b] = less ? (uint32_t)s : state[b];
            best[b] = less ? cost[s] : best[b];
        }
    }
#pragma unroll
    for (int s = 0; s < PATH_STATES; s++) {
        const int first = s >> BITS, second = (s + PATH_STATES) >> BITS;
        const float x = best[first] + path_error<FIRST>(terms, s), y = best[second] + path_error<FIRST>(terms, s + PATH_STATES);
        const bool less = y < x;
        from |= (less ? state[second] | PATH_STATES : state[first]) << (4 * s);
        after[s] = less ? y : x;
    }
#pragma unroll
    for (int s = 0; s < PATH_STATES; s++) cost[s] = after[s];
    return from;
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
        steps[n++] = {new_bits[table], (uint8_t)table, (uint8_t)p, (uint8_t)planes};
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

/* Finds the path of token t and writes its nibbles[nibble][64], those of the stream. term(step, plane, i) is of a plane of a step
 * and component i of its quad. from[4 steps or 2 TRANSFORM_PATH_WARM_UP][64] is scratch. A stream is a ring: one round for each
 * component i of quads, from the first plane to the last. */
template <class Term>
static __device__ void find_path(const struct transform_layout &layout, const struct path_step *step, uint32_t steps, uint32_t t,
                                 Term term, uint32_t (*from)[PAGE_TOKENS], uint16_t (*nibbles)[PAGE_TOKENS]) {
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
            if (own.planes) terms[0] = term(own.plane, i);
            if (own.planes > 1) terms[1] = term(own.plane + 1u, i);
            from[k][t] = take_step_of(own, terms, cost);
            if (++at == steps) at = 0, i = (i + 1) % TRANSFORM_QUAD;
        }
        if (pass) break;
        float least = cost[0];
#pragma unroll
        for (uint32_t s = 1; s < PATH_STATES; s++)
            if (cost[s] < least) seam = s, least = cost[s];
        for (uint32_t k = 2 * TRANSFORM_PATH_WARM_UP; k-- > TRANSFORM_PATH_WARM_UP;)
            seam = from[k][t] >> 4 * seam & (PATH_STATES - 1);
    }
    /* The path is followed back. Each component's bits gather from the last written to the first. */
    uint32_t state = seam;
    for (uint32_t i = TRANSFORM_QUAD; i-- > 0;) {
        uint32_t bits = 0, written = 0, n = layout.nibbles - layout.stream;
        for (uint32_t at = steps; at-- > 0;) {
            const uint32_t own = from[i * steps + at][t] >> 4 * state & 15, window = state | (own & PATH_STATES);
            bits |= (window & ((1u << step[at].bits) - 1)) << written;
            written += step[at].bits;
            state = own & (PATH_STATES - 1);
            if (written < TRANSFORM_NIBBLE_BITS) continue;
            uint16_t *to = &nibbles[stream_place(layout, --n)][t];
            *to = (uint16_t)((i == TRANSFORM_QUAD - 1 ? 0 : *to) | (bits & 15) << (4 * i));
            bits >>= TRANSFORM_NIBBLE_BITS;
            written -= TRANSFORM_NIBBLE_BITS;
        }
    }
}

#endif
