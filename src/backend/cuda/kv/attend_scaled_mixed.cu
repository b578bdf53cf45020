/* Implements decoding where keys and values are of different codecs: one kernel serves all pairs and asks at each piece of a page
 * for its codec. A codec that may be mixed is in both lists at the end, and its row names attend_scaled_mixed. Copying is called
 * from many places, so it is not inlined into them. */
#include "backend/cuda/kv/attend_scaled.cuh"
#include "backend/cuda/kv/attend_scaled.h"

/* A side_of_codec reads pages of codec ID as SIDE does. */
template <codec_id ID, class SIDE> struct side_of_codec {
    static constexpr codec_id id = ID;
    using side = SIDE;
};

/* Calls what(side) with the side among FORMS that reads `codec`; there is one. */
template <class FORM, class... FORMS, class WHAT> ATTEND_INLINE auto of_codec(codec_id codec, WHAT what) {
    if constexpr (sizeof...(FORMS) == 0) {
        return what(typename FORM::side());
    } else {
        if (codec == FORM::id) return what(typename FORM::side());
        return of_codec<FORMS...>(codec, what);
    }
}

template <class FORM, class... FORMS> constexpr int largest_slot() {
    if constexpr (sizeof...(FORMS) == 0)
        return FORM::side::slot;
    else
        return larger_of(FORM::side::slot, largest_slot<FORMS...>());
}

template <int HD, int NT, class... FORMS> struct keys_of_any {
    static constexpr int slot = largest_slot<FORMS...>();
    static constexpr bool always_paired = false;
    static ATTEND_INLINE bool paired(codec_id codec) {
        return of_codec<FORMS...>(codec, [=](auto side) { return side.paired(codec); });
    }
    static ATTEND_INLINE int pieces(codec_id codec) {
        return of_codec<FORMS...>(codec, [=](auto side) { return side.pieces(codec); });
    }
    static ATTEND_INLINE float zero_code(codec_id codec) {
        return of_codec<FORMS...>(codec, [=](auto side) { return side.zero_code(codec); });
    }
    static __device__ __noinline__ void copy(codec_id codec, uint32_t to, const uint8_t *page, int piece) {
        of_codec<FORMS...>(codec, [=](auto side) { side.copy(codec, to, page, piece); });
    }
    template <class RING>
    static ATTEND_INLINE void score(codec_id codec, RING &ring, const query_fragments<HD, NT> &q, const query_sums<HD, NT> &sums,
                                    float (&x)[4][NT][4]) {
        of_codec<FORMS...>(codec, [&](auto side) { side.score(codec, ring, q, sums, x); });
    }
};

template <int HD, int NT, class... FORMS> struct values_of_any {
    static constexpr int slot = largest_slot<FORMS...>();
    static constexpr int tiles = HD / 16 + 1;
    static constexpr bool never_sums = false;
    static ATTEND_INLINE int pieces(codec_id codec) {
        return of_codec<FORMS...>(codec, [=](auto side) { return side.pieces(codec); });
    }
    static ATTEND_INLINE bool paired_rows(codec_id codec) {
        return of_codec<FORMS...>(codec, [=](auto side) { return side.paired_rows(codec); });
    }
    static ATTEND_INLINE float unit(codec_id codec, int tile) {
        return of_codec<FORMS...>(codec, [=](auto side) { return side.unit(codec, tile); });
    }
    static ATTEND_INLINE float offset(codec_id codec) {
        return of_codec<FORMS...>(codec, [=](auto side) { return side.offset(codec); });
    }
    static __device__ __noinline__ void copy(codec_id codec, uint32_t to, const uint8_t *page, int piece) {
        of_codec<FORMS...>(codec, [=](auto side) { side.copy(codec, to, page, piece); });
    }
    template <class RING, int TILES>
    static ATTEND_INLINE void accumulate(codec_id codec, RING &ring, bool paired, const uint32_t (&w)[4][NT][2],
                                         float (&acc)[TILES][NT][4]) {
        of_codec<FORMS...>(codec, [&](auto side) { side.accumulate(codec, ring, paired, w, acc); });
    }
};

template <int HD, int NT>
using keys_any = keys_of_any<HD, NT, side_of_codec<CODEC_F16, keys_f16<HD, NT>>, side_of_codec<CODEC_Q8_0, keys_grouped<HD, NT, 8>>,
                             side_of_codec<CODEC_Q4_0, keys_grouped<HD, NT, 4>>, side_of_codec<CODEC_KIVI_4, keys_kivi<HD, NT, 4>>,
                             side_of_codec<CODEC_KIVI_2, keys_kivi<HD, NT, 2>>>;

template <int HD, int NT>
using values_any =
    values_of_any<HD, NT, side_of_codec<CODEC_F16, values_f16<HD, NT>>, side_of_codec<CODEC_Q8_0, values_grouped<HD, NT, 8>>,
                  side_of_codec<CODEC_Q4_0, values_grouped<HD, NT, 4>>, side_of_codec<CODEC_KIVI_4, values_kivi<HD, NT, 4>>,
                  side_of_codec<CODEC_KIVI_2, values_kivi<HD, NT, 2>>>;

cudaError_t attend_scaled_mixed(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_scaled_any<keys_any, values_any>(attend, stream);
}
