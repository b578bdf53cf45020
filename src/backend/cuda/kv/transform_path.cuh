/* Finds the best path through the stream of a token of the codec transform, by Viterbi's algorithm as the CPU's transform_path.c
 * does, a thread for each token. The costs of the eight states stay in registers; for each step 16 bits in shared memory keep from
 * where each state was reached. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORM_PATH_CUH
#define TERSE_BACKEND_CUDA_KV_TRANSFORM_PATH_CUH

#include "backend/cuda/kv/transform_page.cuh"

#define PATH_STATES 8  /* of a stream: its last three bits */
#define PATH_FAR 1e30f /* the cost of a state where no path may begin */

/* A step writes the bits of a plane, of a pair of planes, or, at the end of a round, the rest of a nibble, which may be anything. A
 * path_run has the steps of a table, which follow each other, as their quads do. */
struct path_run {
    uint32_t steps, component; /* the first of the first quad */
};

/* A path_end says that a nibble of the stream ends in a round's step that writes so many bits, `more` bits before its last. */
struct path_end {
    uint8_t step, bits, more;
};

/* A path_round has what a stream's round consists of. */
struct path_round {
    struct path_run run[TRANSFORM_TABLES]; /* by the tables of first planes */
    uint32_t rest, steps;                  /* bits of a nibble's rest; 0: there is none. No steps: there is no stream */
};

/* A path_ring has a layout's round, and where in it nibbles end and quads lie. */
struct path_ring {
    struct path_round round;
    struct path_end end[TRANSFORM_QUADS_MAX]; /* by the stream's nibbles */
    uint8_t step_of[TRANSFORM_QUADS_MAX];     /* of quads in the stream */
};

/* A path_term says that a plane's level costs square d^2, where d is x less the level or, if the component has upper levels, the
 * distance of this from the nearest of them. */
struct path_term {
    float x, square;
};

/* These turn a coefficient, for a row of size 1, into a term: x is the coefficient times `inverse`, within +-limit. */
struct alignas(16) path_factors {
    float inverse, limit, square;
};

/* A path_row is a token's row: coefficients of all tokens, what makes its own those of a row of size 1, and the factors of components. */
struct path_row {
    const float (*z)[NUMBERS_STRIDE];
    const struct path_factors *factors;
    float unit;
    uint32_t t;
};

static __device__ __forceinline__ struct path_term path_term_of(float coefficient, const struct path_factors &own, float unit) {
    const float x = coefficient * unit * own.inverse;
    return {fminf(fmaxf(x, -own.limit), own.limit), own.square}; /* NaN becomes -limit, too */
}

static __device__ __forceinline__ struct path_term path_term_at(const struct path_row &row, uint32_t c) {
    return path_term_of(row.z[c][row.t], row.factors[c], row.unit);
}

/* Returns how far apart a component's upper levels lie, in units of the plane, as transform_upper_step does. */
static __device__ __forceinline__ constexpr float upper_step_of(uint32_t table) {
    return table >= TRANSFORM_LOWER_1 && table <= TRANSFORM_LOWER_3 ? (float)(4u << (table - TRANSFORM_LOWER_1)) : 0;
}

/* Returns the code of the upper level, step (code - 7.5), nearest to x. */
static __device__ __forceinline__ uint32_t upper_code(float x, float step) {
    const float place = fminf(fmaxf(x * (1 / step) + 8, 0), 15); /* step is a power of two; NaN becomes 0, too */
    return (uint32_t)place;
}

/* ---- Costs
 *
 * With upper levels a component has all whole numbers from -8 step to 8 step - 1 for levels, of which a window may choose every step-th:
 * its own level, which is from -step / 2 to step / 2 - 1, and what lies whole steps from it. If `near` is x less the upper level nearest to
 * x, the nearest of them is |near - level| away or, where that is more than half a step, what is left of a step. At x beyond the outermost
 * upper levels it is |near - level| always. */
#define PATH_UNFOLDED 64.0f /* more than half of any such difference */

