/* Functions of `sealstone-bench active`, and with -DLOCAL a program that runs the same code without
 * a device: `PROGRAM METHOD LENGTH INPUT [OUTPUT]`, where INPUT is a file, or `unix:PATH` for a
 * server of remote calls. The result is a `measured` structure; the program prints its numbers. */
#ifdef LOCAL
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#define OSD_EIO 5
#define OSD_EINVAL 22
#define OSD_ENOMEM 12
#define OSD_ENOENT 2
static int64_t osd_read(uint32_t object, uint64_t offset, void *buffer, size_t capacity);
static int64_t osd_write(uint32_t object, uint64_t offset, const void *data, size_t length);
#else
#include "osd.h"
#endif

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHUNK (4u << 20)
#define LINE 128

typedef struct measured {
    uint64_t value;   /* what the function computed */
    uint64_t total;   /* times in nanoseconds */
    uint64_t reading;
    uint64_t working;
    uint64_t writing;
    uint64_t processor;
} measured;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t now(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Occurrences of a byte, as in the paper. */
static uint64_t count_byte(const uint8_t *data, int64_t length) {
    uint64_t count = 0;
    for (int64_t index = 0; index < length; index++) count += data[index] == 'e';
    return count;
}

/* Lines of 128 bytes that contain a word, as in the paper. */
static uint64_t count_lines(const uint8_t *data, int64_t length) {
    static const char word[] = "sealstone";
    uint64_t count = 0;
    for (int64_t line = 0; line + LINE <= length; line += LINE) {
        for (int at = 0; at + (int)sizeof word - 1 <= LINE; at++) {
            if (data[line + at] == word[0] && memcmp(data + line + at, word, sizeof word - 1) == 0) {
                count++;
                break;
            }
        }
    }
    return count;
}

/* About 1 ns for 8 bytes, so that the bytes are really read. */
static uint64_t add_words(const uint8_t *data, int64_t length) {
    const uint64_t *words = (const uint64_t *)(const void *)data;
    uint64_t sum = 0;
    for (int64_t index = 0; index < length / 8; index++) sum = (sum ^ words[index]) * 3;
    return sum;
}

/* AES-128 in counter mode with one table of 1 KiB; the key is fixed. It is a load, not a cipher to
 * use: its time depends on the data. */
static uint32_t table[256];
static uint8_t boxes[256];
static uint32_t round_keys[44];

static uint32_t rotate(uint32_t word, int bits) {
    return bits == 0 ? word : word << bits | word >> (32 - bits);
}

static void prepare_aes(void) {
    uint8_t p = 1, q = 1;
    do {
        p = (uint8_t)(p ^ (p << 1) ^ (p & 0x80 ? 0x1B : 0));
        q ^= (uint8_t)(q << 1);
        q ^= (uint8_t)(q << 2);
        q ^= (uint8_t)(q << 4);
        if (q & 0x80) q ^= 0x09;
        uint8_t x = (uint8_t)(q ^ (q << 1 | q >> 7) ^ (q << 2 | q >> 6) ^ (q << 3 | q >> 5) ^ (q << 4 | q >> 4));
        boxes[p] = x ^ 0x63;
    } while (p != 1);
    boxes[0] = 0x63;
    for (int index = 0; index < 256; index++) {
        uint32_t s = boxes[index], d = (uint8_t)(s << 1 ^ (s & 0x80 ? 0x1B : 0));
        table[index] = d << 24 | s << 16 | s << 8 | (d ^ s);
    }
    static const uint8_t key[16] = {0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6,
                                    0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c};
    uint32_t constant = 1;
    for (int index = 0; index < 4; index++) {
        round_keys[index] = (uint32_t)key[4 * index] << 24 | (uint32_t)key[4 * index + 1] << 16 |
                            (uint32_t)key[4 * index + 2] << 8 | key[4 * index + 3];
    }
    for (int index = 4; index < 44; index++) {
        uint32_t word = round_keys[index - 1];
        if (index % 4 == 0) {
            word = rotate(word, 8);
            word = (uint32_t)boxes[word >> 24] << 24 | (uint32_t)boxes[word >> 16 & 255] << 16 |
                   (uint32_t)boxes[word >> 8 & 255] << 8 | boxes[word & 255];
            word ^= constant << 24;
            constant = (uint8_t)(constant << 1 ^ (constant & 0x80 ? 0x1B : 0));
        }
        round_keys[index] = round_keys[index - 4] ^ word;
    }
}

static void encrypt_block(const uint32_t from[4], uint32_t to[4]) {
    uint32_t state[4], next[4];
    for (int word = 0; word < 4; word++) state[word] = from[word] ^ round_keys[word];
    for (int round = 1; round < 10; round++) {
        for (int word = 0; word < 4; word++) {
            next[word] = table[state[word] >> 24] ^ rotate(table[state[(word + 1) & 3] >> 16 & 255], 24) ^
                         rotate(table[state[(word + 2) & 3] >> 8 & 255], 16) ^
                         rotate(table[state[(word + 3) & 3] & 255], 8) ^ round_keys[4 * round + word];
        }
        memcpy(state, next, sizeof state);
    }
    for (int word = 0; word < 4; word++) {
        to[word] = ((uint32_t)boxes[state[word] >> 24] << 24 |
                    (uint32_t)boxes[state[(word + 1) & 3] >> 16 & 255] << 16 |
                    (uint32_t)boxes[state[(word + 2) & 3] >> 8 & 255] << 8 | boxes[state[(word + 3) & 3] & 255]) ^
                   round_keys[40 + word];
    }
}

static uint64_t encrypt(uint8_t *data, int64_t length, uint64_t offset) {
    uint64_t sum = 0;
    for (int64_t at = 0; at + 16 <= length; at += 16) {
        uint64_t block = (offset + (uint64_t)at) / 16;
        uint32_t counter[4] = {0, 0, (uint32_t)(block >> 32), (uint32_t)block}, stream[4], words[4];
        encrypt_block(counter, stream);
        memcpy(words, data + at, sizeof words);
        for (int word = 0; word < 4; word++) words[word] ^= __builtin_bswap32(stream[word]);
        memcpy(data + at, words, sizeof words);
        sum += words[0];
    }
    return sum;
}

/* The first block of FIPS 197, appendix B: an error here would make every figure void. */
static int aes_is_right(void) {
    static const uint32_t plain[4] = {0x3243f6a8, 0x885a308d, 0x313198a2, 0xe0370734};
    static const uint32_t cipher[4] = {0x3925841d, 0x02dc09fb, 0xdc118597, 0x196a0b32};
    uint32_t out[4];
    encrypt_block(plain, out);
    return memcmp(out, cipher, sizeof out) == 0;
}

static uint8_t buffer[CHUNK] __attribute__((aligned(4096)));

/* Reads, works and writes in chunks. */
static int64_t run(const char *method, uint64_t length, measured *result) {
    int counts = !strcmp(method, "wordcount"), greps = !strcmp(method, "grep"), encrypts = !strcmp(method, "aes");
    int reads = !strcmp(method, "read"), writes = !strcmp(method, "write");
    if (!counts && !greps && !encrypts && !reads && !writes) return -OSD_ENOENT;
    if (encrypts) {
        prepare_aes();
        if (!aes_is_right()) return -OSD_EINVAL;
    }
    memset(buffer, 1, sizeof buffer); /* touches all pages */
    uint64_t start = now(), at = start;
    for (uint64_t offset = 0; offset < length;) {
        uint64_t rest = length - offset;
        int64_t count = rest < CHUNK ? (int64_t)rest : (int64_t)CHUNK;
        if (!writes) {
            count = osd_read(0, offset, buffer, (size_t)count);
            if (count <= 0) return count < 0 ? count : -OSD_EIO;
        }
        uint64_t then = now();
        result->reading += then - at;
        at = then;
        if (counts) result->value += count_byte(buffer, count);
        if (greps) result->value += count_lines(buffer, count);
        if (reads) result->value += add_words(buffer, count);
        if (encrypts) result->value += encrypt(buffer, count, offset);
        if (writes) {
            uint64_t *words = (uint64_t *)(void *)buffer;
            for (int64_t index = 0; index < count / 8; index++) words[index] = offset + (uint64_t)index;
        }
        then = now();
        result->working += then - at;
        at = then;
        if (writes || encrypts) {
            int64_t done = osd_write(encrypts, offset, buffer, (size_t)count);
            if (done < 0) return done;
        }
        then = now();
        result->writing += then - at;
        at = then;
        offset += (uint64_t)count;
    }
    result->total = now() - start;
#ifdef LOCAL
    result->processor = clock_ns(CLOCK_PROCESS_CPUTIME_ID); /* the device measures an engine */
#endif
    return 0;
}

#ifndef LOCAL
/* Counts or writes through a stream, whose buffers the device shares. */
static int64_t run_stream(int writes, uint64_t length, measured *result) {
    uint64_t start = now(), offset = 0;
    int64_t stream = writes ? osd_writer_open(0, 0) : osd_reader_open(0, 0, length);
    if (stream < 0) return stream;
    while (offset < length) {
        if (writes) {
            void *to;
            int64_t status = osd_writer_buffer(stream, &to);
            if (status < 0) return status;
            uint64_t count = length - offset < OSD_BUFFER_BYTES ? length - offset : OSD_BUFFER_BYTES;
            for (uint64_t index = 0; index < count / 8; index++) ((uint64_t *)to)[index] = offset % CHUNK + index;
            status = osd_writer_commit(stream, count);
            if (status < 0) return status;
            offset += count;
        } else {
            const void *from;
            int64_t count = osd_reader_next(stream, &from);
            if (count <= 0) return count < 0 ? count : -OSD_EIO;
            result->value += count_byte(from, count);
            offset += (uint64_t)count;
        }
    }
    int64_t status = writes ? osd_writer_close(stream) : 0;
    result->total = now() - start;
    return status;
}
#endif

#ifdef LOCAL
static int files[2] = {-1, -1};
static int server = -1;
static uint32_t last_call;

static void put32(uint8_t *at, uint32_t value) {
    for (int byte = 0; byte < 4; byte++) at[byte] = (uint8_t)(value >> (24 - 8 * byte));
}

static int send_all(const void *data, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t count = write(server, (const char *)data + done, length - done);
        if (count <= 0) return -1;
        done += (size_t)count;
    }
    return 0;
}

