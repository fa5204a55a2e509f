/* Runs a function on local files, without a device and without a sandbox.
 *
 *     FUNCTION-local [--arg NAME=VALUE]... FILE...
 *
 * Each file is an object of the call. Files are written to only by functions that write. The
 * result goes to standard output, the log to standard error. Calls for attributes, lists, new
 * objects and removal return ENOSYS.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "osd.h"

static int files[OSD_OBJECTS_MAX];
static uint32_t file_count;

struct stream {
    int is_open;
    uint32_t object;
    uint64_t position, end;
    char *buffer;
};

static struct stream streams[OSD_STREAMS_MAX];

static int64_t failed(void) { return -(int64_t)errno; }

int64_t osd_read(uint32_t object, uint64_t offset, void *buffer, size_t capacity) {
    if (object >= file_count)
        return -OSD_EBADF;
    size_t done = 0;
    while (done < capacity) {
        ssize_t count = pread(files[object], (char *)buffer + done, capacity - done, (off_t)(offset + done));
        if (count < 0)
            return failed();
        if (count == 0)
            break;
        done += (size_t)count;
    }
    return (int64_t)done;
}

int64_t osd_write(uint32_t object, uint64_t offset, const void *data, size_t length) {
    if (object >= file_count)
        return -OSD_EBADF;
    size_t done = 0;
    while (done < length) {
        ssize_t count = pwrite(files[object], (const char *)data + done, length - done, (off_t)(offset + done));
        if (count < 0)
            return failed();
        done += (size_t)count;
    }
    return (int64_t)length;
}

int64_t osd_length(uint32_t object) {
    struct stat status;
    if (object >= file_count)
        return -OSD_EBADF;
    return fstat(files[object], &status) < 0 ? failed() : (int64_t)status.st_size;
}

int64_t osd_append(uint32_t object, const void *data, size_t length) {
    int64_t end = osd_length(object);
    if (end < 0)
        return end;
    int64_t written = osd_write(object, (uint64_t)end, data, length);
    return written < 0 ? written : end;
}

int64_t osd_flush(uint32_t object) {
    if (object >= file_count)
        return -OSD_EBADF;
    return fsync(files[object]) < 0 ? failed() : 0;
}

/* Removes a range; the bytes after it move down. */
int64_t osd_punch(uint32_t object, uint64_t offset, uint64_t length) {
    static char buffer[65536];
    int64_t end = osd_length(object);
    if (end < 0)
        return end;
    if (offset >= (uint64_t)end)
        return 0;
    if (length > (uint64_t)end - offset)
        length = (uint64_t)end - offset;
    for (;;) {
        int64_t count = osd_read(object, offset + length, buffer, sizeof buffer);
        if (count < 0)
            return count;
        if (count == 0)
            break;
        int64_t written = osd_write(object, offset, buffer, (size_t)count);
        if (written < 0)
            return written;
        offset += (uint64_t)count;
    }
    return ftruncate(files[object], (off_t)offset) < 0 ? failed() : 0;
}

int64_t osd_get_attribute(uint32_t object, uint32_t page, uint32_t number, void *buffer, size_t capacity) {
    (void)object, (void)page, (void)number, (void)buffer, (void)capacity;
    return -OSD_ENOSYS;
}

int64_t osd_set_attribute(uint32_t object, uint32_t page, uint32_t number, const void *data, size_t length) {
    (void)object, (void)page, (void)number, (void)data, (void)length;
    return -OSD_ENOSYS;
}

int64_t osd_list(uint32_t object, uint64_t after, uint64_t *numbers, size_t capacity) {
    (void)object, (void)after, (void)numbers, (void)capacity;
    return -OSD_ENOSYS;
}

int64_t osd_create(uint32_t partition, uint64_t *number) {
    (void)partition, (void)number;
    return -OSD_ENOSYS;
}

int64_t osd_remove(uint32_t object) {
    (void)object;
    return -OSD_ENOSYS;
}

int64_t osd_result(const void *data, size_t length) {
    return fwrite(data, 1, length, stdout) == length ? 0 : -OSD_EIO;
}

int64_t osd_log(uint32_t level, const char *text, size_t length) {
    static const char *const names[] = {"log", "error", "warning", "info"};
    fprintf(stderr, "%s: %.*s\n", names[level < 4 ? level : 0], (int)length, text);
    return 0;
}

int64_t osd_progress(uint64_t done, uint64_t total) {
    (void)done, (void)total;
    return 0;
}

int32_t osd_cancelled(void) { return 0; }

