/* A client of an NFS server in user space, over libnfs: does one job after the other, as they come.
 *
 * In: lines STEP DIRECTORY LETTER COUNT SECONDS. Out: "ready", then for each line "done N", or "failed WHY" and the end.
 * Built by the benchmark where libnfs-dev is installed: gcc -O2 ganesha.c -lnfs
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

/* It leaves what it needs to whoever includes it. */
#include <nfsc/libnfs.h>

enum { SMALL = 4096, PIECE = 1 << 20, VERSION = 3 };

static struct nfs_context *nfs;
static char *buffer;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void check(int ok)
{
    if (!ok) {
        printf("failed %s\n", nfs_get_error(nfs));
        fflush(stdout);
        exit(1);
    }
}

/* Servers take and give less than is asked for. */
static void write_all(struct nfsfh *file, size_t length)
{
    for (size_t at = 0; at < length;) {
        int n = nfs_write(nfs, file, length - at, buffer + at);
        check(n > 0);
        at += n;
    }
}

static void read_all(struct nfsfh *file, size_t length)
{
    for (size_t at = 0; at < length;) {
        int n = nfs_read(nfs, file, length - at, buffer + at);
        check(n > 0);
        at += n;
    }
}

static uint64_t list(const char *directory)
{
    struct nfsdir *dir;
    struct nfsdirent *entry;
    uint64_t found = 0;
    check(nfs_opendir(nfs, directory, &dir) == 0);
    while ((entry = nfs_readdir(nfs, dir)))
        found += strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0;
    nfs_closedir(nfs, dir);
    return found;
}

static uint64_t stream(const char *path, int writes, int syncs, uint64_t count, double until)
{
    struct nfsfh *file;
    uint64_t done = 0;
    check((writes ? nfs_creat(nfs, path, 0644, &file) : nfs_open(nfs, path, O_RDONLY, &file)) == 0);
    for (; done < count && now() < until; done++)
        writes ? write_all(file, PIECE) : read_all(file, PIECE);
    if (syncs)
        check(nfs_fsync(nfs, file) == 0);
    check(nfs_close(nfs, file) == 0);
    return done;
}

static void one(const char *step, const char *path, const char *other)
{
    struct nfsfh *file;
    struct nfs_stat_64 st;
    if (!strcmp(step, "Create")) {
        check(nfs_creat(nfs, path, 0644, &file) == 0);
        check(nfs_close(nfs, file) == 0);
    } else if (!strcmp(step, "Stat")) {
        check(nfs_lstat64(nfs, path, &st) == 0);
    } else if (!strcmp(step, "Rename")) {
        check(nfs_rename(nfs, path, other) == 0);
    } else if (!strcmp(step, "Unlink")) {
        check(nfs_unlink(nfs, path) == 0);
    } else if (!strcmp(step, "Put")) {
        check(nfs_creat(nfs, path, 0644, &file) == 0);
        write_all(file, SMALL);
        check(nfs_close(nfs, file) == 0);
    } else if (!strcmp(step, "Get")) {
        check(nfs_open(nfs, path, O_RDONLY, &file) == 0);
        read_all(file, SMALL);
        check(nfs_close(nfs, file) == 0);
    } else {
        printf("failed unknown step %s\n", step);
        fflush(stdout);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    char line[1024], step[32], directory[256], letter, path[512], other[512];
    unsigned long long count;
    double seconds;
    if (argc != 3)
        return 2;
    buffer = malloc(PIECE);
    nfs = nfs_init_context();
    if (!buffer || !nfs)
        return 1;
    memset(buffer, 0x5A, PIECE);
    /* Version 4 of libnfs 4.0 fails to write. */
    nfs_set_version(nfs, VERSION);
    check(nfs_mount(nfs, argv[1], argv[2]) == 0);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        uint64_t done = 0;
        if (sscanf(line, "%31s %255s %c %llu %lf", step, directory, &letter, &count, &seconds) != 5)
            return 2;
        double until = now() + seconds;
        snprintf(path, sizeof path, "%s/%c0", directory, letter);
        if (!strcmp(step, "MakeDirectory")) {
            check(nfs_mkdir(nfs, directory) == 0);
            done = 1;
        } else if (!strcmp(step, "RemoveDirectory")) {
            check(nfs_rmdir(nfs, directory) == 0);
            done = 1;
        } else if (!strcmp(step, "List")) {
            done = list(directory);
        } else if (!strncmp(step, "Write", 5)) {
            done = stream(path, 1, !strcmp(step, "WriteSync"), count, until);
        } else if (!strcmp(step, "Read")) {
            done = stream(path, 0, 0, count, until);
        } else {
            for (; done < count && now() < until; done++) {
                snprintf(path, sizeof path, "%s/%c%llu", directory, letter, (unsigned long long)done);
                snprintf(other, sizeof other, "%s/r%llu", directory, (unsigned long long)done);
                one(step, path, other);
            }
        }
        printf("done %llu\n", (unsigned long long)done);
        fflush(stdout);
    }
    nfs_destroy_context(nfs);
    return 0;
}
