/* Computes levels and layouts, and shares bits. */
#include "format/transform.h"

#include "base/memory.h"
#include "format/page_layout.h"
#include "format/transform_levels.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Levels */

const float transform_row_scale[TRANSFORM_ROW_SCALES] = TRANSFORM_ROW_SCALE;
const float transform_row_trial[TRANSFORM_ROW_TRIALS] = TRANSFORM_ROW_TRIAL;
const float transform_distortion[TRANSFORM_BITS_MAX + 1] = TRANSFORM_DISTORTION;

const float transform_reach[TRANSFORM_BITS_MAX + 1] = {1, 1.07f, 1.13f, 1.2f, 1.17f, 1.1f, 1.03f, 1, 1};

/* Half of the step of the uniform quantizer that is best for a Gaussian of variance 1, of 0 to TRANSFORM_BITS_MAX bits. */
static const float half_step[TRANSFORM_BITS_MAX + 1] = {0,        0.7980f,  0.4979f,  0.2930f, 0.1676f,
                                                        0.09405f, 0.05205f, 0.02845f, 0.0154f};

/* ---- Layout */

/* A plan counts planes by bits, and those that have their place. Each plane of 3 bits has one of 1 beside it: where these are too few,
 * the last quads of 3 bits, from `first_split` on, have a plane of 2 and one of 1. */
struct plan {
    size_t planes[TRANSFORM_NIBBLE_BITS + 1], placed[TRANSFORM_NIBBLE_BITS + 1];
    size_t first_split;
};

/* Returns the bits of a quad's second plane, if its codes are wider than a nibble; else 0. */
static unsigned lower_bits(unsigned bits) { return bits > TRANSFORM_NIBBLE_BITS ? bits - TRANSFORM_NIBBLE_BITS : 0; }

static void make_plan(const struct transform_layout *layout, struct plan *plan) {
    size_t end = 0; /* of quads of 3 bits and more */
    memset(plan, 0, sizeof *plan);
    for (size_t quad = 0; quad < layout->quads; quad++) {
        const unsigned bits = layout->quad_bits[quad], lower = lower_bits(bits);
        plan->planes[bits - lower]++;
        if (lower) plan->planes[lower]++;
        if (bits >= 3) end = quad + 1;
    }
    const size_t split = plan->planes[3] > plan->planes[1] ? (plan->planes[3] - plan->planes[1] + 1) / 2 : 0;
    plan->first_split = end - split;
    plan->planes[3] -= split, plan->planes[2] += split, plan->planes[1] += split;
}

/* Returns where the next plane of so many bits lies, counted in bits from the highest of the first nibble: planes of 4 bits lie first,
 * then those of 3, each with one of 1 below it, those of 2, and the others of 1. */
static size_t take_place(struct plan *plan, unsigned bits) {
    const size_t n = plan->placed[bits]++, nibble = TRANSFORM_NIBBLE_BITS, threes = nibble * plan->planes[4],
                 twos = threes + nibble * plan->planes[3];
    if (bits == 4) return nibble * n;
    if (bits == 3) return threes + nibble * n;
    if (bits == 2) return twos + 2 * n;
    return n < plan->planes[3] ? threes + nibble * n + 3 : twos + 2 * plan->planes[2] + n - plan->planes[3];
}

/* Adds a plane that has `bits` of a quad's bits, above `below` others. */
static void add_plane(struct transform_layout *layout, struct plan *plan, size_t quad, unsigned bits, unsigned below) {
    const unsigned own = layout->quad_bits[quad];
    const size_t place = take_place(plan, bits);
    layout->plane[layout->planes++] =
        (struct transform_plane){.quad = (uint8_t)quad,
                                 .nibble = (uint8_t)(place / TRANSFORM_NIBBLE_BITS),
                                 .shift = (uint8_t)(TRANSFORM_NIBBLE_BITS - place % TRANSFORM_NIBBLE_BITS - bits),
                                 .bits = (uint8_t)bits,
                                 .scale = half_step[own] * transform_reach[own] * (float)(1u << below)};
}

