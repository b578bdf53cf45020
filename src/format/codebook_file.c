/* Reads and writes the codebook's file: a GGUF container, docs/codebook-format.md. Owns its keys and tensors; gguf/gguf*.c handles
 * the container, and the codecs know what the parameters mean. */
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/text.h"
#include "format/codebook_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHECKSUM "codebook.checksum"
enum { VERSION = 1, DATA_ALIGN = 32 /* gguf_open's */ };

static const struct {
    const char *tensors[2], *codec, *width, *bits; /* tensors by enum codebook_part */
} side_keys[] = {
    [CODEC_KEYS] = {{"keys", "keys.frame"}, "codebook.keys.codec", "codebook.keys.width", "codebook.keys.bits"},
    [CODEC_VALUES] = {{"values", "values.frame"}, "codebook.values.codec", "codebook.values.width", "codebook.values.bits"},
};
#define KEYS_ROPE "codebook.keys.rope"
static const char *const rope_names[] = {[CODEC_ROPE_AFTER] = "after", [CODEC_ROPE_BEFORE] = "before", [CODEC_ROPE_IN_RUN] = "run"};
static const char *const rope_words[] = {
    [CODEC_ROPE_AFTER] = "after rotation", [CODEC_ROPE_BEFORE] = "before rotation", [CODEC_ROPE_IN_RUN] = "rotated in a run"};
enum { ROPE_NAMES = sizeof rope_names / sizeof rope_names[0] };
#define FINGERPRINT_OF "codebook.model.fingerprint_of"
static const char *const fingerprint_names[] = {[CODEBOOK_OF_WEIGHTS] = "weights", [CODEBOOK_OF_NORMS] = "norms"};
static const char *const scope_names[] = {"head", "model"}; /* by `shared` */
/* These keys hold arrays of float, of one length: a profile's costs of rates, number by number of struct terse_rate_cost. */
static const char *const cost_keys[] = {"codebook.rate_costs.bits", "codebook.rate_costs.divergence", "codebook.rate_costs.error"};
enum { COST_NUMBERS = 3 };
#define COSTS_CORPUS "codebook.rate_costs.corpus"
#define COSTS_POSITIONS "codebook.rate_costs.positions"

/* Writes the dimensions of a tensor, dims[0] varying fastest; returns their number, 0 where the side has no such part. */
static uint32_t part_dims(const struct codebook_info *info, enum codec_side side, enum codebook_part part, uint64_t dims[4]) {
    struct coding coding = codebook_coding(info, side);
    size_t n = codebook_part_floats(info, side, part), sets = codebook_sets(info);
    if (!n) return 0;
    if (part == CODEBOOK_NORMALIZATION || coding.codec->learner != CODEC_LEARNS_KMEANS) {
        memcpy(dims, (uint64_t[]){n, sets, 1, 1}, 4 * sizeof *dims);
        return 2;
    }
    memcpy(dims, (uint64_t[]){coding.width, UINT64_C(1) << coding.bits, info->head_dim / coding.width, sets}, 4 * sizeof *dims);
    return 4;
}

/* Returns the side of each tensor that a file may have, i = 0, 1, 2, 3. */
static enum codec_side side_of(int i) { return i < 2 ? CODEC_KEYS : CODEC_VALUES; }
static enum codebook_part part_of(int i) { return i % 2 ? CODEBOOK_NORMALIZATION : CODEBOOK_CENTROIDS; }
enum { TENSORS = 4 };

/* ---- Writing ------------------------------------------------------------------------------------------------------------ */

static void write_side(const struct codebook_info *info, enum codec_side side, struct gguf_writer *writer) {
    struct coding coding = codebook_coding(info, side);
    if (!coding.codec) return;
    gguf_writer_string(writer, side_keys[side].codec, coding.codec->name);
    gguf_writer_u32(writer, side_keys[side].width, coding.width);
    gguf_writer_u32(writer, side_keys[side].bits, coding.bits);
    if (side == CODEC_KEYS) gguf_writer_string(writer, KEYS_ROPE, rope_names[coding.codec->rope]);
}