/* A path_wanted is a term as its table needs it: `near` and half a step, or what the square of a level and a level are multiplied by. */
struct path_wanted {
    float square, near, half_step, linear;
};

template <int TABLE> static __device__ __forceinline__ struct path_wanted path_wanted_of(const struct path_term &term) {
    constexpr float step = upper_step_of(TABLE), integer = 12582912.0f; /* 1.5 2^23 */
    if constexpr (step == 0) return {term.square, 0, 0, -2 * term.square * term.x};
    float code = fminf(fmaxf(fmaf(term.x, 1 / step, 7.5f), 0), 15);
    code = code + integer - integer; /* is rounded */
    return {term.square, fmaf(-step, code - 7.5f, term.x), fabsf(term.x) <= 7.5f * step ? step / 2 : PATH_UNFOLDED, 0};
}

/* Adds to a cost what a level costs. What all levels would add alike, square x^2, is left out where there are no upper levels: the rest is
 * square L^2 - 2 square x L. */
template <int TABLE> static __device__ __forceinline__ float add_cost(float cost, const struct path_wanted &wanted, int level) {
    if constexpr (upper_step_of(TABLE) > 0) {
        const float d = wanted.half_step - fabsf(fabsf(wanted.near - (float)level) - wanted.half_step);
        return fmaf(wanted.square * d, d, cost);
    }
    return level ? fmaf((float)level, fmaf((float)level, wanted.square, wanted.linear), cost) : cost;
}

/* Returns the cost of a path that cost `before` and goes on by window w, by the tables of up to two planes; if FIRST is TRANSFORM_TABLES
 * there is none. */
template <int FIRST> static __device__ __forceinline__ float path_cost(float before, const struct path_wanted (&wanted)[2], int w) {
    constexpr int8_t levels[TRANSFORM_TABLES][16] = TRANSFORM_LEVELS;
    if constexpr (FIRST == TRANSFORM_TABLES) return before;
    const float cost = add_cost<FIRST>(before, wanted[0], levels[FIRST][w]);
    if constexpr (FIRST != TRANSFORM_PAIR_FIRST) return cost;
    return add_cost<TRANSFORM_PAIR_SECOND>(cost, wanted[1], levels[TRANSFORM_PAIR_SECOND][w]);
}

/* ---- Steps */

/* Returns the lesser cost, and shifts into `from` whether it is y; x is taken where they are equal. That is the sign of a difference:
 * comparing would take the slower half of a multiprocessor's arithmetic two instructions more. */
static __device__ __forceinline__ float lesser_cost(float x, float y, uint32_t &from) {
    from = __funnelshift_l(__float_as_uint(y - x), from, 1);
    return fminf(x, y);
}

/* Takes a step that writes BITS bits: a window is the last 4 - BITS bits of the state before, with which it begins, and those
 * written; its lower three bits are the state after. cost[state] is the least of all paths to it; where paths cost the same, the lower
 * ones are taken. Returns, for state_before, the highest bit of each state's window, and behind these 8 bits for each beginning which of
 * the states with it is taken: a bit of 2, or of 4 three bits, which of the first two, which of the others, and which of these. */
template <int BITS, int FIRST>
static __device__ __forceinline__ uint32_t take_step(const struct path_wanted (&wanted)[2], float (&cost)[PATH_STATES]) {
    constexpr int BEGINNINGS = BITS == 1 ? PATH_STATES : 16 >> BITS;
    float best[BEGINNINGS], after[PATH_STATES];
    uint32_t from = 0;
#pragma unroll
    for (int b = BEGINNINGS - 1; b >= 0; b--) {
        best[b] = cost[b];
        if (BITS == 2) best[b] = lesser_cost(cost[b], cost[b + 4], from);
        if (BITS == 3) {
            const float low = lesser_cost(cost[b], cost[b + 2], from), high = lesser_cost(cost[b + 4], cost[b + 6], from);
            best[b] = lesser_cost(low, high, from);
        }
    }
#pragma unroll
    for (int s = PATH_STATES - 1; s >= 0; s--)
        after[s] = lesser_cost(path_cost<FIRST>(best[s >> BITS], wanted, s),
                               path_cost<FIRST>(best[(s + PATH_STATES) >> BITS], wanted, s + PATH_STATES), from);
#pragma unroll
    for (int s = 0; s < PATH_STATES; s++) cost[s] = after[s];
    return from;
}