/* Adds all planes of a rank: in terms of size, the lower plane of a quad stands with the quads that have as many bits as it. */
static void add_rank(struct transform_layout *layout, struct plan *plan, unsigned rank) {
    for (size_t quad = 0; quad < layout->quads; quad++) {
        const unsigned own = layout->quad_bits[quad], lower = lower_bits(own);
        const bool split = own == 3 && quad >= plan->first_split;
        if (own == rank)
            add_plane(layout, plan, quad, split ? 2 : own - lower, split ? 1 : lower);
        else if ((lower ? lower : split) == rank)
            add_plane(layout, plan, quad, rank, 0);
    }
}

void transform_layout_set(const uint8_t *quad_bits, uint32_t head_dim, struct transform_layout *layout) {
    const uint32_t quads = head_dim / TRANSFORM_QUAD;
    struct plan plan;
    size_t bits = 0;
    memset(layout, 0, sizeof *layout);
    memcpy(layout->quad_bits, quad_bits, quads);
    while (layout->quads < quads && quad_bits[layout->quads]) bits += quad_bits[layout->quads++];
    layout->nibbles = (uint16_t)((bits + TRANSFORM_NIBBLE_BITS - 1) / TRANSFORM_NIBBLE_BITS);
    make_plan(layout, &plan);
    for (unsigned rank = TRANSFORM_BITS_MAX; rank > 0; rank--) add_rank(layout, &plan, rank);
}

void transform_layout_first(const struct transform_layout *layout, unsigned bits, struct transform_layout *first) {
    unsigned sum = 0;
    memset(first, 0, sizeof *first);
    first->nibbles = layout->nibbles;
    for (uint16_t p = 0; p < layout->planes && sum < bits; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        first->plane[first->planes++] = *plane;
        if (plane->quad >= first->quads) first->quads = (uint16_t)(plane->quad + 1);
        sum += TRANSFORM_QUAD * plane->bits;
    }
}

/* ---- Parameters */

size_t transform_parameter_floats(uint32_t head_dim) { return (size_t)head_dim * (head_dim + 3) + TRANSFORM_SINGLE_FLOATS; }

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
    const double *of; /* [quads] */
    size_t quads;
};

static void set_worth(const struct transform_share *share, size_t quads, double *worth) {
    const double importance = exp2((double)share->importance);
    for (size_t quad = 0; quad < quads; quad++) {
        double power = 0;
        for (size_t i = 0; i < TRANSFORM_QUAD; i++) {
            double size = (double)share->size[quad * TRANSFORM_QUAD + i];
            power += size * size;
        }
        worth[quad] = importance * power;
    }
}

/* Bits come one at a time, but the last two together: there are no quads of 7 bits. */
#define TWO_FROM (TRANSFORM_BITS_MAX - 2)
static inline unsigned bits_added(unsigned own) { return own == TWO_FROM ? 2 : 1; }
static inline unsigned bits_taken(unsigned own) { return own == TRANSFORM_BITS_MAX ? 2 : 1; }

/* Returns what each of the bits that a quad gets next saves; 0 when it can take no more. */
static inline double saving(const struct worth *worth, size_t quad, unsigned own) {
    if (own == TRANSFORM_BITS_MAX) return 0;
    const unsigned next = own + bits_added(own);
    return worth->of[quad] * (double)(transform_distortion[own] - transform_distortion[next]) * (next - own == 1 ? 1 : 0.5);
}

/* Returns the quad that gains most by the bits that it gets next, at most `most`; worth->quads when there is none. */
static size_t neediest(const struct transform_share *share, const struct worth *worth, unsigned most) {
    double largest = 0;
    size_t best = worth->quads;
    for (size_t quad = 0; quad < worth->quads; quad++) {
        const double own = bits_added(share->quad_bits[quad]) > most ? 0 : saving(worth, quad, share->quad_bits[quad]);
        if (own > largest) best = quad, largest = own;
    }
    return best;
}

/* Returns the quad that loses least by the bits that it got last, at most `most`; worth->quads when there is none. */
static size_t cheapest(const struct transform_share *share, const struct worth *worth, unsigned most) {
    double least = INFINITY;
    size_t best = worth->quads;
    for (size_t quad = 0; quad < worth->quads; quad++) {
        const unsigned bits = share->quad_bits[quad];
        if (!bits || bits_taken(bits) > most) continue;
        const double own = saving(worth, quad, bits - bits_taken(bits));
        if (own <= least) best = quad, least = own;
    }
    return best;
}

