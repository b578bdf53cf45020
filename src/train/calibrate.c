/* Calibration decides what is learned, the weights of samples and the order of the fits. Samples come from capture.h, fits are those of
 * kmeans.h, em.h and additive.h, and format/codebook.h holds what was learned.
 *
 * A fit is one sub-vector of one layer, KV head and side (or, shared, of all layers and heads), or several of them where keys are
 * sums of tables' entries (train/em.h), or a whole head where values are sums of rows (train/additive.h). Its seed comes from its
 * number, so the order in which threads do the fits changes nothing.
 */
#include "train/calibrate.h"

#include "backend/plugin.h"
#include "base/divisor.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "format/commvq.h"
#include "method/method.h"
#include "train/additive.h"
#include "train/capture.h"
#include "train/codec_learning.h"
#include "train/em.h"
#include "train/kmeans.h"
#include "train/profile.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#define WINDOWS 128              /* where nothing else is asked for */
#define BUDGET ((size_t)4 << 30) /* of samples: all of the lab model's 128 windows of 2048 tokens, and no more for larger models */
#define WEIGHT_LEAST 1e-3        /* of the mean weight, at least: samples of no gradient still count a little */
/* Squares of gradients have tails so heavy that a hundred of ten thousand samples have most of the weight, and centroids would serve those alone,
 * which no other text repeats. Weights are cut where the effective samples, at least n over the largest weight, are so many for each centroid,
 * or a sample weighs so much: the more samples there are, the less is cut, and at last nothing. docs/reports/commvq.md says more. */
#define EFFECTIVE_LEAST 32
#define WEIGHT_CUT_LEAST 4
#define CUT_ROUNDS 100
/* Rounds over all samples follow those on some of the samples; bench/micro/bench_calibrate.c says what more of them would give. */
#define ROUNDS 4
#define TOLERANCE 2e-3
/* With fewer fits all threads work on one together, unless a backend does most of it: they would wait for that. */
#define FITS_PER_THREAD 4
/* A shared fit takes its samples evenly from all layers and KV heads: as many for a centroid as MILLION's, and never fewer than one
 * head has. */
#define SHARED_PER_CENTROID 256
#define SHARED_LEAST 262144
#define TABLE_SAMPLES 65536 /* of a fit of tables, at most: each costs a few searches in every round */
#define SUM_SAMPLES 32768   /* of a fit of sums, at most: each costs a search in every iteration */

struct terse_calibration terse_calibration_defaults(void) {
    return (struct terse_calibration){.size = sizeof(struct terse_calibration), .method = "antkv-1", .window = 2048, .seed = 1};
}

/* ---- Weights */

static double raw_weight(float norm, float factor, uint32_t power) {
    double weight = (double)factor * (double)factor;
    for (uint32_t i = 0; i < power; i++) weight *= (double)norm;
    return weight;
}

static double mean_below(const float *weights, size_t n, double cut) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += fmin((double)weights[i], cut);
    return sum / (double)n;
}

/* Returns the cut that is `most` times the mean of the weights below it. Rounds approach it from above. */
static double find_cut(const float *weights, size_t n, double most) {
    double cut = INFINITY, next = most * mean_below(weights, n, cut);
    for (uint32_t round = 0; round < CUT_ROUNDS && next < cut * (1 - 1e-6); round++) {
        cut = next;
        next = most * mean_below(weights, n, cut);
    }
    return cut;
}

double calibrate_most_weight(size_t n, size_t parts) { return fmax((double)n / (double)parts / EFFECTIVE_LEAST, WEIGHT_CUT_LEAST); }

void calibrate_weigh(float *norms, const float *factors, size_t n, uint32_t power, double most) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += raw_weight(norms[i], factors ? factors[i] : 1, power);
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        double weight = raw_weight(norms[i], factors ? factors[i] : 1, power) / mean;
        norms[i] = !(mean > 0) ? 1 : weight > WEIGHT_LEAST ? (float)weight : (float)WEIGHT_LEAST;
    }
    double cut = find_cut(norms, n, most), left = mean_below(norms, n, cut);
    for (size_t i = 0; i < n; i++) norms[i] = (float)(fmin((double)norms[i], cut) / left);
}

/* ---- The recipe */

struct recipe {
    const struct terse_model *model;
    struct codebook_info info;
    enum terse_weighting weighting;
    uint32_t power; /* 0: all samples weigh alike */
    bool text_labels;
    bool mean;                      /* is subtracted from rows that are normalized */
    bool learned;                   /* its codebook is made */
    const struct learning_ops *ops; /* of the device; NULL: the CPU's */
    struct terse_progress progress; /* led to the caller's thread */
};

static struct coding coding_of(const struct codebook_info *info, int side) { return side == CODEC_KEYS ? info->key : info->value; }

