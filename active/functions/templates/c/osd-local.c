/* Runs a function on local files, without a device and without a sandbox.
 *
 *     FUNCTION-local [--arg NAME=VALUE]... FILE...
 *
 * Each file is an object of the call. Files are written to only by functions that write. The
 * result goes to standard output, the log to standard error. Calls for attributes, lists, new
 * objects, collections and removal return ENOSYS. All other calls check their arguments as a device
 * does.
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
static osd_object objects[OSD_OBJECTS_MAX];
static uint32_t file_count;

struct stream {
    int is_open, is_writer;
    int64_t number;
    uint32_t object;
    uint64_t position, end;
    char *buffer;
    /* Whether the function has the buffer of a writer. */
    int is_lent;
    /* The first error; later calls return it. */
    int64_t error;
};

static struct stream streams[OSD_STREAMS_MAX];
static int64_t next_stream;

static int64_t failed(void) { return -(int64_t)errno; }

/* Returns 0 if the object exists and permits the access. */
static int64_t check_object(uint32_t object, uint8_t rights) {
    if (object >= file_count)
        return -OSD_EBADF;
    return (objects[object].rights & rights) == rights ? 0 : -OSD_EACCES;
}

/* Returns 0 if the memory is possible and the range does not overflow. */
static int64_t check_range(uint64_t offset, const void *data, uint64_t length) {
    if (length == 0)
        return 0;
    return !data || length > PTRDIFF_MAX || length > UINT64_MAX - offset ? -OSD_EINVAL : 0;
}

int64_t osd_read(uint32_t object, uint64_t offset, void *buffer, size_t capacity) {
    int64_t error = check_range(offset, buffer, capacity);
    if (error == 0)
        error = check_object(object, OSD_READ);
    if (error < 0)
        return error;
    size_t done = 0;
    /* A file ends before 2^63, as an object does. */
    while (done < capacity && offset + done <= INT64_MAX) {
        ssize_t count = pread(files[object], (char *)buffer + done, capacity - done, (off_t)(offset + done));
        if (count < 0)
            return failed();
        if (count == 0)
            break;
        done += (size_t)count;
    }
    return (int64_t)done;
}

static int64_t write_file(uint32_t object, uint64_t offset, const void *data, size_t length) {
    if (length > 0 && offset + length > INT64_MAX)
        return -OSD_EFBIG;
    size_t done = 0;
    while (done < length) {
        ssize_t count = pwrite(files[object], (const char *)data + done, length - done, (off_t)(offset + done));
        if (count < 0)
            return failed();
        done += (size_t)count;
    }
    return (int64_t)length;
}

int64_t osd_write(uint32_t object, uint64_t offset, const void *data, size_t length) {
    int64_t error = check_range(offset, data, length);
    if (error == 0)
        error = check_object(object, OSD_WRITE);
    return error < 0 ? error : write_file(object, offset, data, length);
}

int64_t osd_length(uint32_t object) {
    struct stat status;
    int64_t error = check_object(object, OSD_READ);
    if (error < 0)
        return error;
    return fstat(files[object], &status) < 0 ? failed() : (int64_t)status.st_size;
}

int64_t osd_append(uint32_t object, const void *data, size_t length) {
    if (length > OSD_REQUEST_BYTES_MAX)
        return -OSD_EFBIG;
    int64_t error = check_range(0, data, length);
    if (error == 0)
        error = check_object(object, OSD_APPEND);
    if (error < 0)
        return error;
    int64_t end = osd_length(object);
    if (end < 0)
        return end;
    int64_t written = write_file(object, (uint64_t)end, data, length);
    return written < 0 ? written : end;
}

int64_t osd_flush(uint32_t object) {
    int64_t error = check_object(object, OSD_MANAGE);
    if (error < 0)
        return error;
    return fsync(files[object]) < 0 ? failed() : 0;
}

/* Removes a range; the bytes after it move down. */
int64_t osd_punch(uint32_t object, uint64_t offset, uint64_t length) {
    static char buffer[65536];
    if (length > UINT64_MAX - offset)
        return -OSD_EINVAL;
    int64_t error = check_object(object, OSD_WRITE);
    if (error < 0)
        return error;
    int64_t end = osd_length(object);
    if (end < 0)
        return end;
    if (offset > (uint64_t)end)
        return -OSD_EINVAL;
    if (length == 0)
        return 0;
    if (length > (uint64_t)end - offset)
        length = (uint64_t)end - offset;
    for (;;) {
        int64_t count = osd_read(object, offset + length, buffer, sizeof buffer);
        if (count < 0)
            return count;
        if (count == 0)
            break;
        int64_t written = write_file(object, offset, buffer, (size_t)count);
        if (written < 0)
            return written;
        offset += (uint64_t)count;
    }
    return ftruncate(files[object], (off_t)offset) < 0 ? failed() : 0;
}