/* Returns what one nibble more saves a share, and gives it the nibble if `keep`; 0 when it cannot take one. */
static double nibble_saving(const struct transform_share *share, const struct worth *worth, bool keep) {
    size_t added[TRANSFORM_NIBBLE_BITS], n = 0;
    unsigned left = TRANSFORM_NIBBLE_BITS;
    double sum = 0;
    for (size_t quad; left && (quad = neediest(share, worth, left)) < worth->quads; added[n++] = quad) {
        const unsigned bits = bits_added(share->quad_bits[quad]);
        sum += bits * saving(worth, quad, share->quad_bits[quad]);
        share->quad_bits[quad] = (uint8_t)(share->quad_bits[quad] + bits);
        left -= bits;
    }
    if (left) sum = 0;
    while (n-- > 0 && (!keep || left))
        share->quad_bits[added[n]] = (uint8_t)(share->quad_bits[added[n]] - bits_taken(share->quad_bits[added[n]]));
    return sum;
}

/* Takes the bits of a share's quads that save more than a price. Returns how many, all quads' together. The same number has always
 * the same bits: the lower the price, the more each quad takes. */
static unsigned take_bits(const struct transform_share *share, const struct worth *worth, double price) {
    unsigned sum = 0;
    for (size_t quad = 0; quad < worth->quads; quad++) {
        unsigned bits = 0;
        while (saving(worth, quad, bits) > price) bits += bits_added(bits);
        share->quad_bits[quad] = (uint8_t)bits;
        sum += bits;
    }
    return sum;
}

/* Leaves out the last bits, of `sum` that a share has taken, until whole nibbles remain. */
static void leave_rest(const struct transform_share *share, const struct worth *worth, unsigned sum) {
    for (unsigned rest = sum % TRANSFORM_NIBBLE_BITS; rest;) { /* a quad of 7 bits or fewer is there: 8 leave no rest */
        uint8_t *bits = &share->quad_bits[cheapest(share, worth, rest)];
        rest -= bits_taken(*bits);
        *bits = (uint8_t)(*bits - bits_taken(*bits));
    }
}

/* ---- The price of a bit
 *
 * At a price of each bit a share takes as many as save more than they cost. The last one to three are left out if they, with the
 * next ones, do not save what a nibble costs. A search over prices finds the least one whose nibbles stay within the budget. */

/* A share's part in the search. */
struct taken {
    unsigned low, high; /* bits at the search's two prices: where these are the same, so are those between */
    unsigned bits;      /* at the last price */
    unsigned rest_of;   /* bits for which `rest` was found; 0: it was not yet */
    double rest;        /* saved by a nibble that has the last bits, which fill none, and the next ones */
};

struct search {
    const struct transform_share *shares;
    size_t n, quads;
    double *worth; /* [n][quads] */
    struct taken *taken;
    uint64_t budget; /* in nibbles */
};

static struct worth worth_of(const struct search *search, size_t share) {
    return (struct worth){search->worth + share * search->quads, search->quads};
}

/* Returns the nibbles of a share that takes `bits` at a price. Its quads' bits are lost. */
static unsigned nibbles_of(const struct search *search, size_t share, double price) {
    struct taken *taken = &search->taken[share];
    const unsigned whole = taken->bits / TRANSFORM_NIBBLE_BITS;
    if (taken->bits % TRANSFORM_NIBBLE_BITS == 0) return whole;
    if (taken->rest_of != taken->bits) {
        const struct worth worth = worth_of(search, share);
        leave_rest(&search->shares[share], &worth, take_bits(&search->shares[share], &worth, price));
        taken->rest = nibble_saving(&search->shares[share], &worth, false);
        taken->rest_of = taken->bits;
    }
    return whole + (taken->rest > TRANSFORM_NIBBLE_BITS * price);
}

/* Returns whether the shares take more nibbles than the budget at a price between the search's. */
static bool exceeds(const struct search *search, double price) {
    uint64_t least = 0, most = 0, sum = 0; /* all without their rests, and all with a nibble for them */
    for (size_t s = 0; s < search->n; s++) {
        struct taken *taken = &search->taken[s];
        const struct worth worth = worth_of(search, s);
        taken->bits = taken->low == taken->high ? taken->low : take_bits(&search->shares[s], &worth, price);
        least += taken->bits / TRANSFORM_NIBBLE_BITS;
        most += (taken->bits + TRANSFORM_NIBBLE_BITS - 1) / TRANSFORM_NIBBLE_BITS;
    }
    if (least > search->budget || most <= search->budget) return least > search->budget;
    for (size_t s = 0; s < search->n; s++) sum += nibbles_of(search, s, price);
    return sum > search->budget;
}

