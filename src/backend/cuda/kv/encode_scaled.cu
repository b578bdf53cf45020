/* Writes and reads pages of halves and of integers with scales: f16, q8_0, q4_0, kivi. The results are those of the CPU's codecs,
 * bit for bit: operations on floats stand here in the same order, each rounded by itself. */
#include "backend/cuda/kv/encode_rows.cuh"

/* ---- f16 */

static __device__ void write_f16(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, stride = rows_stride(hd);
    uint4 *page = (uint4 *)job.page;
    if (job.side == CODEC_VALUES) {
        each_chunk(hd, PAGE_TOKENS, [&](uint32_t t, uint32_t j) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (t < job.count) x = *(const uint4 *)(job.rows + t * e.token_stride + ROW_CHUNK * j);
            page[t * (hd / ROW_CHUNK) + j] = x;
        });
        return;
    }
    load_rows(e, job, rows);
    each_octet(hd, [&](uint32_t c, uint32_t octet) {
        uint32_t words[4];
        for (uint32_t k = 0; k < 4; k++)
            words[k] = half_at(rows, stride, 8 * octet + 2 * k, c) | half_at(rows, stride, 8 * octet + 2 * k + 1, c) << 16;
        page[c * 8 + octet] = make_uint4(words[0], words[1], words[2], words[3]);
    });
}

static __device__ void read_f16(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, stride = rows_stride(hd);
    const uint4 *page = (const uint4 *)job.page;
    if (job.side == CODEC_VALUES) {
        each_chunk(hd, job.count, [&](uint32_t t, uint32_t j) {
            *(uint4 *)(job.rows + t * e.token_stride + ROW_CHUNK * j) = page[t * (hd / ROW_CHUNK) + j];
        });
        return;
    }
    each_octet(hd, [&](uint32_t c, uint32_t octet) {
        const uint4 x = page[c * 8 + octet];
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
        uint32_t halves[8];
        for (uint32_t k = 0; k < 8; k++) halves[k] = words[k / 2] >> (k % 2 * 16) & 0xffff;
        put_channel(rows, stride, c, octet, halves);
    });
    store_rows(e, job, rows);
}

/* ---- q8_0 and q4_0: 32 channels of a token share a scale */

static __device__ uint32_t round_q8_0(float x) {
    const float magnitude = fabsf(x) <= 127.0f ? fabsf(x) : 127.0f;
    int whole = (int)magnitude;
    whole += __fsub_rn(magnitude, (float)whole) >= 0.5f;
    return (uint32_t)(x < 0 ? -whole : whole) & 0xff;
}

static __device__ void write_q8_0(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, groups = hd / SCALE_GROUP, stride = rows_stride(hd);
    unsigned short *scale = (unsigned short *)job.page;
    uint8_t *codes = (uint8_t *)(scale + groups * PAGE_TOKENS);
    load_rows(e, job, rows);
    each_group(groups, job.side, [&](uint32_t t, uint32_t b) {
        uint32_t words[16], packed[8] = {0};
        load_group(rows, stride, t, b, words);
        const float d = __fdiv_rn(fabsf(group_extreme(words)), 127), inverse = d != 0 ? __fdiv_rn(1, d) : 0;
        scale[b * PAGE_TOKENS + t] = (unsigned short)to_half(d);
#pragma unroll
        for (uint32_t j = 0; j < 32; j++) packed[j / 4] |= round_q8_0(__fmul_rn(group_number(words, j), inverse)) << (j % 4 * 8);
        if (job.side == CODEC_VALUES) {
            uint4 *to = (uint4 *)(codes + t * hd + b * SCALE_GROUP);
            to[0] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
            to[1] = make_uint4(packed[4], packed[5], packed[6], packed[7]);
        } else {
#pragma unroll
            for (uint32_t j = 0; j < 32; j++)
                codes[(b * SCALE_GROUP + j) * PAGE_TOKENS + t] = (uint8_t)(packed[j / 4] >> (j % 4 * 8));
        }
    });
}

static __device__ uint32_t number_q8_0(uint32_t code, float d) { return to_half(__fmul_rn((float)(int8_t)code, d)); }

static __device__ void read_q8_0(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, groups = hd / SCALE_GROUP, stride = rows_stride(hd);
    const unsigned short *scale = (const unsigned short *)job.page;
    const uint2 *codes = (const uint2 *)(scale + groups * PAGE_TOKENS);
    if (job.side == CODEC_VALUES) {
        each_chunk(hd, job.count, [&](uint32_t t, uint32_t j) {
            const uint2 bytes = codes[t * (hd / 8) + j];
            const float d = to_float(scale[j / 4 * PAGE_TOKENS + t]);
            uint32_t halves[8];
            for (uint32_t k = 0; k < 8; k++) halves[k] = number_q8_0(byte_of(bytes, k), d);
            store_chunk(e, job, t, j, halves);
        });
        return;
    }
    each_octet(hd, [&](uint32_t c, uint32_t octet) {
        const uint2 bytes = codes[c * 8 + octet];
        const unsigned short *d = scale + c / SCALE_GROUP * PAGE_TOKENS + 8 * octet;
        uint32_t halves[8];
        for (uint32_t k = 0; k < 8; k++) halves[k] = number_q8_0(byte_of(bytes, k), to_float(d[k]));
        put_channel(rows, stride, c, octet, halves);
    });
    store_rows(e, job, rows);
}