/* Returns what is learned for a side: a profile is learned for no rate, since it serves every rate. */
static struct coding learning(struct coding coding) {
    coding.rate = 0;
    return codec_learns(coding.codec) ? coding : (struct coding){0};
}

static bool is_profile(const struct recipe *recipe) {
    const struct codec *key = recipe->info.key.codec;
    return key && key->learner == CODEC_LEARNS_TRANSFORM;
}

/* Returns the name of the part whose gradient's norm is a weight. Only k-means fits sub-vectors; the other fits weight whole heads. */
static const char *weighted_part(const struct recipe *recipe) {
    const struct codec *key = recipe->info.key.codec, *value = recipe->info.value.codec;
    bool keys = !key || key->learner != CODEC_LEARNS_KMEANS, values = !value || value->learner != CODEC_LEARNS_KMEANS;
    if (recipe->weighting == TERSE_WEIGHTING_ROW || (keys && values)) return "head";
    return key && keys ? "key head, value sub-vector" : value && values ? "key sub-vector, value head" : "sub-vector";
}

static void describe_weighting(struct recipe *recipe) {
    const char *labels = recipe->text_labels ? "of the text" : "drawn";
    if (recipe->weighting == TERSE_WEIGHTING_NONE)
        snprintf(recipe->info.weighting, sizeof recipe->info.weighting, "none");
    else
        snprintf(recipe->info.weighting, sizeof recipe->info.weighting, "gradient%s per %s, labels %s",
                 recipe->power == 2 ? "^2" : "", weighted_part(recipe), labels);
}

static enum terse_status check_options(const struct terse_calibration *o, struct terse_error *error) {
    if (o->weighting < TERSE_WEIGHTING_DEFAULT || o->weighting > TERSE_WEIGHTING_ROW)
        return status_fail(error, TERSE_E_ARGUMENT, "%d is no weighting of samples", (int)o->weighting);
    if (o->mean < TERSE_MEAN_DEFAULT || o->mean > TERSE_MEAN_SUBTRACTED)
        return status_fail(error, TERSE_E_ARGUMENT, "%d is no way to take a mean", (int)o->mean);
    if (o->power > 2) return status_fail(error, TERSE_E_ARGUMENT, "weights are gradients to the power 1 or 2, not %u", o->power);
    return TERSE_OK;
}

static enum terse_status make_recipe(const struct terse_model *m, const struct terse_calibration *o, struct recipe *recipe,
                                     struct terse_error *error) {
    struct terse_cache_options cache = terse_cache_options_defaults();
    struct method method;
    enum terse_status status = check_options(o, error);
    cache.method = o->method;
    if (!status) status = method_resolve(&cache, m->head_dim, &method, error);
    if (!status && m->latent.rank)
        status =
            status_fail(error, TERSE_E_UNSUPPORTED,
                        "nothing is learned of this model, whose keys and values are one latent: caches fit terse-N to their own "
                        "sequences");
    if (!status) status = method_check(&method, m->head_dim, m->query_heads / m->kv_heads, error);
    if (status) return status;
    if (!method.codebook[0]) return status_fail(error, TERSE_E_ARGUMENT, "%s learns nothing: it needs no codebook", method.name);
    bool profile = method.key.codec->learner == CODEC_LEARNS_TRANSFORM;
    if (profile && (o->shared || o->weighting != TERSE_WEIGHTING_DEFAULT || o->power || o->text_labels))
        return status_fail(
            error, TERSE_E_ARGUMENT,
            "a profile is of each layer and KV head, and learned without gradients: do without --shared, --weighting, "
            "--power and --text-labels for %s",
            method.name);
    if (o->mean && (profile || !(method.key.codec->normalized || method.value.codec->normalized)))
        return status_fail(error, TERSE_E_ARGUMENT, "%s normalizes no rows: do without --mean", method.name);
    *recipe = (struct recipe){.model = m, .progress = thread_pool_progress(&o->progress)};
    recipe->weighting = o->weighting;
    if (o->weighting == TERSE_WEIGHTING_DEFAULT)
        recipe->weighting = method.power ? TERSE_WEIGHTING_SUBVECTOR : TERSE_WEIGHTING_NONE;
    recipe->power = recipe->weighting == TERSE_WEIGHTING_NONE ? 0 : o->power ? o->power : method.power ? method.power : 2;
    recipe->text_labels = o->text_labels;
    recipe->mean = o->mean ? o->mean == TERSE_MEAN_SUBTRACTED : method.mean;
    recipe->info = (struct codebook_info){
        .key = learning(method.key),
        .value = learning(method.value),
        .shared = o->shared,
        .layers = model_kv_layers(m),
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .fingerprint = m->norms_fingerprint, /* that they carry over is measured: docs/choosing-a-method.md */
        .fingerprint_of = CODEBOOK_OF_NORMS,
        .seed = profile ? 0 : o->seed}; /* nothing of a profile is drawn */
    snprintf(recipe->info.method, sizeof recipe->info.method, "%s", method.codebook);
    snprintf(recipe->info.model, sizeof recipe->info.model, "%s", m->name);
    snprintf(recipe->info.corpus, sizeof recipe->info.corpus, "%s", o->corpus ? o->corpus : "");
    describe_weighting(recipe);
    return TERSE_OK;
}