/* Returns where the number of the cost is that belongs to cost_keys[key]. */
static float *cost_number(struct terse_rate_cost *cost, int key) {
    return key == 0 ? &cost->bits : key == 1 ? &cost->divergence : &cost->error;
}

static void write_costs(const struct codebook_info *info, struct gguf_writer *writer) {
    float numbers[TERSE_RATE_COSTS];
    if (!info->n_costs) return;
    for (int key = 0; key < COST_NUMBERS; key++) {
        for (size_t i = 0; i < info->n_costs; i++) {
            struct terse_rate_cost cost = info->costs[i];
            numbers[i] = *cost_number(&cost, key);
        }
        gguf_writer_array(writer, cost_keys[key], GGUF_F32, info->n_costs, numbers);
    }
    gguf_writer_string(writer, COSTS_CORPUS, info->costs_corpus);
    gguf_writer_u64(writer, COSTS_POSITIONS, info->costs_positions);
}

void codebook_write(const struct terse_codebook *codebook, struct gguf_writer *writer) {
    const struct codebook_info *info = &codebook->info;
    char written_by[32];
    snprintf(written_by, sizeof written_by, "terse %s", terse_version());
    gguf_writer_string(writer, "general.architecture", CODEBOOK_ARCHITECTURE);
    gguf_writer_u32(writer, "codebook.version", VERSION);
    gguf_writer_string(writer, "codebook.method", info->method);
    write_side(info, CODEC_KEYS, writer);
    write_side(info, CODEC_VALUES, writer);
    gguf_writer_string(writer, "codebook.scope", scope_names[info->shared]);
    gguf_writer_u32(writer, "codebook.layers", info->layers);
    gguf_writer_u32(writer, "codebook.kv_heads", info->kv_heads);
    gguf_writer_u32(writer, "codebook.head_dim", info->head_dim);
    gguf_writer_string(writer, "codebook.model.name", info->model);
    gguf_writer_u64(writer, "codebook.model.fingerprint", info->fingerprint);
    if (info->fingerprint_of != CODEBOOK_OF_WEIGHTS)
        gguf_writer_string(writer, FINGERPRINT_OF, fingerprint_names[info->fingerprint_of]);
    gguf_writer_string(writer, "codebook.corpus.name", info->corpus);
    gguf_writer_u64(writer, "codebook.corpus.tokens", info->tokens);
    gguf_writer_u64(writer, "codebook.seed", info->seed);
    gguf_writer_string(writer, "codebook.weighting", info->weighting);
    gguf_writer_f64(writer, "codebook.effective_samples", info->effective_samples);
    write_costs(info, writer);
    gguf_writer_string(writer, "codebook.written_by", written_by);
    gguf_writer_checksum(writer, CHECKSUM);
    for (int i = 0; i < TENSORS; i++) {
        uint64_t dims[4];
        uint32_t n_dims = part_dims(info, side_of(i), part_of(i), dims);
        if (!n_dims) continue;
        gguf_writer_tensor(writer, side_keys[side_of(i)].tensors[part_of(i)], TENSOR_F16, n_dims, dims,
                           codebook->halves[side_of(i)][part_of(i)]);
    }
}

void *codebook_build(const struct terse_codebook *codebook, size_t *size) {
    struct gguf_writer writer = {0};
    codebook_write(codebook, &writer);
    void *file = gguf_writer_build(&writer, size);
    gguf_writer_free(&writer);
    return file;
}

enum terse_status terse_codebook_save(const struct terse_codebook *codebook, const char *path, struct terse_error *error) {
    struct gguf_writer writer = {0};
    codebook_write(codebook, &writer);
    enum terse_status status = gguf_writer_save(&writer, path, NULL, NULL, error);
    gguf_writer_free(&writer);
    return status;
}

/* ---- Reading: the keys -------------------------------------------------------------------------------------------------- */

static bool is(struct gguf_string string, const char *text) {
    return string.size == strlen(text) && memcmp(string.data, text, string.size) == 0;
}

