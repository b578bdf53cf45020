/* Products of weights as they are stored with up to 16 vectors, by tensor cores.
 *
 * Warps take 16 rows, a unit, at a time. A row's tiles fall to SLOTS slots by turns, or to half as many where there are few, and sums of the slots
 * are added in order, so that what a row comes to depends on its length alone. With the vectors in shared memory a block of threads takes one
 * unit, a warp a slot; where they do not fit, it takes four, so that vectors which have come from global memory are used four times, and a
 * warp has some slots one after another.
 *
 * Each warp copies the tiles that come next into a ring of its own in shared memory. As weights never change it begins to before the vectors are
 * there: while the kernels before this one run (launch.cuh). */
#include "backend/cuda/weights.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/weight_products.cuh"

#define WARPS 16
#define SLOTS 16
#define FAR_STREAMS 4         /* units at a time where vectors stay in global memory */
#define CODE_UNIT 16777216.f  /* 2^24: codes enter as multiples of its inverse */
#define RING_BYTES (80 << 10) /* of all warps, but for two tiles each at least */

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
    uint32_t columns, n, units;
    uint32_t slots, streams; /* of a row; units at a time */
    bool shared, deep, add;  /* vectors are copied to shared memory; rings hold more than a tile */
};

/* The product that a unit is of; *unit becomes its number there. */
__device__ static inline const struct matvec_product *product_of(const struct matvec_args &a, uint32_t *unit) {
    uint32_t i = 0;
    while (*unit >= a.products[i].end) i++;
    *unit -= i ? a.products[i - 1].end : 0;
    return &a.products[i];
}

/* ---- Shared memory */

template <class TILE> __host__ __device__ static constexpr uint32_t ring_depth() {
    return 2 * TILE::BYTES * WARPS > RING_BYTES ? 2 : RING_BYTES / (TILE::BYTES * WARPS);
}

/* Blocks of threads that shall fit a multiprocessor: this kernel's and the next one's, where their rings do. */
template <class TILE> __host__ __device__ static constexpr int blocks_together(int parts) {
    return parts == 1 && WARPS * ring_depth<TILE>() * TILE::BYTES <= 96 << 10 ? 2 : 1;
}

/* Where its parts begin, in bytes. */
struct matvec_room {
    uint32_t vectors, sums, parts, bytes; /* parts: [stream][slot][vector][16 rows] */
};

template <class TILE> __host__ __device__ static inline matvec_room room_of(const struct matvec_args &a) {
    uint32_t across = divide_up(a.columns, TILE::WIDTH), vector_bytes = across * TILE::GROUPS * a.n * 64 * forms_of(TILE::FORM);
    matvec_room room;
    room.vectors = WARPS * (a.deep ? ring_depth<TILE>() : 1) * TILE::BYTES;
    room.sums = room.vectors + (a.shared ? vector_bytes : 0);
    room.parts = room.sums + across * a.n * sum_bytes(TILE::OFFSETS);
    room.bytes = room.parts + a.streams * a.slots * a.n * TILE_ROWS * (uint32_t)sizeof(float);
    return room;
}

/* ---- Tiles of a warp, one after another, into its ring */

