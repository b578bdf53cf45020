/* Fuzz target of the GGUF reader: opens the input, asks for everything there is, and stops when an answer lies outside the input or
 * contradicts another. Run it with the corpus in corpus/gguf; see CMakeLists.txt. */
#include "base/memory.h"
#include "gguf/gguf.h"
#include "terse_gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static void inside(const void *part, uint64_t bytes, const uint8_t *file, size_t size) {
    const uint8_t *begin = part;
    require(begin >= file && begin <= file + size && bytes <= (size_t)(file + size - begin));
}

static void look_at_text(const struct terse_gguf *gguf) {
    static const size_t capacities[] = {0, 1, 5, 80, 4000};
    char buffer[4000];
    for (uint64_t i = 0; i < terse_gguf_metadata_count(gguf); i++) {
        const char *key, *type;
        terse_gguf_metadata(gguf, i, &key, &type);
        require(key && type && strlen(type) > 0);
        for (size_t c = 0; c < sizeof capacities / sizeof *capacities; c++) {
            terse_gguf_metadata_text(gguf, i, buffer, capacities[c]);
            require(capacities[c] == 0 || strlen(buffer) < capacities[c]);
            require(capacities[c] == 0 || !strpbrk(buffer, "\n\r\t\x1b"));
        }
    }
    for (uint64_t i = 0; i < terse_gguf_tensor_count(gguf); i++) {
        struct terse_gguf_tensor tensor;
        terse_gguf_tensor(gguf, i, &tensor);
        require(tensor.name && tensor.type && (tensor.supported || tensor.bytes == 0));
    }
}

static void look_at_key(const struct gguf *gguf, const char *key, const uint8_t *file, size_t size) {
    struct terse_error error;
    uint32_t whole;
    float single;
    bool flag, found;
    struct gguf_string string;
    struct gguf_array array;
    require(gguf_has(gguf, key));
    gguf_get_u32(gguf, key, &whole, &found, &error);
    require(found);
    if (gguf_get_f32(gguf, key, &single, NULL, &error) != TERSE_OK) require(error.offset <= size);
    gguf_get_bool(gguf, key, &flag, &found, &error);
    if (gguf_get_string(gguf, key, &string, &found, NULL) == TERSE_OK) inside(string.data, string.size, file, size);
    for (int type = GGUF_U8; type <= GGUF_F64; type++) {
        if (gguf_get_array(gguf, key, (enum gguf_type)type, &array, &found, &error) != TERSE_OK) continue;
        inside(array.data, array.count, file, size); /* no element is smaller than a byte */
        if (type != GGUF_STRING) continue;
        struct gguf_string *strings = memory_array(array.count, sizeof *strings);
        require(strings != NULL);
        gguf_array_strings(&array, strings);
        for (uint64_t i = 0; i < array.count; i++) inside(strings[i].data, strings[i].size, file, size);
        memory_free(strings);
    }
}

static void look_at_tensors(const struct gguf *gguf, const uint8_t *file, size_t size) {
    for (uint64_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        char name[65];
        require(tensor->name.size < sizeof name && tensor->n_dims <= 4 && tensor->offset < size);
        inside(tensor->name.data, tensor->name.size, file, size);
        memcpy(name, tensor->name.data, tensor->name.size);
        name[tensor->name.size] = '\0';
        require(gguf_find_tensor(gguf, name) == tensor);
        if (!tensor->data) continue;
        const struct tensor_type_info *info = tensor_type_info(tensor->type);
        inside(tensor->data, tensor->bytes, file, size);
        require(info && tensor->dims[0] % info->block == 0 && tensor->bytes % info->bytes == 0 && (uintptr_t)tensor->data % 8 == 0);
        require(tensor->dims[0] / info->block * info->bytes * tensor->dims[1] * tensor->dims[2] * tensor->dims[3] == tensor->bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct terse_gguf *shown;
    struct gguf *gguf;
    struct terse_error error = {0};
    uint8_t *file = memory_array(size, 1); /* aligned, and ends where the input ends */
    require(file != NULL);
    if (size) memcpy(file, data, size);

    enum terse_status status = terse_gguf_open_memory(file, size, "input", &shown, &error);
    require((status == TERSE_OK) == (shown != NULL));
    if (status != TERSE_OK) require(error.code == status && error.offset <= size && strlen(error.message) > 10);
    require(gguf_open(file, size, "input", &gguf, &error) == status);
    if (shown) {
        look_at_text(shown);
        for (uint64_t i = 0; i < terse_gguf_metadata_count(shown); i++) {
            const char *key, *type;
            terse_gguf_metadata(shown, i, &key, &type);
            look_at_key(gguf, key, file, size);
        }
        look_at_tensors(gguf, file, size);
        status = gguf_add_parts(gguf, NULL, &error); /* memory has none */
        require(status == TERSE_OK || (error.code == status && strlen(error.message) > 10));
        require(gguf_part_count(gguf) == 1);
    }
    terse_gguf_free(shown);
    gguf_free(gguf);
    memory_free(file);
    return 0;
}
