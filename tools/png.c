/* Opens librsvg when a picture is to be written and not before: it brings cairo, pango and glib, 9 MiB that each command would hold, and a
 * command that is linked to it does not start where it is missing. Types and calls below are those of librsvg 2.52 or later, and of cairo. */
#include "png.h"

#include <dlfcn.h>
#include <string.h>

#define LIBRARY "librsvg-2.so.2"

enum { PIXELS = 2 }; /* for each unit of the picture, so that text is sharp on any screen */
enum { CAIRO_RGB24 = 1, CAIRO_SUCCESS = 0, CAIRO_WRITE_ERROR = 11 };

struct rectangle {
    double x, y, width, height;
};

typedef int put_function(void *out, const unsigned char *data, unsigned n);

static struct {
    void *(*read)(const unsigned char *svg, size_t n, void **error);
    int (*size)(void *picture, double *width, double *height);
    int (*render)(void *picture, void *pen, const struct rectangle *where, void **error);
    void (*release)(void *picture);
    void *(*surface)(int format, int width, int height);
    void (*release_surface)(void *surface);
    int (*write)(void *surface, put_function *put, void *out);
    void *(*pen)(void *surface);
    void (*release_pen)(void *pen);
    const char *(*describe)(int status);
} library;

static const struct {
    const char *name;
    void *function; /* in `library` */
} calls[] = {
    {"rsvg_handle_new_from_data", &library.read},
    {"rsvg_handle_get_intrinsic_size_in_pixels", &library.size},
    {"rsvg_handle_render_document", &library.render},
    {"g_object_unref", &library.release},
    {"cairo_image_surface_create", &library.surface},
    {"cairo_surface_destroy", &library.release_surface},
    {"cairo_surface_write_to_png_stream", &library.write},
    {"cairo_create", &library.pen},
    {"cairo_destroy", &library.release_pen},
    {"cairo_status_to_string", &library.describe},
};

/* The library stays open: glib cannot be unloaded. */
bool png_can_be_written(void) {
    void *object = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!object) return false;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *function = dlsym(object, calls[i].name);
        if (!function) return false;
        memcpy(calls[i].function, &function, sizeof function);
    }
    return true;
}

static int put(void *out, const unsigned char *data, unsigned n) {
    return fwrite(data, 1, n, out) == n ? CAIRO_SUCCESS : CAIRO_WRITE_ERROR;
}

/* Returns a surface with the picture, whose status says whether it was drawn. */
static void *draw(void *picture) {
    double width = 0, height = 0;
    library.size(picture, &width, &height);
    void *surface = library.surface(CAIRO_RGB24, (int)(PIXELS * width), (int)(PIXELS * height));
    void *pen = library.pen(surface);
    const struct rectangle all = {0, 0, PIXELS * width, PIXELS * height};
    library.render(picture, pen, &all, NULL);
    library.release_pen(pen);
    return surface;
}

bool png_write(FILE *out, const char *svg, size_t n, const char **why) {
    void *picture = library.read((const unsigned char *)svg, n, NULL);
    *why = picture ? NULL : "librsvg does not read the picture";
    if (!picture) return false;
    void *surface = draw(picture);
    const int status = library.write(surface, put, out);
    if (status != CAIRO_SUCCESS && status != CAIRO_WRITE_ERROR) *why = library.describe(status);
    library.release_surface(surface);
    library.release(picture);
    return status == CAIRO_SUCCESS;
}