template <class TILE> struct tile_stream {
    const struct matvec_args &a;
    const uint32_t ring, depth, across, warps; /* warps: of a unit */
    uint32_t unit, k, place;
    const uint8_t *at; /* NULL: there are no more */

    __device__ tile_stream(const struct matvec_args &a, const uint8_t *memory, uint32_t warp)
        : a(a), ring(shared_address(memory) + warp * (a.deep ? ring_depth<TILE>() : 1) * TILE::BYTES),
          depth(a.deep ? ring_depth<TILE>() : 1), across(divide_up(a.columns, TILE::WIDTH)), warps(WARPS / a.streams),
          unit(blockIdx.x * a.streams + warp / warps), k(warp & (warps - 1)), place(0) {
        enter();
    }
    /* To tile k, the first of its slot, or to that of the unit's next slot where there is none. */
    __device__ void enter() {
        while (unit < a.units && (k >= a.slots || k >= across)) {
            k &= warps - 1;
            unit = k < across ? unit + gridDim.x * a.streams : a.units;
        }
        uint32_t of = unit;
        at = NULL;
        if (unit >= a.units) return;
        const struct matvec_product *p = product_of(a, &of);
        at = p->data + ((size_t)of * across + k) * TILE::BYTES;
    }
    __device__ void fetch(int lane) {
        uint32_t to = ring + place * TILE::BYTES;
        place = place + 1 == depth ? 0 : place + 1;
        if (at) {
#pragma unroll
            for (int i = 0; i < TILE::BYTES; i += 512)
                if (i + 512 <= TILE::BYTES || i + 16 * lane < TILE::BYTES) copy_async<16>(to + i + 16 * lane, at + i + 16 * lane);
            k += a.slots, at += (size_t)a.slots * TILE::BYTES;
            if (k >= across) {
                k = (k & (a.slots - 1)) + warps; /* the next slot */
                enter();
            }
        }
        commit_copies();
    }
    /* Until the oldest tile that was fetched is there. */
    __device__ void wait() const {
        if (a.deep)
            wait_copies<ring_depth<TILE>() - 1>();
        else
            wait_copies<0>();
        __syncwarp();
    }
};

/* ---- Vectors into shared memory, by all threads */

template <class TILE>
__device__ static inline void stage_vectors(const struct matvec_args &a, uint8_t *memory, const matvec_room &room) {
    uint32_t groups = divide_up(a.columns, TILE::WIDTH) * TILE::GROUPS, quads = groups * a.n * 4;
    uint4 *to = (uint4 *)(memory + room.vectors);
    for (uint32_t i = threadIdx.x; a.shared && i < quads; i += 32 * WARPS) {
        uint32_t group = i / (4 * a.n), from = group * EACH_ROWS * 4 + i % (4 * a.n);
        for (int form = 0; form < forms_of(TILE::FORM); form++) to[form * quads + i] = a.forms[form][from];
    }
    const int each = TILE::OFFSETS ? TILE::OFFSETS : 1, of_group = each / TILE::GROUPS ? each / TILE::GROUPS : 1;
    const uint32_t which = TILE::HALVES == 2 ? 0 : TILE::FORM == TWO_HALVES ? 2 : 3; /* of GROUP_SUMS */
    for (uint32_t i = threadIdx.x; TILE::OFFSETS && i < groups * of_group * a.n; i += 32 * WARPS) {
        uint32_t number = i / a.n, v = i % a.n, group = number / of_group;
        float sum = a.sums[(group * GROUP_SUMS + which + number % of_group) * EACH_ROWS + v] * power_of_two(24 - SUM_SCALE);
        __half high = __float2half(sum), low = __float2half(sum - __half2float(high));
        __half *of_tile = (__half *)(memory + room.sums) + (number / each * a.n + v) * (2 * each);
        of_tile[place_of_sum<TILE::OFFSETS>(number % each, false)] = high;
        of_tile[place_of_sum<TILE::OFFSETS>(number % each, true)] = low;
    }
}

/* ---- A unit's end */