static bool has_normalization(const struct recipe *recipe) {
    const struct codec *key = recipe->info.key.codec, *value = recipe->info.value.codec;
    return (key && key->normalized) || (value && value->normalized);
}

static bool can_share(const struct recipe *a, const struct recipe *b) {
    if (a->info.key.codec && b->info.key.codec && a->info.key.codec->rope != b->info.key.codec->rope) return false;
    return !has_normalization(a) || !has_normalization(b) || (a->info.shared == b->info.shared && a->mean == b->mean);
}

/* Sets the RoPE frame of keys, which all recipes share. */
static void set_frame(enum codec_rope rope, struct capture_options *o) {
    o->side[CODEC_KEYS].rotated = rope != CODEC_ROPE_BEFORE;
    o->run = rope == CODEC_ROPE_IN_RUN ? ROPE_RUN_TOKENS : 0;
}

/* Adds what the one capture must keep for the i-th recipe to its options. */
static enum terse_status add_to_capture(const struct recipe *recipes, size_t i, struct capture_options *o,
                                        struct terse_error *error) {
    const struct recipe *recipe = &recipes[i];
    for (size_t j = 0; j < i; j++)
        if (!is_profile(&recipes[j]) && !can_share(recipe, &recipes[j]))
            return status_fail(error, TERSE_E_UNSUPPORTED,
                               "%s and %s cannot learn from the same samples: calibrate one after the other",
                               recipes[j].info.method, recipe->info.method);
    for (int side = 0; side < 2; side++) {
        struct coding coding = coding_of(&recipe->info, side);
        struct capture_side *kept = &o->side[side];
        if (!coding.codec) continue;
        kept->kept = true;
        if (side == CODEC_KEYS) set_frame(coding.codec->rope, o);
        if (recipe->power)
            kept->norm_width = (uint32_t)common_divisor(
                recipe->weighting == TERSE_WEIGHTING_ROW ? recipe->info.head_dim : coding.width, kept->norm_width);
    }
    o->drawn |= recipe->power && !recipe->text_labels;
    return TERSE_OK;
}

static enum terse_status capture(const struct recipe *recipes, size_t count, const struct terse_calibration *o, size_t budget,
                                 const int32_t *tokens, size_t n, struct capture **samples, struct terse_error *error) {
    /* Caches keep a sequence's first tokens exact, so no centroid need serve them; as attention sinks, their gradients would outweigh all. */
    struct capture_options options = {.window = o->window,
                                      .windows = o->windows ? o->windows : WINDOWS,
                                      .positions = recipes->model->context,
                                      .skip = SINKS,
                                      .seed = o->seed,
                                      .budget = budget,
                                      .progress = recipes->progress,
                                      .ops = recipes->ops};
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < count && !status; i++)
        if (!is_profile(&recipes[i])) status = add_to_capture(recipes, i, &options, error);
    return status ? status : capture_new(recipes->model, &options, tokens, n, samples, error);
}

/* ---- Fits */

/* Later recipes reuse these from earlier ones: the parameters of the samples' normalization (set_normalizations), [sets][tail] for
 * each side, and the tables of the first recipe that has some, whose first rounds are those of a fit of fewer rounds
 * (train/em.h). */
struct carried {
    float *parameters[2];
    const struct recipe *recipe; /* NULL: none had tables */
    float *tables;               /* its keys' parameters */
    double *effective;           /* samples of each of its fits */
};

struct fits {
    const struct recipe *recipe;
    struct capture *samples;
    struct carried *carried;
    size_t sets;         /* of centroids on a side: one, or one for each layer and KV head */
    size_t count[2];     /* fits of each side */
    float *centroids[2]; /* of each side [sets] of the codec's parameters, which begin with the centroids, [parts][2^bits][width] */
    double *effective;   /* [count of both] samples */
    /* The threads share these. */
    uint64_t done;
    bool stop; /* a fit has failed, or the caller wants no more */
    enum terse_status status;
    struct terse_error error;
};

static float *parameters_of(const struct fits *f, enum codec_side side, size_t set) {
    return f->centroids[side] + set * (codebook_floats(&f->recipe->info, side) / f->sets);
}

static size_t count_all(const struct fits *f) { return f->count[0] + f->count[1]; }

