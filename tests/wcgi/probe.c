/* A CGI program that does what its query says: the good, the bad and the endless. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <wasi/api.h>

#ifndef VERSION
#define VERSION "1"
#endif

static void head(void) {
    printf("Content-Type: text/plain\n\n");
}

/* Shows how opening a file went, and its first bytes. */
static void show(const char *path, int flags) {
    char text[64];
    int fd = open(path, flags, 0644);
    if (fd < 0) {
        printf("%s: %s\n", path, strerror(errno));
        return;
    }
    ssize_t length = (flags & O_ACCMODE) == O_RDONLY ? read(fd, text, sizeof text - 1) : write(fd, "new", 3);
    if (length < 0) {
        printf("%s: %s\n", path, strerror(errno));
    } else if ((flags & O_ACCMODE) == O_RDONLY) {
        text[length] = 0;
        printf("%s: %s\n", path, text);
    } else {
        printf("%s: wrote %zd\n", path, length);
    }
    close(fd);
}

static void list(const char *path) {
    DIR *directory = opendir(path);
    if (!directory) {
        printf("%s: %s\n", path, strerror(errno));
        return;
    }
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        count += entry->d_name[0] != '.';
    }
    printf("%s: %d names\n", path, count);
    closedir(directory);
}

static void files(void) {
    struct stat stat_;
    show("/data/text", O_RDONLY);
    show("/data/text", O_WRONLY);
    show("/data/new", O_WRONLY | O_CREAT);
    show("/data/deep/text", O_RDONLY);
    show("/data/../secret", O_RDONLY);
    show("/data/link", O_RDONLY);
    show("/etc/passwd", O_RDONLY);
    list("/data/many");
    printf("stat: %d %lld\n", stat("/data/text", &stat_), (long long)stat_.st_size);
    printf("mkdir: %s\n", mkdir("/data/made", 0755) ? strerror(errno) : "done");
    printf("unlink: %s\n", unlink("/data/text") ? strerror(errno) : "done");
    printf("rename: %s\n", rename("/data/text", "/data/other") ? strerror(errno) : "done");
    show("/scratch/new", O_WRONLY | O_CREAT);
    show("/scratch/new", O_RDONLY);
    show("/scratch/new", O_WRONLY | O_APPEND);
    show("/scratch/new", O_RDONLY);
    printf("mkdir: %s\n", mkdir("/scratch/made", 0755) ? strerror(errno) : "done");
    printf("rename: %s\n", rename("/scratch/new", "/scratch/made/other") ? strerror(errno) : "done");
    show("/scratch/made/other", O_RDONLY);
    printf("unlink: %s\n", unlink("/scratch/made/other") ? strerror(errno) : "done");
    printf("rmdir: %s\n", rmdir("/scratch/made") ? strerror(errno) : "done");
}

/* Reads a file into the same memory, in one call, half a million times. */
static void pieces(const char *path) {
    static uint8_t room[1 << 20];
    const size_t count = 1 << 19;
    __wasi_iovec_t *list = malloc(count * sizeof *list);
    __wasi_size_t length = 0;
    for (size_t index = 0; index < count; index++) {
        list[index] = (__wasi_iovec_t){room, sizeof room};
    }
    int error = __wasi_fd_read(open(path, O_RDONLY), list, count, &length);
    printf("%d, %zu bytes\n", error, (size_t)length);
}

static volatile int sink;

/* Volatile, so that no compiler sees the end of it. */
__attribute__((noinline)) static int deeper(volatile int depth) {
    volatile char room[256];
    room[0] = (char)depth;
    return depth < 0 ? 0 : deeper(depth + 1) + room[0];
}

int main(int count, char **arguments) {
    const char *query = getenv("QUERY_STRING");
    if (!query) {
        query = "";
    }
    if (!strcmp(query, "version")) {
        head();
        printf("version %s\n", VERSION);
    } else if (!strcmp(query, "arguments")) {
        head();
        for (int index = 0; index < count; index++) {
            printf("%d: %s\n", index, arguments[index]);
        }
    } else if (!strcmp(query, "loop")) {
        for (;;) {
            sink++;
        }
    } else if (!strcmp(query, "half")) {
        head();
        printf("begun");
        fflush(stdout);
        for (;;) {
            sink++;
        }
    } else if (!strcmp(query, "sleep")) {
        struct timespec day = {86400, 0};
        nanosleep(&day, 0);
    } else if (!strcmp(query, "nap")) {
        struct timespec nap = {0, 30000000};
        time_t before = time(0);
        nanosleep(&nap, 0);
        head();
        printf("rested %d\n", time(0) >= before && before > 1000000000);
    } else if (!strcmp(query, "trap")) {
        head();
        fflush(stdout);
        __builtin_trap();
    } else if (!strcmp(query, "wild")) {
        *(volatile char *)0xfffffff0u = 1;
    } else if (!strcmp(query, "stack")) {
        sink = deeper(0);
    } else if (!strcmp(query, "memory")) {
        size_t total = 0;
        /* Volatile, since a compiler may take memory nobody reads for memory nobody needs. */
        for (char *volatile piece; (piece = malloc(1 << 20)); total++) {
            memset(piece, 1, 1 << 20);
        }
        head();
        printf("%zu MiB\n", total);
    } else if (!strcmp(query, "flood")) {
        head();
        for (;;) {
            fwrite("0123456789abcdef", 1, 16, stdout);
        }
    } else if (!strcmp(query, "stderr")) {
        fprintf(stderr, "a complaint\nhalf a line");
        head();
    } else if (!strcmp(query, "exit")) {
        head();
        exit(3);
    } else if (!strcmp(query, "random")) {
        unsigned char bytes[64] = {0};
        int other = 0;
        head();
        getentropy(bytes, sizeof bytes);
        for (size_t index = 0; index < sizeof bytes; index++) {
            other |= bytes[index];
        }
        printf("random %d\n", other != 0);
    } else if (!strcmp(query, "files")) {
        head();
        files();
    } else if (!strcmp(query, "pieces")) {
        pieces("/data/large");
    } else if (!strcmp(query, "shut")) {
        head();
        printf("whole\n");
        fflush(stdout);
        close(1);
        for (;;) {
            sink++;
        }
    } else if (!strcmp(query, "renumber")) {
        char text[64];
        int fd = open("/data/text", O_RDONLY);
        int error = __wasi_fd_renumber(fd, fd);
        head();
        printf("%d, %zd bytes\n", error, read(fd, text, sizeof text));
    } else if (!strcmp(query, "count")) {
        static int runs;
        head();
        printf("run %d\n", ++runs);
    } else {
        head();
        printf("no such query: %s\n", query);
    }
    return 0;
}