/* Returns the window by which a step reached a state, by what take_step has returned. */
static __device__ __forceinline__ uint32_t window_to(uint32_t from, uint32_t state) {
    return state | (from >> state & 1) * PATH_STATES;
}

/* Returns the state before that window. */
template <int BITS> static __device__ __forceinline__ uint32_t state_before(uint32_t from, uint32_t window) {
    const uint32_t beginning = window >> BITS;
    if (BITS == 1) return beginning;
    if (BITS == 2) return beginning | (from >> (PATH_STATES + beginning) & 1) << 2;
    const uint32_t taken = from >> (PATH_STATES + 3 * beginning), high = taken & 1;
    return beginning | high << 2 | (taken >> (2 - high) & 1) << 1;
}

/* ---- Runs. What steps return, and then their windows, lies in from[step][token]. */

/* Takes n steps of a run, the first of component c. The next one's numbers are asked for while a step is taken. */
template <int BITS, int FIRST>
static __device__ __forceinline__ void take_run(const struct path_row &row, uint32_t c, uint32_t n, float (&cost)[PATH_STATES],
                                                uint16_t (*from)[PAGE_TOKENS]) {
    constexpr int QUADS = FIRST == TRANSFORM_PAIR_FIRST ? 2 : 1;
    constexpr int SECOND = QUADS == 2 ? TRANSFORM_PAIR_SECOND : TRANSFORM_TABLES;
    float z[2] = {};
    struct path_factors factors[2] = {};
    const auto load = [&] {
#pragma unroll
        for (uint32_t quad = 0; quad < QUADS && FIRST < TRANSFORM_TABLES; quad++) {
            z[quad] = row.z[c + quad * TRANSFORM_QUAD][row.t];
            factors[quad] = row.factors[c + quad * TRANSFORM_QUAD];
        }
        c += QUADS * TRANSFORM_QUAD;
    };
    if (n) load();
#pragma unroll 1
    while (n--) {
        const struct path_wanted wanted[2] = {path_wanted_of<FIRST>(path_term_of(z[0], factors[0], row.unit)),
                                              path_wanted_of<SECOND>(path_term_of(z[1], factors[1], row.unit))};
        if (n) load();
        (*from++)[row.t] = (uint16_t)take_step<BITS, FIRST>(wanted, cost);
    }
}

/* Goes back over the n steps before `from` of a run, which lead to a state. Returns the state before them. A step is asked for while one goes
 * back over the one behind it. */
template <int BITS>
static __device__ __forceinline__ uint32_t follow_run(uint32_t t, uint32_t n, uint32_t state, uint16_t (*from)[PAGE_TOKENS]) {
    uint32_t before = n ? from[-1][t] : 0;
#pragma unroll 1
    while (n--) {
        const uint32_t own = before, window = window_to(own, state);
        from--;
        if (n) before = from[-1][t];
        from[0][t] = (uint16_t)window;
        state = state_before<BITS>(own, window);
    }
    return state;
}

/* ---- Rings. A round has its runs in the order of a layout's planes. */

static __device__ inline void set_path_end(uint32_t written, uint32_t bits, uint32_t step, struct path_ring &ring) {
    if (written % TRANSFORM_NIBBLE_BITS + bits >= TRANSFORM_NIBBLE_BITS)
        ring.end[written / TRANSFORM_NIBBLE_BITS] = {(uint8_t)step, (uint8_t)bits,
                                                     (uint8_t)((written + bits) % TRANSFORM_NIBBLE_BITS)};
}

