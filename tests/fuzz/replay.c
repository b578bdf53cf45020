/* Runs a fuzz target without libFuzzer, in any build: over files and folders of files, the committed corpus as a test, and for some seconds over inputs that
 * are made of these by chance. Those are not guided by what they reach; they are what continuous integration can afford.
 *
 *     fuzz_NAME [--seconds N] [--seed N] FOLDER...
 *
 * Where a run dies, the input that it died of is in fuzz_NAME.input, in the working folder. */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 1 << 16 }; /* of an input that chance made */

struct input {
    uint8_t *data;
    size_t size;
};

static struct input *inputs;
static size_t n_inputs;

static int replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        perror(path);
        return 1;
    }
    size_t size = (size_t)ftell(file);
    uint8_t *data = malloc(size ? size : 1);
    rewind(file);
    if (!data || fread(data, 1, size, file) != size) {
        perror(path);
        return 1;
    }
    fclose(file);
    fprintf(stderr, "%s\n", path); /* before the run: a crash is then known by its file */
    LLVMFuzzerTestOneInput(data, size);
    struct input *more = realloc(inputs, (n_inputs + 1) * sizeof *inputs);
    if (!more) return 1;
    inputs = more;
    inputs[n_inputs++] = (struct input){data, size};
    return 0;
}

static int replay(const char *path) {
    struct stat information;
    if (stat(path, &information)) {
        perror(path);
        return 1;
    }
    if (!S_ISDIR(information.st_mode)) return replay_file(path);
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        return 1;
    }
    int failures = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char inner[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        failures |= replay(inner);
    }
    closedir(folder);
    return failures;
}

/* ---- Inputs made by chance ----------------------------------------------------------------------------------------------- */

static uint64_t state;

/* Below n > 0. Source: xorshift64*, Vigna 2016. */
static size_t chance(size_t n) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)(state * UINT64_C(0x2545f4914f6cdd1d) >> 33) % n;
}

static void change_bytes(uint8_t *data, size_t size) {
    static const uint32_t borders[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
    if (!size) return;
    size_t at = chance(size);
    uint32_t border = borders[chance(sizeof borders / sizeof *borders)];
    switch (chance(4)) {
    case 0: data[at] ^= (uint8_t)(1 << chance(8)); break;
    case 1: data[at] = (uint8_t)chance(256); break;
    case 2: data[at] = (uint8_t)border; break;
    default: memcpy(data + at, &border, size - at < sizeof border ? size - at : sizeof border);
    }
}

/* Takes a part out of data[size], or puts a part of another input in; the new size. */
static size_t change_length(uint8_t *data, size_t size) {
    const struct input *from = &inputs[chance(n_inputs)];
    size_t at = chance(size + 1), n = chance(size - at + 1);
    if (chance(2) || !from->size) {
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    }
    size_t begin = chance(from->size);
    n = chance(from->size - begin) + 1;
    if (n > MOST_BYTES - size) n = MOST_BYTES - size;
    memmove(data + at + n, data + at, size - at);
    memcpy(data + at, from->data + begin, n);
    return size + n;
}

/* An input that outlives this process. */
static struct input kept_input(const char *program) {
    const char *name = strrchr(program, '/');
    char path[256];
    snprintf(path, sizeof path, "%s.input", name ? name + 1 : program);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    void *data =
        file < 0 || ftruncate(file, MOST_BYTES) ? MAP_FAILED : mmap(NULL, MOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) perror(path);
    if (file >= 0) close(file);
    return (struct input){data == MAP_FAILED ? NULL : data, MOST_BYTES};
}

static int run_by_chance(const char *program, long seconds) {
    static uint8_t data[MOST_BYTES];
    struct input kept = kept_input(program);
    time_t end = time(NULL) + seconds;
    size_t runs = 0;
    if (!kept.data) return 1;
    fprintf(stderr, "--seed %llu\n", (unsigned long long)state);
    for (; time(NULL) < end; runs++) {
        const struct input *from = &inputs[chance(n_inputs)];
        size_t size = from->size < MOST_BYTES ? from->size : MOST_BYTES;
        memcpy(data, from->data, size);
        for (size_t changes = 1 + chance(8); changes; changes--) {
            if (chance(3) == 0)
                size = change_length(data, size);
            else
                change_bytes(data, size);
        }
        memcpy(kept.data, data, size);
        LLVMFuzzerTestOneInput(data, size);
    }
    munmap(kept.data, kept.size);
    fprintf(stderr, "%zu inputs made by chance\n", runs);
    return 0;
}

int main(int argc, char **argv) {
    int failures = 0;
    long seconds = 0;
    state = (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = atol(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            state = strtoull(argv[++i], NULL, 10);
        else
            failures |= replay(argv[i]);
    }
    fprintf(stderr, "%zu inputs\n", n_inputs);
    if (!state) state = 1;
    if (n_inputs && seconds) failures |= run_by_chance(argv[0], seconds);
    for (size_t i = 0; i < n_inputs; i++) free(inputs[i].data);
    free(inputs);
    return failures || n_inputs == 0;
}
