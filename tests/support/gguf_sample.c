/* The sample file; test_gguf.c knows what it must read as. */
#include "support/gguf_sample.h"

#include "base/memory.h"

#include <math.h>

const float gguf_sample_floats[64] = {1.5f, -2.25f};
const uint8_t gguf_sample_blocks[34 * 4] = {7, 8, 9};

void gguf_sample_write(struct gguf_writer *writer, uint32_t version) {
    *writer = (struct gguf_writer){.version = version};
    gguf_writer_string(writer, "general.architecture", "llama");
    gguf_writer_value(writer, "a.u8", GGUF_U8, &(uint8_t){200}, 1);
    gguf_writer_value(writer, "a.i8", GGUF_I8, &(int8_t){-100}, 1);
    gguf_writer_value(writer, "a.u16", GGUF_U16, &(uint16_t){60000}, 2);
    gguf_writer_value(writer, "a.i16", GGUF_I16, &(int16_t){-30000}, 2);
    gguf_writer_u32(writer, "a.u32", 4000000000u);
    gguf_writer_value(writer, "a.i32", GGUF_I32, &(int32_t){-2000000000}, 4);
    gguf_writer_f32(writer, "a.f32", 1e-5f);
    gguf_writer_bool(writer, "a.bool", true);
    gguf_writer_value(writer, "a.u64", GGUF_U64, &(uint64_t){UINT64_MAX}, 8);
    gguf_writer_value(writer, "a.i64", GGUF_I64, &(int64_t){INT64_MIN}, 8);
    gguf_writer_value(writer, "a.f64", GGUF_F64, &(double){0.1}, 8);
    gguf_writer_string(writer, "a.string", "two\nlines \xe2\x82\xac");
    gguf_writer_string(writer, "a.empty", "");
    gguf_writer_array(writer, "b.u8", GGUF_U8, 3, (uint8_t[]){1, 2, 255});
    gguf_writer_array(writer, "b.i8", GGUF_I8, 2, (int8_t[]){-1, 1});
    gguf_writer_array(writer, "b.u16", GGUF_U16, 1, (uint16_t[]){65535});
    gguf_writer_array(writer, "b.i16", GGUF_I16, 1, (int16_t[]){-32768});
    gguf_writer_array(writer, "b.u32", GGUF_U32, 2, (uint32_t[]){0, UINT32_MAX});
    gguf_writer_array(writer, "b.i32", GGUF_I32, 2, (int32_t[]){INT32_MIN, INT32_MAX});
    gguf_writer_array(writer, "b.f32", GGUF_F32, 3, (float[]){0.1f, -3, INFINITY});
    gguf_writer_array(writer, "b.bool", GGUF_BOOL, 2, (uint8_t[]){0, 1});
    gguf_writer_array(writer, "b.u64", GGUF_U64, 1, (uint64_t[]){1});
    gguf_writer_array(writer, "b.i64", GGUF_I64, 1, (int64_t[]){-1});
    gguf_writer_array(writer, "b.f64", GGUF_F64, 2, (double[]){1e300, 0.25});
    gguf_writer_strings(writer, "b.string", 3, (const char *const[]){"a", "", "\"c\""});
    gguf_writer_array(writer, "b.none", GGUF_U32, 0, NULL);
    gguf_writer_value(writer, "b.array", GGUF_ARRAY, NULL, 0); /* [[1, 2], [], ["x"]] */
    gguf_bytes_u32(&writer->keys, GGUF_ARRAY);
    gguf_bytes_u64(&writer->keys, 3);
    gguf_bytes_u32(&writer->keys, GGUF_U8);
    gguf_bytes_u64(&writer->keys, 2);
    gguf_bytes_put(&writer->keys, (uint8_t[]){1, 2}, 2);
    gguf_bytes_u32(&writer->keys, GGUF_F64);
    gguf_bytes_u64(&writer->keys, 0);
    gguf_bytes_u32(&writer->keys, GGUF_STRING);
    gguf_bytes_u64(&writer->keys, 1);
    gguf_bytes_string(&writer->keys, "x", 1);
    gguf_writer_tensor(writer, "floats", TENSOR_F32, 2, (uint64_t[]){32, 2}, gguf_sample_floats);
    gguf_writer_tensor(writer, "scalar", TENSOR_F32, 0, NULL, gguf_sample_floats);
    gguf_writer_tensor(writer, "blocks", TENSOR_Q8_0, 4, (uint64_t[]){64, 1, 2, 1}, gguf_sample_blocks);
    gguf_writer_tensor(writer, "named", 17, 1, (uint64_t[]){256}, NULL);
    gguf_writer_tensor(writer, "nameless", 4000000000u, 1, (uint64_t[]){7}, NULL);
}

void *gguf_sample_build(uint32_t version, size_t *size) {
    struct gguf_writer writer;
    gguf_sample_write(&writer, version);
    void *file = gguf_writer_build(&writer, size);
    gguf_writer_free(&writer);
    return file;
}