/* Reports between two rounds of a fit. Only the caller's own thread reports to the caller. */
static bool report_fit(void *user, const char *what, uint64_t done, uint64_t total) {
    struct fits *f = user;
    const struct terse_progress *progress = &f->recipe->progress;
    uint64_t fits;
    bool stop;
    (void)what, (void)done, (void)total;
#pragma omp atomic read
    fits = f->done;
#pragma omp atomic read
    stop = f->stop;
    if (stop || omp_get_thread_num() != 0 || !progress->report) return !stop;
    if (progress->report(progress->user, "centroids", fits, count_all(f))) return true;
#pragma omp atomic write
    f->stop = true;
    return false;
}

/* A fit reads every `step`-th sample, `each` of a layer and KV head, of `heads` of them from `first` on. */
struct reading {
    size_t first, heads, step, each;
};

static struct reading reading_of(const struct fits *f, struct coding coding, size_t set) {
    const struct codebook_info *info = &f->recipe->info;
    size_t all = capture_samples(f->samples), heads = (size_t)info->layers * info->kv_heads;
    bool searched = coding.codec->learner != CODEC_LEARNS_KMEANS;
    if (!info->shared) heads = 1;
    if (!info->shared && !searched) return (struct reading){set, 1, 1, all};
    size_t most = coding.codec->learner == CODEC_LEARNS_EM ? TABLE_SAMPLES : SUM_SAMPLES;
    if (!searched) most = (size_t)SHARED_PER_CENTROID << coding.bits;
    if (!searched && most < SHARED_LEAST) most = SHARED_LEAST;
    size_t step = (all * heads + most - 1) / most;
    return (struct reading){info->shared ? 0 : set, heads, step, (all + step - 1) / step};
}

/* Returns the samples of the reading's i-th layer and KV head. */
static struct capture_reading head_reading(const struct fits *f, enum codec_side side, const struct reading *r, size_t i) {
    uint32_t kv_heads = f->recipe->info.kv_heads;
    return (struct capture_reading){
        side, (uint32_t)((r->first + i) / kv_heads), (uint32_t)((r->first + i) % kv_heads), 0, r->step, r->each};
}

/* A fit learns from these samples. */
struct samples {
    size_t n;
    float *rows;    /* [n][width] */
    float *weights; /* [n] */
};

static void free_samples(struct samples *samples) {
    memory_free(samples->rows);
    memory_free(samples->weights);
}

/* Returns the number of centroids, entries or rows that share the samples of a fit. */
static size_t parts_of_fit(struct coding coding) {
    switch (coding.codec->learner) {
    case CODEC_LEARNS_EM: return COMMVQ_ENTRIES;
    case CODEC_LEARNS_ADDITIVE: return coding.bits;
    default: return (size_t)1 << coding.bits;
    }
}

/* Reads channels [channel, channel + width) of the samples that `r` names. After a failure there is nothing to free. */
static enum terse_status read_samples(const struct fits *f, enum codec_side side, const struct reading *r, size_t channel,
                                      size_t width, struct samples *samples, struct terse_error *error) {
    bool whole = f->recipe->weighting == TERSE_WEIGHTING_ROW;
    size_t n = r->heads * r->each;
    float *factors = memory_array(n, sizeof *factors);
    *samples = (struct samples){n, memory_array(n, width * sizeof(float)), memory_array(n, sizeof(float))};
    if (!samples->rows || !samples->weights || !factors) {
        free_samples(samples);
        memory_free(factors);
        return status_no_memory(error, n * (width + 2) * sizeof(float), "the samples of a fit");
    }
    for (size_t i = 0; i < r->heads; i++) {
        struct capture_reading reading = head_reading(f, side, r, i);
        float *norms = samples->weights + i * r->each;
        capture_rows(f->samples, &reading, channel, width, samples->rows + i * r->each * width);
        capture_factors(f->samples, &reading, factors + i * r->each);
        if (f->recipe->power)
            capture_norms(f->samples, &reading, whole ? 0 : channel, whole ? f->recipe->info.head_dim : width, norms);
    }
    calibrate_weigh(samples->weights, factors, n, f->recipe->power,
                    calibrate_most_weight(n, parts_of_fit(coding_of(&f->recipe->info, side))));
    memory_free(factors);
    return TERSE_OK;
}

