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

void json_send_event(struct exchange *exchange, const char *name, cJSON *json) {
    char *text = cJSON_PrintUnformatted(json);
    if (text && name) {
        exchange_add(exchange, "event: ", 7);
        exchange_add(exchange, name, strlen(name));
        exchange_add(exchange, "\n", 1);
    }
    cJSON_Delete(json);
    if (!text) return;
    exchange_add(exchange, "data: ", 6);
    exchange_add(exchange, text, strlen(text));
    exchange_add(exchange, "\n\n", 2);
    cJSON_free(text);
    if (!exchange_begun(exchange)) exchange_begin(exchange, 200, true);
}
