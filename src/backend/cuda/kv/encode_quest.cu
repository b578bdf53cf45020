/* Writes pages of the index quest: the least and the largest number of each channel of 16 keys at a time (backend/cpu/codec/index_quest.c).
 * Rows are halves, so that bounds are exact. A block takes a page, a thread every PAGE_THREADS-th channel. */
#include "backend/cuda/kv/encode_rows.cuh"

#define LARGEST 65504.0f

/* Limits a number to those that are finite; NaN becomes 0. */
static __device__ float bounded(float x) { return x > LARGEST ? LARGEST : x < -LARGEST ? -LARGEST : x == x ? x : 0; }

static __global__ void __launch_bounds__(PAGE_THREADS) encode_quest_kernel(struct encode e) {
    const uint32_t hd = e.heads.head_dim;
    const struct page_job job = job_of_block(e, encode_sides{CODEC_KEYS, 1});
    const struct place_view *place = places_of(e, *job.item) + job.place;
    unsigned short *page = (unsigned short *)index_address(&job.item->set, place, e.index_bytes);
    for (uint32_t c = threadIdx.x; c < hd; c += PAGE_THREADS) {
        for (uint32_t first = 0; first < PAGE_TOKENS; first += QUEST_PAGE_TOKENS) {
            float least = LARGEST, most = -LARGEST;
            for (uint32_t t = first; t < min(first + QUEST_PAGE_TOKENS, job.count); t++) {
                const float x = bounded(__half2float(job.rows[t * e.token_stride + c]));
                least = x < least ? x : least;
                most = x > most ? x : most;
            }
            unsigned short *to = page + first / QUEST_PAGE_TOKENS * 2 * hd + c;
            to[0] = first < job.count ? __half_as_ushort(__float2half_rn(least)) : 0;
            to[hd] = first < job.count ? __half_as_ushort(__float2half_rn(most)) : 0;
        }
    }
}

cudaError_t encode_index_quest(const struct encode *encode, cudaStream_t stream) {
    if (!encode->n || !encode->n_layers) return cudaSuccess;
    encode_quest_kernel<<<encode_grid(encode, encode_sides{CODEC_KEYS, 1}), PAGE_THREADS, 0, stream>>>(*encode);
    return cudaGetLastError();
}