static enum terse_status fit(struct fits *f, size_t index, struct terse_error *error) {
    enum codec_side side = index < f->count[CODEC_KEYS] ? CODEC_KEYS : CODEC_VALUES;
    struct coding coding = coding_of(&f->recipe->info, side);
    size_t at = side == CODEC_KEYS ? index : index - f->count[CODEC_KEYS], parts = f->count[side] / f->sets;
    size_t k = (size_t)1 << coding.bits;
    struct reading reading = reading_of(f, coding, at / parts);
    struct kmeans_options options = {.rounds = ROUNDS, .tolerance = TOLERANCE, .progress = {report_fit, f}, .ops = f->recipe->ops};
    struct kmeans_result result;
    struct samples samples;
    options.seed = random_mix(f->recipe->info.seed + (index + 1) * RANDOM_STEP);
    enum terse_status status = read_samples(f, side, &reading, at % parts * coding.width, coding.width, &samples, error);
    if (status) return status;
    struct kmeans_points points = {.rows = samples.rows, .n = samples.n, .d = coding.width, .stride = coding.width};
    if (f->recipe->power || coding.codec->normalized) points.weights = samples.weights;
    status = kmeans_fit(&points, k, &options, parameters_of(f, side, at / parts) + at % parts * k * coding.width, &result, error);
    if (!status) f->effective[index] = result.effective_samples;
    free_samples(&samples);
    return status;
}

/* Returns whether the tables of `recipe` are the beginning of those of `longer`, whose seed is the same. */
static bool begins(const struct recipe *recipe, const struct recipe *longer) {
    const struct codebook_info *a = &recipe->info, *b = &longer->info;
    return a->key.codec == b->key.codec && a->key.width == b->key.width && a->key.bits <= b->key.bits && a->shared == b->shared &&
           recipe->power == longer->power && recipe->weighting == longer->weighting;
}

/* Copies what an earlier recipe has learned for the same samples; returns false where there is no such recipe. */
static bool copy_tables(struct fits *f, size_t index) {
    const struct carried *from = f->carried;
    size_t subvectors = f->count[CODEC_KEYS] / f->sets, set = index / subvectors, subvector = index % subvectors;
    size_t round = COMMVQ_ENTRIES * f->recipe->info.key.width;
    if (!from->recipe || !begins(f->recipe, from->recipe)) return false;
    size_t own = f->recipe->info.key.bits / COMMVQ_BITS * round, theirs = from->recipe->info.key.bits / COMMVQ_BITS * round;
    const float *tables = from->tables + set * (codebook_floats(&from->recipe->info, CODEC_KEYS) / f->sets);
    memcpy(parameters_of(f, CODEC_KEYS, set) + subvector * own, tables + subvector * theirs, own * sizeof *tables);
    f->effective[index] = from->effective[index];
    return true;
}

/* Fits the tables of one sub-vector. */
static enum terse_status fit_tables(struct fits *f, size_t index, struct terse_error *error) {
    const struct codebook_info *info = &f->recipe->info;
    struct coding coding = info->key;
    size_t subvectors = f->count[CODEC_KEYS] / f->sets, set = index / subvectors, subvector = index % subvectors,
           hd = info->head_dim;
    struct codec_shape shape = {.head_dim = info->head_dim, .group = 1, .width = coding.width, .bits = coding.bits};
    struct em_shape tables = {coding.width / 2, COMMVQ_ENTRIES, commvq_rounds(shape)};
    struct reading reading = reading_of(f, coding, set);
    struct em_options options = em_options_defaults();
    struct em_result result;
    struct samples samples;
    float *parameters = parameters_of(f, CODEC_KEYS, set),
          *to = parameters + subvector * tables.rounds * COMMVQ_ENTRIES * coding.width;
    float head[CODEC_HEAD_DIM_MAX];
    uint8_t channels[CODEC_HEAD_DIM_MAX];
    if (copy_tables(f, index)) return TERSE_OK;
    options.seed = random_mix(info->seed + (index + 1) * RANDOM_STEP);
    options.progress = (struct terse_progress){report_fit, f};
    options.ops = f->recipe->ops;
    enum terse_status status = read_samples(f, CODEC_KEYS, &reading, 0, hd, &samples, error);
    if (status) return status;
    commvq_channels(shape, parameters, subvector, channels);
    for (size_t i = 0; i < samples.n; i++) {
        float *row = samples.rows + i * hd;
        memcpy(head, row, hd * sizeof *head);
        for (size_t j = 0; j < coding.width; j++) row[j] = head[channels[j]];
    }
    status = em_fit(&(struct em_points){samples.rows, samples.n, hd, samples.weights}, tables, &options, to, NULL, &result, error);
    if (!status) f->effective[index] = result.effective_samples;
    free_samples(&samples);
    return status;
}

/* Fits the rows of one head's sums. */
static enum terse_status fit_sums(struct fits *f, size_t index, struct terse_error *error) {
    const struct codebook_info *info = &f->recipe->info;
    size_t set = index - f->count[CODEC_KEYS], hd = info->head_dim;
    struct reading reading = reading_of(f, info->value, set);
    struct additive_options options = additive_options_defaults();
    struct additive_result result;
    struct samples samples;
    options.seed = random_mix(info->seed + (index + 1) * RANDOM_STEP);
    options.progress = (struct terse_progress){report_fit, f};
    enum terse_status status = read_samples(f, CODEC_VALUES, &reading, 0, hd, &samples, error);
    if (status) return status;
    status = additive_fit(&(struct additive_points){samples.rows, samples.n, hd, samples.weights}, hd, info->value.bits, &options,
                          parameters_of(f, CODEC_VALUES, set), NULL, &result, error);
    if (!status) f->effective[index] = result.effective_samples;
    free_samples(&samples);
    return status;
}

