/* Compares ways to share the exact causal attention of a layer of a prompt among ranks: what each computes, waits, sends and holds. Each rank has the
 * queries of two of 2 n chunks, the r-th and the r-th from the end, so that all attend to as many keys (zigzag).
 *
 *     ring           keys and values of a rank's own tokens go round; it attends to one rank's while those of the next come
 *     gather KV      all have keys and values of all tokens, each those of its own by its own product
 *     gather hidden  all have the hidden states of all tokens, and compute the keys and values of all of them
 *
 *     mpirun -n RANKS bench_ring TOKENS WIDTH HEADS KV_HEADS HEAD_DIM
 *
 * A rank has one thread. Its processor time is that of its products and of attention, without what MPI takes to wait and to copy, which is printed
 * by itself as wall time; both are means of all ranks. Memory is that of hidden states, keys, values and blocks on their way. The difference is that
 * of the outputs from those of the first way, over the largest. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/partial.h"
#include "backend/cpu/vector.h"

#include <math.h>
#include <mpi.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUERY_TOKENS 48 /* of a tile */
#define KEY_TOKENS 384  /* that they meet at a time */

struct bench {
    int rank, ranks;
    size_t chunk; /* tokens; a rank has two of 2 `ranks` */
    size_t width, heads, kv_heads, head_dim;
    size_t row;     /* floats of a token's keys and values, [2][KV heads][head dim] */
    float *weights; /* [width][row] */
    float *hidden;  /* [2 chunk][width], the rank's own */
    float *queries; /* [2 chunk][heads][head dim], the rank's own, scaled */
    float *states;  /* [KV heads][2 chunk] partials of [group] rows, tile by tile */
    float *logits;  /* [QUERY_TOKENS * group][KEY_TOKENS] */
    float *tile;    /* [QUERY_TOKENS * group][head dim] */
    /* what a way has cost */
    double computed, waited;
    size_t sent, held; /* bytes */
};

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static float *floats(size_t n) {
    float *memory = aligned_alloc(64, (n * sizeof *memory + 63) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "bench_ring: no memory for %zu floats\n", n);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static void fill(float *x, size_t n, float scale, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = scale * ((float)(seed >> 40) / (float)(1 << 23) - 1);
    }
}

/* Returns the chunk that a rank has as its first (0) or second (1). */
static size_t chunk_of(const struct bench *b, int rank, int i) {
    return i ? 2 * (size_t)b->ranks - 1 - (size_t)rank : (size_t)rank;
}

static size_t tile_floats(const struct bench *b) { return partial_floats(QUERY_TOKENS * (b->heads / b->kv_heads), b->head_dim); }

static struct partial state_of(const struct bench *b, size_t head, int own, size_t tile) {
    const size_t tiles = (b->chunk + QUERY_TOKENS - 1) / QUERY_TOKENS;
    return partial_at(b->states + ((head * 2 + (size_t)own) * tiles + tile) * tile_floats(b),
                      QUERY_TOKENS * (b->heads / b->kv_heads), b->head_dim);
}

/* Lets a tile of queries of an own chunk, from its token `first` on, attend to keys [from, to) of a chunk; `causal`: of the same one. */
static void attend_tile(struct bench *b, size_t head, int own, size_t first, const float *keys, size_t from, size_t to,
                        bool causal) {
    const size_t group = b->heads / b->kv_heads, hd = b->head_dim;
    const size_t tokens = b->chunk - first < QUERY_TOKENS ? b->chunk - first : QUERY_TOKENS, rows = tokens * group, n = to - from;
    const float *k = keys + from * b->row + head * hd, *v = k + b->kv_heads * hd;
    struct partial state = state_of(b, head, own, first / QUERY_TOKENS);
    gemm(true, rows, n, hd, b->tile, hd, k, b->row, false, b->logits, KEY_TOKENS);
    for (size_t i = 0; i < rows; i++) {
        float *x = b->logits + i * KEY_TOKENS;
        const size_t token = first + i / group, seen = !causal || token + 1 >= to ? n : token + 1 > from ? token + 1 - from : 0;
        const float max = partial_raise(&state, i, vector_max(x, seen));
        if (seen) state.sum[i] += vector_exp_sum(x, max, seen);
        memset(x + seen, 0, (n - seen) * sizeof *x);
    }
    gemm(false, rows, hd, n, b->logits, KEY_TOKENS, v, b->row, true, state.acc, hd);
}

