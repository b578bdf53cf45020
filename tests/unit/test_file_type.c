/* Files name their mixtures of types; types that their tensors say better, and numbers without a meaning, have no name. */
#include "base/memory.h"
#include "gguf/gguf_writer.h"
#include "model/file_type.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void check(int64_t type, const char *wanted) {
    struct gguf_writer w = {0};
    struct terse_error error;
    struct gguf *gguf;
    size_t size;
    gguf_writer_string(&w, "general.architecture", "llama");
    if (type >= 0) gguf_writer_u32(&w, "general.file_type", (uint32_t)type);
    void *file = gguf_writer_build(&w, &size);
    gguf_writer_free(&w);
    assert_non_null(file);
    if (gguf_open(file, size, "file", &gguf, &error)) fail_msg("%s", error.message);
    const char *name = file_type_mixture(gguf);
    if (wanted)
        assert_string_equal(name ? name : "none", wanted);
    else
        assert_null(name);
    gguf_free(gguf);
    memory_free(file);
}

static void test_names(void **state) {
    (void)state;
    check(15, "Q4_K_M");
    check(14, "Q4_K_S");
    check(17, "Q5_K_M");
    check(10, "Q2_K");
    check(7, NULL); /* Q8_0 */
    check(5, NULL);
    check(1024 + 15, NULL);
    check(UINT32_MAX, NULL);
    check(-1, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
