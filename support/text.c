/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Three significant digits, so that columns of numbers are as wide as they are exact. */
static void three_digits(char *buffer, size_t size, double value, const char *prefix,
                         const char *unit) {
    double magnitude = fabs(value);
    int digits = magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
    snprintf(buffer, size, "%.*f %s%s", digits, value, prefix, unit);
}

const char *text_bytes(char *buffer, size_t size, double bytes) {
    static const char *const prefixes[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    size_t i = 0;
    while (fabs(bytes) >= 1023.5 && i + 1 < sizeof prefixes / sizeof *prefixes) {
        bytes /= 1024;
        i++;
    }
    if (i == 0)
        snprintf(buffer, size, "%.0f B", bytes);
    else
        three_digits(buffer, size, bytes, prefixes[i], "B");
    return buffer;
}

const char *text_count(char *buffer, size_t size, uint64_t count) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
    size_t at = 0;
    if (size == 0) return buffer;
    for (int i = 0; i < length && at + 2 < size; i++) {
        if (i > 0 && (length - i) % 3 == 0) buffer[at++] = ',';
        buffer[at++] = digits[i];
    }
    buffer[at] = 0;
    return buffer;
}

const char *text_seconds(char *buffer, size_t size, double seconds) {
    double magnitude = fabs(seconds);
    if (isnan(seconds))
        snprintf(buffer, size, "-");
    else if (seconds == 0)
        snprintf(buffer, size, "0 s");
    else if (magnitude < 999.5e-9)
        three_digits(buffer, size, seconds * 1e9, "n", "s");
    else if (magnitude < 999.5e-6)
        three_digits(buffer, size, seconds * 1e6, "\xc2\xb5", "s");
    else if (magnitude < 999.5e-3)
        three_digits(buffer, size, seconds * 1e3, "m", "s");
    else
        three_digits(buffer, size, seconds, "", "s");
    return buffer;
}

const char *text_rate(char *buffer, size_t size, double rate, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    size_t i = 0;
    while (fabs(rate) >= 999.5 && i + 1 < sizeof prefixes / sizeof *prefixes) {
        rate /= 1000;
        i++;
    }
    three_digits(buffer, size, rate, prefixes[i], unit);
    return buffer;
}

const char *text_percent(char *buffer, size_t size, double share) {
    snprintf(buffer, size, "%.1f %%", share * 100);
    return buffer;
}

int text_error(char *error, size_t error_size, const char *format, ...) {
    if (error && error_size) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error, error_size, format, arguments);
        va_end(arguments);
    }
    return -1;
}

