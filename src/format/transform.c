/* Levels, layouts and the sharing of bits. */
#include "format/transform.h"

#include "format/page_layout.h"

#include <math.h>
#include <string.h>

/* ---- Levels */

/* Max 1960's levels in such units that whole numbers come close: 0, 0.2, 1 and 2 % more distortion than his. */
const int8_t transform_levels[TRANSFORM_TABLES][16] = {
    [TRANSFORM_GAUSSIAN_1] = {-1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    [TRANSFORM_GAUSSIAN_2] = {-7, -2, 2, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7},
    [TRANSFORM_GAUSSIAN_3] = {-8, -5, -3, -1, 1, 3, 5, 8, 8, 8, 8, 8, 8, 8, 8, 8},
    [TRANSFORM_GAUSSIAN_4] = {-20, -15, -12, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 12, 15, 20},
    [TRANSFORM_UNIFORM_1] = {-1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    [TRANSFORM_UNIFORM_2] = {-3, -1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3},
    [TRANSFORM_UNIFORM_3] = {-7, -5, -3, -1, 1, 3, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7},
    [TRANSFORM_UNIFORM_4] = {-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15},
};

const float transform_distortion[TRANSFORM_BITS_MAX + 1] = {1,        0.36338f, 0.11772f,  0.03490f, 0.00967f,
                                                            0.00349f, 0.00104f, 0.000304f, 0.000087f};

/* Unit of the levels of a Gaussian's quantizer of 1 to 4 bits, with the least distortion; step of its best uniform one of 5 to 8 bits
 * (Max 1960, table II), whose levels are half steps. */
static const float gaussian_unit[] = {0.79788f, 0.21621f, 0.26685f, 0.13636f};
static const float uniform_step[] = {0.1881f, 0.1041f, 0.0569f, 0.0308f};

/* ---- Layout */

static struct transform_plane gaussian_plane(uint8_t quad, uint8_t bits) {
    return (struct transform_plane){
        .quad = quad, .bits = bits, .table = (uint8_t)(TRANSFORM_GAUSSIAN_1 + bits - 1), .scale = gaussian_unit[bits - 1]};
}

/* A code's level is step (code - (2^bits - 1) / 2): of its upper 4 bits step 2^low / 2 (2 upper - 15), of the `low` others
 * step / 2 (2 lower - (2^low - 1)). */
static struct transform_plane uniform_plane(uint8_t quad, uint8_t bits, bool upper) {
    int low = bits - TRANSFORM_PLANE_BITS, own = upper ? TRANSFORM_PLANE_BITS : low;
    float step = uniform_step[bits - TRANSFORM_PLANE_BITS - 1] * (upper ? (float)(1 << low) : 1);
    return (struct transform_plane){
        .quad = quad, .bits = (uint8_t)own, .table = (uint8_t)(TRANSFORM_UNIFORM_1 + own - 1), .upper = upper, .scale = step / 2};
}

static void add_plane(struct transform_layout *layout, struct transform_plane plane) {
    layout->plane[layout->planes++] = plane;
    layout->bits = (uint16_t)(layout->bits + TRANSFORM_QUAD * plane.bits);
}

void transform_layout_set(const uint8_t *quad_bits, uint32_t head_dim, struct transform_layout *layout) {
    uint32_t quads = head_dim / TRANSFORM_QUAD;
    memset(layout, 0, sizeof *layout);
    memcpy(layout->quad_bits, quad_bits, quads);
    while (layout->quads < quads && quad_bits[layout->quads]) layout->quads++;
    /* In terms of size, the lower plane of a quad of b bits stands with the quads of b - 4. */
    for (int rank = TRANSFORM_BITS_MAX; rank > 0; rank--) {
        for (uint8_t quad = 0; quad < layout->quads; quad++) {
            uint8_t bits = quad_bits[quad];
            if (bits == rank)
                add_plane(layout, bits > TRANSFORM_PLANE_BITS ? uniform_plane(quad, bits, true) : gaussian_plane(quad, bits));
            else if (bits == rank + TRANSFORM_PLANE_BITS)
                add_plane(layout, uniform_plane(quad, bits, false));
        }
    }
}

void transform_layout_first(const struct transform_layout *layout, unsigned bits, struct transform_layout *first) {
    memset(first, 0, sizeof *first);
    for (uint16_t p = 0; p < layout->planes && first->bits < bits; p++) {
        add_plane(first, layout->plane[p]);
        if (layout->plane[p].quad >= first->quads) first->quads = (uint16_t)(layout->plane[p].quad + 1);
    }
}

/* ---- Parameters */

size_t transform_parameter_floats(uint32_t head_dim) { return (size_t)head_dim * (head_dim + 2) + 3; }

struct transform_parameters transform_parameters_at(const float *floats, uint32_t head_dim) {
    const float *size = floats + head_dim, *basis = size + head_dim, *rest = basis + (size_t)head_dim * head_dim;
    return (struct transform_parameters){floats, size, basis, rest[0], rest[1], rest[2]};
}

size_t transform_fitted_floats(uint32_t head_dim) { return 2 * (size_t)head_dim + 2; }

struct transform_fitted transform_fitted_at(const float *floats, uint32_t head_dim) {
    const float *rest = floats + 2 * (size_t)head_dim;
    return (struct transform_fitted){floats, floats + head_dim, rest[0], rest[1]};
}

enum terse_status transform_check_parameters(const float *floats, uint32_t head_dim, struct terse_error *error) {
    struct transform_parameters own = transform_parameters_at(floats, head_dim);
    for (size_t i = 0; i < transform_parameter_floats(head_dim); i++)
        if (!isfinite(floats[i]))
            return status_fail(
                error, TERSE_E_FORMAT,
                "number %zu of a transform is not finite: the profile is damaged, make it again with terse calibrate", i);
    for (uint32_t c = 0; c < head_dim; c++)
        if (own.size[c] < 0 || (c && own.size[c] > own.size[c - 1]))
            return status_fail(error, TERSE_E_FORMAT,
                               "the sizes of a transform's components do not fall at component %u: the profile is damaged, make it "
                               "again with terse calibrate",
                               c);
    if (own.gain_least < 0 || own.gain_most < own.gain_least)
        return status_fail(error, TERSE_E_FORMAT,
                           "a transform's gains reach from %g to %g: the profile is damaged, make it again with terse calibrate",
                           (double)own.gain_least, (double)own.gain_most);
    return TERSE_OK;
}

/* ---- Bits shared over a model */

/* What a quad's b-th bit saves, b from 1 on; 0: it can take no more. */
static double saving(const struct transform_share *share, size_t quad, int b) {
    double power = 0;
    if (b > TRANSFORM_BITS_MAX) return 0;
    for (size_t i = 0; i < TRANSFORM_QUAD; i++) {
        double size = (double)share->size[quad * TRANSFORM_QUAD + i];
        power += size * size;
    }
    return exp2((double)share->importance) * power * (double)(transform_distortion[b - 1] - transform_distortion[b]);
}

/* Bits of quads at a price: as many as save more than it costs. Returns their sum. */
static uint64_t bits_at(const struct transform_share *shares, size_t n, size_t quads, double price) {
    uint64_t sum = 0;
    for (size_t s = 0; s < n; s++) {
        for (size_t quad = 0; quad < quads; quad++) {
            int b = 0;
            while (saving(&shares[s], quad, b + 1) > price) b++;
            shares[s].quad_bits[quad] = (uint8_t)b;
            sum += (uint64_t)b;
        }
    }
    return sum;
}

/* One more bit to the quad for which it saves most; false: no quad can take one. */
static bool add_bit(const struct transform_share *shares, size_t n, size_t quads) {
    double most = 0;
    uint8_t *best = NULL;
    for (size_t s = 0; s < n; s++) {
        for (size_t quad = 0; quad < quads; quad++) {
            double own = saving(&shares[s], quad, shares[s].quad_bits[quad] + 1);
            if (own <= most) continue;
            most = own;
            best = &shares[s].quad_bits[quad];
        }
    }
    if (best) ++*best;
    return best != NULL;
}

/* In quads' bits. */
static uint64_t budget_of(size_t n, uint32_t head_dim, double rate) {
    return (uint64_t)(rate * (double)n * (double)(head_dim / TRANSFORM_QUAD) + 1e-6);
}

void transform_share_bits(const struct transform_share *shares, size_t n, uint32_t head_dim, double rate) {
    size_t quads = head_dim / TRANSFORM_QUAD;
    uint64_t budget = budget_of(n, head_dim, rate), sum;
    double low = 0, high = 0;
    for (size_t s = 0; s < n; s++) high = fmax(high, saving(&shares[s], 0, 1));
    /* The least price that stays within the budget, then one bit after another where prices tie. */
    if ((sum = bits_at(shares, n, quads, low)) <= budget) return;
    for (int i = 0; i < 80 && low < high; i++) {
        double price = low > 0 ? sqrt(low * high) : high * 1e-12;
        if (bits_at(shares, n, quads, price) > budget)
            low = price;
        else if (price < high)
            high = price;
        else
            break;
        if (low == 0 && high < 1e-290) break;
    }
    sum = bits_at(shares, n, quads, high);
    while (sum < budget && add_bit(shares, n, quads)) sum++;
}

/* ---- Even sums */

static bool is_odd(const struct transform_share *share, size_t quads) {
    unsigned sum = 0;
    for (size_t quad = 0; quad < quads; quad++) sum += share->quad_bits[quad];
    return sum % 2;
}

/* The quad that loses least by a bit less, or gains most by one more; what that is in *amount. quads: there is none. */
static size_t cheapest(const struct transform_share *share, size_t quads, double *amount) {
    size_t best = quads;
    *amount = INFINITY;
    for (size_t quad = 0; quad < quads; quad++) {
        if (!share->quad_bits[quad]) continue;
        double own = saving(share, quad, share->quad_bits[quad]);
        if (own <= *amount) best = quad, *amount = own;
    }
    return best;
}

static size_t neediest(const struct transform_share *share, size_t quads, double *amount) {
    size_t best = quads;
    *amount = 0;
    for (size_t quad = 0; quad < quads; quad++) {
        double own = saving(share, quad, share->quad_bits[quad] + 1);
        if (own > *amount) best = quad, *amount = own;
    }
    return best;
}

/* Takes a bit of one share for another; false: the one has none or the other takes none. */
static bool move_bit(const struct transform_share *from, const struct transform_share *to, size_t quads) {
    double lost, gained;
    size_t less = cheapest(from, quads, &lost), more = neediest(to, quads, &gained);
    if (less == quads || more == quads) return false;
    from->quad_bits[less]--;
    to->quad_bits[more]++;
    return true;
}

/* What moving a bit costs. */
static double cost_of_move(const struct transform_share *from, const struct transform_share *to, size_t quads) {
    double lost, gained;
    if (cheapest(from, quads, &lost) == quads || neediest(to, quads, &gained) == quads) return INFINITY;
    return lost - gained;
}

void transform_pair_bits(const struct transform_share *shares, size_t n, uint32_t head_dim) {
    size_t quads = head_dim / TRANSFORM_QUAD;
    const struct transform_share *waiting = NULL;
    for (size_t s = 0; s < n; s++) {
        if (!is_odd(&shares[s], quads)) continue;
        if (!waiting) {
            waiting = &shares[s];
            continue;
        }
        bool back = cost_of_move(&shares[s], waiting, quads) < cost_of_move(waiting, &shares[s], quads);
        if (back ? move_bit(&shares[s], waiting, quads) : move_bit(waiting, &shares[s], quads)) waiting = NULL;
    }
}

uint64_t transform_shared_page_bytes(size_t n, uint32_t head_dim, double rate) {
    uint64_t codes = budget_of(n, head_dim, rate) * PAGE_TRANSFORM_PLANE(1);
    return (uint64_t)n * PAGE_TOKENS + (codes + 63) / 64 * 64;
}