int64_t osd_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t open_stream(uint32_t object, uint64_t offset, uint64_t length) {
    if (object >= file_count)
        return -OSD_EBADF;
    for (int64_t number = 0; number < OSD_STREAMS_MAX; number++) {
        struct stream *stream = &streams[number];
        if (stream->is_open)
            continue;
        stream->buffer = malloc(OSD_BUFFER_BYTES);
        if (!stream->buffer)
            return -OSD_ENOMEM;
        stream->is_open = 1;
        stream->object = object;
        stream->position = offset;
        stream->end = length > UINT64_MAX - offset ? UINT64_MAX : offset + length;
        return number;
    }
    return -OSD_EBUSY;
}

static struct stream *find_stream(int64_t number) {
    return number >= 0 && number < OSD_STREAMS_MAX && streams[number].is_open ? &streams[number] : NULL;
}

static int64_t close_stream(int64_t number) {
    struct stream *stream = find_stream(number);
    if (!stream)
        return -OSD_EBADF;
    free(stream->buffer);
    stream->is_open = 0;
    return 0;
}

int64_t osd_reader_open(uint32_t object, uint64_t offset, uint64_t length) {
    return open_stream(object, offset, length);
}

int64_t osd_reader_next(int64_t reader, const void **data) {
    struct stream *stream = find_stream(reader);
    if (!stream)
        return -OSD_EBADF;
    uint64_t left = stream->end - stream->position;
    size_t capacity = left < OSD_BUFFER_BYTES ? (size_t)left : OSD_BUFFER_BYTES;
    int64_t count = osd_read(stream->object, stream->position, stream->buffer, capacity);
    if (count > 0)
        stream->position += (uint64_t)count;
    *data = stream->buffer;
    return count;
}

int64_t osd_reader_close(int64_t reader) { return close_stream(reader); }

int64_t osd_writer_open(uint32_t object, uint64_t offset) { return open_stream(object, offset, 0); }

int64_t osd_writer_buffer(int64_t writer, void **data) {
    struct stream *stream = find_stream(writer);
    if (!stream)
        return -OSD_EBADF;
    *data = stream->buffer;
    return OSD_BUFFER_BYTES;
}

int64_t osd_writer_commit(int64_t writer, uint64_t length) {
    struct stream *stream = find_stream(writer);
    if (!stream)
        return -OSD_EBADF;
    if (length > OSD_BUFFER_BYTES)
        return -OSD_EINVAL;
    int64_t written = osd_write(stream->object, stream->position, stream->buffer, (size_t)length);
    if (written < 0)
        return written;
    stream->position += length;
    return 0;
}

int64_t osd_writer_close(int64_t writer) { return close_stream(writer); }

int main(int argc, char **argv) {
    static char arguments[OSD_ARGUMENT_BYTES_MAX + 1];
    static osd_object objects[OSD_OBJECTS_MAX];
    size_t used = 0;
    for (int at = 1; at < argc; at++) {
        if (strcmp(argv[at], "--arg") == 0 && at + 1 < argc) {
            size_t length = strlen(argv[++at]) + 1;
            if (!strchr(argv[at], '=') || used + length > OSD_ARGUMENT_BYTES_MAX) {
                fprintf(stderr, "%s: expected NAME=VALUE, at most %d bytes in all\n", argv[at], OSD_ARGUMENT_BYTES_MAX);
                return 2;
            }
            memcpy(arguments + used, argv[at], length);
            used += length;
            continue;
        }
        if (file_count == OSD_OBJECTS_MAX) {
            fprintf(stderr, "%s: more than %d files\n", argv[at], OSD_OBJECTS_MAX);
            return 2;
        }
        int file = open(argv[at], O_RDWR | O_CLOEXEC);
        if (file < 0)
            file = open(argv[at], O_RDONLY | O_CLOEXEC);
        if (file < 0) {
            perror(argv[at]);
            return 2;
        }
        files[file_count] = file;
        objects[file_count].number = file_count + 1;
        objects[file_count].kind = OSD_USER_OBJECT;
        objects[file_count].rights = OSD_READ | OSD_WRITE | OSD_APPEND | OSD_MANAGE;
        file_count++;
        objects[file_count - 1].length = (uint64_t)osd_length(file_count - 1);
    }
    osd_call call = {
        .size = sizeof call,
        .api_major = OSD_API_MAJOR,
        .api_minor = OSD_API_MINOR,
        .method_address = (uint64_t)(uintptr_t) "",
        .arguments_address = (uint64_t)(uintptr_t)arguments,
        .objects_address = (uint64_t)(uintptr_t)objects,
        .arguments_length = (uint32_t)used,
        .object_count = file_count,
        .result_bytes_max = UINT64_MAX,
    };
    int64_t status = osd_main(&call);
    if (fflush(stdout) != 0 && status == 0)
        status = -OSD_EIO;
    if (status < 0)
        fprintf(stderr, "the function failed: %s\n", strerror((int)-status));
    return status < 0;
}
