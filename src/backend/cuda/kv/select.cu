/* Finds the best scores, and writes the lists of the pages that have them. A CTA takes a part of the pages of a row and KV head, and eight
 * threads a page. */
#include "backend/cuda/kv/select.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/select_largest.cuh"

#define THREADS 512
#define RESIDENT 3 /* CTAs of a multiprocessor */
#define OF_PAGE 8  /* threads that take a page, each 16 bytes of its scores */
#define MOST_PARTS 16
#define PART_PAGES 32 /* of a part, at least: of fewer, its fixed costs would be most of its time */
#define ALIGNMENT 256

/* Three kernels take the scores, of which each CTA has the same part of the pages: the first counts upper bytes, the second lower ones
 * of scores with the upper byte of the least that is chosen, the third lists. A part's counts stand by themselves, so that later
 * parts know of how many equal scores come before theirs. */
struct selection_state {
    least_taken upper;           /* the upper byte of the least score that is chosen */
    uint32_t begun;              /* parts that are being listed */
    uint32_t listed[MOST_PARTS]; /* 1 more than the pages that a part lists; 0: they are not known yet */
};

#define COUNTS 512 /* of a part: by upper byte, then by lower byte */

/* ---- Memory */

static size_t padded(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Returns the selection of all rows, and how many bytes it has. */
static struct selection lay_out(uint8_t *memory, const struct head_view *heads, size_t rows, uint32_t pages, size_t *bytes) {
    const size_t n = rows * heads->kv_heads;
    struct selection to;
    size_t at = 0;
    to.pages = pages;
    to.parts = pages < PART_PAGES ? 1 : pages / PART_PAGES < MOST_PARTS ? pages / PART_PAGES : MOST_PARTS;
    to.scores = (uint16_t *)(memory + at), at += padded(n * pages * PAGE_TOKENS * sizeof *to.scores);
    to.best = (uint16_t *)(memory + at), at += padded(n * pages * sizeof *to.best);
    to.listed = (struct read_page *)(memory + at), at += padded(n * pages * sizeof *to.listed);
    to.lists = (struct read_list *)(memory + at), at += padded(n * sizeof *to.lists);
    to.live = (uint64_t *)(memory + at), at += padded(n * pages * sizeof *to.live);
    to.closed = memory + at, at += padded(n * pages);
    to.counts = (uint32_t *)(memory + at), at += padded(n * to.parts * COUNTS * sizeof *to.counts);
    to.states = (struct selection_state *)(memory + at), at += padded(n * sizeof *to.states);
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
    to.live += n * pages, to.closed += n * pages, to.counts += n * to.parts * COUNTS, to.states += n;
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

/* A chooser knows a part of a row and KV head's pages: those of the list that heads share, entry i of which is page set i. */
struct chooser {
    const struct sequence_view *sequence;
    const struct page_set_view *sets;
    const struct read_page *list; /* the list's entries */
    size_t share;                 /* the number among all rows and KV heads */
    uint32_t tokens_read, runs_read, pages, part, first, end;
    const uint16_t *scores;   /* of all pages, as those below */
    uint8_t *closed;          /* not 0: a page's rope run may not be read; of rows that choose among runs */
    const uint64_t *anchored; /* as of struct sequence_view, of the KV head */
    uint32_t n_anchored;

    /* Returns whether the row chooses, once earlier kernels have ended. What it reads before is the same from step to step, or comes with the row. */
    __device__ bool begin(const struct select_tokens &select) {
        const struct attend_decode &a = select.attend;
        const struct query_row_view row = a.rows[blockIdx.y];
        sequence = a.sequences + row.sequence, share = (size_t)blockIdx.y * a.heads.kv_heads + blockIdx.x;
        sets = sequence->page_sets, list = sequence->list.pages;
        tokens_read = row.tokens_read, runs_read = row.runs_read, pages = sequence->list.n_pages;
        scores = select.to.scores + share * select.to.pages * PAGE_TOKENS, closed = select.to.closed + share * select.to.pages;
        n_anchored = sequence->anchored ? sequence->anchored_pages : 0;
        anchored = sequence->anchored + ((size_t)a.layer * a.heads.kv_heads + blockIdx.x) * n_anchored;
        take_part(blockIdx.z);
        const bool chooses = sequence->own != nullptr;
        wait_for_kernels();
        let_next_kernel_begin();
        return chooses;
    }
    __device__ void take_part(uint32_t number) {
        part = number;
        first = (uint32_t)((uint64_t)pages * part / gridDim.z), end = (uint32_t)((uint64_t)pages * (part + 1) / gridDim.z);
    }
    __device__ bool is_closed(uint32_t page) const { return runs_read && closed[page]; }
    /* Returns the mask of slots that do not have rows of halves in place of codes. */
    __device__ uint64_t coded(uint32_t page) const { return page < n_anchored ? ~(anchored[page] & list[page].live) : READ_ALL; }
    /* Returns the scores of the thread's eight tokens of a page. */
    __device__ uint4 own_scores(uint32_t page) const {
        return __ldcg((const uint4 *)(scores + (size_t)page * PAGE_TOKENS) + threadIdx.x % OF_PAGE);
    }
    /* Returns the counts of a part, of which there are as many as CTAs. */
    __device__ uint32_t *counts(const struct selection &to, uint32_t of) const {
        return to.counts + (share * to.parts + of) * COUNTS;
    }
};

/* Calls each(i, score) for eight scores. */
template <class Each> static __device__ void each_score(const uint4 &x, Each each) {
    const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 8; i++) each(i, pairs[i / 2] >> i % 2 * 16 & 0xffff);
}

/* Chooses the runs with the best tokens, so many that they may be read, and says of the part's pages whether theirs is not among them. runs[] is
 * shared memory: the largest score of each run, then whether it is chosen. */
static __device__ void choose_runs(const chooser &c, const uint16_t *best, uint32_t *runs) {
    const uint32_t first_run = c.sets[0].first / ROPE_RUN_TOKENS;
    const auto run_of = [&](uint32_t page) { return c.sets[page].first / ROPE_RUN_TOKENS - first_run; };
    const uint32_t n = run_of(c.pages - 1) + 1;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) runs[i] = 0;
    __syncthreads();
    for (uint32_t page = threadIdx.x; page < c.pages; page += THREADS)
        if (!c.sets[page].generated) atomicMax(&runs[run_of(page)], (uint32_t)best[page]);
    __syncthreads();
    const least_taken least = find_least_taken<THREADS, 16>([&](uint32_t i) { return runs[i]; }, n, min(c.runs_read, n));
    uint32_t equals = 0;
    for (uint32_t first = 0; first < n; first += THREADS) {
        const uint32_t i = first + threadIdx.x, own = i < n ? runs[i] : 0;
        const bool equal = i < n && own == least.bits;
        const uint2 before = sum_before<THREADS>(equal);
        if (i < n) runs[i] = own > least.bits || (equal && equals + before.x + least.taken >= least.equals);
        equals += before.y;
    }
    __syncthreads();
    for (uint32_t page = c.first + threadIdx.x; page < c.end; page += THREADS) c.closed[page] = !runs[run_of(page)];
    __syncthreads();
}

