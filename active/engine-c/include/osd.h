/* Interface of functions that run on a device.
 *
 * Generated from the table of calls (active/function-abi/src/call.rs); do not edit.
 * A function exports `int64_t osd_main(const osd_call *call)` and is built by
 *
 *     cc -shared -fPIC -O2 -o function.so function.c
 *
 * It returns 0, or a negative error number. Calls return a count or number, or a negative error
 * number. A function has no other way to reach the system: no files, no sockets, no other process.
 */
#ifndef SEALSTONE_OSD_H
#define SEALSTONE_OSD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. */
#define OSD_API_MAJOR 1
#define OSD_API_MINOR 1

/* Types of objects. */
#define OSD_PARTITION 0x02
#define OSD_COLLECTION 0x40
#define OSD_USER_OBJECT 0x80

/* Rights of a handle. */
#define OSD_READ 0x80
#define OSD_WRITE 0x40
#define OSD_GET_ATTRIBUTE 0x20
#define OSD_SET_ATTRIBUTE 0x10
#define OSD_CREATE 0x08
#define OSD_REMOVE 0x04
#define OSD_MANAGE 0x02
#define OSD_APPEND 0x01

/* Error numbers, with a minus sign in results. */
#define OSD_ENOENT 2 /* The object, attribute or method does not exist. */
#define OSD_EIO 5 /* The device failed to read or write. */
#define OSD_ENOEXEC 8 /* The code cannot be loaded, or has no entry point. */
#define OSD_EBADF 9 /* The call has no object or stream of this number. */
#define OSD_ENOMEM 12 /* The memory limit of the job or its heap is reached. */
#define OSD_EACCES 13 /* The capability does not permit the access, or is expired or revoked. */
#define OSD_EBUSY 16 /* Too many streams are open, or a buffer is in use. */
#define OSD_EINVAL 22 /* An argument is invalid. */
#define OSD_EFBIG 27 /* An object, a result or a value is larger than its limit. */
#define OSD_ENOSPC 28 /* The device or the quota is full. */
#define OSD_ENOSYS 38 /* The device does not implement the call. */
#define OSD_ENOTEMPTY 39 /* The collection has members. */
#define OSD_EBADMSG 74 /* The data does not have the expected format. */
#define OSD_ECANCELED 125 /* The job was cancelled. */

/* Levels of log lines. */
#define OSD_LOG_ERROR 1
#define OSD_LOG_WARNING 2
#define OSD_LOG_INFO 3

/* Limits. */
#define OSD_BUFFER_BYTES 1048576
#define OSD_REQUEST_BYTES_MAX 4194304
#define OSD_ARGUMENT_BYTES_MAX 65536
#define OSD_OBJECTS_MAX 64
#define OSD_ATTRIBUTE_BYTES_MAX 65534
#define OSD_LOG_LINE_BYTES_MAX 4096
#define OSD_LIST_ENTRIES_MAX 65536
#define OSD_STREAMS_MAX 8

/* An object of the call. Its handle is its index in the list of objects. */
typedef struct osd_object {
    uint64_t partition;
    uint64_t number; /* 0 for a partition */
    uint64_t length; /* bytes at the start of the call, as far as the rights show it */
    uint8_t kind;    /* OSD_PARTITION, OSD_COLLECTION or OSD_USER_OBJECT */
    uint8_t rights;  /* OSD_READ and others */
    uint8_t reserved[6];
} osd_object;

/* The call. Addresses are 64 bits wide in every engine; the functions below convert them. */
typedef struct osd_call {
    uint32_t size; /* bytes of this structure; later versions append fields */
    uint16_t api_major;
    uint16_t api_minor;
    uint64_t method_address;
    uint64_t arguments_address;
    uint64_t objects_address;
    uint32_t method_length;
    uint32_t arguments_length;
    uint32_t object_count;
    uint32_t timeout_ms; /* 0: only the limits of the device apply */
    uint64_t result_bytes_max;
    uint64_t reserved;
} osd_call;

/* Returns the method: UTF-8, with a zero byte at its end; empty for the default method. */
static inline const char *osd_method(const osd_call *call) {
    return (const char *)(uintptr_t)call->method_address;
}

/* Returns the arguments; a zero byte follows them. */
static inline const char *osd_arguments(const osd_call *call) {
    return (const char *)(uintptr_t)call->arguments_address;
}

/* Returns the objects. */
static inline const osd_object *osd_objects(const osd_call *call) {
    return (const osd_object *)(uintptr_t)call->objects_address;
}

/* The entry point that a function exports. Without it, `start` is called in the same way. */
int64_t osd_main(const osd_call *call);

/* Reads bytes of an object. Returns the number of bytes, which is smaller than the capacity
 * only at the end of the object. */
int64_t osd_read(uint32_t object, uint64_t offset, void *buffer, size_t capacity);

