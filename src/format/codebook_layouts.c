/* Shares a model's bits, once for each pair of rates. */
#include "format/codebook_layouts.h"

#include "base/memory.h"

#include <pthread.h>
#include <string.h>

static const char what[] = "the layouts of a profile";

static size_t quads_of(const struct terse_codebook *codebook) { return codebook_info(codebook)->head_dim / TRANSFORM_QUAD; }

/* Sharing bits works in this memory, for both sides. */
struct work {
    const struct codebook_rows *rows[2]; /* of a sequence, as codebook_layouts_of_rows has them; NULL: the codebook's */
    float *importance;                   /* [2 sets], keys' first */
    float *floats;                       /* of one set's parameters */
    float *own;                          /* [2 sets][head_dim] */
    uint8_t *quad_bits;
    struct transform_share *shares;
    size_t *set; /* [2 sets] of each share */
};

/* Adds a side's sets to shares[n]. */
static size_t add_side(const struct terse_codebook *codebook, enum codec_side side, struct work *work, size_t n) {
    const uint32_t hd = codebook_info(codebook)->head_dim;
    const size_t sets = codebook_sets(codebook_info(codebook));
    for (size_t set = 0; set < sets; set++) {
        const float *size = work->rows[side] ? work->rows[side][set].size : NULL;
        if (work->rows[side] && !size) continue;
        if (!size) {
            codebook_parameters(codebook, side, set, work->floats);
            size = transform_parameters_at(work->floats, hd).size;
        }
        memcpy(work->own + n * hd, size, hd * sizeof *work->own);
        work->shares[n] = (struct transform_share){.importance = work->importance[(side == CODEC_KEYS ? 0 : sets) + set],
                                                   .size = work->own + n * hd,
                                                   .quad_bits = work->quad_bits + n * quads_of(codebook)};
        work->set[n++] = set;
    }
    return n;
}

static enum terse_status share(const struct terse_codebook *codebook, const struct codebook_layouts *layouts, struct work *work,
                               struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    uint32_t hd = codebook_info(codebook)->head_dim;
    const double *rate = layouts->rate;
    size_t n[2] = {0, 0}, all = 0;
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        size_t first = all;
        if (layouts->layout[side]) all = add_side(codebook, (enum codec_side)side, work, first);
        n[side] = all - first;
    }
    if (n[CODEC_KEYS] && n[CODEC_VALUES] && rate[CODEC_KEYS] == rate[CODEC_VALUES])
        status = transform_share_bits(work->shares, all, hd, rate[CODEC_KEYS], error);
    else
        for (int side = CODEC_KEYS; side <= CODEC_VALUES && !status; side++)
            if (n[side])
                status =
                    transform_share_bits(work->shares + (side == CODEC_KEYS ? 0 : n[CODEC_KEYS]), n[side], hd, rate[side], error);
    for (size_t i = 0; i < all && !status; i++)
        transform_layout_set(work->shares[i].quad_bits, hd,
                             &layouts->layout[i < n[CODEC_KEYS] ? CODEC_KEYS : CODEC_VALUES][work->set[i]]);
    return status;
}

void codebook_layouts_free(struct codebook_layouts *layouts) {
    if (!layouts) return;
    memory_free(layouts->layout[CODEC_KEYS]);
    memory_free(layouts->layout[CODEC_VALUES]);
    memory_free(layouts);
}

uint64_t codebook_layouts_bytes(const struct codebook_layouts *layouts) {
    return sizeof *layouts + ((layouts->layout[CODEC_KEYS] != NULL) + (layouts->layout[CODEC_VALUES] != NULL)) * layouts->sets *
                                 sizeof(struct transform_layout);
}