/* The number that a thread adds up: row, vector and stream, and what is there already. */
struct matvec_result {
    float *out; /* NULL: none */
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

/* Adds up a stream's slots and stores what they come to. */
__device__ static inline float sum_of_slots(const struct matvec_args &a, const float *parts, uint32_t stream, uint32_t place) {
    float y = 0;
    for (uint32_t slot = 0; slot < a.slots; slot++) y += parts[(stream * a.slots + slot) * a.n * TILE_ROWS + place];
    return y;
}
__device__ static inline void store(const matvec_result &r, float y) {
    if (r.out) *r.out = r.before + fmaf(y, r.factor, r.bias);
}

template <class TILE, int PARTS, class VECTORS>
__device__ static inline void matvec_rounds(const struct matvec_args &a, uint8_t *memory, const matvec_room &room,
                                            tile_stream<TILE> &tiles, const VECTORS &x) {
    const int lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32, stream = warp / tiles.warps, sums_stride = a.n * sum_bytes(TILE::OFFSETS);
    const uint32_t row = threadIdx.x % TILE_ROWS, vector = threadIdx.x / TILE_ROWS % EACH_ROWS,
                   own_stream = threadIdx.x / (TILE_ROWS * EACH_ROWS); /* of what the thread adds up */
    const float scale = TILE::CODES ? CODE_UNIT : 1;
    float *parts = (float *)(memory + room.parts);
    uint32_t sums_at[PARTS], place = 0;
    for (int part = 0; part < PARTS; part++) {
        uint32_t v = PART * part + lane / 4;
        sums_at[part] =
            shared_address(memory + room.sums) + (v < a.n ? v : 0) * sum_bytes(TILE::OFFSETS) + lane % 4 * TILE::OFFSETS;
    }
    for (uint32_t first = blockIdx.x * a.streams; first < a.units; first += gridDim.x * a.streams) {
        for (uint32_t slot = warp % tiles.warps; slot < a.slots; slot += tiles.warps) {
            tile_sums<TILE, PARTS> sums;
            sums.clear();
            for (uint32_t k = first + stream < a.units ? slot : tiles.across; k < tiles.across; k += a.slots) {
                tiles.wait();
                sums.add(shared_tile{tiles.ring + place * TILE::BYTES}, k, x, sums_at, sums_stride, lane);
                __syncwarp();
                place = place + 1 == tiles.depth ? 0 : place + 1;
                tiles.fetch(lane);
            }
            sums.finish();
            put_sums(parts + (stream * a.slots + slot) * a.n * TILE_ROWS, sums.codes, a.n, lane);
        }
        const matvec_result result = result_of(a, own_stream < a.streams ? first + own_stream : a.units, row, vector, scale);
        __syncthreads();
        float y = result.out ? sum_of_slots(a, parts, own_stream, vector * TILE_ROWS + row) : 0;
        for (uint32_t s = own_stream + 2; s < a.streams; s += 2) {
            const matvec_result another = result_of(a, first + s, row, vector, scale);
            if (another.out) store(another, sum_of_slots(a, parts, s, vector * TILE_ROWS + row));
        }
        __syncthreads(); /* the parts are read */
        store(result, y);
    }
}

template <class TILE, int PARTS, bool SHARED>
__global__ void __launch_bounds__(32 * WARPS, blocks_together<TILE>(PARTS))
    matvec_tiles(const __grid_constant__ struct matvec_args a) {
    extern __shared__ __align__(16) uint8_t memory[];
    const int lane = threadIdx.x % 32;
    const matvec_room room = room_of<TILE>(a);
    tile_stream<TILE> tiles(a, memory, threadIdx.x / 32);
    for (uint32_t i = 0; i < tiles.depth; i++) tiles.fetch(lane);
    let_next_kernel_begin();
    wait_for_kernels();
    stage_vectors<TILE>(a, memory, room);
    __syncthreads();
    if (SHARED)
        matvec_rounds<TILE, PARTS>(
            a, memory, room, tiles,
            shared_vectors<PARTS>(shared_address(memory + room.vectors), a.n, tiles.across * TILE::GROUPS, lane));
    else
        matvec_rounds<TILE, PARTS>(a, memory, room, tiles, stored_vectors<PARTS>(a.forms, a.n, lane));
}

/* Whether the vectors fit, in the way that is best of those that do. */
template <class TILE> static bool choose_way(struct matvec_args *a, uint32_t shared_bytes) {
    a->slots = divide_up(a->columns, TILE::WIDTH) > SLOTS / 2 ? SLOTS : SLOTS / 2;
    for (int way = 0; way < 3; way++) {
        a->shared = way == 0, a->deep = way < 2;
        a->streams = a->shared ? WARPS / a->slots : FAR_STREAMS;
        if (room_of<TILE>(*a).bytes <= shared_bytes) return true;
    }
    return false;
}

/* As many blocks of threads as there are multiprocessors, where there is work for them. */
template <class TILE> static cudaError_t launch_tiles(const struct matvec_args &a, cudaStream_t stream) {
    uint32_t bytes = room_of<TILE>(a).bytes, blocks = divide_up(a.units, a.streams),
             most = device_attribute(cudaDevAttrMultiProcessorCount);
    void (*kernel)(const struct matvec_args) = a.n <= PART ? a.shared ? matvec_tiles<TILE, 1, true> : matvec_tiles<TILE, 1, false>
                                               : a.shared ? matvec_tiles<TILE, 2, true>
                                                           : matvec_tiles<TILE, 2, false>;
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    return launch_early(kernel, dim3(blocks < most ? blocks : most), dim3(32 * WARPS), bytes, stream, a);
}

/* The product with `count` vectors from `first` on. */
static struct matvec_args vectors_from(const struct matvec_args &a, uint32_t first, uint32_t count) {
    struct matvec_args own = a;
    own.n = count, own.sums += first;
    if (a.sizes) own.sizes += first;
    for (const uint4 *&form : own.forms)
        if (form) form += first * 4;
    for (struct matvec_product &p : own.products) p.out += (size_t)first * p.rows;
    return own;
}

/* All vectors at once, but for rows so long that fewer fit. */
template <class TILE> static cudaError_t multiply_tiles(const struct matvec_args &a, cudaStream_t stream) {
    const uint32_t shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    cudaError_t result = cudaSuccess;
    for (uint32_t first = 0, count = a.n; first < a.n && result == cudaSuccess; first += count) {
        struct matvec_args own = vectors_from(a, first, a.n - first < count ? a.n - first : count);
        while (!choose_way<TILE>(&own, shared_bytes)) {
            if ((count = own.n / 2) == 0) return cudaErrorInvalidValue;
            own = vectors_from(a, first, count);
        }
        result = launch_tiles<TILE>(own, stream);
    }
    return result;
}

/* Products of one type. */
static cudaError_t launch(enum tensor_type type, const struct matvec_args *a, cudaStream_t stream) {
#define CALL(TILE) return multiply_tiles<TILE>(*a, stream)
    FOR_TILE_TYPE(type, CALL)
#undef CALL
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t weights_each(const struct device_product *products, size_t n_products, const struct device_vectors *x,
                                    uint32_t n, bool add, cudaStream_t stream) {
    struct matvec_args a = {};
    a.sums = x->sums, a.n = n, a.add = add;
    cudaError_t result = cudaSuccess;
    for (size_t i = 0; i < n_products && result == cudaSuccess;) {
        enum tensor_type type = products[i].w->type;
        const bool thirds = weights_form(type) == THIRDS;
        const size_t form_quads = (size_t)divide_up(products[i].w->columns, WIDTH_STEP) * WIDTH_STEP * EACH_ROWS / 8;
        for (int form = 0; form < 3; form++)
            a.forms[form] = thirds ? (const uint4 *)x->thirds + form * form_quads : (const uint4 *)(form ? x->low : x->high);
        a.sizes = thirds ? NULL : x->sizes;
        a.units = 0;
        for (uint32_t k = 0; i < n_products && products[i].w->type == type; i++, k++) {
            const struct device_matrix *w = products[i].w;
            a.units += divide_up(w->rows, TILE_ROWS);
            a.products[k] = (struct matvec_product){w->data, w->bias, products[i].out, w->rows, a.units};
            a.columns = w->columns;
        }
        result = launch(type, &a, stream);
    }
    return result;
}