/* Gives each share what it takes at a price; returns the number of nibbles. */
static uint64_t take_nibbles(const struct search *search, double price) {
    uint64_t sum = 0;
    for (size_t s = 0; s < search->n; s++) {
        const struct transform_share *share = &search->shares[s];
        const struct worth worth = worth_of(search, s);
        const unsigned bits = take_bits(share, &worth, price);
        leave_rest(share, &worth, bits);
        const bool one_more = bits % TRANSFORM_NIBBLE_BITS && nibble_saving(share, &worth, false) > TRANSFORM_NIBBLE_BITS * price;
        if (one_more) nibble_saving(share, &worth, true);
        sum += bits / TRANSFORM_NIBBLE_BITS + one_more;
    }
    return sum;
}

/* Gives one more nibble to the share for which it saves most; returns false when none can take one. */
static bool add_nibble(const struct search *search) {
    double most = 0;
    size_t best = search->n;
    for (size_t s = 0; s < search->n; s++) {
        const struct worth worth = worth_of(search, s);
        double own = nibble_saving(&search->shares[s], &worth, false);
        if (own > most) best = s, most = own;
    }
    if (best == search->n) return false;
    const struct worth worth = worth_of(search, best);
    return nibble_saving(&search->shares[best], &worth, true) > 0;
}

/* Returns the budget in nibbles. */
static uint64_t budget_of(size_t n, uint32_t head_dim, double rate) {
    return (uint64_t)(rate * (double)n * (double)(head_dim / TRANSFORM_QUAD) / TRANSFORM_NIBBLE_BITS + 1e-6);
}

/* Returns the least price that stays within the budget, which 0 does not and `high` does. */
static double find_price(const struct search *search, double high) {
    double low = 0;
    for (size_t s = 0; s < search->n; s++) {
        const struct worth worth = worth_of(search, s);
        search->taken[s].low = take_bits(&search->shares[s], &worth, low);
        search->taken[s].high = take_bits(&search->shares[s], &worth, high);
    }
    for (int i = 0; i < 60 && low < high; i++) {
        const double price = low > 0 ? sqrt(low * high) : high * 1e-12;
        const bool over = exceeds(search, price);
        if (!over && !(price < high)) break;
        for (size_t s = 0; s < search->n; s++) *(over ? &search->taken[s].low : &search->taken[s].high) = search->taken[s].bits;
        *(over ? &low : &high) = price;
        if (low == 0 && high < 1e-290) break;
    }
    return high;
}

enum terse_status transform_share_bits(const struct transform_share *shares, size_t n, uint32_t head_dim, double rate,
                                       struct terse_error *error) {
    const size_t quads = head_dim / TRANSFORM_QUAD;
    struct search search = {.shares = shares,
                            .n = n,
                            .quads = quads,
                            .worth = memory_array(n * quads, sizeof(double)),
                            .taken = memory_zeros(n, sizeof(struct taken)),
                            .budget = budget_of(n, head_dim, rate)};
    const bool enough = search.worth && search.taken;
    double high = 0;
    for (size_t s = 0; s < n && enough; s++) {
        set_worth(&shares[s], quads, search.worth + s * quads);
        const struct worth worth = worth_of(&search, s);
        high = fmax(high, saving(&worth, 0, 0));
    }
    /* Without a price all is taken that saves anything. Where prices tie, one nibble after another is added. */
    if (enough && take_nibbles(&search, 0) > search.budget)
        for (uint64_t sum = take_nibbles(&search, find_price(&search, high)); sum < search.budget && add_nibble(&search);) sum++;
    memory_free(search.worth);
    memory_free(search.taken);
    return enough ? TERSE_OK : status_no_memory(error, n * (quads * sizeof(double) + sizeof(struct taken)), "sharing bits");
}

uint64_t transform_shared_page_bytes(size_t n, uint32_t head_dim, double rate) {
    return (uint64_t)n * PAGE_TOKENS + budget_of(n, head_dim, rate) * PAGE_TRANSFORM_NIBBLE;
}
