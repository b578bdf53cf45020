/* Models that were split into parts: read from all of them they are what the whole file is; parts that are missing, renamed or contradict each other
 * are refused in a line that says which. */
#include "model/model.h"
#include "support/gguf_split.h"
#include "support/temporary.h"
#include "terse_gguf.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define WHOLE TESTS_DIR "/fixtures/models/llama.gguf"

static char folder[TEMPORARY_PATH];

static int make_folder(void **state) {
    (void)state;
    temporary_template("parts", folder);
    return mkdtemp(folder) ? 0 : -1;
}

static void empty_folder(void) {
    DIR *all = opendir(folder);
    char path[600];
    assert_non_null(all);
    for (struct dirent *entry; (entry = readdir(all));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.') assert_int_equal(remove(path), 0);
    }
    closedir(all);
}

static int remove_folder(void **state) {
    (void)state;
    empty_folder();
    return rmdir(folder);
}

static const char *part_path(uint32_t part, uint32_t count) {
    static char path[8][TEMPORARY_PATH + 32];
    static int next;
    char *own = path[next++ % 8];
    snprintf(own, sizeof path[0], "%s/m-%05u-of-%05u.gguf", folder, part, count);
    return own;
}

static void split(uint32_t count, const struct gguf_split_damage *damage) {
    char prefix[TEMPORARY_PATH + 8];
    struct terse_error error;
    empty_folder();
    snprintf(prefix, sizeof prefix, "%s/m", folder);
    if (gguf_split(WHOLE, prefix, count, damage, &error)) fail_msg("%s", error.message);
}

static void check_refused(const char *path, const char *const said[3]) {
    struct terse_model *model;
    struct terse_error error;
    assert_int_not_equal(terse_model_load(path, &model, &error), TERSE_OK);
    assert_null(model);
    for (int i = 0; i < 3 && said[i]; i++)
        if (!strstr(error.message, said[i])) fail_msg("no '%s' in '%s'", said[i], error.message);
    assert_null(strchr(error.message, '\n'));
}

/* Every tensor has the bytes it has in the whole file. */
static void parts_are_the_whole(void **state) {
    (void)state;
    struct terse_model *whole, *model;
    struct terse_model_info info[2];
    struct terse_error error;
    if (terse_model_load(WHOLE, &whole, &error)) fail_msg("%s", error.message);
    terse_model_describe(whole, &info[0]);
    for (uint32_t count = 1; count <= 7; count++) {
        split(count, NULL);
        if (terse_model_load(part_path(1, count), &model, &error)) fail_msg("%u parts: %s", count, error.message);
        terse_model_describe(model, &info[1]);
        assert_int_equal(info[1].fingerprint, info[0].fingerprint);
        assert_int_equal(info[1].parameters, info[0].parameters);
        assert_int_equal(gguf_part_count(model->gguf), count);
        for (uint64_t i = 0; i < gguf_tensor_count(whole->gguf); i++) {
            const struct gguf_tensor *tensor = gguf_tensor_at(whole->gguf, i);
            char name[80];
            snprintf(name, sizeof name, "%.*s", (int)tensor->name.size, tensor->name.data);
            const struct gguf_tensor *found = gguf_find_tensor(model->gguf, name);
            assert_non_null(found);
            assert_int_equal(found->bytes, tensor->bytes);
            assert_memory_equal(found->data, tensor->data, tensor->bytes);
        }
        terse_model_free(model);
    }
    terse_model_free(whole);
}

static void inspection_knows_the_parts(void **state) {
    (void)state;
    struct terse_gguf *gguf, *whole;
    struct terse_gguf_part part;
    struct terse_error error;
    uint64_t tensors = 0;
    split(4, NULL);
    if (terse_gguf_open(WHOLE, &whole, &error)) fail_msg("%s", error.message);
    assert_int_equal(terse_gguf_part_count(whole), 1);
    for (int missing = 0; missing < 2; missing++) {
        if (missing) assert_int_equal(remove(part_path(3, 4)), 0);
        if (terse_gguf_open(part_path(1, 4), &gguf, &error)) fail_msg("%s", error.message);
        assert_int_equal(terse_gguf_part_count(gguf), missing ? 1 : 4);
        assert_int_equal(terse_gguf_tensor_count(gguf), missing ? 0 : terse_gguf_tensor_count(whole));
        for (uint32_t i = 0; i < 4 && !missing; i++) {
            struct stat file;
            terse_gguf_part(gguf, i, &part);
            assert_int_equal(stat(part_path(i + 1, 4), &file), 0);
            assert_int_equal(part.bytes, file.st_size);
            assert_string_equal(part.name, part_path(i + 1, 4));
            assert_true(i == 0 ? part.tensors == 0 : part.tensors > 0);
            tensors += part.tensors;
        }
        assert_int_equal(tensors, terse_gguf_tensor_count(whole));
        terse_gguf_free(gguf);
    }
    if (terse_gguf_open(part_path(2, 4), &gguf, &error)) fail_msg("%s", error.message);
    assert_int_equal(terse_gguf_part_count(gguf), 1);
    terse_gguf_free(gguf);
    terse_gguf_free(whole);
}

