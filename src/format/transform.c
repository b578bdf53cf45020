/* Computes levels and layouts, and shares bits. */
#include "format/transform.h"

#include "format/page_layout.h"
#include "format/transform_levels.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Levels */

const int8_t transform_levels[TRANSFORM_TABLES][16] = TRANSFORM_LEVELS;
const uint8_t transform_largest[TRANSFORM_TABLES] = {20, 15, 2, 4, 8, 7, 8, 7, 8, 8};
const uint8_t transform_new_bits[TRANSFORM_TABLES] = {4, 4, 1, 2, 3, 1, 2, 3, 2, 0};

const float transform_row_scale[TRANSFORM_ROW_SCALES] = TRANSFORM_ROW_SCALE;
const float transform_distortion[TRANSFORM_BITS_MAX + 1] = TRANSFORM_DISTORTION;

const float transform_reach[TRANSFORM_BITS_MAX + 1] = {1, 1.07f, 1.13f, 1.2f, 1.17f, 1.1f, 1.03f, 1, 1};

/* A table of a Gaussian has this unit for its levels, before they reach further. */
static const float gaussian_unit[TRANSFORM_TABLES] = {
    [TRANSFORM_GAUSSIAN_4] = 0.13636f, [TRANSFORM_TRELLIS_1] = 0.236722f,  [TRANSFORM_TRELLIS_2] = 0.263897f,
    [TRANSFORM_TRELLIS_3] = 0.343456f, [TRANSFORM_PAIR_FIRST] = 0.201067f, [TRANSFORM_PAIR_SECOND] = 0.201067f};
/* The lower planes of quads of 5 to 8 bits have these units: those of 5 to 7 err least through long streams, that of 8 is half the
 * step of a Gaussian's best uniform quantizer (Max 1960, table II), since levels of UNIFORM_4 are 2 apart. */
static const float lower_unit[] = {0.0952f, 0.05202f, 0.02816f, 0.0154f};

/* ---- Layout */

/* Adds a plane. `bits` counts the bits of a component that earlier planes have, upper ones and stream in a row. */
static void add_plane(struct transform_layout *layout, size_t bits, size_t quad, unsigned table, float scale) {
    size_t last = bits - 1;
    layout->plane[layout->planes++] = (struct transform_plane){.quad = (uint8_t)quad,
                                                               .nibble = (uint8_t)(last / TRANSFORM_NIBBLE_BITS),
                                                               .table = (uint8_t)(4 * table + last % TRANSFORM_NIBBLE_BITS),
                                                               .largest = transform_largest[table],
                                                               .scale = scale * transform_reach[layout->quad_bits[quad]]};
}

static void add_gaussian(struct transform_layout *layout, size_t *bits, size_t quad, unsigned table) {
    *bits += transform_new_bits[table];
    add_plane(layout, *bits, quad, table, gaussian_unit[table]);
}

/* Adds the upper or the lower plane of a quad of 5 to 8 bits. Upper levels lie as far apart as the lower ones reach, and these are
 * twice as many where the window says which of them a code may choose from. */
static void add_uniform(struct transform_layout *layout, size_t *bits, size_t quad, unsigned own_bits, bool upper) {
    unsigned low = own_bits - TRANSFORM_NIBBLE_BITS, own = upper ? TRANSFORM_NIBBLE_BITS : low;
    float scale = lower_unit[low - 1] * (upper ? (float)(1u << low) : 1);
    *bits += own;
    add_plane(layout, *bits, quad, own == TRANSFORM_NIBBLE_BITS ? TRANSFORM_UNIFORM_4 : TRANSFORM_LOWER_1 + own - 1, scale);
}

/* Adds all quads of a rank: in terms of size, the lower plane of a quad of b bits stands with the quads of b - 4. Quads of 1 bit write
 * two bits for two of them. */
