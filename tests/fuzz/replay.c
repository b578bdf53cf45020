/* Runs a fuzz target over files and folders of files without libFuzzer: the committed corpus as a test, in any build. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t replayed;

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
    free(data);
    replayed++;
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

int main(int argc, char **argv) {
    int failures = 0;
    for (int i = 1; i < argc; i++) failures |= replay(argv[i]);
    fprintf(stderr, "%zu inputs\n", replayed);
    return failures || replayed == 0;
}
