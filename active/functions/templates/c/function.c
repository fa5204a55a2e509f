/* FUNCTION: returns the length of the longest line of each object, as JSON lines.
 *
 * Build it with `make`, run it on local files with `make local`.
 */
#include <stdio.h>
#include <string.h>

#include "osd.h"

/* Finds the longest line of an object. Returns 0 or a negative error number. */
static int64_t longest_line(uint32_t object, uint64_t *longest) {
    uint64_t current = 0;
    *longest = 0;
    int64_t reader = osd_reader_open(object, 0, UINT64_MAX);
    if (reader < 0)
        return reader;
    for (;;) {
        const void *data;
        int64_t length = osd_reader_next(reader, &data);
        if (length <= 0) {
            osd_reader_close(reader);
            return length;
        }
        const char *start = data, *end = start + length;
        while (start < end) {
            const char *feed = memchr(start, '\n', (size_t)(end - start));
            current += (uint64_t)((feed ? feed : end) - start);
            if (current > *longest)
                *longest = current;
            if (!feed)
                break;
            current = 0;
            start = feed + 1;
        }
    }
}

int64_t osd_main(const osd_call *call) {
    for (uint32_t object = 0; object < call->object_count; object++) {
        uint64_t longest;
        int64_t status = longest_line(object, &longest);
        if (status < 0)
            return status;
        char line[80];
        int length = snprintf(line, sizeof line, "{\"object\":%u,\"longest\":%llu}\n", object,
                              (unsigned long long)longest);
        status = osd_result(line, (size_t)length);
        if (status < 0)
            return status;
        osd_progress(object + 1, call->object_count);
    }
    return 0;
}