static __device__ uint32_t round_q4_0(float x, float inverse) {
    const float code = (float)__fma_rn((double)x, (double)inverse, 8.5); /* the product of two floats is exact */
    return code < 15.0f ? (uint32_t)(int)(code > 0 ? code : 0) : 15;
}

static __device__ void write_q4_0(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, groups = hd / SCALE_GROUP, stride = rows_stride(hd);
    unsigned short *scale = (unsigned short *)job.page;
    uint8_t *codes = (uint8_t *)(scale + groups * PAGE_TOKENS);
    load_rows(e, job, rows);
    each_group(groups, job.side, [&](uint32_t t, uint32_t b) {
        uint32_t words[16], packed[4] = {0};
        load_group(rows, stride, t, b, words);
        const float d = group_extreme(words) * -0.125f, inverse = d != 0 ? __fdiv_rn(1, d) : 0;
        const bool holds = t < job.count; /* else all is 0, the codes too */
        scale[b * PAGE_TOKENS + t] = (unsigned short)(holds ? to_half(d) : 0);
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            const uint32_t byte = round_q4_0(group_number(words, j), inverse) | round_q4_0(group_number(words, j + 16), inverse)
                                                                                    << 4;
            packed[j / 4] |= (holds ? byte : 0) << (j % 4 * 8);
        }
        if (job.side == CODEC_VALUES) {
            *(uint4 *)(codes + (t * groups + b) * 16) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
        } else {
#pragma unroll
            for (uint32_t j = 0; j < 16; j++) codes[(b * 16 + j) * PAGE_TOKENS + t] = (uint8_t)(packed[j / 4] >> (j % 4 * 8));
        }
    });
}

/* Returns the number of a byte's low four bits, or of the high ones. */
static __device__ uint32_t number_q4_0(uint32_t byte, bool high, float d) {
    return to_half(__fmul_rn((float)((int)(byte >> (high ? 4 : 0) & 15) - 8), d));
}

static __device__ void read_q4_0(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, groups = hd / SCALE_GROUP, stride = rows_stride(hd);
    const unsigned short *scale = (const unsigned short *)job.page;
    const uint2 *codes = (const uint2 *)(scale + groups * PAGE_TOKENS);
    if (job.side == CODEC_VALUES) {
        each_chunk(hd, job.count, [&](uint32_t t, uint32_t j) {
            const uint32_t b = j / 4;
            const uint2 bytes = codes[(t * groups + b) * 2 + j % 2];
            const float d = to_float(scale[b * PAGE_TOKENS + t]);
            uint32_t halves[8];
            for (uint32_t k = 0; k < 8; k++) halves[k] = number_q4_0(byte_of(bytes, k), j % 4 >= 2, d);
            store_chunk(e, job, t, j, halves);
        });
        return;
    }
    each_octet(hd / 2, [&](uint32_t row, uint32_t octet) { /* two channels each */
                                                           const uint32_t b = row / 16, c = b * SCALE_GROUP + row % 16;
                                                           const uint2 bytes = codes[row * 8 + octet];
                                                           const unsigned short *d = scale + b * PAGE_TOKENS + 8 * octet;
                                                           uint32_t halves[8];
                                                           for (uint32_t k = 0; k < 8; k++)
                                                               halves[k] = number_q4_0(byte_of(bytes, k), false, to_float(d[k]));
                                                           put_channel(rows, stride, c, octet, halves);
                                                           for (uint32_t k = 0; k < 8; k++)
                                                               halves[k] = number_q4_0(byte_of(bytes, k), true, to_float(d[k]));
                                                           put_channel(rows, stride, c + 16, octet, halves);
    });
    store_rows(e, job, rows);
}

/* ---- kivi: keys by channel and 32 tokens, values by token and 32 channels */