enum terse_status codebook_layouts_of_rows(const struct terse_codebook *codebook, const double rate[2],
                                           const struct codebook_rows *const rows[2], bool normalized,
                                           struct codebook_layouts **result, struct terse_error *error) {
    size_t sets = codebook_sets(codebook_info(codebook)), hd = codebook_info(codebook)->head_dim;
    struct codebook_layouts *layouts = memory_zeros(1, sizeof *layouts);
    struct work work = {.rows = {rows[CODEC_KEYS], rows[CODEC_VALUES]},
                        .importance = memory_array(2 * sets, sizeof(float)),
                        .floats = memory_array(transform_parameter_floats((uint32_t)hd), sizeof(float)),
                        .own = memory_array(2 * sets * hd, sizeof(float)),
                        .quad_bits = memory_zeros(2 * sets, quads_of(codebook)),
                        .shares = memory_array(2 * sets, sizeof(struct transform_share)),
                        .set = memory_array(2 * sets, sizeof(size_t))};
    bool enough = layouts && work.importance && work.floats && work.own && work.quad_bits && work.shares && work.set;
    for (int side = CODEC_KEYS; enough && side <= CODEC_VALUES; side++) {
        layouts->rate[side] = rate[side];
        layouts->sets = sets;
        if (rate[side] > 0) enough = (layouts->layout[side] = memory_zeros(sets, sizeof(struct transform_layout))) != NULL;
    }
    enum terse_status status = enough ? TERSE_OK : status_no_memory(error, 2 * sets * sizeof(struct transform_layout), what);
    if (!status)
        status = codebook_importance(codebook, rows, normalized, (float *[2]){work.importance, work.importance + sets}, error);
    if (!status) status = share(codebook, layouts, &work, error);
    memory_free(work.importance);
    memory_free(work.floats);
    memory_free(work.own);
    memory_free(work.quad_bits);
    memory_free(work.shares);
    memory_free(work.set);
    if (status) codebook_layouts_free(layouts);
    *result = status ? NULL : layouts;
    return status;
}

/* ---- The list: a form of the codebook (format/codebook.h), which keeps and frees it. */

struct list {
    pthread_mutex_t mutex;
    struct codebook_layouts *first;
};

static enum terse_status list_new(const struct terse_codebook *codebook, void **form, struct terse_error *error) {
    struct list *list = memory_zeros(1, sizeof *list);
    (void)codebook;
    *form = list;
    if (!list) return status_no_memory(error, sizeof *list, what);
    pthread_mutex_init(&list->mutex, NULL);
    return TERSE_OK;
}

static void list_free(void *form) {
    struct list *list = form;
    while (list->first) {
        struct codebook_layouts *next = list->first->next;
        codebook_layouts_free(list->first);
        list->first = next;
    }
    pthread_mutex_destroy(&list->mutex);
    memory_free(list);
}

static uint64_t list_bytes(const void *form) {
    const struct list *list = form;
    uint64_t bytes = sizeof *list;
    for (const struct codebook_layouts *one = list->first; one; one = one->next) bytes += codebook_layouts_bytes(one);
    return bytes;
}

static const struct codebook_form_ops list_ops = {list_new, list_free, list_bytes};

enum terse_status codebook_layouts(const struct terse_codebook *codebook, const double rate[2],
                                   const struct codebook_layouts **layouts, struct terse_error *error) {
    const void *form;
    *layouts = NULL;
    enum terse_status status = codebook_form(codebook, &list_ops, &form, error);
    if (status) return status;
    struct list *list = (struct list *)form; /* what the mutex guards was never const */
    pthread_mutex_lock(&list->mutex);
    struct codebook_layouts *found = list->first;
    while (found && memcmp(found->rate, rate, sizeof found->rate) != 0) found = found->next;
    if (!found &&
        !(status = codebook_layouts_of_rows(codebook, rate, (const struct codebook_rows *[2]){NULL, NULL}, false, &found, error))) {
        found->next = list->first;
        list->first = found;
    }
    pthread_mutex_unlock(&list->mutex);
    *layouts = found;
    return status;
}
