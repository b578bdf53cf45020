/* Lays angles out in fragments. */
#include "backend/cuda/kv/pre_rope_fragments.h"

#include "base/half.h"
#include "format/shape.h"

#define PAIRS 8 /* of a step */
#define TILES 2
#define LANES 32
#define FRAGMENT 4 /* words of a lane */

size_t pre_rope_fragment_words(size_t pairs) { return (pairs + PAIRS - 1) / PAIRS * TILES * 2 * LANES * FRAGMENT; }

static uint32_t two_halves(float low, float high) { return half_from_float(low) | (uint32_t)half_from_float(high) << 16; }
static float rest_of(float x) { return x - half_to_float(half_from_float(x)); }

void pre_rope_fragments(const struct rope *rope, size_t pairs, uint32_t *words) {
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    const size_t steps = (pairs + PAIRS - 1) / PAIRS;
    for (size_t row = 0; row < 8 * TILES * 2; row++) { /* of a tile: lane / 4, and 8 more */
        const size_t group = row % 8, tile = row / 16, upper = row / 8 % 2;
        rope_angles(rope, (int64_t)(group / 4 * 32 + group % 4 * 4 + 2 * tile + upper), cosine, sine);
        for (size_t pair = 0; pair < PAIRS * steps; pair++) {
            const size_t lane = 4 * group + pair % 4, word = 2 * (pair / 4 % 2) + upper;
            const float c = pair < pairs ? cosine[pair] : 0, s = pair < pairs ? sine[pair] : 0;
            uint32_t *to = words + (pair / PAIRS * TILES + tile) * 2 * LANES * FRAGMENT + lane * FRAGMENT + word;
            to[0] = two_halves(c, s);
            to[LANES * FRAGMENT] = two_halves(rest_of(c), rest_of(s));
        }
    }
}
