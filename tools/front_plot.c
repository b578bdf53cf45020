/* Writes the elements one by one: two axes, the second logarithmic, a point with a label for each method. */
#include "front_plot.h"

#include "console.h"
#include "png.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 480, LEFT = 80, RIGHT = 24, TOP = 48, BOTTOM = 60 };

/* The plot's scale: bits 0..most_bits from left to right, powers of ten low..high from below. */
struct scale {
    double most_bits;
    int low, high;
};

/* f16 itself has no place on a logarithmic axis. */
static bool is_shown(const struct front_row *row) { return row->positions && row->divergence > 0; }

static double x_of(const struct scale *s, double bits) { return LEFT + (WIDTH - LEFT - RIGHT) * bits / s->most_bits; }

static double y_of(const struct scale *s, double divergence) {
    return TOP + (HEIGHT - TOP - BOTTOM) * (s->high - log10(divergence)) / (s->high - s->low);
}

static struct scale choose_scale(const struct front_row *rows, size_t n, double most) {
    double least = most, largest = most, bits = 1;
    for (size_t i = 0; i < n; i++) {
        if (!is_shown(&rows[i])) continue;
        least = fmin(least, rows[i].divergence);
        largest = fmax(largest, rows[i].divergence);
        bits = fmax(bits, rows[i].bits);
    }
    return (struct scale){ceil(bits * 1.15), (int)floor(log10(fmax(least, 1e-9))), (int)floor(log10(largest)) + 1};
}

/* Writes text between tags. */
static void write_text(FILE *out, const char *text) {
    for (; *text; text++) {
        const char *as = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : NULL;
        if (as)
            fputs(as, out);
        else
            fputc(*text, out);
    }
}

static void draw_axes(FILE *out, const struct scale *s) {
    fprintf(out, "<g stroke=\"#ddd\">\n");
    for (int power = s->low; power <= s->high; power++)
        fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, WIDTH - RIGHT, y_of(s, pow(10, power)),
                y_of(s, pow(10, power)));
    fprintf(out, "</g>\n<g text-anchor=\"end\">\n");
    for (int power = s->low; power <= s->high; power++)
        fprintf(out, "<text x=\"%d\" y=\"%.1f\">%g</text>\n", LEFT - 8, y_of(s, pow(10, power)) + 4, pow(10, power));
    fprintf(out, "</g>\n<g text-anchor=\"middle\">\n");
    for (int bits = 0; bits <= (int)s->most_bits; bits += s->most_bits > 12 ? 2 : 1)
        fprintf(out, "<text x=\"%.1f\" y=\"%d\">%d</text>\n", x_of(s, bits), HEIGHT - BOTTOM + 20, bits);
    fprintf(out, "<text x=\"%d\" y=\"%d\">bits per value of the cache, every resident byte counted</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
    fprintf(out, "<text transform=\"translate(18 %d) rotate(-90)\">KL divergence from f16, nats</text>\n</g>\n",
            (TOP + HEIGHT - BOTTOM) / 2);
}

static void draw_front(FILE *out, const struct scale *s, const struct front_row *rows, size_t n) {
    fprintf(out, "<polyline class=\"front\" fill=\"none\" stroke=\"#1f6fb4\" points=\"");
    for (size_t i = 0; i < n; i++)
        if (rows[i].on_front && is_shown(&rows[i])) fprintf(out, "%.1f,%.1f ", x_of(s, rows[i].bits), y_of(s, rows[i].divergence));
    fprintf(out, "\"/>\n");
}

/* Draws a point and its name: on the front below it, else above, so that they keep apart. */
static void draw_row(FILE *out, const struct scale *s, const struct front_row *row, bool picked) {
    double x = x_of(s, row->bits), y = y_of(s, row->divergence);
    const char *color = picked ? "#d1451b" : row->on_front ? "#1f6fb4" : "#888";
    fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\"/>\n", x, y, picked ? 6 : 4, color);
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\"%s%s>", row->on_front ? x - 8 : x + 8, row->on_front ? y + 14 : y - 5,
            color, row->on_front ? " text-anchor=\"end\"" : "", picked ? " font-weight=\"bold\"" : "");
    write_text(out, row->method);
    if (row->speed > 0) fprintf(out, ", %.2gx", row->speed);
    fprintf(out, "</text>\n");
}

static void draw(FILE *out, const struct front_row *rows, size_t n, const struct front_row *pick, double most, const char *title) {
    const struct scale s = choose_scale(rows, n, most);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"26\" font-size=\"14\">",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    write_text(out, title);
    fprintf(out, "</text>\n");
    draw_axes(out, &s);
    fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#d1451b\" stroke-dasharray=\"5 4\"/>\n", LEFT,
            WIDTH - RIGHT, y_of(&s, most), y_of(&s, most));
    draw_front(out, &s, rows, n);
    for (size_t i = 0; i < n; i++)
        if (is_shown(&rows[i])) draw_row(out, &s, &rows[i], &rows[i] == pick);
    fprintf(out, "</svg>\n");
}

enum front_picture front_plot_kind(const char *path) {
    static const char *const endings[] = {[FRONT_SVG] = ".svg", [FRONT_PNG] = ".png"};
    const size_t n = strlen(path);
    enum front_picture kind = FRONT_SVG;
    while (kind < FRONT_NONE && (n < 5 || strcmp(path + n - 4, endings[kind]) != 0)) kind++;
    return kind;
}

/* Returns the picture as text, which is released by free, or NULL without memory. */
static char *draw_text(const struct front_row *rows, size_t n, const struct front_row *pick, double most, const char *title,
                       size_t *size) {
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (!out) return NULL;
    draw(out, rows, n, pick, most, title);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

int front_plot(const struct front_row *rows, size_t n, const struct front_row *pick, double most, const char *title,
               const char *path) {
    size_t size;
    const char *why = NULL;
    char *text = draw_text(rows, n, pick, most, title, &size);
    FILE *out = text ? fopen(path, "w") : NULL;
    bool failed =
        !out || !(front_plot_kind(path) == FRONT_PNG ? png_write(out, text, size, &why) : fwrite(text, 1, size, out) == size);
    int reason = errno;
    if (out && fclose(out) != 0 && !failed) failed = true, reason = errno;
    free(text);
    return failed ? complain("cannot write %s: %s", path, why ? why : strerror(reason)) : EXIT_OK;
}