static int receive_all(void *data, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t count = read(server, (char *)data + done, length - done);
        if (count <= 0) return -1;
        done += (size_t)count;
    }
    return 0;
}

/* A call: number, procedure, offset and length in XDR; the answer: number and length. */
static int64_t call_server(uint32_t procedure, uint64_t offset, void *in, const void *out, size_t length) {
    uint8_t header[20], answer[8];
    put32(header, ++last_call);
    put32(header + 4, procedure);
    put32(header + 8, (uint32_t)(offset >> 32));
    put32(header + 12, (uint32_t)offset);
    put32(header + 16, (uint32_t)length);
    if (send_all(header, sizeof header) || (out != NULL && send_all(out, length))) return -OSD_EIO;
    if (receive_all(answer, sizeof answer)) return -OSD_EIO;
    size_t count = (size_t)answer[4] << 24 | (size_t)answer[5] << 16 | (size_t)answer[6] << 8 | answer[7];
    if (count > length || (in != NULL && receive_all(in, count))) return -OSD_EIO;
    return (int64_t)count;
}

static int64_t osd_read(uint32_t object, uint64_t offset, void *to, size_t capacity) {
    if (server >= 0) return call_server(0, offset, to, NULL, capacity);
    ssize_t count = pread(files[object], to, capacity, (off_t)offset);
    return count < 0 ? -OSD_EIO : (int64_t)count;
}

