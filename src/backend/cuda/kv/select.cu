/* Finds the best scores, and writes the lists of the pages that have them. A CTA takes a row and KV head. A thread takes a page. */
#include "backend/cuda/kv/select.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/select_largest.cuh"

#define THREADS 1024
#define ALIGNMENT 256
#define QUADS 8 /* of 16 bytes, in which the scores of a page lie */

/* ---- Memory */

static size_t padded(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Returns the selection of all rows, and how many bytes it has. */
static struct selection lay_out(uint8_t *memory, const struct head_view *heads, size_t rows, uint32_t pages, size_t *bytes) {
    const size_t n = rows * heads->kv_heads;
    struct selection to;
    size_t at = 0;
    to.pages = pages;
    to.scores = (uint16_t *)(memory + at), at += padded(n * pages * PAGE_TOKENS * sizeof *to.scores);
    to.best = (uint16_t *)(memory + at), at += padded(n * pages * sizeof *to.best);
    to.listed = (struct read_page *)(memory + at), at += padded(n * pages * sizeof *to.listed);
    to.lists = (struct read_list *)(memory + at), at += padded(n * sizeof *to.lists);
    to.q = (float *)(memory + at), at += padded(n * heads->head_dim * sizeof *to.q);
    *bytes = at;
    return to;
}

size_t selection_bytes(const struct head_view *heads, uint32_t n_rows, uint32_t pages) {
    size_t bytes;
    lay_out(nullptr, heads, n_rows, pages, &bytes);
    return bytes;
}

struct selection selection_at(void *memory, const struct head_view *heads, uint32_t n_rows, uint32_t pages, uint32_t first) {
    size_t bytes;
    struct selection to = lay_out((uint8_t *)memory, heads, n_rows, pages, &bytes);
    const size_t n = (size_t)first * heads->kv_heads;
    to.scores += n * pages * PAGE_TOKENS, to.best += n * pages, to.listed += n * pages;
    to.lists += n, to.q += n * heads->head_dim;
    return to;
}

/* ---- Queries */

static __global__ void mean_queries_kernel(const __grid_constant__ struct select_tokens select) {
    const struct attend_decode &a = select.attend;
    const uint32_t hd = a.heads.head_dim, group = a.heads.query_heads / a.heads.kv_heads,
                   share = blockIdx.y * a.heads.kv_heads + blockIdx.x;
    const float *q = a.q + (size_t)share * group * hd;
    wait_for_kernels();
    let_next_kernel_begin();
    for (uint32_t c = threadIdx.x; c < hd; c += blockDim.x) {
        float sum = 0;
        for (uint32_t g = 0; g < group; g++) sum += q[g * hd + c];
        select.to.q[(size_t)share * hd + c] = sum / (float)group;
    }
}

/* ---- The best */

/* A chooser knows a row and KV head's pages: those of the list that heads share, entry i of which is page set i. */
struct chooser {
    const struct sequence_view *sequence;
    const uint16_t *scores, *best;
    uint32_t first_run;
    uint32_t *runs; /* shared: the largest score of each rope run, then whether its tokens may be chosen */
    bool by_runs;
    const uint64_t *anchored; /* as of struct sequence_view, of the KV head */
    uint32_t n_anchored;

    __device__ const struct page_set_view &set(uint32_t page) const { return sequence->page_sets[page]; }
    __device__ uint32_t run(uint32_t page) const { return set(page).first / ROPE_RUN_TOKENS - first_run; }
    __device__ bool open(uint32_t page) const { return !by_runs || runs[run(page)]; }
    /* Returns the mask of slots that do not have rows of halves in place of codes. */
    __device__ uint64_t coded(uint32_t page) const {
        return page < n_anchored ? ~(anchored[page] & sequence->list.pages[page].live) : READ_ALL;
    }
};

/* Calls each(slot, score) for the tokens of a page, whatever slots it has. */
template <class Each> static __device__ void each_score(const uint16_t *scores, Each each) {
    uint4 quads[QUADS];
#pragma unroll
    for (int i = 0; i < QUADS; i++) quads[i] = __ldcg((const uint4 *)scores + i);
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const uint32_t pairs[4] = {quads[i].x, quads[i].y, quads[i].z, quads[i].w};
#pragma unroll
        for (int j = 0; j < 8; j++) each(8 * i + j, pairs[j / 2] >> j % 2 * 16 & 0xffff);
    }
}

/* Chooses the runs with the best tokens, so many that they may be read. */
static __device__ void open_runs(const chooser &c, uint32_t pages, uint32_t n, uint32_t wanted) {
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) c.runs[i] = 0;
    __syncthreads();
    for (uint32_t page = threadIdx.x; page < pages; page += THREADS)
        if (!c.set(page).generated) atomicMax(&c.runs[c.run(page)], (uint32_t)c.best[page]);
    __syncthreads();
    const least_taken least = find_least_taken<THREADS, 16>([&](uint32_t i) { return c.runs[i]; }, n, min(wanted, n));
    uint32_t equals = 0;
    for (uint32_t first = 0; first < n; first += THREADS) {
        const uint32_t i = first + threadIdx.x, own = i < n ? c.runs[i] : 0;
        const bool equal = i < n && own == least.bits;
        const uint2 before = sum_before<THREADS>(equal);
        if (i < n) c.runs[i] = own > least.bits || (equal && equals + before.x + least.taken >= least.equals);
        equals += before.y;
    }
    __syncthreads();
}

