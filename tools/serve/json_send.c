#include "json_send.h"

#include <string.h>

void json_send(struct exchange *exchange, int status, cJSON *json) {
    static const char refused[] =
        "{\"error\": {\"message\": \"no memory\", \"type\": \"server_error\", \"param\": null, \"code\": null}}";
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    exchange_add(exchange, text ? text : refused, strlen(text ? text : refused));
    exchange_end(exchange);
    exchange_begin(exchange, text ? status : 500, false);
    cJSON_free(text);
}
