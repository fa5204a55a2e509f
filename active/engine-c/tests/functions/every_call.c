/* Uses every call of the interface; each failed check returns its line. */
#include "osd.h"

#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) return __LINE__; \
    } while (0)

int64_t osd_main(const osd_call *call) {
    char buffer[64];
    uint64_t numbers[4] = {0}, number = 0;
    const void *in = NULL;
    void *out = NULL;

    CHECK(call->size == sizeof *call && call->api_major == OSD_API_MAJOR);
    CHECK(strcmp(osd_method(call), "every") == 0 && call->method_length == 5);
    CHECK(strcmp(osd_arguments(call), "a=1") == 0 && call->arguments_length == 3);
    CHECK(call->object_count == 2 && osd_objects(call)[0].length == 5);
    CHECK(osd_objects(call)[0].kind == OSD_USER_OBJECT && (osd_objects(call)[0].rights & OSD_READ));

    CHECK(osd_read(0, 1, buffer, sizeof buffer) == 4 && memcmp(buffer, "ello", 4) == 0);
    CHECK(osd_write(1, 0, "abc", 3) == 3);
    CHECK(osd_append(1, "def", 3) == 3);
    CHECK(osd_punch(1, 0, 1) == 0);
    CHECK(osd_length(1) == 5);
    CHECK(osd_set_attribute(1, 0x10000, 7, "value", 5) == 0);
    CHECK(osd_get_attribute(1, 0x10000, 7, buffer, sizeof buffer) == 5);
    CHECK(osd_create(0, &number) == 2 && number != 0);
    CHECK(osd_list(0, 0, numbers, 4) == 3 && numbers[2] == number);
    CHECK(osd_remove(2) == 0 && osd_length(2) == -OSD_ENOENT);
    CHECK(osd_flush(1) == 0);
    CHECK(osd_clear(0, 5, 2) == 0 && osd_length(0) == 7 && osd_punch(0, 5, 2) == 0);
    CHECK(osd_clear(0, UINT64_MAX, 1) == -OSD_EINVAL);
    CHECK(osd_create_collection(0, &number) == 3 && osd_is_member(3, 1) == 0);
    CHECK(osd_add_member(3, 1) == 0 && osd_is_member(3, 1) == 1 && osd_list(3, 0, numbers, 4) == 1);
    CHECK(osd_remove_collection(3, 0) == -OSD_ENOTEMPTY && osd_remove_collection(3, 2) == -OSD_EINVAL);
    CHECK(osd_remove_member(3, 1) == 0 && osd_remove_member(3, 1) == -OSD_ENOENT);
    CHECK(osd_add_member(1, 0) == -OSD_EINVAL && osd_remove_collection(3, 1) == 0);
    CHECK(osd_progress(1, 2) == 0);
    CHECK(osd_cancelled() == 0);
    CHECK(osd_clock() > 1500000000000);
    CHECK(osd_read(99, 0, buffer, 1) == -OSD_EBADF);
    CHECK(osd_read(0, 0, NULL, 1) == -OSD_EINVAL);

    int64_t reader = osd_reader_open(0, 0, UINT64_MAX);
    CHECK(reader >= 0);
    CHECK(osd_reader_next(reader, &in) == 5 && memcmp(in, "hello", 5) == 0);
    CHECK(osd_reader_next(reader, &in) == 0);
    CHECK(osd_reader_close(reader) == 0 && osd_reader_close(reader) == -OSD_EBADF);

    int64_t writer = osd_writer_open(1, 5);
    CHECK(writer >= 0);
    CHECK(osd_writer_buffer(writer, &out) == OSD_BUFFER_BYTES);
    memcpy(out, " end", 4);
    CHECK(osd_writer_commit(writer, 4) == 0);
    CHECK(osd_writer_close(writer) == 0);

    CHECK(osd_log(OSD_LOG_INFO, "checked", 7) == 0);
    CHECK(osd_result("all", 3) == 0);
    return 0;
}
