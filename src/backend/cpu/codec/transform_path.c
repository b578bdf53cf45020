/* Runs Viterbi's algorithm (Forney 1973, "The Viterbi algorithm") for 64 tokens at a time. A stream is a ring: it goes once through
 * component i of all quads, from the first plane to the last, and then through the next component. The state is the last three
 * bits; a step writes 1 to 3 bits more.
 *
 * Where a ring begins is found by walking over its seam: a path that begins anywhere some steps before it and ends anywhere some
 * steps behind it passes the seam in the state that the whole path is then made to begin and to end with. */
#include "backend/cpu/codec/transform_path.h"

#include "backend/cpu/kernels/transform/ops.h"

#include <string.h>

#define STATES TRANSFORM_PATH_STATES
#define MOST_STEPS (TRANSFORM_QUAD * (TRANSFORM_QUADS_MAX + 1))
#define FAR 1e30f /* of a state where no path may begin */

/* A step writes the bits of a plane, of a pair of planes, or, at the end of a round, the rest of a nibble, which may be anything. */
struct step {
    unsigned bits, planes; /* written; looked up by the window */
    size_t plane, place;   /* first of them; bits of the stream before */
};

struct walk {
    const struct transform_layout *layout;
    const float *size;
    const float (*wanted)[PAGE_TOKENS];
    size_t steps; /* of a round */
    struct step step[TRANSFORM_QUADS_MAX + 1];
    float cost[STATES][PAGE_TOKENS];
    /* For each step walked and state reached a byte holds: in bit 3 bit 3 of the window, whose lower three bits are the state; in
     * the lower bits the state before. */
    uint8_t from[MOST_STEPS > 2 * TRANSFORM_PATH_WARM_UP ? MOST_STEPS : 2 * TRANSFORM_PATH_WARM_UP][STATES][PAGE_TOKENS];
};

static void set_steps(struct walk *walk, size_t first) {
    const struct transform_layout *layout = walk->layout;
    size_t place = 0;
    for (size_t p = first; p < layout->planes; place += walk->step[walk->steps++].bits) {
        unsigned table = transform_table_of(&layout->plane[p]), planes = table == TRANSFORM_PAIR_FIRST ? 2 : 1;
        walk->step[walk->steps] = (struct step){transform_new_bits[table], planes, p, place};
        p += planes;
    }
    unsigned rest = (unsigned)(TRANSFORM_NIBBLE_BITS * (layout->nibbles - layout->stream) - place);
    if (rest) walk->step[walk->steps++] = (struct step){rest, 0, 0, place};
}

/* Returns what a component wants of a plane with these upper levels, in units of the plane. */
static float in_units(const struct transform_plane *plane, float upper_step, float wanted) {
    float limit = 4 * (float)plane->largest + 8 * upper_step, x = wanted * (1 / plane->scale);
    x = x > -limit ? x : -limit; /* and what is not a number */
    return x < limit ? x : limit;
}

/* Sets the term of the cost of a plane's level. */
static void set_term(const struct walk *walk, const struct transform_plane *plane, size_t i, struct transform_path_term *term) {
    size_t c = plane->quad * TRANSFORM_QUAD + i;
    float unit = walk->size[c] * plane->scale;
    term->levels = transform_levels[transform_table_of(plane)];
    term->square = unit * unit;
    term->upper_step = transform_upper_step(transform_table_of(plane));
    for (size_t t = 0; t < PAGE_TOKENS; t++) term->x[t] = in_units(plane, term->upper_step, walk->wanted[c][t]);
}

static void take_step(struct walk *walk, const struct step *step, size_t i, uint8_t from[TRANSFORM_PATH_STATES][PAGE_TOKENS]) {
    struct transform_path_term terms[2];
    for (size_t p = 0; p < step->planes; p++) set_term(walk, &walk->layout->plane[step->plane + p], i, &terms[p]);
    transform_ops()->path_step(step->bits, terms, step->planes, walk->cost, from);
}

/* ---- The ring */