/* Attends to the keys and values of a rank, [2 chunk][row]. Now and then it lets MPI go on with `requests`. */
static void attend(struct bench *b, const float *keys, int rank, MPI_Request *requests) {
    const size_t group = b->heads / b->kv_heads, hd = b->head_dim;
    for (int own = 0; own < 2; own++)
        for (size_t head = 0; head < b->kv_heads; head++) {
            for (size_t first = 0; first < b->chunk; first += QUERY_TOKENS) {
                for (size_t i = 0; i < QUERY_TOKENS && first + i < b->chunk; i++)
                    memcpy(b->tile + i * group * hd,
                           b->queries + (((size_t)own * b->chunk + first + i) * b->heads + head * group) * hd,
                           group * hd * sizeof *b->tile);
                for (int other = 0; other < 2; other++) {
                    const size_t mine = chunk_of(b, b->rank, own), theirs = chunk_of(b, rank, other);
                    const size_t last = first + QUERY_TOKENS < b->chunk ? first + QUERY_TOKENS : b->chunk;
                    const size_t end = theirs < mine ? b->chunk : theirs == mine ? last : 0;
                    for (size_t from = 0; from < end; from += KEY_TOKENS)
                        attend_tile(b, head, own, first, keys + (size_t)other * b->chunk * b->row, from,
                                    from + KEY_TOKENS < end ? from + KEY_TOKENS : end, theirs == mine);
                }
            }
            MPI_Status statuses[2];
            int done;
            if (requests) MPI_Testall(2, requests, &done, statuses);
        }
}

/* Computes keys and values, [2 chunk][row], from the hidden states of a rank. */
static void project(struct bench *b, const float *hidden, float *keys) {
    gemm(false, 2 * b->chunk, b->row, b->width, hidden, b->width, b->weights, b->row, false, keys, b->row);
}

/* Counts the processor time since `begun` as computed. */
static void computed(struct bench *b, double begun) { b->computed += seconds(CLOCK_THREAD_CPUTIME_ID) - begun; }

static void ring(struct bench *b) {
    const size_t n = 2 * b->chunk * b->row;
    float *block = floats(n), *coming = floats(n);
    b->held = (2 * n + 2 * b->chunk * b->width) * sizeof(float);
    double begun = seconds(CLOCK_THREAD_CPUTIME_ID);
    project(b, b->hidden, block);
    computed(b, begun);
    for (int step = 0; step < b->ranks; step++) {
        const bool last = step + 1 == b->ranks;
        MPI_Request requests[2];
        MPI_Status statuses[2];
        if (!last) {
            MPI_Irecv(coming, (int)n, MPI_FLOAT, (b->rank + b->ranks - 1) % b->ranks, step, MPI_COMM_WORLD, &requests[0]);
            MPI_Isend(block, (int)n, MPI_FLOAT, (b->rank + 1) % b->ranks, step, MPI_COMM_WORLD, &requests[1]);
            b->sent += n * sizeof(float);
        }
        begun = seconds(CLOCK_THREAD_CPUTIME_ID);
        attend(b, block, (b->rank + b->ranks - step) % b->ranks, last ? NULL : requests);
        computed(b, begun);
        begun = seconds(CLOCK_MONOTONIC);
        if (!last) MPI_Waitall(2, requests, statuses);
        b->waited += seconds(CLOCK_MONOTONIC) - begun;
        float *free_block = block;
        block = coming, coming = free_block;
    }
    free(block);
    free(coming);
}

static void gather(struct bench *b, const float *own, size_t n, float *all) {
    const double begun = seconds(CLOCK_MONOTONIC);
    MPI_Allgather(own, (int)n, MPI_FLOAT, all, (int)n, MPI_FLOAT, MPI_COMM_WORLD);
    b->waited += seconds(CLOCK_MONOTONIC) - begun;
    b->sent += n * sizeof(float) * (size_t)(b->ranks - 1);
}

static void gather_keys(struct bench *b) {
    const size_t n = 2 * b->chunk * b->row, ranks = (size_t)b->ranks;
    float *own = floats(n), *all = floats(ranks * n);
    b->held = ((1 + ranks) * n + 2 * b->chunk * b->width) * sizeof(float);
    double begun = seconds(CLOCK_THREAD_CPUTIME_ID);
    project(b, b->hidden, own);
    computed(b, begun);
    gather(b, own, n, all);
    begun = seconds(CLOCK_THREAD_CPUTIME_ID);
    for (int rank = 0; rank < b->ranks; rank++) attend(b, all + (size_t)rank * n, rank, NULL);
    computed(b, begun);
    free(own);
    free(all);
}

static void gather_hidden(struct bench *b) {
    const size_t n = 2 * b->chunk * b->row, states = 2 * b->chunk * b->width, ranks = (size_t)b->ranks;
    float *all = floats(ranks * states), *keys = floats(ranks * n);
    b->held = ranks * (states + n) * sizeof(float);
    gather(b, b->hidden, states, all);
    const double begun = seconds(CLOCK_THREAD_CPUTIME_ID);
    for (size_t rank = 0; rank < ranks; rank++) project(b, all + rank * states, keys + rank * n);
    for (int rank = 0; rank < b->ranks; rank++) attend(b, keys + (size_t)rank * n, rank, NULL);
    computed(b, begun);
    free(all);
    free(keys);
}