/* Counts a byte of the part's scores, from bit SHIFT on; the lower one of those alone whose upper byte is `upper`. Scores are 1 more, and of tokens
 * whose runs are closed 0 and so 1. */
template <int SHIFT> static __device__ void count_bytes(const chooser &c, uint32_t upper, uint32_t *to) {
    __shared__ uint32_t counts[256];
    uint32_t closed = 0;
    for (uint32_t i = threadIdx.x; i < 256; i += THREADS) counts[i] = 0;
    __syncthreads();
    for (uint32_t page = c.first + threadIdx.x / OF_PAGE; page < c.end; page += THREADS / OF_PAGE) {
        const uint4 scores = c.own_scores(page); /* asked for beside what says whether they count */
        if (c.sets[page].generated) continue;
        const uint32_t coded = (uint32_t)(c.coded(page) >> 8 * (threadIdx.x % OF_PAGE)) & 255;
        if (c.is_closed(page))
            closed += __popc(coded);
        else
            each_score(scores, [&](int i, uint32_t score) {
                if ((coded >> i & 1) && (SHIFT == 8 || score >> 8 == upper)) atomicAdd(&counts[score >> SHIFT & 255], 1u);
            });
    }
    if (closed && (SHIFT == 8 || upper == 0)) atomicAdd(&counts[1 >> SHIFT], closed);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 256; i += THREADS) to[i] = counts[i];
}

