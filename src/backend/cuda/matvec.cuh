/* Multiplies weights as they are stored by up to 16 vectors, on tensor cores: what weights_each.cu, expert_products.cu and, for more
 * vectors, matvec_wide.cuh share.
 *
 * A block of threads for each multiprocessor takes its share of the units, which are 16 rows each. A row's tiles fall to SLOTS
 * slots by turns, or to half as many where there are few, and sums of the slots are added in order, so that a row's result depends
 * on its length alone. With the vectors in shared memory a warp is a slot, or two units are taken at once; where they do not fit,
 * four units are taken at once, so that vectors which have come from global memory are used four times, and a warp has some slots
 * one after another. Slots are added up once in a round of four units.
 *
 * Each warp copies the tiles that come next into a ring of its own in shared memory. As weights never change it begins to before
 * the vectors are there: while the kernels before this one run (launch.cuh). */
#ifndef TERSE_BACKEND_CUDA_MATVEC_CUH
#define TERSE_BACKEND_CUDA_MATVEC_CUH

#include "backend/cuda/launch.cuh"
#include "backend/cuda/weight_products.cuh"

#define WARPS 16
#define SLOTS 16
#define ROUND 4              /* units whose slots are added up together */
#define DEPTH_MOST 4         /* stages of a ring */
#define STAGE_BYTES 3072     /* tiles are copied by stages: of as many tiles as have no more bytes, or of one */
#define CODE_UNIT 16777216.f /* 2^24: codes enter as multiples of its inverse */

__host__ __device__ static inline uint32_t divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

struct matvec_product {
    const uint8_t *data;
    const float *bias;
    float *out;
    uint32_t rows, end; /* end: units, of 16 rows, of this product and those before it */
};

struct matvec_args {
    struct matvec_product products[PRODUCTS_MOST];
    const uint4 *forms[3]; /* of the vectors, as many as the type has */
    const float *sums, *sizes;
    uint32_t columns, n, units, apart; /* apart: rows that a group of the vectors has room for */
    uint32_t slots, streams, depth;    /* slots of a row, units at a time, stages of a ring */
    bool shared, add;                  /* vectors are copied to shared memory */
};

/* Returns the product to which a unit belongs; *unit becomes its number there. */
__device__ static inline const struct matvec_product *product_of(const struct matvec_args &a, uint32_t *unit) {
    uint32_t i = 0;
    while (*unit >= a.products[i].end) i++;
    *unit -= i ? a.products[i - 1].end : 0;
    return &a.products[i];
}

template <class TILE> struct stage_of {
    static constexpr uint32_t TILES = TILE::BYTES > STAGE_BYTES ? 1 : STAGE_BYTES / TILE::BYTES, BYTES = TILES * TILE::BYTES;
};
template <class TILE> __host__ __device__ static inline uint32_t stages_across(const struct matvec_args &a) {
    return divide_up(a.columns, TILE::WIDTH * stage_of<TILE>::TILES);
}

/* ---- Shared memory */

/* A matvec_room has the offsets, in bytes, at which the parts of shared memory begin. */
struct matvec_room {
    uint32_t vectors, sums, parts, bytes; /* parts: [unit of the round][slot][vector][16 rows] */
};

template <class TILE> __host__ __device__ static inline matvec_room room_of(const struct matvec_args &a) {
    uint32_t across = divide_up(a.columns, TILE::WIDTH), vector_bytes = across * TILE::GROUPS * a.n * 64 * forms_of(TILE::FORM);
    matvec_room room;
    room.vectors = WARPS * a.depth * stage_of<TILE>::BYTES;
    room.sums = room.vectors + (a.shared ? vector_bytes : 0);
    room.parts = room.sums + across * a.n * sum_bytes(TILE::OFFSETS);
    room.bytes = room.parts + ROUND * a.slots * a.n * TILE_ROWS * (uint32_t)sizeof(float);
    return room;
}

/* ---- Tiles of a warp, one stage after another, into its ring */

