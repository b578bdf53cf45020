/* Reads sizes that people write. */
#include "terse_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool terse_parse_size(const char *text, uint64_t *bytes) {
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end);
    const char *unit = end != text && *end ? strchr(units, *end) : NULL;
    if (unit) {
        value *= ldexp(1, 10 * (int)(unit - units + 1));
        end++;
        if (strcmp(end, "B") == 0 || strcmp(end, "iB") == 0) end += strlen(end);
    }
    if (end == text || *end || !(value >= 1 && value <= 0x1p60)) return false;
    *bytes = (uint64_t)value;
    return true;
}