/* Returns the least score that is chosen, of scores that are 1 more. Tokens of runs that are not open have the score 0. */
static __device__ least_taken find_least_score(const chooser &c, uint32_t pages, uint32_t wanted) {
    __shared__ uint32_t counts[256];
    __shared__ least_taken least;
    if (threadIdx.x == 0) least = {0, wanted, 0};
    for (int shift = 8; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += THREADS) counts[i] = 0;
        __syncthreads();
        const uint32_t begins = least.bits >> 8;
        uint32_t closed = 0;
        for (uint32_t page = threadIdx.x; page < pages; page += THREADS) {
            if (c.set(page).generated) continue;
            const uint64_t coded = c.coded(page);
            if (!c.open(page))
                closed += __popcll(coded);
            else
                each_score(c.scores + (size_t)page * PAGE_TOKENS, [&](int slot, uint32_t score) {
                    if ((coded >> slot & 1) && (shift == 8 || score >> 8 == begins)) atomicAdd(&counts[score >> shift & 255], 1u);
                });
        }
        if (closed && (shift == 8 || begins == 0)) atomicAdd(&counts[1 >> shift], closed);
        __syncthreads();
        take_digit(counts, shift, &least);
    }
    const least_taken found = least;
    __syncthreads();
    return found;
}

/* Returns the mask without its n lowest bits. */
static __device__ uint64_t without_lowest(uint64_t mask, uint32_t n) {
    for (; n && mask; n--) mask &= mask - 1;
    return mask;
}

/* Writes the entries of all pages of which any token is read; returns their number. */
static __device__ uint32_t list_pages(const chooser &c, uint32_t pages, const least_taken &least, struct read_page *to) {
    const uint32_t left_out = least.equals - least.taken; /* of equal ones, the first */
    uint32_t equals = 0, n = 0;
    for (uint32_t first = 0; first < pages; first += THREADS) {
        const uint32_t page = first + threadIdx.x;
        uint64_t more = 0, equal = 0;
        if (page < pages && c.set(page).generated)
            more = READ_ALL;
        else if (page < pages && c.open(page))
            each_score(c.scores + (size_t)page * PAGE_TOKENS, [&](int slot, uint32_t score) {
                more |= (uint64_t)(score > least.bits) << slot;
                equal |= (uint64_t)(score == least.bits) << slot;
            });
        else if (page < pages)
            equal = least.bits == 1 ? READ_ALL : 0;
        const uint64_t coded = page < pages ? c.coded(page) : 0;
        more &= coded, equal &= coded;
        const uint2 before = sum_before<THREADS>(__popcll(equal));
        if (equals + before.x < left_out) equal = without_lowest(equal, left_out - equals - before.x);
        const uint64_t live = page < pages ? (more | equal) & c.sequence->list.pages[page].live : 0;
        const uint2 place = sum_before<THREADS>(live != 0);
        if (live) {
            struct read_page entry;
            entry.live = live, entry.page = page;
            to[n + place.x] = entry;
        }
        equals += before.y, n += place.y;
    }
    return n;
}

static __global__ void __launch_bounds__(THREADS) select_tokens_kernel(const __grid_constant__ struct select_tokens select) {
    extern __shared__ __align__(16) uint32_t runs[];
    const struct attend_decode &a = select.attend;
    const struct query_row_view row = a.rows[blockIdx.y];
    const size_t share = (size_t)blockIdx.y * a.heads.kv_heads + blockIdx.x;
    wait_for_kernels();
    chooser c;
    c.sequence = a.sequences + row.sequence;
    if (!c.sequence->own) return;
    const uint32_t pages = c.sequence->list.n_pages;
    c.scores = select.to.scores + share * select.to.pages * PAGE_TOKENS, c.best = select.to.best + share * select.to.pages;
    c.runs = runs, c.by_runs = row.runs_read > 0, c.first_run = c.set(0).first / ROPE_RUN_TOKENS;
    c.n_anchored = c.sequence->anchored ? c.sequence->anchored_pages : 0;
    c.anchored = c.sequence->anchored + ((size_t)a.layer * a.heads.kv_heads + blockIdx.x) * c.n_anchored;
    if (c.by_runs) open_runs(c, pages, c.run(pages - 1) + 1, row.runs_read);
    least_taken least = {0x10000, 0, 0}; /* nothing is chosen */
    if (row.tokens_read) least = find_least_score(c, pages, row.tokens_read);
    struct read_page *listed = select.to.listed + share * select.to.pages;
    const uint32_t n = list_pages(c, pages, least, listed);
    if (threadIdx.x) return;
    struct read_list list = c.sequence->list;
    list.pages = listed, list.n_pages = n;
    select.to.lists[share] = list;
}

cudaError_t select_tokens_launch(const struct select_tokens *select, score_launch *score, cudaStream_t stream) {
    const struct attend_decode *a = &select->attend;
    const dim3 shares(a->heads.kv_heads, a->n_rows);
    const size_t bytes = a->runs * sizeof(uint32_t);
    if (!a->n_rows) return cudaSuccess;
    cudaError_t result = cudaFuncSetAttribute(select_tokens_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result == cudaSuccess) result = launch_early(mean_queries_kernel, shares, dim3(128), 0, stream, *select);
    struct select_tokens means = *select;
    means.attend.q = means.attend.q_exact = select->to.q;
    means.attend.heads.query_heads = a->heads.kv_heads;
    means.attend.shared_lists = true, means.attend.lists_written = false;
    if (result == cudaSuccess) result = score(&means, stream);
    return result == cudaSuccess ? launch_early(select_tokens_kernel, shares, dim3(THREADS), bytes, stream, *select) : result;
}