template <class TILE> struct tile_stream {
    static constexpr uint32_t TILES = stage_of<TILE>::TILES, BYTES = stage_of<TILE>::BYTES;
    const struct matvec_args &a;
    const uint32_t ring, across, warps; /* in stages; of a unit */
    uint32_t unit, end, k, to;          /* end: of the product's units; to: where the next stage goes */
    const uint8_t *at;                  /* NULL: there are no more */

    __device__ tile_stream(const struct matvec_args &a, const uint8_t *memory, uint32_t warp)
        : a(a), ring(shared_address(memory) + warp * a.depth * BYTES), across(stages_across<TILE>(a)), warps(WARPS / a.streams),
          unit(blockIdx.x + warp / warps * gridDim.x), end(0), k(warp & (warps - 1)), to(ring) {
        enter();
    }
    /* Goes to stage k, the first of its slot, or to that of the warp's next slot if there is none. */
    __device__ void enter() {
        while (unit < a.units && (k >= a.slots || k >= across)) {
            k &= warps - 1;
            unit = k < across ? unit + gridDim.x * a.streams : a.units;
        }
        uint32_t of = unit;
        at = NULL;
        if (unit >= a.units) return;
        const struct matvec_product *p = product_of(a, &of);
        end = p->end;
        at = p->data + ((size_t)of * divide_up(a.columns, TILE::WIDTH) + k * TILES) * TILE::BYTES;
    }
    /* Goes on behind the last stage of k's slot: to the same slot of the next unit, or to the warp's next slot. */
    __device__ void leave() {
        const uint32_t slot = k & (a.slots - 1), stride = gridDim.x * a.streams;
        if (warps == a.slots && unit + stride < end) { /* as in most cases */
            at += ((int64_t)stride * divide_up(a.columns, TILE::WIDTH) - (int64_t)(k - slot) * TILES) * TILE::BYTES;
            unit += stride;
            k = slot;
        } else {
            k = slot + warps;
            enter();
        }
    }
    __device__ void fetch(int lane) {
        if (at) {
            const uint32_t left = TILES == 1 ? BYTES : (divide_up(a.columns, TILE::WIDTH) - k * TILES) * TILE::BYTES;
#pragma unroll
            for (uint32_t i = 0; i < BYTES; i += 512)
                if ((i + 512 <= BYTES || i + 16 * lane < BYTES) && (i + 512 <= TILE::BYTES || i + 16 * lane < left))
                    copy_once(to + i + 16 * lane, at + i + 16 * lane);
            k += a.slots, at += (size_t)a.slots * BYTES;
            if (k >= across) leave();
        }
        commit_copies();
        to = next(to);
    }
    __device__ uint32_t next(uint32_t stage) const { return stage + BYTES == ring + a.depth * BYTES ? ring : stage + BYTES; }
    /* Waits until the oldest stage that was fetched is there. */
    __device__ void wait() const {
        switch (a.depth) {
        case 1: wait_copies<0>(); break;
        case 2: wait_copies<1>(); break;
        case 3: wait_copies<2>(); break;
        default: wait_copies<DEPTH_MOST - 1>();
        }
        __syncwarp();
    }
};

/* ---- Vectors into shared memory, by all threads */

template <class TILE>
__device__ static inline void stage_vectors(const struct matvec_args &a, uint8_t *memory, const matvec_room &room) {
    uint32_t quads = divide_up(a.columns, TILE::WIDTH) * TILE::GROUPS * a.n * 4;
    uint4 *to = (uint4 *)(memory + room.vectors);
    for (uint32_t i = threadIdx.x; a.shared && i < quads; i += 32 * WARPS) {
        uint32_t group = i / (4 * a.n), from = group * a.apart * 4 + i % (4 * a.n);
        for (int form = 0; form < forms_of(TILE::FORM); form++) to[form * quads + i] = a.forms[form][from];
    }
}