/* Writes the outputs of one way, out[KV heads][2 chunk][group][head dim]. */
static void finish(const struct bench *b, float *out) {
    const size_t group = b->heads / b->kv_heads;
    for (size_t head = 0; head < b->kv_heads; head++)
        for (int own = 0; own < 2; own++)
            for (size_t i = 0; i < b->chunk; i++) {
                const struct partial state = state_of(b, head, own, i / QUERY_TOKENS);
                for (size_t g = 0; g < group; g++, out += b->head_dim) partial_finish(&state, i % QUERY_TOKENS * group + g, out);
            }
}

static double mean(const struct bench *b, double x) {
    double sum = 0;
    MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / b->ranks;
}

/* Runs a way, prints a line, and returns whether its outputs are those of the other. */
static bool measure(struct bench *b, const char *name, void (*way)(struct bench *), float *out, const float *other) {
    const size_t tiles = (b->chunk + QUERY_TOKENS - 1) / QUERY_TOKENS, group = b->heads / b->kv_heads;
    double most = 0, far = 0;
    for (size_t head = 0; head < b->kv_heads; head++)
        for (int own = 0; own < 2; own++)
            for (size_t tile = 0; tile < tiles; tile++) {
                struct partial state = state_of(b, head, own, tile);
                partial_clear(&state);
            }
    b->computed = b->waited = 0;
    b->sent = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = seconds(CLOCK_MONOTONIC);
    way(b);
    MPI_Barrier(MPI_COMM_WORLD);
    const double wall = seconds(CLOCK_MONOTONIC) - begun;
    finish(b, out);
    for (size_t i = 0, n = 2 * b->chunk * b->kv_heads * group * b->head_dim; i < n; i++) {
        far = fmax(far, fabs((double)out[i] - (double)other[i]));
        most = fmax(most, fabs((double)other[i]));
    }
    const double computing = mean(b, b->computed), waiting = mean(b, b->waited), error = mean(b, far / most);
    if (!b->rank)
        printf("| %zu | %d | %s | %.0f ms | %.0f ms | %.0f ms | %.2f MB | %.2f MB | %.1e |\n", 2 * b->chunk * (size_t)b->ranks,
               b->ranks, name, 1e3 * computing, 1e3 * waiting, 1e3 * wall, 1e-6 * (double)b->sent, 1e-6 * (double)b->held, error);
    return error < 1e-5;
}

int main(int argc, char **argv) {
    struct bench b = {0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.ranks);
    size_t numbers[5] = {0};
    for (int i = 1; i < argc && argc == 6; i++) numbers[i - 1] = strtoull(argv[i], NULL, 10);
    b.width = numbers[1], b.heads = numbers[2], b.kv_heads = numbers[3], b.head_dim = numbers[4];
    b.chunk = numbers[0] / (2 * (size_t)b.ranks);
    if (!b.chunk || !b.width || !b.kv_heads || !b.head_dim || !b.heads || b.heads % b.kv_heads) {
        if (!b.rank) fprintf(stderr, "usage: mpirun -n RANKS bench_ring TOKENS WIDTH HEADS KV_HEADS HEAD_DIM\n");
        MPI_Finalize();
        return EXIT_FAILURE;
    }
    omp_set_num_threads(1);
    const size_t group = b.heads / b.kv_heads, tokens = 2 * b.chunk, tiles = (b.chunk + QUERY_TOKENS - 1) / QUERY_TOKENS;
    b.row = 2 * b.kv_heads * b.head_dim;
    b.weights = floats(b.width * b.row);
    b.hidden = floats(tokens * b.width);
    b.queries = floats(tokens * b.heads * b.head_dim);
    b.states = floats(b.kv_heads * 2 * tiles * tile_floats(&b));
    b.logits = floats(QUERY_TOKENS * group * KEY_TOKENS);
    b.tile = floats(QUERY_TOKENS * group * b.head_dim);
    float *out = floats(tokens * b.heads * b.head_dim), *first = floats(tokens * b.heads * b.head_dim);
    fill(b.weights, b.width * b.row, 1 / sqrtf((float)b.width), 1);
    fill(b.hidden, tokens * b.width, 3, 2 + (uint64_t)b.rank);
    fill(b.queries, tokens * b.heads * b.head_dim, 3 / sqrtf((float)b.head_dim), 1000 + (uint64_t)b.rank);
    memset(first, 0, tokens * b.heads * b.head_dim * sizeof *first);
    if (!b.rank)
        printf("| tokens | ranks | way | processor time | in MPI | wall time | sent | memory | difference "
               "|\n|---|---|---|---|---|---|---|---|---|\n");
    const size_t chunk = b.chunk;
    b.chunk = chunk < QUERY_TOKENS ? chunk : QUERY_TOKENS;
    gather_keys(&b); /* the first product of a shape takes longer */
    b.chunk = chunk;
    measure(&b, "gather hidden", gather_hidden, first, first);
    bool same = measure(&b, "gather KV", gather_keys, out, first);
    same = measure(&b, "ring", ring, out, first) && same;
    MPI_Finalize();
    return same ? EXIT_SUCCESS : EXIT_FAILURE;
}