static void add_rank(struct transform_layout *layout, size_t *bits, unsigned rank) {
    const uint8_t *own = layout->quad_bits;
    for (size_t quad = 0; quad < layout->quads; quad++) {
        if (own[quad] == rank + TRANSFORM_NIBBLE_BITS)
            add_uniform(layout, bits, quad, own[quad], false);
        else if (own[quad] != rank)
            continue;
        else if (rank > TRANSFORM_NIBBLE_BITS)
            add_uniform(layout, bits, quad, rank, true);
        else if (rank == TRANSFORM_NIBBLE_BITS)
            add_gaussian(layout, bits, quad, TRANSFORM_GAUSSIAN_4);
        else if (rank == 1 && quad + 1 < layout->quads) {
            add_gaussian(layout, bits, quad, TRANSFORM_PAIR_FIRST);
            add_gaussian(layout, bits, ++quad, TRANSFORM_PAIR_SECOND);
        } else
            add_gaussian(layout, bits, quad, TRANSFORM_TRELLIS_1 + rank - 1);
    }
}

void transform_layout_set(const uint8_t *quad_bits, uint32_t head_dim, struct transform_layout *layout) {
    uint32_t quads = head_dim / TRANSFORM_QUAD;
    size_t bits = 0;
    memset(layout, 0, sizeof *layout);
    memcpy(layout->quad_bits, quad_bits, quads);
    while (layout->quads < quads && quad_bits[layout->quads]) layout->quads++;
    for (unsigned rank = TRANSFORM_BITS_MAX; rank > 0; rank--) {
        if (rank == TRANSFORM_NIBBLE_BITS - 1) layout->stream = (uint16_t)(bits / TRANSFORM_NIBBLE_BITS);
        add_rank(layout, &bits, rank);
    }
    layout->nibbles = (uint16_t)((bits + TRANSFORM_NIBBLE_BITS - 1) / TRANSFORM_NIBBLE_BITS);
    for (size_t p = 0; p < layout->planes; p++) /* the stream's last nibble lies before its first */
        if (layout->plane[p].nibble >= layout->stream)
            layout->plane[p].nibble = (uint8_t)transform_place(layout, layout->plane[p].nibble - layout->stream);
}

void transform_layout_first(const struct transform_layout *layout, unsigned bits, struct transform_layout *first) {
    unsigned sum = 0;
    memset(first, 0, sizeof *first);
    first->nibbles = layout->nibbles;
    first->stream = layout->stream;
    for (uint16_t p = 0; p < layout->planes && sum < bits; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        first->plane[first->planes++] = *plane;
        if (plane->quad >= first->quads) first->quads = (uint16_t)(plane->quad + 1);
        sum += TRANSFORM_QUAD * transform_new_bits[transform_table_of(plane)];
    }
}

/* ---- Parameters */

size_t transform_parameter_floats(uint32_t head_dim) { return (size_t)head_dim * (head_dim + 3) + 5; }

struct transform_parameters transform_parameters_at(const float *floats, uint32_t head_dim) {
    const float *pre_rope_mean = floats + head_dim, *size = pre_rope_mean + head_dim, *basis = size + head_dim,
                *rest = basis + (size_t)head_dim * head_dim;
    return (struct transform_parameters){floats, pre_rope_mean, size, basis, rest[0], rest[1], rest[2], rest[3], rest[4]};
}

/* ---- Records */

#define INTEGER_MOST 32767.0f

struct transform_fitted transform_fitted_at(const void *record, uint32_t head_dim) {
    const size_t hd = head_dim;
    const float *floats = record, *rest = floats + 4 * hd;
    return (struct transform_fitted){.mean = floats,
                                     .pre_rope_mean = floats + hd,
                                     .size = floats + 2 * hd,
                                     .unit = floats + 3 * hd,
                                     .gain_least = rest[0],
                                     .gain_most = rest[1],
                                     .gain = rest[2],
                                     .basis = (const int16_t *)(const void *)(rest + 3)};
}

/* Returns where the integers of a component's channels 0 and 1 lie; those of the next two follow 2 TRANSFORM_STRIP further. */
static size_t integers_of(size_t component, size_t head_dim) {
    return component / TRANSFORM_STRIP * TRANSFORM_STRIP * head_dim + component % TRANSFORM_STRIP * 2;
}

