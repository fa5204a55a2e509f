/* Behaviours that a host must survive, by their method. It uses the entry point of the ASF paper. */
#include "osd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t calls;
static int constructed;
static int *volatile nowhere;

__attribute__((constructor)) static void construct(void) {
    constructed = osd_log(OSD_LOG_INFO, "constructor", 11) == 0;
}

int64_t start(const osd_call *call) {
    const char *method = osd_method(call);
    calls++;
    if (strcmp(method, "count") == 0) return calls;
    if (strcmp(method, "constructed") == 0) return constructed;
    if (strcmp(method, "fail") == 0) return -OSD_ENOSPC;
    if (strcmp(method, "root") == 0) return (int64_t)sqrt((double)call->arguments_length);
    if (strcmp(method, "abort") == 0) abort();
    if (strcmp(method, "fault") == 0) return *nowhere;
    if (strcmp(method, "leave") == 0) _Exit(7);
    if (strcmp(method, "wait") == 0) {
        while (!osd_cancelled()) {
        }
        return -OSD_ECANCELED;
    }
    if (strcmp(method, "streams") == 0) {
        /* Opens streams and leaves them open, with requests in flight. */
        while (osd_reader_open(0, 0, UINT64_MAX) >= 0) {
        }
        return 0;
    }
    return -OSD_ENOENT;
}
