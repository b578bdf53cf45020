/* Prints tables for people (Markdown) and programs (JSON, CSV): rows are cJSON objects, and columns say which of their fields are
 * shown. */
#ifndef TERSE_TOOLS_TABLE_H
#define TERSE_TOOLS_TABLE_H

#include <cjson/cJSON.h>
#include <stddef.h>

#define TABLE_FORMATS "md|json|csv" /* the words of an OPTION_CHOICE, in this order */
enum { TABLE_MOST_COLUMNS = 24 };
enum table_format { TABLE_MARKDOWN, TABLE_JSON, TABLE_CSV };

struct table_column {
    const char *key;   /* of the row object; the head of a CSV column */
    const char *title; /* the head of a Markdown column; NULL: not shown there */
    int decimals;      /* of a number */
};

/* Prints rows (an array of objects) to stdout; n_columns <= TABLE_MOST_COLUMNS. A missing or null value is an empty cell.
 * Returns an exit status. */
int table_print(const cJSON *rows, const struct table_column *columns, size_t n_columns, enum table_format format);

/* Prints any value as JSON to stdout. Returns an exit status. */
int json_print(const cJSON *value);

#endif
