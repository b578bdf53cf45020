/* Implements product quantization with NEON (AArch64): has the parameters of pq/template.h. */
#include "backend/cpu/kernels/lanes/neon.h"
#include "backend/cpu/kernels/pq/init.h"

typedef uint16x8_t wide;
#define WIDE_PARTS 1

static inline wide wide_load(const uint16_t *x) { return vld1q_u16(x); }
static inline void wide_store(uint16_t *to, wide x) { vst1q_u16(to, x); }
static inline wide wide_low_16(wide a, wide b) { return vzip1q_u16(a, b); }
static inline wide wide_high_16(wide a, wide b) { return vzip2q_u16(a, b); }

static inline wide wide_low_32(wide a, wide b) {
    return vreinterpretq_u16_u32(vzip1q_u32(vreinterpretq_u32_u16(a), vreinterpretq_u32_u16(b)));
}

static inline wide wide_high_32(wide a, wide b) {
    return vreinterpretq_u16_u32(vzip2q_u32(vreinterpretq_u32_u16(a), vreinterpretq_u32_u16(b)));
}

static inline wide wide_low_64(wide a, wide b) {
    return vreinterpretq_u16_u64(vzip1q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}

static inline wide wide_high_64(wide a, wide b) {
    return vreinterpretq_u16_u64(vzip2q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}

#include "backend/cpu/kernels/pq/template.h"

void pq_init_neon(struct pq_ops *ops) { fill_pq(ops); }