/* Writes all bytes at an offset, and extends the object if it ends before. Returns their
 * number. */
int64_t osd_write(uint32_t object, uint64_t offset, const void *data, size_t length);

/* Appends at most 4 MiB to an object in one step. Returns the offset of the first byte. */
int64_t osd_append(uint32_t object, const void *data, size_t length);

/* Removes a range of bytes; the bytes after it move down. Returns 0. */
int64_t osd_punch(uint32_t object, uint64_t offset, uint64_t length);

/* Returns the length of an object in bytes. */
int64_t osd_length(uint32_t object);

/* Reads an attribute. Returns the length of its value; of a longer one than the capacity,
 * only the first bytes are stored. */
int64_t osd_get_attribute(uint32_t object, uint32_t page, uint32_t number, void *buffer, size_t capacity);

/* Sets an attribute to a value of at most 65534 bytes; no bytes remove it. Returns 0. */
int64_t osd_set_attribute(uint32_t object, uint32_t page, uint32_t number, const void *data, size_t length);

/* Lists the objects of a partition or collection whose numbers are above `after`, in
 * ascending order, at most 65536 at once. Returns how many were stored; 0 at the end. */
int64_t osd_list(uint32_t object, uint64_t after, uint64_t *numbers, size_t capacity);

/* Creates a user object in a partition. Returns its handle, and stores its number unless the
 * address is null. */
int64_t osd_create(uint32_t partition, uint64_t *number);

/* Removes an object. Returns 0. */
int64_t osd_remove(uint32_t object);

/* Returns 0 when the changes of an object or collection survive a loss of power. */
int64_t osd_flush(uint32_t object);

/* Writes zeros to a range of bytes without moving any, and extends the object if it ends
 * before. Returns 0. Since version 1.1. */
int64_t osd_clear(uint32_t object, uint64_t offset, uint64_t length);

/* Creates a collection, through a handle that can create it. Returns the handle of the
 * collection, and stores its number unless the address is null. Since version 1.1. */
int64_t osd_create_collection(uint32_t collection, uint64_t *number);

/* Removes a collection; its members stay. With `force` 1 their memberships end first; with 0
 * the collection must be empty. Returns 0. Since version 1.1. */
int64_t osd_remove_collection(uint32_t collection, uint32_t force);

/* Makes a user object a member of a collection of its partition. The object needs the right
 * SET_ATTR too. Returns 0, also if it is a member already. Since version 1.1. */
int64_t osd_add_member(uint32_t collection, uint32_t object);

/* Ends the membership of a user object in a collection. The object needs the right SET_ATTR
 * too. Returns 0. Since version 1.1. */
int64_t osd_remove_member(uint32_t collection, uint32_t object);

/* Returns 1 if a user object is a member of a collection, otherwise 0. The object needs the
 * right GET_ATTR. Since version 1.1. */
int64_t osd_is_member(uint32_t collection, uint32_t object);

/* Appends bytes to the result that the caller receives. Returns 0. */
int64_t osd_result(const void *data, size_t length);

/* Writes a line to the log of the job: level 1 error, 2 warning, 3 information. Bytes beyond
 * 4096 are dropped. Returns 0. */
int64_t osd_log(uint32_t level, const char *text, size_t length);

/* Reports progress: so many units of a total, which is 0 if it is unknown. Returns 0. */
int64_t osd_progress(uint64_t done, uint64_t total);

/* Returns 1 if the job was cancelled; the function then returns soon, or is killed. */
int32_t osd_cancelled(void);

/* Returns the device's time in milliseconds since 1970, as of the last call. */
int64_t osd_clock(void);

/* Opens a stream that reads a range ahead, in two buffers of 1 MiB. Returns its number. */
int64_t osd_reader_open(uint32_t object, uint64_t offset, uint64_t length);

/* Stores the address of the next bytes, which are valid until the next call for this stream.
 * Returns their number; 0 at the end of the range or object. */
int64_t osd_reader_next(int64_t reader, const void **data);

/* Closes a stream and frees its buffers. Returns 0. */
int64_t osd_reader_close(int64_t reader);

/* Opens a stream that writes behind, in two buffers of 1 MiB. Returns its number. */
int64_t osd_writer_open(uint32_t object, uint64_t offset);

/* Stores the address of a free buffer, which the function fills. Returns its capacity. */
int64_t osd_writer_buffer(int64_t writer, void **data);

/* Writes the first bytes of the buffer at the position of the stream, and returns before
 * they are written. Returns 0, or the error of an earlier write. */
int64_t osd_writer_commit(int64_t writer, uint64_t length);

/* Waits for all writes of a stream and closes it. Returns 0, or the first error. */
int64_t osd_writer_close(int64_t writer);

#ifdef __cplusplus
}
#endif

#endif