void transform_record_set(struct transform_parameters parameters, uint32_t head_dim, void *record) {
    size_t hd = head_dim;
    float *floats = record, *unit = floats + 3 * hd;
    int16_t *integers = (int16_t *)(void *)(unit + hd + 3);
    memcpy(floats, parameters.mean, hd * sizeof *floats);
    memcpy(floats + hd, parameters.pre_rope_mean, hd * sizeof *floats);
    memcpy(floats + 2 * hd, parameters.size, hd * sizeof *floats);
    unit[hd] = parameters.gain_least;
    unit[hd + 1] = parameters.gain_most;
    unit[hd + 2] = parameters.gain;
    for (size_t c = 0; c < hd; c++) {
        const float *row = parameters.basis + c * hd;
        int16_t *to = integers + integers_of(c, hd);
        double square = 0;
        for (size_t ch = 0; ch < hd; ch++) square += (double)row[ch] * (double)row[ch];
        unit[c] = (float)sqrt(square) / INTEGER_MOST;
        for (size_t ch = 0; ch < hd; ch++)
            to[ch / 2 * 2 * TRANSFORM_STRIP + ch % 2] = unit[c] >= FLT_MIN ? (int16_t)lrintf(row[ch] / unit[c]) : 0;
    }
}

void transform_record_integers(const struct transform_fitted *fitted, uint32_t head_dim, size_t component, int16_t *integers) {
    const int16_t *from = fitted->basis + integers_of(component, head_dim);
    for (size_t ch = 0; ch < head_dim; ch++) integers[ch] = from[ch / 2 * 2 * TRANSFORM_STRIP + ch % 2];
}

void transform_record_basis(const struct transform_fitted *fitted, uint32_t head_dim, size_t components, float *basis) {
    const size_t hd = head_dim;
    for (size_t c = 0; c < components; c++) {
        const int16_t *from = fitted->basis + integers_of(c, hd);
        float *to = basis + c * hd, unit = fitted->unit[c];
        for (size_t pair = 0; pair < hd / 2; pair++) {
            to[2 * pair] = unit * (float)from[pair * 2 * TRANSFORM_STRIP];
            to[2 * pair + 1] = unit * (float)from[pair * 2 * TRANSFORM_STRIP + 1];
        }
    }
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
    if (own.gain_least < 0 || own.gain_most < own.gain_least || own.gain < 0)
        return status_fail(
            error, TERSE_E_FORMAT,
            "a transform's gains reach from %g to %g, about %g: the profile is damaged, make it again with terse calibrate",
            (double)own.gain_least, (double)own.gain_most, (double)own.gain);
    return TERSE_OK;
}

/* ---- Bits shared over a model */

/* A worth says for each quad of a share what its errors would cost without any bits. */
struct worth {
    double of[TRANSFORM_QUADS_MAX];
    size_t quads;
};

static struct worth worth_of(const struct transform_share *share, size_t quads) {
    const double importance = exp2((double)share->importance);
    struct worth worth = {.quads = quads};
    for (size_t quad = 0; quad < quads; quad++) {
        double power = 0;
        for (size_t i = 0; i < TRANSFORM_QUAD; i++) {
            double size = (double)share->size[quad * TRANSFORM_QUAD + i];
            power += size * size;
        }
        worth.of[quad] = importance * power;
    }
    return worth;
}

/* Returns what a quad's b-th bit saves, b from 1 on; 0 when it can take no more. */
static inline double saving(const struct worth *worth, size_t quad, int b) {
    return b > TRANSFORM_BITS_MAX ? 0 : worth->of[quad] * (double)(transform_distortion[b - 1] - transform_distortion[b]);
}

/* Returns the quad that gains most by a bit more, or loses least by one less; worth->quads when there is none. */
static size_t neediest(const struct transform_share *share, const struct worth *worth) {
    double most = 0;
    size_t best = worth->quads;
    for (size_t quad = 0; quad < worth->quads; quad++) {
        double own = saving(worth, quad, share->quad_bits[quad] + 1);
        if (own > most) best = quad, most = own;
    }
    return best;
}

static size_t cheapest(const struct transform_share *share, const struct worth *worth) {
    double least = INFINITY;
    size_t best = worth->quads;
    for (size_t quad = 0; quad < worth->quads; quad++) {
        if (!share->quad_bits[quad]) continue;
        double own = saving(worth, quad, share->quad_bits[quad]);
        if (own <= least) best = quad, least = own;
    }
    return best;
}

