/* Decoding where keys and values are of different codecs: one kernel for all pairs, which asks at each piece of a page what it is.
 * Copying is called from many places, so it is no part of them. */
#include "backend/cuda/kv/attend_scaled.cuh"
#include "backend/cuda/kv/attend_scaled.h"

/* Calls `what` of a side's codec. */
#define OF_CODEC(codec, f16, grouped, kivi, what) \
    switch (codec) { \
    case CODEC_F16: return f16<HD, NT>::what; \
    case CODEC_Q8_0: return grouped<HD, NT, 8>::what; \
    case CODEC_Q4_0: return grouped<HD, NT, 4>::what; \
    case CODEC_KIVI_4: return kivi<HD, NT, 4>::what; \
    default: return kivi<HD, NT, 2>::what; \
    }
#define OF_KEYS(what) OF_CODEC(codec, keys_f16, keys_grouped, keys_kivi, what)
#define OF_VALUES(what) OF_CODEC(codec, values_f16, values_grouped, values_kivi, what)

template <int HD, int NT> struct keys_any {
    static constexpr int slot =
        larger_of(larger_of(keys_f16<HD, NT>::slot, larger_of(keys_grouped<HD, NT, 8>::slot, keys_grouped<HD, NT, 4>::slot)),
                  larger_of(keys_kivi<HD, NT, 4>::slot, keys_kivi<HD, NT, 2>::slot));
    static constexpr bool always_paired = false;
    static ATTEND_INLINE bool paired(codec_id codec) { return codec != CODEC_F16; }
    static ATTEND_INLINE int pieces(codec_id codec) { OF_KEYS(pieces(codec)) }
    static ATTEND_INLINE float zero_code(codec_id codec) { OF_KEYS(zero_code(codec)) }
    static __device__ __noinline__ void copy(codec_id codec, uint32_t to, const uint8_t *page, int piece) {
        OF_KEYS(copy(codec, to, page, piece))
    }
    template <class RING>
    static ATTEND_INLINE void score(codec_id codec, RING &ring, const query_fragments<HD, NT> &q, const query_sums<HD, NT> &sums,
                                    float (&x)[4][NT][4]) {
        OF_KEYS(score(codec, ring, q, sums, x))
    }
};

template <int HD, int NT> struct values_any {
    static constexpr int slot =
        larger_of(larger_of(values_f16<HD, NT>::slot, larger_of(values_grouped<HD, NT, 8>::slot, values_grouped<HD, NT, 4>::slot)),
                  larger_of(values_kivi<HD, NT, 4>::slot, values_kivi<HD, NT, 2>::slot));
    static constexpr int tiles = HD / 16 + 1;
    static constexpr bool never_sums = false;
    static ATTEND_INLINE int pieces(codec_id codec) { OF_VALUES(pieces(codec)) }
    static ATTEND_INLINE bool paired_rows(codec_id codec) { return codec != CODEC_F16; }
    static ATTEND_INLINE float unit(codec_id codec, int tile) { OF_VALUES(unit(codec, tile)) }
    static ATTEND_INLINE float offset(codec_id codec) { OF_VALUES(offset(codec)) }
    static __device__ __noinline__ void copy(codec_id codec, uint32_t to, const uint8_t *page, int piece) {
        OF_VALUES(copy(codec, to, page, piece))
    }
    template <class RING, int TILES>
    static ATTEND_INLINE void accumulate(codec_id codec, RING &ring, bool paired, const uint32_t (&w)[4][NT][2],
                                         float (&acc)[TILES][NT][4]) {
        OF_VALUES(accumulate(codec, ring, paired, w, acc))
    }
};

cudaError_t attend_scaled_mixed(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_scaled_any<keys_any, values_any>(attend, stream);
}
