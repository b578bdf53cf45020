/* Finds the score that the k-th best has by halving the range of 16-bit numbers: each step counts the scores above the middle, 64
 * bytes of them in a few instructions, which takes less time than any histogram and needs no memory. */
#include "backend/cpu/kv/top_k.h"

#include "backend/cpu/kernels/select/ops.h"

size_t top_tokens(const uint16_t *scores, size_t n, size_t k, uint32_t *tokens) {
    const struct select_ops *kernel = select_ops();
    if (!k || !n) return 0;
    if (k >= n) return kernel->list_scores(scores, n, 0, 0, tokens);
    /* At least k scores are >= low, `count` of them, and fewer than k are >= high. */
    uint32_t low = 0, high = 65536;
    size_t count = n;
    while (high - low > 1 && count > k) {
        uint32_t middle = low + (high - low) / 2;
        size_t found = kernel->count_scores(scores, n, (uint16_t)middle);
        if (found >= k)
            low = middle, count = found;
        else
            high = middle;
    }
    return kernel->list_scores(scores, n, (uint16_t)low, count - k, tokens);
}