int text_character(const char *at) {
    const unsigned char *c = (const unsigned char *)at;
    /* The range of the second byte leaves out forms that are too long, halves of pairs and what
     * lies beyond U+10FFFF. */
    static const struct {
        unsigned char first, last, low, high;
        int size;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
                 {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                 {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    if (c[0] < 0x80) return c[0] != 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (c[0] < forms[i].first || c[0] > forms[i].last) continue;
        if (c[1] < forms[i].low || c[1] > forms[i].high) return 0;
        for (int k = 2; k < forms[i].size; k++)
            if ((c[k] & 0xc0) != 0x80) return 0;
        return forms[i].size;
    }
    return 0;
}

const char *text_path(char *buffer, const char *path) {
    enum { HEAD = 90, TAIL = TEXT_PATH - HEAD - 4 };
    size_t length = strlen(path);
    if (length < TEXT_PATH)
        memcpy(buffer, path, length + 1);
    else
        snprintf(buffer, TEXT_PATH, "%.*s...%s", HEAD, path, path + length - TAIL);
    return buffer;
}

/* "cannot write PATH: WHY" */
static int cannot_write(char *error, size_t error_size, const char *path, const char *why) {
    char shown[TEXT_PATH];
    return text_error(error, error_size, "cannot write %s: %s", text_path(shown, path), why);
}

/* How long the part of `path` before the file's own name is. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* The folder of `path`, with a '/' at its end or as "."; owned by the caller; NULL when memory is
 * out. */
static char *folder_of(const char *path) {
    size_t length = folder_length(path);
    return length ? strndup(path, length) : strdup("./");
}

/* Whether `path` leads over a link by which the system names an open file of this process
 * (/dev/stdout, /dev/fd/3): who wrote it means the stream, and replacing the file behind it would
 * leave the stream with a file that has no name any more. */
static int names_stream(const char *path) {
    int found = 0;
    char *at = strdup(path);
    for (int links = 0; at && !found && links < 40; links++) {
        char target[4096], *folder = folder_of(at), *real = folder ? realpath(folder, NULL) : NULL;
        ssize_t length = readlink(at, target, sizeof target - 1);
        found =
            length >= 0 && real && (strcmp(real, "/dev") == 0 || strncmp(real, "/proc/", 6) == 0);
        free(real);
        free(at);
        at = NULL;
        if (length >= 0 && folder) {
            target[length] = 0;
            size_t room = strlen(folder) + (size_t)length + 1;
            at = malloc(room);
            if (at) snprintf(at, room, "%s%s", *target == '/' ? "" : folder, target);
        }
        free(folder);
    }
    free(at);
    return found;
}

/* The file behind `path`: links are followed, also a link whose target does not exist yet. NULL
 * with errno when that is impossible. */
static char *resolve(const char *path) {
    char *real = realpath(path, NULL);
    if (real) return real;
    if (errno != ENOENT) return NULL;
    struct stat status;
    if (lstat(path, &status) == 0 && S_ISLNK(status.st_mode)) {
        errno = ELOOP; /* a dangling link: nothing tells safely what it should become */
        return NULL;
    }
    return strdup(path);
}

int text_file_open(text_file *file, const char *path, char *error, size_t error_size) {
    static atomic_uint serial;
    *file = (text_file){0};
    if (!*path) return cannot_write(error, error_size, "''", "the file name is empty");
    if (names_stream(path))
        return cannot_write(error, error_size, path, "it names an open stream, not a file");
    file->path = resolve(path);
    if (!file->path)
        return cannot_write(error, error_size, path,
                            errno == ELOOP ? "it is a symbolic link that leads nowhere"
                                           : strerror(errno));
    struct stat status;
    int exists = stat(file->path, &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) {
        text_file_discard(file);
        return cannot_write(error, error_size, path, "it exists and is not a regular file");
    }
    size_t folder = folder_length(file->path), room = folder + 48;
    file->temporary = malloc(room);
    if (!file->temporary) {
        text_file_discard(file);
        return cannot_write(error, error_size, path, "out of memory");
    }
    int descriptor = -1;
    for (int attempt = 0; attempt < 100 && descriptor < 0; attempt++) {
        /* The name does not contain the file's, which may be as long as the file system allows. */
        snprintf(file->temporary, room, "%.*s.tessera-%ld-%u.tmp", (int)folder, file->path,
                 (long)getpid(), atomic_fetch_add(&serial, 1));
        descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST) break;
    }
    if (descriptor < 0) {
        int number = errno;
        free(file->temporary); /* it is not ours */
        file->temporary = NULL;
        text_file_discard(file);
        return cannot_write(error, error_size, path, strerror(number));
    }
    /* Permissions are a courtesy: a file system without them must not make the write fail. */
    if (exists && fchmod(descriptor, status.st_mode & 07777) != 0) errno = 0;
    file->stream = fdopen(descriptor, "wb");
    if (!file->stream) {
        int number = errno;
        close(descriptor);
        text_file_discard(file);
        return cannot_write(error, error_size, path, strerror(number));
    }
    return 0;
}

int text_file_close(text_file *file, char *error, size_t error_size) {
    int number = 0;
    if (ferror(file->stream)) number = errno ? errno : EIO;
    if (fflush(file->stream) != 0 && !number) number = errno;
    /* Without this a crash of the machine after the rename could leave an empty file under the
     * final name. EINVAL: a file system that cannot do it. */
    if (!number && fsync(fileno(file->stream)) != 0 && errno != EINVAL && errno != EROFS)
        number = errno;
    if (fclose(file->stream) != 0 && !number) number = errno;
    file->stream = NULL;
    if (number) {
        cannot_write(error, error_size, file->path, strerror(number));
        text_file_discard(file);
        return -1;
    }
    return 0;
}

int text_file_publish(text_file *file, char *error, size_t error_size) {
    if (rename(file->temporary, file->path) != 0) {
        cannot_write(error, error_size, file->path, strerror(errno));
        text_file_discard(file);
        return -1;
    }
    free(file->temporary);
    file->temporary = NULL;
    text_file_discard(file);
    return 0;
}

void text_file_discard(text_file *file) {
    if (file->stream) fclose(file->stream);
    if (file->temporary) unlink(file->temporary);
    free(file->temporary);
    free(file->path);
    *file = (text_file){0};
}

int text_file_write(const char *path, const void *bytes, size_t size, char *error,
                    size_t error_size) {
    text_file file;
    if (text_file_open(&file, path, error, error_size) != 0) return -1;
    if (size) fwrite(bytes, 1, size, file.stream); /* a failure shows in text_file_close */
    if (text_file_close(&file, error, error_size) != 0) return -1;
    return text_file_publish(&file, error, error_size);
}

int text_file_probe(const char *path, char *error, size_t error_size) {
    text_file file;
    if (text_file_open(&file, path, error, error_size) != 0) return -1;
    text_file_discard(&file);
    return 0;
}

int text_same_file(const char *a, const char *b) {
    struct stat x, y;
    if (strcmp(a, b) == 0) return 1;
    int exists = stat(a, &x) == 0;
    if (exists != (stat(b, &y) == 0)) return 0;
    if (!exists) {
        if (strcmp(a + folder_length(a), b + folder_length(b)) != 0) return 0;
        char *folder_a = folder_of(a), *folder_b = folder_of(b);
        exists = folder_a && folder_b && stat(folder_a, &x) == 0 && stat(folder_b, &y) == 0;
        free(folder_a);
        free(folder_b);
        if (!exists) return 0;
    }
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