/* Checks that the file is a codebook; a model is the file that is most likely given in its place. */
static enum terse_status check_kind(const struct gguf *gguf, struct terse_error *error) {
    struct gguf_string kind = {0};
    bool found;
    char shown[64];
    uint32_t version = 0;
    enum terse_status status = gguf_get_string(gguf, "general.architecture", &kind, &found, error);
    if (status) return status;
    if (!found)
        return status_fail(error, TERSE_E_FORMAT,
                           "it has no general.architecture, so it is no codebook: give a file that terse calibrate wrote");
    if (!is(kind, CODEBOOK_ARCHITECTURE))
        return status_fail(error, TERSE_E_FORMAT,
                           "it is a model of architecture %s, not a codebook: give a file that terse calibrate wrote",
                           text_quote(shown, sizeof shown, kind.data, kind.size));
    if ((status = gguf_get_u32(gguf, "codebook.version", &version, NULL, error))) return status;
    if (version != VERSION)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "a codebook of version %" PRIu32 ", terse %s reads version %d: make it again with terse calibrate",
                           version, terse_version(), VERSION);
    return TERSE_OK;
}

/* Reads a text, cut to fit text[capacity]. */
static enum terse_status read_text(const struct gguf *gguf, const char *key, char *text, size_t capacity,
                                   struct terse_error *error) {
    struct gguf_string string = {0};
    enum terse_status status = gguf_get_string(gguf, key, &string, NULL, error);
    struct text_line line = text_line_begin(text, capacity);
    text_line_string(&line, string.data, string.size, false);
    text_line_end(&line);
    return status;
}

/* Reads the key's string as its place in names[count]; the message for another string has room for two names. Where the key may be
 * missing and is, *choice stays. */
static enum terse_status read_choice(const struct gguf *gguf, const char *key, const char *const *names, unsigned count,
                                     bool optional, unsigned *choice, struct terse_error *error) {
    struct gguf_string string = {0};
    char shown[48], known[64] = "";
    bool found = true;
    enum terse_status status = gguf_get_string(gguf, key, &string, optional ? &found : NULL, error);
    if (status || !found) return status;
    for (unsigned i = 0, length = 0; i < count; i++) {
        if (is(string, names[i])) {
            *choice = i;
            return TERSE_OK;
        }
        length += (unsigned)snprintf(known + length, sizeof known - length, "%s\"%s\"", i ? " or " : "", names[i]);
    }
    return status_fail(error, TERSE_E_FORMAT, "the key '%s' is %s, not %s: make the file again with terse calibrate", key,
                       text_quote(shown, sizeof shown, string.data, string.size), known);
}

/* Reads a side. One without its `codec` key learns nothing. */
static enum terse_status read_side(const struct gguf *gguf, enum codec_side side, struct coding *coding,
                                   struct terse_error *error) {
    struct gguf_string name = {0};
    bool found;
    char shown[48];
    unsigned rope = 0;
    enum terse_status status = gguf_get_string(gguf, side_keys[side].codec, &name, &found, error);
    *coding = (struct coding){0};
    if (status || !found) return status;
    for (size_t i = 0; (coding->codec = codec_at(i)); i++)
        if (is(name, coding->codec->name)) break;
    if (!coding->codec || !codec_learns(coding->codec))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "its %s are for the codec %s, which is not one of terse %s that learns: use a newer "
                           "terse, or make it again with terse calibrate",
                           side_keys[side].tensors[CODEBOOK_CENTROIDS], text_quote(shown, sizeof shown, name.data, name.size),
                           terse_version());
    if ((status = gguf_get_u32(gguf, side_keys[side].width, &coding->width, NULL, error))) return status;
    if ((status = gguf_get_u32(gguf, side_keys[side].bits, &coding->bits, NULL, error))) return status;
    if (side != CODEC_KEYS) return TERSE_OK;
    if ((status = read_choice(gguf, KEYS_ROPE, rope_names, ROPE_NAMES, false, &rope, error))) return status;
    if (rope != (unsigned)coding->codec->rope)
        return status_fail(error, TERSE_E_FORMAT,
                           "its keys were learned %s, the codec %s takes them %s: make the file "
                           "again with terse calibrate",
                           rope_words[rope], coding->codec->name, rope_words[coding->codec->rope]);
    return TERSE_OK;
}