/* Brings the sums of vectors first .. first + n - 1 into the form of products with offsets. */
template <class TILE>
__device__ static inline void stage_sums(const struct matvec_args &a, uint8_t *to, uint32_t first, uint32_t n) {
    const uint32_t groups = divide_up(a.columns, TILE::WIDTH) * TILE::GROUPS;
    const int each = TILE::OFFSETS ? TILE::OFFSETS : 1, of_group = each / TILE::GROUPS ? each / TILE::GROUPS : 1;
    const uint32_t which = TILE::HALVES == 2 ? 0 : TILE::FORM == TWO_HALVES ? 2 : 3; /* of GROUP_SUMS */
    for (uint32_t i = threadIdx.x; TILE::OFFSETS && i < groups * of_group * n; i += 32 * WARPS) {
        uint32_t number = i / n, v = i % n, group = number / of_group;
        float sum = a.sums[(group * GROUP_SUMS + which + number % of_group) * a.apart + first + v] * power_of_two(24 - SUM_SCALE);
        __half high = __float2half(sum), low = __float2half(sum - __half2float(high));
        __half *of_tile = (__half *)to + (number / each * n + v) * (2 * each);
        of_tile[place_of_sum<TILE::OFFSETS>(number % each, false)] = high;
        of_tile[place_of_sum<TILE::OFFSETS>(number % each, true)] = low;
    }
}

/* ---- A round's end */

/* A result is where a thread writes the number that it adds up, and what is there already. */
struct matvec_result {
    float *out; /* NULL: nowhere */
    float factor, bias, before;
};

__device__ static inline matvec_result result_of(const struct matvec_args &a, uint32_t unit, uint32_t row, uint32_t vector,
                                                 float scale) {
    matvec_result r = {NULL, 0, 0, 0};
    if (unit >= a.units || vector >= a.n) return r;
    const struct matvec_product *p = product_of(a, &unit);
    uint32_t at = unit * TILE_ROWS + row;
    if (at >= p->rows) return r;
    r.out = p->out + (size_t)vector * p->rows + at;
    r.factor = a.sizes ? scale * a.sizes[vector] : scale;
    if (p->bias) r.bias = p->bias[at];
    if (a.add) r.before = *r.out;
    return r;
}

template <int PARTS> __device__ static inline void put_sums(float *parts, const row_sums<PARTS> &sums, uint32_t n, int lane) {
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < 4; i++) {
            uint32_t v = PART * part + 2 * (lane % 4) + i % 2;
            if (v < n) parts[v * TILE_ROWS + lane / 4 + i / 2 * 8] = sums.of[part][i];
        }
}

/* Adds up the slots' sums, of units first, first + gridDim.x .. of this round. */
template <int PARTS>
__device__ static inline void finish_round(const struct matvec_args &a, const float *parts, uint32_t first, float scale) {
    const uint32_t row = threadIdx.x % TILE_ROWS, vector = threadIdx.x / TILE_ROWS % (PARTS * PART);
    for (uint32_t i = threadIdx.x / (TILE_ROWS * PARTS * PART); i < ROUND && vector < a.n;
         i += WARPS * 32 / (TILE_ROWS * PARTS * PART)) {
        const matvec_result r = result_of(a, first + i * gridDim.x, row, vector, scale);
        const float *part = parts + (i * a.slots * a.n + vector) * TILE_ROWS + row;
        float y = 0;
        for (uint32_t slot = 0; slot < a.slots; slot++, part += a.n * TILE_ROWS) y += r.out ? *part : 0;
        if (r.out) *r.out = r.before + fmaf(y, r.factor, r.bias);
    }
}