template <int BITS> static __device__ void write_kivi_keys(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    constexpr uint32_t BYTES = PAGE_TOKENS * BITS / 8; /* of a channel: byte j holds tokens j, j + BYTES, ... */
    const uint32_t hd = e.heads.head_dim, stride = rows_stride(hd);
    unsigned short *scale = (unsigned short *)job.page, *zero = scale + 2 * hd;
    uint4 *codes = (uint4 *)(zero + 2 * hd);
    load_rows(e, job, rows);
    for (uint32_t c = threadIdx.x; c < hd; c += PAGE_THREADS) {
        uint32_t packed[BYTES / 4] = {0};
#pragma unroll
        for (uint32_t g = 0; g < 2; g++) {
            const uint32_t first = g * SCALE_GROUP, n = job.count > first ? min(job.count - first, (uint32_t)SCALE_GROUP) : 0;
            const auto x = [&](uint32_t i) { return to_float(half_at(rows, stride, first + i, c)); };
            const struct kivi_group group = kivi_fit<BITS>(n, x);
            scale[g * hd + c] = (unsigned short)group.scale;
            zero[g * hd + c] = (unsigned short)group.zero;
#pragma unroll
            for (uint32_t i = 0; i < SCALE_GROUP; i++) {
                const uint32_t t = first + i, at = t % BYTES, code = i < n ? kivi_code<BITS>(group, x(i)) : 0;
                packed[at / 4] |= code << (at % 4 * 8 + t / BYTES * BITS);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < BYTES / 16; k++)
            codes[c * (BYTES / 16) + k] = make_uint4(packed[4 * k], packed[4 * k + 1], packed[4 * k + 2], packed[4 * k + 3]);
    }
}

template <int BITS> static __device__ void write_kivi_values(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    load_rows(e, job, rows);
    write_kivi_tokens<BITS>(e.heads.head_dim, job.count, rows, (uint32_t *)job.page,
                            [](const uint32_t *words, uint32_t, uint32_t i) { return group_number(words, i); });
}

static __device__ uint32_t number_kivi(uint32_t code, float scale, float zero) {
    return to_half(__fadd_rn(zero, __fmul_rn(scale, (float)code)));
}

template <int BITS> static __device__ void read_kivi_keys(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    constexpr uint32_t BYTES = PAGE_TOKENS * BITS / 8, MASK = (1 << BITS) - 1;
    const uint32_t hd = e.heads.head_dim, stride = rows_stride(hd);
    const unsigned short *scale = (const unsigned short *)job.page, *zero = scale + 2 * hd;
    const uint2 *codes = (const uint2 *)(zero + 2 * hd);
    each_octet(hd, [&](uint32_t c, uint32_t octet) {
        const uint2 bytes = codes[(c * BYTES + 8 * octet % BYTES) / 8];
        const uint32_t shift = 8 * octet / BYTES * BITS, at = octet / 4 * hd + c;
        const float s = to_float(scale[at]), z = to_float(zero[at]);
        uint32_t halves[8];
        for (uint32_t k = 0; k < 8; k++) halves[k] = number_kivi(byte_of(bytes, k) >> shift & MASK, s, z);
        put_channel(rows, stride, c, octet, halves);
    });
    store_rows(e, job, rows);
}

template <int BITS> static __device__ void read_kivi_values(const struct encode &e, const struct page_job &job) {
    const uint32_t hd = e.heads.head_dim, groups = hd / SCALE_GROUP, words_of_row = hd * BITS / 32, mask = (1 << BITS) - 1;
    const uint32_t *page = (const uint32_t *)job.page;
    each_chunk(hd, job.count, [&](uint32_t t, uint32_t j) {
        const uint32_t *token = page + t * (words_of_row + groups), word = 2 * j % words_of_row,
                       shift = 2 * j / words_of_row * BITS;
        const uint2 bytes = make_uint2(token[word], token[word + 1]);
        const uint32_t pair = token[words_of_row + j / 4];
        const float s = to_float(pair & 0xffff), z = to_float(pair >> 16);
        uint32_t halves[8];
        for (uint32_t k = 0; k < 8; k++) halves[k] = number_kivi(byte_of(bytes, k) >> shift & mask, s, z);
        store_chunk(e, job, t, j, halves);
    });
}

template <int BITS> static __device__ void write_kivi(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    if (job.side == CODEC_KEYS)
        write_kivi_keys<BITS>(e, job, rows);
    else
        write_kivi_values<BITS>(e, job, rows);
}

template <int BITS> static __device__ void read_kivi(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    if (job.side == CODEC_KEYS)
        read_kivi_keys<BITS>(e, job, rows);
    else
        read_kivi_values<BITS>(e, job);
}

/* ---- Launches */

cudaError_t encode_f16(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<write_f16>(encode, sides, stream);
}
cudaError_t decode_f16(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<read_f16>(encode, sides, stream);
}
cudaError_t encode_q8_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<write_q8_0>(encode, sides, stream);
}
cudaError_t decode_q8_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<read_q8_0>(encode, sides, stream);
}
cudaError_t encode_q4_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<write_q4_0>(encode, sides, stream);
}
cudaError_t decode_q4_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<read_q4_0>(encode, sides, stream);
}
cudaError_t encode_kivi_4(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<write_kivi<4>>(encode, sides, stream);
}
cudaError_t decode_kivi_4(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<read_kivi<4>>(encode, sides, stream);
}
cudaError_t encode_kivi_2(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<write_kivi<2>>(encode, sides, stream);
}
cudaError_t decode_kivi_2(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_pages<read_kivi<2>>(encode, sides, stream);
}