/* Takes the byte from bit `shift` on that the counts of all parts give; `counts` are those of part 0. */
static __device__ void take_byte(const uint32_t *counts, int shift, least_taken *least) {
    __shared__ uint32_t sums[256];
    for (uint32_t i = threadIdx.x; i < 256; i += THREADS) {
        uint32_t sum = 0;
#pragma unroll 8
        for (uint32_t part = 0; part < gridDim.z; part++) sum += __ldcg(counts + part * COUNTS + i);
        sums[i] = sum;
    }
    __syncthreads();
    take_digit(sums, shift, least);
}

static __global__ void __launch_bounds__(THREADS, RESIDENT)
    count_upper_kernel(const __grid_constant__ struct select_tokens select) {
    extern __shared__ __align__(16) uint32_t runs[];
    chooser c;
    const bool chooses = c.begin(select);
    if (!chooses) return;
    struct selection_state &state = select.to.states[c.share];
    if (c.part == 0) {
        if (threadIdx.x == 0) state.begun = 0;
        if (threadIdx.x < MOST_PARTS) state.listed[threadIdx.x] = 0;
    }
    if (!c.tokens_read) return;
    if (c.runs_read && c.pages) choose_runs(c, select.to.best + c.share * select.to.pages, runs);
    count_bytes<8>(c, 0, c.counts(select.to, c.part));
}

static __global__ void __launch_bounds__(THREADS, RESIDENT)
    count_lower_kernel(const __grid_constant__ struct select_tokens select) {
    __shared__ least_taken least;
    chooser c;
    const bool chooses = c.begin(select);
    if (!chooses || !c.tokens_read) return;
    if (threadIdx.x == 0) least = {0, c.tokens_read, 0};
    take_byte(c.counts(select.to, 0), 8, &least);
    if (threadIdx.x == 0 && c.part == 0) select.to.states[c.share].upper = least;
    count_bytes<0>(c, least.bits >> 8, c.counts(select.to, c.part) + 256);
}

/* Returns the mask without its n lowest bits. */
static __device__ uint64_t without_lowest(uint64_t mask, uint32_t n) {
    for (; n && mask; n--) mask &= mask - 1;
    return mask;
}

/* Returns a mask of a page from its threads' eight bits. */
static __device__ uint64_t whole_page(uint32_t own) {
    uint32_t low = threadIdx.x % OF_PAGE < 4 ? own << 8 * (threadIdx.x % 4) : 0,
             high = threadIdx.x % OF_PAGE < 4 ? 0 : own << 8 * (threadIdx.x % 4);
    for (int o = 1; o < OF_PAGE; o *= 2) {
        low |= __shfl_xor_sync(0xffffffffu, low, o);
        high |= __shfl_xor_sync(0xffffffffu, high, o);
    }
    return (uint64_t)high << 32 | low;
}

/* Writes which tokens of the part's pages are read, live[page]; returns of how many pages any is. Of equal scores the first `left_out` are not
 * taken. */
static __device__ uint32_t find_live(const chooser &c, uint32_t least, uint32_t left_out, uint64_t *live) {
    uint32_t equals = 0, own = 0;
    for (uint32_t first = c.first; first < c.end; first += THREADS / OF_PAGE) {
        const uint32_t page = first + threadIdx.x / OF_PAGE;
        const uint4 scores = c.own_scores(min(page, c.end - 1));
        const bool there = page < c.end, generated = there && c.sets[page].generated,
                   closed = there && !generated && c.is_closed(page);
        uint32_t above = generated ? 255 : 0, same = closed && least == 1 ? 255 : 0;
        if (there && !generated && !closed)
            each_score(scores, [&](int i, uint32_t score) {
                above |= (uint32_t)(score > least) << i;
                same |= (uint32_t)(score == least) << i;
            });
        const uint64_t coded = there ? c.coded(page) : 0, more = whole_page(above) & coded;
        uint64_t equal = whole_page(same) & coded;
        const bool writes = there && threadIdx.x % OF_PAGE == 0;
        if (equals < left_out) { /* the same in all threads */
            const uint2 before = sum_before<THREADS>(writes ? __popcll(equal) : 0);
            if (equals + before.x < left_out) equal = without_lowest(equal, left_out - equals - before.x);
            equals += before.y;
        }
        if (writes) {
            const uint64_t read = (more | equal) & c.list[page].live;
            live[page] = read, own += read != 0;
        }
    }
    return sum_before<THREADS>(own).y; /* before which all of live[] is written */
}

/* Says how many pages the part lists, and returns how many earlier parts do. These have begun before it: it waits for no CTA that may not
 * run. */
