/* Word count, grep of lines of 128 bytes, and copy: the algorithms of the examples in Java. */
#include <stdio.h>
#include <string.h>

#include "osd.h"

#define LINE_BYTES 128

static int64_t count_words(const unsigned char *data, int64_t length, int *is_in_word) {
    int64_t words = 0;
    for (int64_t index = 0; index < length; index++) {
        int is_word = data[index] > ' ';
        words += is_word && !*is_in_word;
        *is_in_word = is_word;
    }
    return words;
}

static int contains(const char *start, const char *end, const char *wanted, size_t length) {
    for (const char *at = start; at <= end - length; at++) {
        if (*at != wanted[0])
            continue;
        size_t matched = 1;
        while (matched < length && at[matched] == wanted[matched])
            matched++;
        if (matched == length)
            return 1;
    }
    return 0;
}

static int64_t count_lines(const char *data, int64_t length, const char *wanted) {
    int64_t lines = 0;
    size_t wanted_length = strlen(wanted);
    for (int64_t start = 0; start < length; start += LINE_BYTES) {
        int64_t end = start + LINE_BYTES < length ? start + LINE_BYTES : length;
        lines += contains(data + start, data + end, wanted, wanted_length);
    }
    return lines;
}

static int64_t copy(int64_t reader) {
    int64_t writer = osd_writer_open(1, 0);
    if (writer < 0)
        return writer;
    for (;;) {
        const void *data;
        void *buffer;
        int64_t length = osd_reader_next(reader, &data);
        if (length <= 0) {
            int64_t status = osd_writer_close(writer);
            return length < 0 ? length : status;
        }
        int64_t status = osd_writer_buffer(writer, &buffer);
        if (status < 0)
            return status;
        memcpy(buffer, data, (size_t)length);
        status = osd_writer_commit(writer, (uint64_t)length);
        if (status < 0)
            return status;
    }
}

int64_t osd_main(const osd_call *call) {
    int is_in_word = 0;
    int64_t count = 0;
    int64_t reader = osd_reader_open(0, 0, UINT64_MAX);
    if (reader < 0)
        return reader;
    if (strcmp(osd_method(call), "copy") == 0)
        return copy(reader);
    int is_grep = strcmp(osd_method(call), "grep") == 0;
    for (;;) {
        const void *data;
        int64_t length = osd_reader_next(reader, &data);
        if (length < 0)
            return length;
        if (length == 0)
            break;
        count += is_grep ? count_lines(data, length, "sealstone") : count_words(data, length, &is_in_word);
    }
    char line[32];
    return osd_result(line, (size_t)snprintf(line, sizeof line, "%lld\n", (long long)count));
}