/* Reads a profile's costs of rates, if it has any. codebook_check_info looks at the numbers. */
static enum terse_status read_costs(const struct gguf *gguf, struct codebook_info *info, struct terse_error *error) {
    if (!gguf_has(gguf, cost_keys[0])) return TERSE_OK;
    for (int key = 0; key < COST_NUMBERS; key++) {
        struct gguf_array array;
        enum terse_status status = gguf_get_array(gguf, cost_keys[key], GGUF_F32, &array, NULL, error);
        if (status) return status;
        if (array.count > TERSE_RATE_COSTS || (key && array.count != info->n_costs))
            return status_fail(error, TERSE_E_FORMAT,
                               "the key '%s' has %" PRIu64 " numbers: at most %d, and as many as '%s': make the file again with "
                               "terse calibrate",
                               cost_keys[key], array.count, TERSE_RATE_COSTS, cost_keys[0]);
        info->n_costs = array.count;
        for (size_t i = 0; i < info->n_costs; i++)
            memcpy(cost_number(&info->costs[i], key), (const char *)array.data + i * sizeof(float), sizeof(float));
    }
    enum terse_status status = read_text(gguf, COSTS_CORPUS, info->costs_corpus, sizeof info->costs_corpus, error);
    return status ? status : gguf_get_u64(gguf, COSTS_POSITIONS, &info->costs_positions, NULL, error);
}

static enum terse_status read_info(const struct gguf *gguf, struct codebook_info *info, struct terse_error *error) {
    enum terse_status status;
    unsigned scope = 0, of = CODEBOOK_OF_WEIGHTS;
    *info = (struct codebook_info){0};
    if ((status = read_text(gguf, "codebook.method", info->method, sizeof info->method, error))) return status;
    if ((status = read_side(gguf, CODEC_KEYS, &info->key, error))) return status;
    if ((status = read_side(gguf, CODEC_VALUES, &info->value, error))) return status;
    if ((status = read_choice(gguf, "codebook.scope", scope_names, 2, false, &scope, error))) return status;
    info->shared = scope == 1;
    if ((status = gguf_get_u32(gguf, "codebook.layers", &info->layers, NULL, error))) return status;
    if ((status = gguf_get_u32(gguf, "codebook.kv_heads", &info->kv_heads, NULL, error))) return status;
    if ((status = gguf_get_u32(gguf, "codebook.head_dim", &info->head_dim, NULL, error))) return status;
    if ((status = read_text(gguf, "codebook.model.name", info->model, sizeof info->model, error))) return status;
    if ((status = gguf_get_u64(gguf, "codebook.model.fingerprint", &info->fingerprint, NULL, error))) return status;
    if ((status = read_choice(gguf, FINGERPRINT_OF, fingerprint_names, 2, true, &of, error))) return status;
    info->fingerprint_of = (enum codebook_fingerprint)of;
    if ((status = read_text(gguf, "codebook.corpus.name", info->corpus, sizeof info->corpus, error))) return status;
    if ((status = gguf_get_u64(gguf, "codebook.corpus.tokens", &info->tokens, NULL, error))) return status;
    if ((status = gguf_get_u64(gguf, "codebook.seed", &info->seed, NULL, error))) return status;
    if ((status = read_text(gguf, "codebook.weighting", info->weighting, sizeof info->weighting, error))) return status;
    if ((status = gguf_get_f64(gguf, "codebook.effective_samples", &info->effective_samples, NULL, error))) return status;
    return read_costs(gguf, info, error);
}

/* ---- Reading: the tensors ----------------------------------------------------------------------------------------------- */

static enum terse_status check_tensor(const struct gguf *gguf, const char *name, const uint64_t dims[4],
                                      struct terse_error *error) {
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
    if (!tensor)
        return status_fail(error, TERSE_E_FORMAT, "the tensor '%s' is missing: make the file again with terse calibrate", name);
    if (tensor->type == TENSOR_F16 && memcmp(tensor->dims, dims, sizeof tensor->dims) == 0) return TERSE_OK;
    const char *type = tensor_type_name(tensor->type);
    const uint64_t *has = tensor->dims;
    return status_fail_at(
        error, TERSE_E_FORMAT, tensor->offset,
        "the tensor '%s' is %s of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", the keys ask for F16 of %" PRIu64
        " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ": make the file again with terse calibrate",
        name, type ? type : "of an unknown type", has[0], has[1], has[2], has[3], dims[0], dims[1], dims[2], dims[3]);
}