static __device__ uint32_t listed_before(struct selection_state &state, uint32_t part, uint32_t n) {
    __shared__ uint32_t sum;
    if (threadIdx.x < 32) {
        uint32_t before = 0;
        if (threadIdx.x == 0) atomicExch(&state.listed[part], n + 1);
        for (uint32_t i = threadIdx.x; i < part; i += 32) {
            uint32_t own;
            while (!(own = atomicAdd(&state.listed[i], 0u)))
                ;
            before += own - 1;
        }
        for (int o = 16; o; o /= 2) before += __shfl_xor_sync(0xffffffffu, before, o);
        if (threadIdx.x == 0) sum = before;
    }
    __syncthreads();
    return sum;
}

/* Writes the entries of the part's pages of which any token is read. CTAs take parts in the order in which they begin. */
static __global__ void __launch_bounds__(THREADS, RESIDENT) list_pages_kernel(const __grid_constant__ struct select_tokens select) {
    __shared__ least_taken least;
    __shared__ uint32_t part, equals_before;
    chooser c;
    const bool chooses = c.begin(select);
    if (!chooses) return;
    struct selection_state &state = select.to.states[c.share];
    if (threadIdx.x == 0) {
        part = atomicAdd(&state.begun, 1u), equals_before = 0;
        least = {0x10000, 0, 0}; /* nothing is chosen */
        if (c.tokens_read) least = state.upper;
    }
    __syncthreads();
    c.take_part(part);
    if (c.tokens_read) {
        const uint32_t *const lower = c.counts(select.to, 0) + 256;
        take_byte(lower, 0, &least);
        if (threadIdx.x < c.part) atomicAdd(&equals_before, __ldcg(lower + threadIdx.x * COUNTS + (least.bits & 255)));
        __syncthreads();
    }
    const uint32_t left_out = least.equals - least.taken, before = min(equals_before, left_out); /* of equal ones, the first */
    uint64_t *const live = select.to.live + c.share * select.to.pages;
    const uint32_t n = find_live(c, least.bits, left_out - before, live);
    const uint32_t others = listed_before(state, c.part, n);
    struct read_page *const listed = select.to.listed + c.share * select.to.pages;
    uint32_t place = others;
    for (uint32_t first = c.first; first < c.end; first += THREADS) {
        const uint32_t page = first + threadIdx.x;
        const uint64_t read = page < c.end ? live[page] : 0;
        const uint2 to = sum_before<THREADS>(read != 0);
        if (read) {
            struct read_page entry;
            entry.live = read, entry.page = page;
            listed[place + to.x] = entry;
        }
        place += to.y;
    }
    if (threadIdx.x || c.part + 1 < gridDim.z) return;
    struct read_list list = c.sequence->list;
    list.pages = listed, list.n_pages = others + n;
    select.to.lists[c.share] = list;
}

/* Returns in how many parts the pages are taken: at most as many as the device holds CTAs of, so that all run at once. */
static unsigned parts_of(const struct select_tokens *select, unsigned shares) {
    const unsigned held = RESIDENT * (unsigned)device_attribute(cudaDevAttrMultiProcessorCount);
    return held / shares < 1 ? 1 : held / shares < select->to.parts ? held / shares : select->to.parts;
}

cudaError_t select_tokens_launch(const struct select_tokens *select, score_launch *score, cudaStream_t stream) {
    const struct attend_decode *a = &select->attend;
    const dim3 shares(a->heads.kv_heads, a->n_rows);
    const size_t bytes = a->runs * sizeof(uint32_t);
    if (!a->n_rows) return cudaSuccess;
    cudaError_t result = cudaFuncSetAttribute(count_upper_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result == cudaSuccess) result = launch_early(mean_queries_kernel, shares, dim3(128), 0, stream, *select);
    struct select_tokens means = *select;
    means.attend.q = means.attend.q_exact = select->to.q;
    means.attend.heads.query_heads = a->heads.kv_heads;
    means.attend.shared_lists = true, means.attend.lists_written = false;
    if (result == cudaSuccess) result = score(&means, stream);
    const dim3 parts(shares.x, shares.y, parts_of(select, shares.x * shares.y));
    if (result == cudaSuccess) result = launch_early(count_upper_kernel, parts, dim3(THREADS), bytes, stream, *select);
    if (result == cudaSuccess) result = launch_early(count_lower_kernel, parts, dim3(THREADS), 0, stream, *select);
    return result == cudaSuccess ? launch_early(list_pages_kernel, parts, dim3(THREADS), 0, stream, *select) : result;
}
