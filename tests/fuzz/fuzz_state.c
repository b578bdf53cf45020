/* Fuzz target of saved states: opens the input as it is and again with its checksums made right, so that what lies behind them is reached, and
 * loads what opens into a cache, of which every page that a step would read must then be there, also when it was cut and forked. What the
 * numbers in pages make of attention is not asked. The header's codebook chooses the method. One input in 64 is loaded as a session, too. Run it with the corpus in corpus/state; see CMakeLists.txt. */
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kv/step.h"
#include "engine/session_file.h"
#include "support/state_sample.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static volatile uint8_t read_bytes;

static void touch(const uint8_t *page, size_t bytes) { read_bytes = (uint8_t)(page[0] ^ page[bytes - 1]); }

/* Every page that a step of n tokens would read. */
static void touch_segments(struct cache *cache, size_t n) {
    require(cache_begin(cache, CACHE_STEP_DECODE, n, NULL) == TERSE_OK);
    for (size_t i = 0; i < segment_count_stored(cache); i++) {
        struct segment segment = segment_at(cache, 0, i);
        require(segment.begin <= segment.end && segment.end <= PAGE_TOKENS);
        for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            if (segment.kind == SEGMENT_SEALED)
                touch(page_at(cache, segment.set, (enum codec_side)side, 0, 0), page_address(cache, 0, 0)->bytes[side]);
            if (segment.kind == SEGMENT_WINDOW)
                touch(window_page(cache, segment.window_set, (enum codec_side)side, 0, 0), cache->window_page_bytes);
        }
        if (segment.kind == SEGMENT_SEALED && cache->base.index_page_bytes)
            touch(own_index_page(cache, segment.set, 0, 0), cache->base.index_page_bytes);
    }
}

static void use(struct cache *cache) {
    struct terse_cache_report report;
    struct cache *copy;
    uint64_t length = cache_length(cache);
    cache_report(cache, &report);
    require(report.tokens == length);
    touch_segments(cache, 1);
    require(cache_fork(cache, &copy, NULL) == TERSE_OK);
    cache_destroy(cache);
    if (!cache_truncate(copy, length / 2, NULL)) require(cache_length(copy) == length / 2);
    touch_segments(copy, 2);
    cache_destroy(copy);
}

static void load_cache(struct state_file *file) {
    struct terse_error error = {0};
    struct cache *cache = state_sample_cache((size_t)(state_file_identity(file).codebook % STATE_SAMPLES));
    enum terse_status status = cache_load(cache, file, &error);
    require(!status || (status == TERSE_E_FORMAT && !strncmp(error.message, "input: its ", 11) && !strchr(error.message, '\n')));
    if (status)
        cache_destroy(cache);
    else
        use(cache);
}

/* Loads the file as a session of the fixture qwen3 with the file's options; few inputs get beyond the method. */
static void load_session(struct state_file *file) {
    static struct terse_model *model;
    static struct terse_engine *engine;
    struct terse_engine_options one = terse_engine_options_defaults();
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error = {0};
    one.threads = 1;
    if (!model) require(!terse_model_load(TESTS_DIR "/fixtures/models/qwen3.gguf", &model, &error));
    if (!engine) require(!terse_engine_new(model, &one, &engine, &error));
    options.cache.tail_tokens = 0;
    enum terse_status status = session_load(engine, &options, file, &session, &error);
    require((status == TERSE_OK) == (session != NULL));
    require(!status || (!strchr(error.message, '\n') && error.code == status));
    int32_t token;
    if (session) (void)terse_session_sample(session, &token, &error);
    terse_session_free(session);
}

static void load(const uint8_t *data, size_t size, bool as_session) {
    struct state_file *file;
    struct terse_error error = {0};
    enum terse_status status = state_file_open_memory(data, size, "input", &file, &error);
    require((status == TERSE_OK) == (file != NULL));
    if (!file) {
        require(error.code == status && !strncmp(error.message, "input: ", 7) && !strpbrk(error.message, "\n\x1b"));
        return;
    }
    load_cache(file);
    if (as_session) load_session(file);
    state_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned inputs;
    void *memory = NULL; /* ends where the input ends */
    require(posix_memalign(&memory, STATE_PAGES_ALIGN, size ? size : 1) == 0);
    if (size) memcpy(memory, data, size);
    load(memory, size, false);
    if (state_file_reseal(memory, size)) load(memory, size, inputs++ % 64 == 0);
    free(memory);
    return 0;
}
