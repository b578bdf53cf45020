/* Finds the best path through the stream of a token of the codec transform, by Viterbi's algorithm as the CPU's transform_path.c
 * does, four threads for each token: thread j has states j and j + 4. Costs stay in registers; for each step a byte in shared
 * memory keeps from where a thread's states were reached. */
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

/* A thread's windows are j, j + 4, j + 8 and j + 12, by index m: those of state j have an even m. */
#define PATH_LANES 4

/* Returns the levels of thread j's windows, in the four bytes of a word. */
static __device__ inline uint32_t lane_levels(const int8_t *levels, uint32_t j) {
    uint32_t word = 0;
    for (uint32_t m = 0; m < 4; m++) word |= (uint32_t)(uint8_t)levels[j + PATH_LANES * m] << 8 * m;
    return word;
}

static __device__ __forceinline__ float level_distance(const struct path_term &term, float step, uint32_t levels, uint32_t m) {
    const float d = term.x - (float)(int8_t)(levels >> 8 * m);
    return step > 0 ? d - step * ((float)upper_code(d, step) - 7.5f) : d;
}

/* Adds up what a thread's windows cost in the terms of a step. */
static __device__ __forceinline__ void find_errors(const struct path_step &step, const struct path_term terms[2],
                                                   const uint32_t levels[2], float (&errors)[4]) {
    const float upper_step = upper_step_of(step.table);
#pragma unroll
    for (uint32_t m = 0; m < 4; m++) {
        errors[m] = 0;
        if (!step.planes) continue;
        const float d = level_distance(terms[0], upper_step, levels[0], m);
        errors[m] = terms[0].square * d * d;
        if (step.planes < 2) continue;
        const float second = level_distance(terms[1], 0, levels[1], m);
        errors[m] = fmaf(terms[1].square * second, second, errors[m]);
    }
}

/* A path_beginning is the best way to the beginning of a window: its cost, and the state that it comes from. */
struct path_beginning {
    float cost;
    uint32_t state;
};

static __device__ __forceinline__ struct path_beginning better_of(struct path_beginning a, struct path_beginning b) {
    return b.cost < a.cost || (b.cost == a.cost && b.state < a.state) ? b : a;
}

/* Returns what lane `from` of the token has. */
static __device__ __forceinline__ struct path_beginning of_lane(struct path_beginning own, uint32_t from) {
    return {__shfl_sync(~0u, own.cost, from, PATH_LANES), __shfl_sync(~0u, own.state, from, PATH_LANES)};
}

/* Finds the beginnings of a thread's windows: the windows' oldest 4 - bits bits, which are the last ones of the state before. */
static __device__ __forceinline__ void find_beginnings(uint32_t bits, uint32_t j, const float (&cost)[2],
                                                       struct path_beginning (&begin)[4]) {
    const struct path_beginning first = {cost[0], j}, second = {cost[1], j + PATH_LANES};
    if (bits == 1) { /* window w goes on from state w / 2 */
        begin[0] = of_lane(first, j / 2), begin[1] = of_lane(first, j / 2 + 2);
        begin[2] = of_lane(second, j / 2), begin[3] = of_lane(second, j / 2 + 2);
        return;
    }
    const struct path_beginning best = better_of(first, second);
    if (bits == 2) {
#pragma unroll
        for (uint32_t m = 0; m < 4; m++) begin[m] = of_lane(best, m);
        return;
    }
    const struct path_beginning both = better_of(best, of_lane(best, j ^ 2));
    begin[0] = begin[1] = of_lane(both, 0), begin[2] = begin[3] = of_lane(both, 1);
}

/* Takes a step: a window is the last bits of the state before and those written, its lower three bits are the state after.
 * cost[state] becomes the least of all paths to it. Returns for the thread's two states, in four bits each, the state before and
 * above it the window's highest bit; where paths cost the same, the lower ones. */