/* Does one fit, unless one has failed; the first failure is the one reported. */
static void fit_or_stop(struct fits *f, size_t index) {
    struct terse_error error;
    if (!report_fit(f, "", 0, 0)) return;
    const struct codec *codec = coding_of(&f->recipe->info, index < f->count[CODEC_KEYS] ? CODEC_KEYS : CODEC_VALUES).codec;
    static enum terse_status (*const fit_of[])(struct fits * f, size_t index, struct terse_error * error) = {
        [CODEC_LEARNS_KMEANS] = fit, [CODEC_LEARNS_EM] = fit_tables, [CODEC_LEARNS_ADDITIVE] = fit_sums};
    enum terse_status status = fit_of[codec->learner](f, index, &error);
    if (status) {
#pragma omp critical
        if (!f->status) {
            f->status = status;
            f->error = error;
        }
#pragma omp atomic write
        f->stop = true;
    }
#pragma omp atomic update
    f->done++;
}

static enum terse_status run_fits(struct fits *f, struct terse_error *error) {
    const size_t fits = count_all(f), each = f->recipe->ops ? 1 : FITS_PER_THREAD;
    if (fits >= each * (size_t)omp_get_max_threads()) {
#pragma omp parallel for schedule(dynamic, 1)
        for (size_t i = 0; i < fits; i++) fit_or_stop(f, i);
    } else {
        for (size_t i = 0; i < fits; i++) fit_or_stop(f, i);
    }
    if (f->status && f->status != TERSE_E_INTERRUPTED) return status_fail(error, f->status, "%s", f->error.message);
    if (report_fit(f, "", 0, 0)) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "interrupted after %" PRIu64 " of %zu fits of centroids", f->done, fits);
}

/* ---- Normalization: where a codec's centroids describe normalized rows, the samples are normalized first. */

#define NORMALIZATION_ROWS 32768 /* at most, from which a normalization is learned */

struct normalization {
    const struct codec *codec;
    struct codec_shape shape;
    const float *parameters;
};

static float normalize_row(const void *user, float *row) {
    const struct normalization *n = user;
    return codec_normalize_row(n->codec, n->shape, n->parameters, row);
}

/* Returns how many floats the normalization has, which follow a set's centroids. */
static size_t tail_floats(const struct fits *f, enum codec_side side) {
    struct coding coding = coding_of(&f->recipe->info, side);
    struct codec_shape shape = {.head_dim = f->recipe->info.head_dim, .group = 1, .width = coding.width, .bits = coding.bits};
    return codec_normalization_floats(coding.codec, shape);
}

static float *tail_of(const struct fits *f, enum codec_side side, size_t set) {
    return parameters_of(f, side, set + 1) - tail_floats(f, side);
}

/* Fits the normalization of one set, a layer and head or all, and normalizes its samples. */
static enum terse_status set_normalization(struct fits *f, enum codec_side side, size_t set, struct terse_error *error) {
    const struct codebook_info *info = &f->recipe->info;
    struct coding coding = coding_of(info, side);
    size_t heads = info->shared ? (size_t)info->layers * info->kv_heads : 1, all = capture_samples(f->samples);
    size_t most = NORMALIZATION_ROWS / heads > 0 ? NORMALIZATION_ROWS / heads : 1, step = (all + most - 1) / most,
           each = (all + step - 1) / step;
    struct normalization normalization = {coding.codec,
                                          {.head_dim = info->head_dim, .group = 1, .width = coding.width, .bits = coding.bits},
                                          parameters_of(f, side, set)};
    struct reading r = {set, heads, step, each};
    float *rows = memory_array(heads * each, info->head_dim * sizeof *rows);
    if (!rows) return status_no_memory(error, heads * each * info->head_dim * sizeof *rows, "the samples of a normalization");
    for (size_t i = 0; i < heads; i++) {
        struct capture_reading reading = head_reading(f, side, &r, i);
        capture_rows(f->samples, &reading, 0, info->head_dim, rows + i * each * info->head_dim);
    }
    (f->recipe->mean ? codec_fit_normalization : codec_fit_scale)(coding.codec, normalization.shape, rows, heads * each,
                                                                  parameters_of(f, side, set));
    memory_free(rows);
    for (size_t i = 0; i < heads; i++) {
        struct capture_reading reading = head_reading(f, side, &r, i);
        capture_normalize(f->samples, side, reading.layer, reading.head, normalize_row, &normalization);
    }
    return TERSE_OK;
}

