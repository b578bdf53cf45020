/* Learns the codebooks of bench/experiments/fidelity.sh. Several methods learn from one pass over the text, since its gradients cost more
 * than the centroids of all methods. The codebooks are those of `terse calibrate`, except that norms of gradients are rounded once more
 * where another method's sub-vectors are narrower.
 *
 *     codebooks -f TEXT -w FOLDER --books NAME=METHOD[:none|part|head][:1|2][:shared],... [options]
 *
 * writes FOLDER/codebooks/NAME.gguf. Existing ones are not made again.
 */
#include "console.h"
#include "options.h"
#include "terse_calibrate.h"
#include "text.h"
#include "train/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MODEL PROJECT_DIR "/models/lab-27m-q8_0.gguf"
#define BUDGET ((size_t)8 << 30) /* for samples: enough for 128 windows of the lab model with a norm for every pair of channels */

struct book {
    char fields[128]; /* "NAME" and "METHOD", each terminated */
    char path[1024];
    struct terse_calibration options;
};

struct codebooks {
    const char *model_path, *file, *work, *list;
    int64_t windows;
    double start;
    struct book *books;
    size_t n_books;
};

/* ---- Parsing the list */

static int parse_word(struct book *book, const char *word) {
    if (strcmp(word, "none") == 0)
        book->options.weighting = TERSE_WEIGHTING_NONE;
    else if (strcmp(word, "part") == 0)
        book->options.weighting = TERSE_WEIGHTING_SUBVECTOR;
    else if (strcmp(word, "head") == 0)
        book->options.weighting = TERSE_WEIGHTING_ROW;
    else if (strcmp(word, "1") == 0 || strcmp(word, "2") == 0)
        book->options.power = (uint32_t)(*word - '0');
    else if (strcmp(word, "shared") == 0)
        book->options.shared = true;
    else
        return complain("%s: \"%s\" is none of none, part, head, 1, 2 and shared", book->fields, word);
    return EXIT_OK;
}

static int parse_book(const struct codebooks *c, const char *item, struct book *book) {
    int status = EXIT_OK;
    book->options = terse_calibration_defaults();
    if (!*item) return complain("--books: an item is empty or too long");
    snprintf(book->fields, sizeof book->fields, "%s", item);
    char *method = strchr(book->fields, '=');
    if (!method) return complain("--books: \"%s\" is not NAME=METHOD", item);
    *method++ = 0;
    for (char *word = strchr(method, ':'); word && status == EXIT_OK;) {
        *word++ = 0;
        char *next = strchr(word, ':');
        if (next) *next = 0;
        status = parse_word(book, word);
        word = next;
    }
    book->options.method = method;
    if ((size_t)snprintf(book->path, sizeof book->path, "%s/codebooks/%s.gguf", c->work, book->fields) >= sizeof book->path)
        return complain("-w %s: the path is too long", c->work);
    return status;
}

static int parse_books(struct codebooks *c) {
    const char *list = c->list;
    char item[128];
    size_t capacity = 1;
    for (const char *at = list; *at; at++) capacity += *at == ',';
    if (!(c->books = calloc(capacity, sizeof *c->books))) return complain("no memory for %zu codebooks", capacity);
    while (list_next(&list, item, sizeof item)) {
        int status = parse_book(c, item, &c->books[c->n_books]);
        if (status != EXIT_OK) return status;
        if (access(c->books[c->n_books].path, F_OK) != 0) c->n_books++;
    }
    return EXIT_OK;
}

static enum options_result parse(struct codebooks *c, int argc, char **argv) {
    const struct option options[] = {
        {"-m, --model", "FILE", OPTION_TEXT, &c->model_path, 0, 0, "GGUF model"},
        {"-f, --file", "FILE", OPTION_TEXT, &c->file, 0, 0, "text to learn from"},
        {"-w, --work", "FOLDER", OPTION_TEXT, &c->work, 0, 0, "codebooks go to FOLDER/codebooks"},
        {"--books", "LIST", OPTION_TEXT, &c->list, 0, 0, "NAME=METHOD[:none|part|head][:1|2][:shared], ..."},
        {"--chunks", "K", OPTION_INTEGER, &c->windows, 0, INT32_MAX, "windows to learn from; 0: 128"},
    };
    const struct option_set set = {
        .usage = "codebooks -f TEXT -w FOLDER --books LIST [options]",
        .about = "Learns codebooks for several methods from one pass over a text. bench/experiments/fidelity.sh calls it.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

/* ---- Learning */

static enum terse_status save(void *user, size_t i, struct terse_codebook *codebook, struct terse_error *error) {
    const struct codebooks *c = user;
    enum terse_status status = terse_codebook_save(codebook, c->books[i].path, error);
    terse_codebook_free(codebook);
    progress_clear();
    if (!status) remark("%s: %.0f s", c->books[i].fields, console_seconds() - c->start);
    return status;
}

static int learn(struct codebooks *c, const struct terse_model *model, const int32_t *tokens, size_t n) {
    struct terse_calibration *options = calloc(c->n_books, sizeof *options);
    struct terse_error error;
    const char *slash = strrchr(c->file, '/');
    int status = options ? EXIT_OK : complain("no memory for %zu codebooks", c->n_books);
    for (size_t i = 0; i < c->n_books && status == EXIT_OK; i++) {
        options[i] = c->books[i].options;
        options[i].corpus = slash ? slash + 1 : c->file;
        options[i].windows = (uint32_t)c->windows;
        options[i].progress.report = progress_show;
    }
    struct calibrate_sink sink = {save, c};
    if (status == EXIT_OK && calibrate_together(BUDGET, model, options, c->n_books, tokens, n, sink, &error) != TERSE_OK)
        status = complain_error(&error);
    progress_clear();
    free(options);
    return status;
}

static int run(struct codebooks *c) {
    struct terse_model *model = NULL;
    struct terse_error error;
    char *text = NULL;
    int32_t *tokens = NULL;
    size_t n_bytes, n;
    c->start = console_seconds();
    int status = terse_model_load(c->model_path, &model, &error) == TERSE_OK ? EXIT_OK : complain_error(&error);
    if (status == EXIT_OK) status = text_read(c->file, &text, &n_bytes);
    if (status == EXIT_OK) status = text_tokenize(model, text, n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, &tokens, &n);
    if (status == EXIT_OK) status = learn(c, model, tokens, n);
    free(tokens);
    free(text);
    terse_model_free(model);
    return status;
}

int main(int argc, char **argv) {
    struct codebooks c = {.model_path = DEFAULT_MODEL, .windows = terse_calibration_defaults().windows};
    console_begin("codebooks");
    enum options_result parsed = parse(&c, argc - 1, argv + 1);
    if (parsed != OPTIONS_GO) return console_end(parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED);
    int status = c.file && c.work && c.list ? EXIT_OK : complain("give -f TEXT, -w FOLDER and --books LIST");
    if (status == EXIT_OK) status = parse_books(&c);
    if (status == EXIT_OK && c.n_books) status = run(&c);
    free(c.books);
    return console_end(status);
}