static void missing_and_misnamed_parts_are_named(void **state) {
    (void)state;
    char elsewhere[TEMPORARY_PATH + 16];
    split(3, NULL);
    check_refused(part_path(2, 3), (const char *const[3]){"part 2 of 3", "give the first", "-00001-of-00003.gguf"});
    assert_int_equal(remove(part_path(3, 3)), 0);
    check_refused(part_path(1, 3), (const char *const[3]){"part 3 of 3", "m-00003-of-00003.gguf", "No such file"});
    split(3, NULL);
    snprintf(elsewhere, sizeof elsewhere, "%s/other.gguf", folder);
    assert_int_equal(rename(part_path(1, 3), elsewhere), 0);
    check_refused(elsewhere, (const char *const[3]){"first of 3 parts", "does not end in -00001-of-00003.gguf"});
    assert_int_equal(rename(part_path(2, 3), elsewhere), 0);
    check_refused(elsewhere, (const char *const[3]){"part 2 of 3", "give the first"});
    /* Two parts under each other's names, and one that is no GGUF file. */
    split(3, NULL);
    assert_int_equal(rename(part_path(2, 3), elsewhere), 0);
    assert_int_equal(rename(part_path(3, 3), part_path(2, 3)), 0);
    assert_int_equal(rename(elsewhere, part_path(3, 3)), 0);
    check_refused(part_path(1, 3), (const char *const[3]){"part 3 of 3 where", "wants part 2 of 3"});
    split(2, NULL);
    assert_int_equal(truncate(part_path(2, 2), 1000), 0);
    check_refused(part_path(1, 2), (const char *const[3]){"m-00002-of-00002.gguf", "damaged or incomplete"});
    assert_int_equal(truncate(part_path(2, 2), 0), 0);
    check_refused(part_path(1, 2), (const char *const[3]){"m-00002-of-00002.gguf", "it is empty"});
}

static void parts_that_disagree_are_refused(void **state) {
    (void)state;
    static const struct {
        struct gguf_split_damage damage;
        const char *said[3];
    } rows[] = {
        {{.part = 1, .number = 1}, {"part 3 of 3 where", "wants part 2 of 3"}},
        {{.part = 1, .number = -1}, {"part 1 of 3 where", "wants part 2 of 3"}},
        {{.part = 2, .count = 1}, {"part 3 of 4 where", "wants part 3 of 3"}},
        {{.part = 1, .count = -2}, {"part 1 of 1 where", "wants part 2 of 3"}},
        {{.part = 1, .number = 9}, {"part 11 of 3, which cannot be"}},
        {{.part = 0, .count = -3}, {"of 0, which cannot be"}},
        {{.part = 0, .count = 65535 - 3}, {"first of 65535 parts", "does not end in -00001-of-65535.gguf"}},
        {{.part = 0, .tensors = 1}, {"tensors, not the"}},
        {{.part = 2, .repeats = true}, {"the tensor '", "is in"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        split(3, &rows[i].damage);
        check_refused(part_path(1, 3), rows[i].said);
    }
}

static void more_parts_than_there_are_cost_nothing(void **state) {
    (void)state;
    split(2, &(struct gguf_split_damage){.part = 0, .count = 60000});
    assert_int_equal(rename(part_path(1, 2), part_path(1, 60002)), 0);
    check_refused(part_path(1, 60002), (const char *const[3]){"part 2 of 60002", "No such file"});
}

static void memory_has_no_parts_beside_it(void **state) {
    (void)state;
    struct mapped_file file;
    struct terse_model *model;
    struct terse_error error;
    split(2, NULL);
    assert_int_equal(mapped_file_open(part_path(1, 2), &file, &error), TERSE_OK);
    assert_int_equal(terse_model_load_memory(file.data, file.size, "m", &model, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "one of 2 parts"));
    mapped_file_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_whole),
        cmocka_unit_test(inspection_knows_the_parts),
        cmocka_unit_test(missing_and_misnamed_parts_are_named),
        cmocka_unit_test(parts_that_disagree_are_refused),
        cmocka_unit_test(more_parts_than_there_are_cost_nothing),
        cmocka_unit_test(memory_has_no_parts_beside_it),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