/* Normalizes the samples for the first recipe with a normalization; later ones find them normalized, and the parameters in
 * `carried`. */
static enum terse_status set_normalizations(struct fits *f, enum codec_side side, struct terse_error *error) {
    struct coding coding = coding_of(&f->recipe->info, side);
    float **kept = &f->carried->parameters[side];
    bool first = !*kept;
    enum terse_status status = TERSE_OK;
    if (!coding.codec || !coding.codec->normalized) return TERSE_OK;
    size_t tail = tail_floats(f, side);
    if (first && !(*kept = memory_array(f->sets * tail, sizeof **kept)))
        return status_no_memory(error, f->sets * tail * sizeof **kept, "normalizations");
    for (size_t set = 0; set < f->sets && !status; set++) {
        if (first) status = set_normalization(f, side, set, error);
        if (first) memcpy(*kept + set * tail, tail_of(f, side, set), tail * sizeof **kept);
        if (!first) memcpy(tail_of(f, side, set), *kept + set * tail, tail * sizeof **kept);
    }
    return status;
}

/* Rounds what was learned to the grid that backends read faster. */
static void snap_all(const struct fits *f) {
    const struct codebook_info *info = &f->recipe->info;
    for (int side = 0; side < 2; side++) {
        struct coding coding = coding_of(info, side);
        struct codec_shape shape = {.head_dim = info->head_dim, .group = 1, .width = coding.width, .bits = coding.bits};
        if (!coding.codec) continue;
        for (size_t set = 0; set < f->sets; set++)
            codec_snap_to_grid(coding.codec, shape, parameters_of(f, (enum codec_side)side, set));
    }
}

static enum terse_status learn(struct recipe *recipe, struct capture *samples, struct carried *carried,
                               struct terse_codebook **codebook, struct terse_error *error) {
    struct fits f = {.recipe = recipe, .samples = samples, .carried = carried};
    enum terse_status status = TERSE_OK;
    size_t bytes = 0;
    f.sets = recipe->info.shared ? 1 : (size_t)recipe->info.layers * recipe->info.kv_heads;
    for (int side = 0; side < 2; side++) {
        struct coding coding = coding_of(&recipe->info, side);
        size_t floats = codebook_floats(&recipe->info, side);
        if (coding.codec) f.count[side] = f.sets * (recipe->info.head_dim / coding.width);
        f.centroids[side] = memory_array(floats, sizeof *f.centroids[side]);
        bytes += floats * sizeof *f.centroids[side];
    }
    f.effective = memory_array(count_all(&f), sizeof *f.effective);
    if (!f.centroids[0] || !f.centroids[1] || !f.effective) status = status_no_memory(error, bytes, "centroids");
    const struct codec *key = recipe->info.key.codec;
    for (size_t set = 0; key && key->learner == CODEC_LEARNS_EM && set < f.sets && !status; set++) {
        struct codec_shape shape = {
            .head_dim = recipe->info.head_dim, .group = 1, .width = recipe->info.key.width, .bits = recipe->info.key.bits};
        commvq_set_pairing(shape, parameters_of(&f, CODEC_KEYS, set), recipe->model->rope.n_rot / 2,
                           recipe->model->rope.pairing == ROPE_ADJACENT);
    }
    for (int side = 0; side < 2 && !status; side++) status = set_normalizations(&f, (enum codec_side)side, error);
    if (!status) status = run_fits(&f, error);
    if (!status) snap_all(&f);
    for (size_t i = 0; i < count_all(&f) && !status; i++) recipe->info.effective_samples += f.effective[i] / (double)count_all(&f);
    if (!status) status = codebook_new(&recipe->info, f.centroids[0], f.centroids[1], codebook, error);
    if (!status && !carried->recipe && key && key->learner == CODEC_LEARNS_EM) {
        *carried = (struct carried){{carried->parameters[0], carried->parameters[1]}, recipe, f.centroids[0], f.effective};
        f.centroids[0] = NULL;
        f.effective = NULL;
    }
    memory_free(f.centroids[0]);
    memory_free(f.centroids[1]);
    memory_free(f.effective);
    return status;
}

/* ---- A profile: samples of its own, from the frame of a run */

static enum terse_status learn_profile(struct recipe *recipe, const struct terse_calibration *o, size_t budget,
                                       const int32_t *tokens, size_t n, struct terse_codebook **codebook,
                                       struct terse_error *error) {
    struct profile_options options = {o->window, o->windows, budget, recipe->progress, recipe->ops};
    size_t floats = codebook_floats(&recipe->info, CODEC_KEYS); /* as many as of values */
    float *both = memory_array(2 * floats, sizeof *both);
    if (!both) return status_no_memory(error, 2 * floats * sizeof *both, "a profile");
    float *parameters[2] = {both, both + floats};
    enum terse_status status = profile_learn(recipe->model, &options, tokens, n, parameters, &recipe->info.tokens, error);
    recipe->info.effective_samples = (double)recipe->info.tokens;
    if (!status) status = codebook_new(&recipe->info, parameters[CODEC_KEYS], parameters[CODEC_VALUES], codebook, error);
    memory_free(both);
    return status;
}

