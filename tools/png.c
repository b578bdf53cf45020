#include "png.h"

#ifdef TERSE_RSVG

#include <errno.h>
#include <librsvg/rsvg.h>

enum { PIXELS = 2 }; /* for each unit of the picture, so that text is sharp on any screen */

bool png_is_built_in(void) { return true; }

static cairo_status_t put(void *out, const unsigned char *data, unsigned n) {
    return fwrite(data, 1, n, out) == n ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

/* Returns a surface with the picture, whose status says whether it was drawn. */
static cairo_surface_t *draw(RsvgHandle *picture) {
    gdouble width = 0, height = 0;
    rsvg_handle_get_intrinsic_size_in_pixels(picture, &width, &height);
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)(PIXELS * width), (int)(PIXELS * height));
    cairo_t *pen = cairo_create(surface);
    const RsvgRectangle all = {0, 0, PIXELS * width, PIXELS * height};
    rsvg_handle_render_document(picture, pen, &all, NULL);
    cairo_destroy(pen);
    return surface;
}

bool png_write(FILE *out, const char *svg, size_t n, const char **why) {
    RsvgHandle *picture = rsvg_handle_new_from_data((const guint8 *)svg, n, NULL);
    *why = picture ? NULL : "librsvg does not read the picture";
    if (!picture) return false;
    cairo_surface_t *surface = draw(picture);
    const cairo_status_t status = cairo_surface_write_to_png_stream(surface, put, out);
    if (status != CAIRO_STATUS_SUCCESS && status != CAIRO_STATUS_WRITE_ERROR) *why = cairo_status_to_string(status);
    cairo_surface_destroy(surface);
    g_object_unref(picture);
    return status == CAIRO_STATUS_SUCCESS;
}

#else

bool png_is_built_in(void) { return false; }

bool png_write(FILE *out, const char *svg, size_t n, const char **why) {
    (void)out;
    (void)svg;
    (void)n;
    *why = "terse was built without librsvg";
    return false;
}

#endif