static __device__ __forceinline__ uint32_t take_step(const struct path_step &step, const struct path_term terms[2],
                                                     const uint32_t levels[2], uint32_t j, float (&cost)[2]) {
    struct path_beginning begin[4];
    float errors[4];
    uint32_t from = 0;
    find_errors(step, terms, levels, errors);
    find_beginnings(step.bits, j, cost, begin);
#pragma unroll
    for (uint32_t s = 0; s < 2; s++) {
        const float x = begin[s].cost + errors[s], y = begin[s + 2].cost + errors[s + 2];
        const bool less = y < x;
        from |= (less ? begin[s + 2].state | PATH_STATES : begin[s].state) << 4 * s;
        cost[s] = less ? y : x;
    }
    return from;
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

/* Returns the state before the one that step k reached, above it the window's highest bit. */
static __device__ __forceinline__ uint32_t state_before(const uint8_t (*from)[PATH_LANES * PAGE_TOKENS], uint32_t k, uint32_t t,
                                                        uint32_t state) {
    return from[k][PATH_LANES * t + state % PATH_LANES] >> state / PATH_LANES * 4 & 15u;
}

/* Finds the path of token t and writes its nibbles[nibble][64], those of the stream; the token's four threads call this, j = 0 to
 * 3, with all others of their warp. term(plane, i) is of a plane and component i of its quad. levels[table][j] are lane_levels.
 * from[4 steps or 2 TRANSFORM_PATH_WARM_UP] is scratch. A stream is a ring: one round for each component i of quads, from the first
 * plane to the last. */
template <class Term>
static __device__ void find_path(const struct transform_layout &layout, const struct path_step *step, uint32_t steps, uint32_t t,
                                 uint32_t j, Term term, const uint32_t (*levels)[PATH_LANES],
                                 uint8_t (*from)[PATH_LANES * PAGE_TOKENS], uint16_t (*nibbles)[PAGE_TOKENS]) {
    const uint32_t all = TRANSFORM_QUAD * steps;
    uint32_t seam = 0;
    for (int pass = 0; pass < 2; pass++) { /* over the seam, to find the state there; then all around from it */
        const uint32_t n = pass ? all : 2 * TRANSFORM_PATH_WARM_UP, begin = pass ? 0 : (all - TRANSFORM_PATH_WARM_UP % all) % all;
        uint32_t at = begin % steps, i = begin / steps;
        float cost[2];
#pragma unroll
        for (uint32_t s = 0; s < 2; s++) cost[s] = !pass || j + PATH_LANES * s == seam ? 0 : PATH_FAR;
        for (uint32_t k = 0; k < n; k++) {
            const struct path_step own = step[at];
            struct path_term terms[2] = {};
            uint32_t of_lane[2] = {0, 0};
            if (own.planes) terms[0] = term(own.plane, i), of_lane[0] = levels[own.table][j];
            if (own.planes > 1) terms[1] = term(own.plane + 1u, i), of_lane[1] = levels[TRANSFORM_PAIR_SECOND][j];
            from[k][PATH_LANES * t + j] = (uint8_t)take_step(own, terms, of_lane, j, cost);
            if (++at == steps) at = 0, i = (i + 1) % TRANSFORM_QUAD;
        }
        __syncwarp();
        if (pass) break;
        struct path_beginning best = better_of({cost[0], j}, {cost[1], j + PATH_LANES});
        best = better_of(best, of_lane(best, j ^ 1));
        best = better_of(best, of_lane(best, j ^ 2));
        seam = best.state;
        for (uint32_t k = 2 * TRANSFORM_PATH_WARM_UP; k-- > TRANSFORM_PATH_WARM_UP;)
            seam = state_before(from, k, t, seam) & (PATH_STATES - 1);
        __syncwarp();
    }
    if (j) return;
    /* The path is followed back. Each component's bits gather from the last written to the first. */
    uint32_t state = seam;
    for (uint32_t i = TRANSFORM_QUAD; i-- > 0;) {
        uint32_t bits = 0, written = 0, n = layout.nibbles - layout.stream;
        for (uint32_t at = steps; at-- > 0;) {
            const uint32_t own = state_before(from, i * steps + at, t, state), window = state | (own & PATH_STATES);
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