/* ---- Together */

/* Orders recipes: those without a normalization come first, since samples stay normalized, then those with tables, most rounds
 * first. */
static uint32_t rank(const struct recipe *recipe) {
    const struct coding *key = &recipe->info.key;
    if (!has_normalization(recipe)) return 0;
    return key->codec && key->codec->learner == CODEC_LEARNS_EM ? UINT32_MAX - key->bits : UINT32_MAX;
}

static enum terse_status learn_all(struct recipe *recipes, size_t count, struct capture *samples, struct calibrate_sink sink,
                                   struct terse_error *error) {
    struct carried carried = {{NULL, NULL}, NULL, NULL, NULL};
    enum terse_status status = TERSE_OK;
    while (!status) {
        struct terse_codebook *codebook;
        size_t next = count;
        for (size_t i = 0; i < count; i++)
            if (!recipes[i].learned && (next == count || rank(&recipes[i]) < rank(&recipes[next]))) next = i;
        if (next == count) break;
        recipes[next].learned = true;
        recipes[next].info.tokens = capture_tokens(samples);
        status = learn(&recipes[next], samples, &carried, &codebook, error);
        if (!status) status = sink.put(sink.user, next, codebook, error);
    }
    memory_free(carried.parameters[0]);
    memory_free(carried.parameters[1]);
    memory_free(carried.tables);
    memory_free(carried.effective);
    return status;
}

/* learn_together takes these arguments, on the driver thread of a calibration's thread pool. */
struct together {
    size_t budget, count, n;
    const struct terse_calibration *options; /* [count] */
    const int32_t *tokens;                   /* [n] */
    struct recipe *recipes;                  /* [count] */
    struct calibrate_sink sink;
    struct terse_error *error;
    enum terse_status status;
};

static void learn_together(void *user) {
    struct together *t = user;
    struct capture *samples = NULL;
    size_t left = t->count;
    for (size_t i = 0; i < t->count && !t->status; i++) {
        struct terse_codebook *codebook;
        if (!is_profile(&t->recipes[i])) continue;
        left--;
        t->recipes[i].learned = true;
        t->status = learn_profile(&t->recipes[i], &t->options[i], t->budget, t->tokens, t->n, &codebook, t->error);
        if (!t->status) t->status = t->sink.put(t->sink.user, i, codebook, t->error);
    }
    if (t->status || !left) return;
    t->status = capture(t->recipes, t->count, t->options, t->budget, t->tokens, t->n, &samples, t->error);
    if (!t->status) t->status = learn_all(t->recipes, t->count, samples, t->sink, t->error);
    capture_free(samples);
}

enum terse_status calibrate_together(size_t budget, const struct terse_model *model, const struct terse_calibration *options,
                                     size_t count, const int32_t *tokens, size_t n, struct calibrate_sink sink,
                                     struct terse_error *error) {
    struct thread_pool *pool = NULL;
    struct recipe *recipes = memory_zeros(count, sizeof *recipes);
    enum terse_status status = recipes ? TERSE_OK : status_no_memory(error, count * sizeof *recipes, "what is to be learned");
    const struct backend *backend;
    for (size_t i = 0; i < count && !status; i++) status = make_recipe(model, &options[i], &recipes[i], error);
    if (!status) status = backend_for(model, options->device, &backend, error);
    if (!status) status = backend_cpu.executor->available(error); /* which computes what the device does not */
    for (size_t i = 0; i < count && !status; i++) recipes[i].ops = backend->learning;
    if (!status) status = thread_pool_new(options->threads, &pool, error);
    if (!status) {
        struct together t = {budget, count, n, options, tokens, recipes, sink, error, TERSE_OK};
        thread_pool_run(pool, learn_together, &t);
        status = t.status;
    }
    thread_pool_free(pool);
    memory_free(recipes);
    return status;
}

static enum terse_status put_only(void *user, size_t i, struct terse_codebook *codebook, struct terse_error *error) {
    (void)i, (void)error;
    *(struct terse_codebook **)user = codebook;
    return TERSE_OK;
}

enum terse_status terse_calibrate(const struct terse_model *model, const struct terse_calibration *options, const int32_t *tokens,
                                  size_t n, struct terse_codebook **codebook, struct terse_error *error) {
    *codebook = NULL;
    enum terse_status status = OPTIONS_CHECK(options, terse_calibration, error);
    if (status) return status;
    return calibrate_together(BUDGET, model, options, 1, tokens, n, (struct calibrate_sink){put_only, codebook}, error);
}