/* Returns what one nibble more saves a share, and gives it the nibble if `keep`; 0 when it cannot take one. */
static double nibble_saving(const struct transform_share *share, const struct worth *worth, bool keep) {
    size_t added[4], n = 0;
    double sum = 0;
    for (; n < 4 && (added[n] = neediest(share, worth)) < worth->quads; n++)
        sum += saving(worth, added[n], ++share->quad_bits[added[n]]);
    if (n < 4) sum = 0;
    for (size_t i = 0; i < n && (!keep || n < 4); i++) share->quad_bits[added[i]]--;
    return sum;
}

/* Chooses the bits of a share's quads at a price of each bit: as many as save more than they cost. The last one to three are left
 * out if they, with the next ones, do not save what a nibble costs. Returns the number of nibbles. */
static unsigned nibbles_at(const struct transform_share *share, size_t quads, double price) {
    const struct worth worth = worth_of(share, quads);
    unsigned sum = 0;
    for (size_t quad = 0; quad < quads; quad++) {
        int b = 0;
        while (saving(&worth, quad, b + 1) > price) b++;
        share->quad_bits[quad] = (uint8_t)b;
        sum += (unsigned)b;
    }
    unsigned rest = sum % TRANSFORM_NIBBLE_BITS;
    for (unsigned i = 0; i < rest; i++) share->quad_bits[cheapest(share, &worth)]--;
    bool one_more = rest && nibble_saving(share, &worth, false) > TRANSFORM_NIBBLE_BITS * price;
    if (one_more) nibble_saving(share, &worth, true);
    return sum / TRANSFORM_NIBBLE_BITS + one_more;
}

static uint64_t all_nibbles_at(const struct transform_share *shares, size_t n, size_t quads, double price) {
    uint64_t sum = 0;
    for (size_t s = 0; s < n; s++) sum += nibbles_at(&shares[s], quads, price);
    return sum;
}

/* Gives one more nibble to the share for which it saves most; returns false when none can take one. */
static bool add_nibble(const struct transform_share *shares, size_t n, size_t quads) {
    double most = 0;
    const struct transform_share *best = NULL;
    for (size_t s = 0; s < n; s++) {
        const struct worth worth = worth_of(&shares[s], quads);
        double own = nibble_saving(&shares[s], &worth, false);
        if (own > most) best = &shares[s], most = own;
    }
    if (!best) return false;
    const struct worth worth = worth_of(best, quads);
    return nibble_saving(best, &worth, true) > 0;
}

/* Returns the budget in nibbles. */
static uint64_t budget_of(size_t n, uint32_t head_dim, double rate) {
    return (uint64_t)(rate * (double)n * (double)(head_dim / TRANSFORM_QUAD) / TRANSFORM_NIBBLE_BITS + 1e-6);
}

void transform_share_bits(const struct transform_share *shares, size_t n, uint32_t head_dim, double rate) {
    size_t quads = head_dim / TRANSFORM_QUAD;
    uint64_t budget = budget_of(n, head_dim, rate), sum;
    double low = 0, high = 0;
    for (size_t s = 0; s < n; s++) {
        const struct worth worth = worth_of(&shares[s], quads);
        high = fmax(high, saving(&worth, 0, 1));
    }
    /* The search takes the least price that stays within the budget, and then adds one nibble after another where prices tie. */
    if (all_nibbles_at(shares, n, quads, low) <= budget) return;
    for (int i = 0; i < 60 && low < high; i++) {
        double price = low > 0 ? sqrt(low * high) : high * 1e-12;
        if (all_nibbles_at(shares, n, quads, price) > budget)
            low = price;
        else if (price < high)
            high = price;
        else
            break;
        if (low == 0 && high < 1e-290) break;
    }
    sum = all_nibbles_at(shares, n, quads, high);
    while (sum < budget && add_nibble(shares, n, quads)) sum++;
}

uint64_t transform_shared_page_bytes(size_t n, uint32_t head_dim, double rate) {
    return (uint64_t)n * PAGE_TOKENS + budget_of(n, head_dim, rate) * PAGE_TRANSFORM_NIBBLE;
}
