/* Measures calls as a function sees them; the result is times in nanoseconds, or a sum. */
#include "osd.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PINGS 20000
#define CHUNK (4u << 20)

static int64_t times[PINGS];

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int compare(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* About 1 ns per 8 bytes, so that the bytes are really read. */
static uint64_t add_words(uint64_t sum, const void *data, int64_t length) {
    const uint64_t *words = data;
    for (int64_t index = 0; index < length / 8; index++) sum = (sum ^ words[index]) * 3;
    return sum;
}

static int64_t ping(void) {
    for (int index = 0; index < PINGS; index++) {
        int64_t start = now();
        if (osd_length(0) < 0) return -OSD_EIO;
        times[index] = now() - start;
    }
    qsort(times, PINGS, sizeof *times, compare);
    int64_t numbers[2] = {times[PINGS / 2], times[PINGS / 100 * 99]};
    return osd_result(numbers, sizeof numbers);
}

static int64_t read_chunks(void) {
    void *buffer = aligned_alloc(4096, CHUNK);
    if (buffer == NULL) return -OSD_ENOMEM;
    uint64_t sum = 0, offset = 0;
    int64_t count, start = 0;
    for (int pass = 0; pass < 2; pass++) { /* the first pass touches all pages */
        start = now();
        for (offset = 0; (count = osd_read(0, offset, buffer, CHUNK)) > 0; offset += (uint64_t)count) {
            sum = add_words(sum, buffer, count);
        }
    }
    int64_t numbers[2] = {now() - start, (int64_t)sum};
    free(buffer);
    return osd_result(numbers, sizeof numbers);
}

static int64_t read_stream(void) {
    uint64_t sum = 0;
    int64_t count, start = 0;
    for (int pass = 0; pass < 2; pass++) {
        const void *data;
        start = now();
        int64_t reader = osd_reader_open(0, 0, UINT64_MAX);
        if (reader < 0) return reader;
        while ((count = osd_reader_next(reader, &data)) > 0) sum = add_words(sum, data, count);
        osd_reader_close(reader);
    }
    int64_t numbers[2] = {now() - start, (int64_t)sum};
    return osd_result(numbers, sizeof numbers);
}

int64_t osd_main(const osd_call *call) {
    if (strcmp(osd_method(call), "ping") == 0) return ping();
    if (strcmp(osd_method(call), "read") == 0) return read_chunks();
    if (strcmp(osd_method(call), "stream") == 0) return read_stream();
    return 0;
}
