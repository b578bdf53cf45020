/* Edits lines at a terminal, with a history of those that were entered. It is built where there is libedit; elsewhere there is
 * never an editor. */
#ifndef TERSE_TOOLS_LINE_EDITOR_H
#define TERSE_TOOLS_LINE_EDITOR_H

#include <stdbool.h>
#include <stddef.h>

struct line_editor;

enum line_edited {
    LINE_EDITED,
    LINE_NO_TEXT,    /* bytes came that are not UTF-8 */
    LINE_END,        /* of the input, or it cannot be read */
    LINE_INTERRUPTED /* by a signal: what was typed is dropped */
};

#ifdef TERSE_LIBEDIT

/* Makes an editor on standard input and output; NULL where one of them is no terminal that can be drawn on. `color`: what is typed is green. */
struct line_editor *line_editor_new(bool color);
void line_editor_free(struct line_editor *editor);
/* Reads the next line to *line, valid until the next call, and writes its length to *n_bytes, its end included. */
enum line_edited line_editor_next(struct line_editor *editor, const char *prompt, const char **line, size_t *n_bytes);

#else

static inline struct line_editor *line_editor_new(bool color) {
    (void)color;
    return NULL;
}
static inline void line_editor_free(struct line_editor *editor) { (void)editor; }
static inline enum line_edited line_editor_next(struct line_editor *editor, const char *prompt, const char **line,
                                                size_t *n_bytes) {
    (void)editor, (void)prompt, (void)line, (void)n_bytes;
    return LINE_END;
}

#endif
#endif
