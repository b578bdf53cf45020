/* Lays rows out as Markdown, CSV and JSON. */
#include "table.h"

#include "console.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CELL_BYTES = 512 };

static const char *cell_text(const cJSON *row, const struct table_column *column, char buffer[CELL_BYTES]) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, column->key);
    if (cJSON_IsString(item)) return item->valuestring;
    buffer[0] = 0;
    if (cJSON_IsNumber(item) && isfinite(item->valuedouble))
        snprintf(buffer, CELL_BYTES, "%.*f", column->decimals, item->valuedouble);
    return buffer;
}

/* Counts characters, not bytes: what a terminal shows. A bar inside a cell is written as "\|". */
static int text_width(const char *text) {
    int width = 0;
    for (; *text; text++) width += (((unsigned char)*text & 0xc0) != 0x80) + (*text == '|');
    return width;
}

/* Prints a cell; numbers stand to the right. */
static void print_markdown_cell(const char *text, int width, bool right) {
    int pad = width - text_width(text);
    printf(" %*s", right ? pad : 0, "");
    for (const char *c = text; *c; c++) {
        if (*c == '|') putchar('\\');
        putchar(*c);
    }
    printf("%*s |", right ? 0 : pad, "");
}

static void print_markdown(const cJSON *rows, const struct table_column *columns, size_t n_columns) {
    char buffer[CELL_BYTES];
    int width[TABLE_MOST_COLUMNS] = {0};
    bool right[TABLE_MOST_COLUMNS] = {false};
    const cJSON *row;
    for (size_t c = 0; c < n_columns; c++) {
        if (!columns[c].title) continue;
        width[c] = text_width(columns[c].title);
        cJSON_ArrayForEach(row, rows) {
            int cell = text_width(cell_text(row, &columns[c], buffer));
            if (cell > width[c]) width[c] = cell;
            if (cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(row, columns[c].key))) right[c] = true;
        }
    }
    putchar('|');
    for (size_t c = 0; c < n_columns; c++)
        if (columns[c].title) print_markdown_cell(columns[c].title, width[c], right[c]);
    printf("\n|");
    for (size_t c = 0; c < n_columns; c++) {
        if (!columns[c].title) continue;
        for (int i = 0; i < width[c] + 2; i++) putchar(right[c] && i == width[c] + 1 ? ':' : '-');
        putchar('|');
    }
    putchar('\n');
    cJSON_ArrayForEach(row, rows) {
        putchar('|');
        for (size_t c = 0; c < n_columns; c++)
            if (columns[c].title) print_markdown_cell(cell_text(row, &columns[c], buffer), width[c], right[c]);
        putchar('\n');
    }
}

/* Prints a field as RFC 4180 has it: one with a comma, a quote or a line end is quoted, its quotes doubled. */
static void print_csv_field(const char *text) {
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void print_csv(const cJSON *rows, const struct table_column *columns, size_t n_columns) {
    char buffer[CELL_BYTES];
    const cJSON *row;
    for (size_t c = 0; c < n_columns; c++) printf("%s%s", c ? "," : "", columns[c].key);
    putchar('\n');
    cJSON_ArrayForEach(row, rows) {
        for (size_t c = 0; c < n_columns; c++) {
            if (c) putchar(',');
            print_csv_field(cell_text(row, &columns[c], buffer));
        }
        putchar('\n');
    }
}

int json_print(const cJSON *value) {
    char *text = cJSON_Print(value);
    if (!text) return complain("no memory for the output");
    puts(text);
    cJSON_free(text);
    return EXIT_OK;
}

int table_print(const cJSON *rows, const struct table_column *columns, size_t n_columns, enum table_format format) {
    if (!rows) return complain("no memory for the output");
    if (format == TABLE_JSON) return json_print(rows);
    if (format == TABLE_CSV)
        print_csv(rows, columns, n_columns);
    else
        print_markdown(rows, columns, n_columns);
    return EXIT_OK;
}