/* Checks that every part that the keys ask for is there, and no other. The file's size then bounds what a shape claims. */
static enum terse_status check_tensors(const struct gguf *gguf, const struct codebook_info *info, struct terse_error *error) {
    uint64_t wanted = 0;
    for (int i = 0; i < TENSORS; i++) {
        uint64_t dims[4];
        if (!part_dims(info, side_of(i), part_of(i), dims)) continue;
        enum terse_status status = check_tensor(gguf, side_keys[side_of(i)].tensors[part_of(i)], dims, error);
        if (status) return status;
        wanted++;
    }
    if (gguf_tensor_count(gguf) == wanted) return TERSE_OK;
    return status_fail(error, TERSE_E_FORMAT,
                       "it has %" PRIu64 " tensors where its keys ask for %" PRIu64 ": make the file again with terse calibrate",
                       gguf_tensor_count(gguf), wanted);
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------ */

static enum terse_status read_codebook(const struct gguf *gguf, struct terse_codebook **codebook, struct terse_error *error) {
    struct codebook_info info;
    enum terse_status status;
    if ((status = check_kind(gguf, error))) return status;
    if ((status = gguf_check_sum(gguf, CHECKSUM, error))) return status;
    if ((status = read_info(gguf, &info, error))) return status;
    if ((status = codebook_check_info(&info, error))) return status;
    if ((status = check_tensors(gguf, &info, error))) return status;
    if ((status = codebook_begin(&info, codebook, error))) return status;
    for (int i = 0; i < TENSORS; i++) {
        const struct gguf_tensor *tensor = gguf_find_tensor(gguf, side_keys[side_of(i)].tensors[part_of(i)]);
        uint16_t *halves = (*codebook)->halves[side_of(i)][part_of(i)];
        if (halves) memcpy(halves, tensor->data, tensor->bytes);
    }
    return codebook_check_halves(*codebook, error);
}

/* Loads a codebook from data[size], which is aligned. */
static enum terse_status load(const void *data, size_t size, const char *name, struct terse_codebook **result,
                              struct terse_error *error) {
    struct gguf *gguf = NULL;
    struct terse_codebook *codebook = NULL;
    enum terse_status status = TERSE_E_FORMAT;
    *result = NULL;
    if (size && (size < 4 || memcmp(data, "GGUF", 4) != 0))
        status_fail_at(error, status, 0,
                       "not a codebook (it does not begin with \"GGUF\"): give a file that terse calibrate wrote");
    else if ((status = gguf_open(data, size, name, &gguf, error)) == TERSE_OK)
        status = read_codebook(gguf, &codebook, error);
    gguf_free(gguf);
    if (status == TERSE_OK) {
        *result = codebook;
        return status;
    }
    terse_codebook_free(codebook);
    status_name_file(error, name);
    return status;
}

enum terse_status terse_codebook_load(const char *path, struct terse_codebook **codebook, struct terse_error *error) {
    struct mapped_file file;
    *codebook = NULL;
    enum terse_status status = mapped_file_open(path, &file, error);
    if (status) return status;
    status = load(file.data, file.size, path, codebook, error);
    mapped_file_close(&file);
    return status;
}

enum terse_status terse_codebook_load_memory(const void *data, size_t size, const char *name, struct terse_codebook **codebook,
                                             struct terse_error *error) {
    if ((uintptr_t)data % DATA_ALIGN == 0) return load(data, size, name, codebook, error);
    *codebook = NULL;
    void *copy = memory_array(size, 1);
    if (!copy) return status_no_memory(error, size, name);
    memcpy(copy, data, size);
    enum terse_status status = load(copy, size, name, codebook, error);
    memory_free(copy);
    return status;
}