/* Makes a layout's ring. All lanes of a warp call this, of which each takes a plane. */
static __device__ inline void set_path_ring(const struct transform_layout &layout, struct path_ring &ring) {
    constexpr uint8_t new_bits[TRANSFORM_TABLES] = {4, 4, 1, 2, 3, 1, 2, 3, 2, 0};
    constexpr uint32_t all = ~0u, one = 1 << 16; /* sums count steps by their upper half, bits written by their lower one */
    const uint32_t lane = threadIdx.x % 32;
    uint32_t before = 0;
    if (lane < TRANSFORM_TABLES) ring.round.run[lane] = {0, CODEC_HEAD_DIM_MAX};
    __syncwarp();
    for (uint32_t first = 0; first < layout.planes; first += 32) {
        const uint32_t p = min(first + lane, layout.planes - 1u), table = layout.plane[p].table / 4u, quad = layout.plane[p].quad;
        const bool in_stream = p == first + lane && layout.plane[p].nibble >= layout.stream,
                   is_step = in_stream && table != TRANSFORM_PAIR_SECOND;
        const uint32_t own = is_step ? one + new_bits[table] : 0;
        uint32_t sum = own;
        for (uint32_t i = 1; i < 32; i *= 2) {
            const uint32_t others = __shfl_up_sync(all, sum, i);
            if (lane >= i) sum += others;
        }
        const uint32_t step = (before + sum - own) / one, written = (before + sum - own) % one;
        if (in_stream) ring.step_of[quad] = (uint8_t)(is_step ? step : step - 1);
        if (is_step) {
            atomicAdd(&ring.round.run[table].steps, 1u);
            atomicMin(&ring.round.run[table].component, TRANSFORM_QUAD * quad);
            set_path_end(written, new_bits[table], step, ring);
        }
        before += __shfl_sync(all, sum, 31);
    }
    if (lane) return;
    const uint32_t steps = before / one, written = before % one, over = written % TRANSFORM_NIBBLE_BITS;
    ring.round.rest = over ? TRANSFORM_NIBBLE_BITS - over : 0;
    if (ring.round.rest) set_path_end(written, ring.round.rest, steps, ring);
    ring.round.steps = steps + (over != 0);
}

/* A path_part of the steps that follow skips some and takes n. */
struct path_part {
    uint32_t skip, n;
};

/* Returns how many of so many steps a part takes; `first` is the first of them. */
static __device__ __forceinline__ uint32_t take_from(struct path_part &part, uint32_t steps, uint32_t *first) {
    *first = min(part.skip, steps);
    const uint32_t n = min(part.n, steps - *first);
    part.skip -= *first;
    part.n -= n;
    return n;
}

/* Takes a part of the steps of component i of quads, on by those that it takes. */
static __device__ __forceinline__ void take_round(const struct path_round &round, const struct path_row &row, uint32_t i,
                                                  struct path_part &part, float (&cost)[PATH_STATES],
                                                  uint16_t (*&from)[PAGE_TOKENS]) {
    const struct path_wanted nothing[2] = {};
    uint32_t n, first;
#define TAKE(bits, own, quads) \
    n = take_from(part, round.run[own].steps, &first); \
    take_run<bits, own>(row, round.run[own].component + (quads)*TRANSFORM_QUAD * first + i, n, cost, from); \
    from += n
    TAKE(3, TRANSFORM_LOWER_3, 1);
    TAKE(3, TRANSFORM_TRELLIS_3, 1);
    TAKE(2, TRANSFORM_LOWER_2, 1);
    TAKE(2, TRANSFORM_TRELLIS_2, 1);
    TAKE(1, TRANSFORM_LOWER_1, 1);
    TAKE(2, TRANSFORM_PAIR_FIRST, 2);
    TAKE(1, TRANSFORM_TRELLIS_1, 1);
#undef TAKE
    if (!take_from(part, round.rest != 0, &first)) return;
    uint32_t own;
    if (round.rest == 1)
        own = take_step<1, TRANSFORM_TABLES>(nothing, cost);
    else if (round.rest == 2)
        own = take_step<2, TRANSFORM_TABLES>(nothing, cost);
    else
        own = take_step<3, TRANSFORM_TABLES>(nothing, cost);
    (*from++)[row.t] = (uint16_t)own;
}