/* Takes `n` steps of the ring, from its first-th on. */
static void take_steps(struct walk *walk, size_t first, size_t n) {
    size_t all = TRANSFORM_QUAD * walk->steps;
    for (size_t k = 0; k < n; k++) {
        size_t at = (first + k) % all;
        take_step(walk, &walk->step[at % walk->steps], at / walk->steps, walk->from[k]);
    }
}

/* Finds for each token the state at the ring's seam. */
static void find_seam(struct walk *walk, uint8_t *seam) {
    size_t all = TRANSFORM_QUAD * walk->steps, before = TRANSFORM_PATH_WARM_UP / all * all + all - TRANSFORM_PATH_WARM_UP % all;
    memset(walk->cost, 0, sizeof walk->cost);
    take_steps(walk, before % all, 2 * TRANSFORM_PATH_WARM_UP);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        unsigned state = 0;
        for (unsigned s = 1; s < STATES; s++)
            if (walk->cost[s][t] < walk->cost[state][t]) state = s;
        for (size_t k = 2 * TRANSFORM_PATH_WARM_UP; k-- > TRANSFORM_PATH_WARM_UP;) state = walk->from[k][state][t] & (STATES - 1);
        seam[t] = (uint8_t)state;
    }
}

/* Keeps a level of a plane, and of the upper plane, if there is one, the level that comes nearest to the rest. */
static void keep_level(const struct walk *walk, const struct transform_plane *plane, size_t i, size_t t, float level,
                       float (*found)[PAGE_TOKENS], struct transform_path *path) {
    size_t c = plane->quad * TRANSFORM_QUAD + i;
    float step = transform_upper_step(transform_table_of(plane));
    if (step > 0) {
        int32_t code = transform_upper_code(in_units(plane, step, walk->wanted[c][t]) - level, 1 / step);
        path->upper[c][t] = (uint8_t)code;
        level += step * ((float)code - 7.5f);
    }
    found[c][t] += plane->scale * level;
}

/* Follows the path that ends in the states seam[64] back to its beginning, and keeps the bits and the levels that it has
 * written. */
static void follow(const struct walk *walk, const uint8_t *seam, float (*found)[PAGE_TOKENS], struct transform_path *path) {
    unsigned state[PAGE_TOKENS];
    for (size_t t = 0; t < PAGE_TOKENS; t++) state[t] = seam[t];
    for (size_t k = TRANSFORM_QUAD * walk->steps; k-- > 0;) {
        const struct step *step = &walk->step[k % walk->steps];
        size_t i = k / walk->steps;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            unsigned from = walk->from[k][state[t]][t], window = state[t] | (from & STATES);
            for (size_t p = step->plane; p < step->plane + step->planes; p++) {
                const struct transform_plane *plane = &walk->layout->plane[p];
                keep_level(walk, plane, i, t, transform_levels[transform_table_of(plane)][window], found, path);
            }
            for (unsigned b = 0; b < step->bits; b++) {
                size_t place = step->place + b, bit = window >> (step->bits - 1 - b) & 1;
                uint8_t *to = &path->nibble[place / TRANSFORM_NIBBLE_BITS][i][t];
                *to = (uint8_t)(*to | bit << (TRANSFORM_NIBBLE_BITS - 1 - place % TRANSFORM_NIBBLE_BITS));
            }
            state[t] = from & (STATES - 1);
        }
    }
}

void transform_path_find(const struct transform_layout *layout, size_t first, const float *size, const float (*wanted)[PAGE_TOKENS],
                         float (*found)[PAGE_TOKENS], struct transform_path *path) {
    struct walk walk;
    uint8_t seam[PAGE_TOKENS];
    walk.layout = layout;
    walk.size = size;
    walk.wanted = wanted;
    walk.steps = 0;
    set_steps(&walk, first);
    find_seam(&walk, seam);
    for (size_t s = 0; s < STATES; s++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) walk.cost[s][t] = seam[t] == s ? 0 : FAR;
    take_steps(&walk, 0, TRANSFORM_QUAD * walk.steps);
    memset(path, 0, sizeof *path);
    follow(&walk, seam, found, path);
}