/* Writes zeros to a range; the file is extended if it ends before. */
int64_t osd_clear(uint32_t object, uint64_t offset, uint64_t length) {
    static const char zeros[65536];
    if (length > UINT64_MAX - offset)
        return -OSD_EINVAL;
    int64_t error = check_object(object, OSD_WRITE);
    if (error < 0)
        return error;
    if (length > 0 && offset + length > INT64_MAX)
        return -OSD_EFBIG;
    while (length > 0) {
        size_t part = length < sizeof zeros ? (size_t)length : sizeof zeros;
        int64_t written = write_file(object, offset, zeros, part);
        if (written < 0)
            return written;
        offset += part;
        length -= part;
    }
    return 0;
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

int64_t osd_create_collection(uint32_t collection, uint64_t *number) {
    (void)collection, (void)number;
    return -OSD_ENOSYS;
}

int64_t osd_remove_collection(uint32_t collection, uint32_t force) {
    (void)collection, (void)force;
    return -OSD_ENOSYS;
}

int64_t osd_add_member(uint32_t collection, uint32_t object) {
    (void)collection, (void)object;
    return -OSD_ENOSYS;
}

int64_t osd_remove_member(uint32_t collection, uint32_t object) {
    (void)collection, (void)object;
    return -OSD_ENOSYS;
}

int64_t osd_is_member(uint32_t collection, uint32_t object) {
    (void)collection, (void)object;
    return -OSD_ENOSYS;
}

int64_t osd_result(const void *data, size_t length) {
    int64_t error = check_range(0, data, length);
    if (error < 0)
        return error;
    return fwrite(data, 1, length, stdout) == length ? 0 : -OSD_EIO;
}

int64_t osd_log(uint32_t level, const char *text, size_t length) {
    static const char *const names[] = {"error", "warning", "info"};
    int64_t error = check_range(0, text, length);
    if (error == 0 && (level < OSD_LOG_ERROR || level > OSD_LOG_INFO))
        error = -OSD_EINVAL;
    if (error < 0)
        return error;
    if (length > OSD_LOG_LINE_BYTES_MAX)
        length = OSD_LOG_LINE_BYTES_MAX;
    fprintf(stderr, "%s: %.*s\n", names[level - OSD_LOG_ERROR], (int)length, text);
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

static int64_t open_stream(int is_writer, uint32_t object, uint64_t offset, uint64_t length) {
    int64_t error = check_object(object, is_writer ? OSD_WRITE : OSD_READ);
    if (error < 0)
        return error;
    for (int place = 0; place < OSD_STREAMS_MAX; place++) {
        struct stream *stream = &streams[place];
        if (stream->is_open)
            continue;
        *stream = (struct stream){.is_open = 1, .is_writer = is_writer, .object = object, .position = offset};
        stream->end = length > UINT64_MAX - offset ? UINT64_MAX : offset + length;
        stream->buffer = malloc(OSD_BUFFER_BYTES);
        if (!stream->buffer) {
            stream->is_open = 0;
            return -OSD_ENOMEM;
        }
        /* A number that was closed is not used again. */
        return stream->number = next_stream++;
    }
    return -OSD_EBUSY;
}

static struct stream *find_stream(int64_t number, int is_writer) {
    for (int place = 0; place < OSD_STREAMS_MAX; place++) {
        struct stream *stream = &streams[place];
        if (stream->is_open && stream->number == number && stream->is_writer == is_writer)
            return stream;
    }
    return NULL;
}

static int64_t close_stream(int64_t number, int is_writer) {
    struct stream *stream = find_stream(number, is_writer);
    if (!stream)
        return -OSD_EBADF;
    free(stream->buffer);
    stream->is_open = 0;
    return is_writer ? stream->error : 0;
}

int64_t osd_reader_open(uint32_t object, uint64_t offset, uint64_t length) {
    return open_stream(0, object, offset, length);
}

int64_t osd_reader_next(int64_t reader, const void **data) {
    struct stream *stream = find_stream(reader, 0);
    if (!stream)
        return -OSD_EBADF;
    if (stream->error < 0)
        return stream->error;
    uint64_t left = stream->end - stream->position;
    size_t capacity = left < OSD_BUFFER_BYTES ? (size_t)left : OSD_BUFFER_BYTES;
    int64_t count = osd_read(stream->object, stream->position, stream->buffer, capacity);
    if (count < 0)
        return stream->error = count;
    stream->position += (uint64_t)count;
    /* A short read is the end, also if bytes are appended later. */
    if ((size_t)count < capacity)
        stream->end = stream->position;
    if (data)
        *data = stream->buffer;
    return count;
}

int64_t osd_reader_close(int64_t reader) { return close_stream(reader, 0); }

int64_t osd_writer_open(uint32_t object, uint64_t offset) {
    return open_stream(1, object, offset, UINT64_MAX);
}

int64_t osd_writer_buffer(int64_t writer, void **data) {
    struct stream *stream = find_stream(writer, 1);
    if (!stream)
        return -OSD_EBADF;
    if (stream->error < 0)
        return stream->error;
    stream->is_lent = 1;
    if (data)
        *data = stream->buffer;
    return OSD_BUFFER_BYTES;
}

int64_t osd_writer_commit(int64_t writer, uint64_t length) {
    struct stream *stream = find_stream(writer, 1);
    if (!stream)
        return -OSD_EBADF;
    if (stream->error < 0)
        return stream->error;
    if (!stream->is_lent || length > OSD_BUFFER_BYTES || length > UINT64_MAX - stream->position)
        return -OSD_EINVAL;
    stream->is_lent = 0;
    /* A device writes later, so the error is that of a later call. */
    int64_t written = write_file(stream->object, stream->position, stream->buffer, (size_t)length);
    stream->position += length;
    if (written < 0)
        stream->error = written;
    return 0;
}

int64_t osd_writer_close(int64_t writer) { return close_stream(writer, 1); }

int main(int argc, char **argv) {
    static char arguments[OSD_ARGUMENT_BYTES_MAX + 1];
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
        uint8_t rights = OSD_READ | OSD_WRITE | OSD_APPEND | OSD_MANAGE;
        int file = open(argv[at], O_RDWR | O_CLOEXEC);
        if (file < 0) {
            rights = OSD_READ;
            file = open(argv[at], O_RDONLY | O_CLOEXEC);
        }
        if (file < 0) {
            perror(argv[at]);
            return 2;
        }
        files[file_count] = file;
        objects[file_count].number = file_count + 1;
        objects[file_count].kind = OSD_USER_OBJECT;
        objects[file_count].rights = rights;
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