/* Goes back over a part of a round, on from its end by those that it skips and takes. Returns the state before them. */
static __device__ __forceinline__ uint32_t follow_round(const struct path_round &round, uint32_t t, uint32_t state,
                                                        struct path_part &part, uint16_t (*&from)[PAGE_TOKENS]) {
    uint32_t first, n = take_from(part, round.rest != 0, &first);
    if (n && round.rest == 1) state = follow_run<1>(t, 1, state, from);
    if (n && round.rest == 2) state = follow_run<2>(t, 1, state, from);
    if (n && round.rest == 3) state = follow_run<3>(t, 1, state, from);
    from -= n;
#define FOLLOW(bits, steps) \
    n = take_from(part, steps, &first); \
    state = follow_run<bits>(t, n, state, from); \
    from -= n
    FOLLOW(1, round.run[TRANSFORM_TRELLIS_1].steps);
    FOLLOW(2, round.run[TRANSFORM_PAIR_FIRST].steps);
    FOLLOW(1, round.run[TRANSFORM_LOWER_1].steps);
    FOLLOW(2, round.run[TRANSFORM_TRELLIS_2].steps + round.run[TRANSFORM_LOWER_2].steps);
    FOLLOW(3, round.run[TRANSFORM_TRELLIS_3].steps + round.run[TRANSFORM_LOWER_3].steps);
#undef FOLLOW
    return state;
}

/* Finds the path of a row and sets the windows from[4 steps][64] by which its steps go; there must be room for
 * 2 TRANSFORM_PATH_WARM_UP. A stream is a ring: one round for each component i of quads, from the first plane to the last. A path that
 * begins anywhere some steps before the ring's seam and ends anywhere some steps behind it passes the seam in the state that the whole
 * path is then made to begin and to end with. */
static __device__ void find_path(const struct path_ring &ring, const struct path_row &row, uint16_t (*from)[PAGE_TOKENS]) {
    const struct path_round round = ring.round; /* in registers */
    const uint32_t all = TRANSFORM_QUAD * round.steps, warm_up = TRANSFORM_PATH_WARM_UP, before = (all - warm_up % all) % all;
    uint32_t state = 0;
    for (int pass = 0; pass < 2; pass++) {
        struct path_part taken = {pass ? 0 : before % round.steps, pass ? all : 2 * warm_up},
                         followed = {pass ? 0 : (round.steps - warm_up % round.steps) % round.steps, pass ? all : warm_up};
        uint16_t(*at)[PAGE_TOKENS] = from;
        float cost[PATH_STATES];
#pragma unroll
        for (uint32_t s = 0; s < PATH_STATES; s++) cost[s] = !pass || s == state ? 0 : PATH_FAR;
        for (uint32_t i = pass ? 0 : before / round.steps; taken.n; i = (i + 1) % TRANSFORM_QUAD)
            take_round(round, row, i, taken, cost, at);
        if (!pass) {
            float least = cost[0];
#pragma unroll
            for (uint32_t s = 1; s < PATH_STATES; s++)
                if (cost[s] < least) state = s, least = cost[s];
        }
        while (followed.n) state = follow_round(round, row.t, state, followed, at);
    }
}

/* Returns the place of the n-th nibble of the stream. */
static __device__ inline uint32_t stream_place(const struct transform_layout &layout, uint32_t n) {
    return layout.stream + (n + 1) % (uint32_t)(layout.nibbles - layout.stream);
}

/* Returns a token's 16 bits of the stream's n-th nibble, by the windows: those of the step where the nibble ends and of the one before
 * have its bits. No nibble ends in the first step of a round. */
static __device__ inline uint32_t nibble_of_path(const struct path_ring &ring, uint32_t n, uint32_t t,
                                                 const uint16_t (*windows)[PAGE_TOKENS]) {
    const struct path_end end = ring.end[n];
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) {
        const uint16_t(*own)[PAGE_TOKENS] = windows + i * ring.round.steps + end.step;
        bits |= (((uint32_t)own[-1][t] << end.bits | own[0][t]) >> end.more & 15) << (4 * i);
    }
    return bits;
}

#endif
