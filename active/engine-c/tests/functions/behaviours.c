/* Behaviours that a host must survive, by their method. It uses the entry point of the ASF paper. */
#include "osd.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int64_t calls;
static int constructed;
static int *volatile nowhere;

__attribute__((constructor)) static void construct(void) {
    constructed = osd_log(OSD_LOG_INFO, "constructor", 11) == 0;
}

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* Sorts with the memory of the C library; returns 0 if the values are in order. */
static int64_t sort(void) {
    static uint32_t values[20000];
    const size_t count = sizeof values / sizeof *values;
    for (size_t index = 0; index < count; index++) values[index] = (uint32_t)index * 2654435761u;
    qsort(values, count, sizeof *values, compare);
    for (size_t index = 1; index < count; index++) {
        if (values[index - 1] > values[index]) return (int64_t)index;
    }
    return 0;
}

/* Maps each possible descriptor as code; returns 0 if none of them is open. */
static int64_t remap(void) {
    for (int descriptor = 3; descriptor < 64; descriptor++) {
        for (int protection = PROT_READ; protection <= (PROT_READ | PROT_EXEC); protection += PROT_EXEC) {
            void *address = mmap(NULL, 4096, protection, MAP_SHARED, descriptor, 0);
            if (address != MAP_FAILED || errno != EBADF) return descriptor;
        }
    }
    return 0;
}

int64_t start(const osd_call *call) {
    const char *method = osd_method(call);
    calls++;
    if (strcmp(method, "count") == 0) return calls;
    if (strcmp(method, "constructed") == 0) return constructed;
    if (strcmp(method, "sort") == 0) return sort();
    if (strcmp(method, "remap") == 0) return remap();
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