static int64_t osd_write(uint32_t object, uint64_t offset, const void *data, size_t length) {
    if (server >= 0) return call_server(1, offset, NULL, data, length);
    ssize_t count = pwrite(files[object], data, length, (off_t)offset);
    return count == (ssize_t)length ? (int64_t)count : -OSD_EIO;
}

static int open_input(const char *path) {
    if (strncmp(path, "unix:", 5) != 0) return files[0] = open(path, O_RDWR);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path + 5) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path + 5);
    server = socket(AF_UNIX, SOCK_STREAM, 0);
    return connect(server, (struct sockaddr *)&address, sizeof address);
}

int main(int count, char **values) {
    measured result = {0};
    if (count < 4 || open_input(values[3]) < 0) return 2;
    if (count > 4) files[1] = open(values[4], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (run(values[1], strtoull(values[2], NULL, 10), &result) != 0) return 1;
    printf("%llu %llu %llu %llu %llu %llu\n", (unsigned long long)result.value, (unsigned long long)result.total,
           (unsigned long long)result.reading, (unsigned long long)result.working,
           (unsigned long long)result.writing, (unsigned long long)result.processor);
    return 0;
}
#else
int64_t osd_main(const osd_call *call) {
    const char *method = osd_method(call);
    if (!strcmp(method, "empty")) return 0;
    if (!strcmp(method, "loop")) {
        for (volatile uint64_t turns = 0;; turns++) {}
    }
    uint64_t length;
    measured result = {0};
    if (call->arguments_length != sizeof length) return -OSD_EINVAL;
    memcpy(&length, osd_arguments(call), sizeof length);
    int streams = !strcmp(method, "stream-read") ? 1 : !strcmp(method, "stream-write") ? 2 : 0;
    int64_t error = streams ? run_stream(streams == 2, length, &result) : run(method, length, &result);
    return error != 0 ? error : osd_result(&result, sizeof result);
}
#endif