/* Adds a slot's tiles to its sums, and asks for others in their place. Returns the stage behind the last one. */
template <class TILE, int PARTS, class VECTORS>
__device__ static inline uint32_t add_slot_tiles(const struct matvec_args &a, tile_stream<TILE> &tiles, uint32_t stage,
                                                 uint32_t slot, const VECTORS &x, const uint32_t (&sums_at)[PARTS],
                                                 uint32_t sums_stride, int lane, tile_sums<TILE, PARTS> &sums) {
    constexpr uint32_t TILES = stage_of<TILE>::TILES;
    const uint32_t across = divide_up(a.columns, TILE::WIDTH);
    for (uint32_t k = slot; k < tiles.across; k += a.slots) {
        tiles.wait();
#pragma unroll
        for (uint32_t tile = 0; tile < TILES; tile++)
            if (tile == 0 || k * TILES + tile < across)
                sums.add(shared_tile{stage + tile * TILE::BYTES}, k * TILES + tile, x, sums_at, sums_stride, lane);
        __syncwarp();
        stage = tiles.next(stage);
        tiles.fetch(lane);
    }
    return stage;
}

template <class TILE, int PARTS, class VECTORS>
__device__ static inline void matvec_rounds(const struct matvec_args &a, uint8_t *memory, const matvec_room &room,
                                            tile_stream<TILE> &tiles, const VECTORS &x) {
    const int lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32, sums_stride = a.n * sum_bytes(TILE::OFFSETS);
    float *parts = (float *)(memory + room.parts);
    uint32_t sums_at[PARTS], stage = tiles.ring;
    for (int part = 0; part < PARTS; part++) {
        uint32_t v = PART * part + lane / 4;
        sums_at[part] =
            shared_address(memory + room.sums) + (v < a.n ? v : 0) * sum_bytes(TILE::OFFSETS) + lane % 4 * TILE::OFFSETS;
    }
    for (uint32_t first = blockIdx.x; first < a.units; first += ROUND * gridDim.x) {
        for (uint32_t i = warp / tiles.warps; i < ROUND && first + i * gridDim.x < a.units; i += a.streams)
            for (uint32_t slot = warp & (tiles.warps - 1); slot < a.slots; slot += tiles.warps) {
                tile_sums<TILE, PARTS> sums;
                sums.clear();
                stage = add_slot_tiles(a, tiles, stage, slot, x, sums_at, sums_stride, lane, sums);
                sums.finish();
                put_sums(parts + (i * a.slots + slot) * a.n * TILE_ROWS, sums.codes, a.n, lane);
            }
        __syncthreads();
        finish_round<PARTS>(a, parts, first, TILE::CODES ? CODE_UNIT : 1);
        __syncthreads(); /* the parts are read */
    }
}

/* Multiplies the block's share of the units; all threads of the block call this with its streams of tiles under way. */
template <class TILE, int PARTS, bool SHARED>
__device__ static inline void multiply_units(const struct matvec_args &a, uint8_t *memory, const matvec_room &room,
                                             tile_stream<TILE> &tiles, int lane) {
    stage_vectors<TILE>(a, memory, room);
    stage_sums<TILE>(a, memory + room.sums, 0, a.n);
    __syncthreads();
    const uint32_t groups = divide_up(a.columns, TILE::WIDTH) * TILE::GROUPS;
    if (SHARED)
        matvec_rounds<TILE, PARTS>(a, memory, room, tiles,
                                   shared_vectors<PARTS>(shared_address(memory + room.vectors), a.n, groups, lane));
    else
        matvec_rounds<TILE, PARTS>(a, memory, room, tiles, stored_vectors<PARTS>(a.forms, a.n, a.apart, lane));
}

/* Chooses shared memory for the vectors if that may be and they fit beside rings of two stages, and reads them outside of it
 * otherwise; then takes the deepest rings. Returns false if there is no room for rings. */
template <class TILE> static bool choose_way(struct matvec_args *a, uint32_t shared_bytes, bool may_share = true) {
    a->slots = stages_across<TILE>(*a) > SLOTS / 2 ? SLOTS : SLOTS / 2;
    a->shared = true, a->depth = 2;
    a->shared = may_share && room_of<TILE>(*a).bytes <= shared_bytes;
    a->streams = a->shared ? WARPS / a->slots : ROUND;
    for (a->depth = DEPTH_MOST; a->depth; a->depth--)
        if (room_of<TILE>(*a).bytes <= shared_bytes) return true;
    return false;
}

#endif
