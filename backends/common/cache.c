/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of the cache is a header, the names of what the bytes were compiled for, and the bytes.
 * Every byte of it is compared with what it should be or is under the checksum, so no change of a
 * file goes unnoticed. Folder and file must belong to the user and be writable by nobody else,
 * because what is loaded from them becomes code.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__) && !defined(__GLIBC__)
#include <sys/auxv.h>
#endif

#include "sha256.h"

enum {
    FORMAT = 1,
    MOST_PATH = 1024,
    MOST_NAME = 1024,               /* of a device or driver; longer ones are cut */
    MOST_BYTES = 256 * 1024 * 1024, /* of a file; no kernel comes near */
};

#define MAGIC "tesscach"

typedef struct cache_header {
    char magic[sizeof MAGIC - 1];
    uint32_t format, library;
    uint64_t size; /* of the bytes */
    unsigned char key[TESS_SHA256_BYTES];
    unsigned char checksum[TESS_SHA256_BYTES]; /* of the bytes */
    uint32_t names;                            /* bytes of the three names, each with its 0 */
    uint32_t reserved;                         /* 0 */
} cache_header;

/* ------------------------------------------------------------------ folder */

/* A process with more rights than its user must not follow that user's environment. */
static const char *environment(const char *name) {
#if defined(__GLIBC__)
    const char *value = secure_getenv(name);
#elif defined(__linux__)
    const char *value = getauxval(AT_SECURE) ? NULL : getenv(name);
#else
    const char *value = issetugid() ? NULL : getenv(name);
#endif
    return value ? value : "";
}

/* The path of the folder. 0: there is none, or it is too long. */
static int folder_path(const tess_host *host, char *path) {
    const char *setting = host->setting(host, "TESSERA_CACHE_DIR");
    int length = -1;
    if (*setting) length = snprintf(path, MOST_PATH, "%s", setting);
    /* the XDG specification says to ignore relative paths */
    else if (environment("XDG_CACHE_HOME")[0] == '/')
        length = snprintf(path, MOST_PATH, "%s/tessera", environment("XDG_CACHE_HOME"));
    else if (environment("HOME")[0] == '/')
        length = snprintf(path, MOST_PATH, "%s/.cache/tessera", environment("HOME"));
    return length > 0 && length < MOST_PATH && path[0] == '/';
}

/* Makes the folder and its missing parents, with access for the user alone. Opening it will tell
 * whether that worked. */
static void folder_make(char *path) {
    for (char *slash = path + 1; *slash; slash++) {
        if (*slash != '/') continue;
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    (void)mkdir(path, 0700);
}

static int is_private(const struct stat *status) {
    return status->st_uid == geteuid() && (status->st_mode & 022) == 0;
}

/* A descriptor of the folder, or -1. */
static int folder_open(const tess_host *host, int make) {
    char path[MOST_PATH];
    struct stat status;
    if (!folder_path(host, path)) {
        host->log(host, "device",
                  "cache: no folder is known; TESSERA_CACHE_DIR, XDG_CACHE_HOME and HOME are unset "
                  "or not usable");
        return -1;
    }
    if (make) folder_make(path);
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) {
        if (make || errno != ENOENT)
            host->log(host, "device", "cache: open %s: %s (%d)", path, strerror(errno), errno);
        return -1;
    }
    if (fstat(folder, &status) != 0 || !is_private(&status)) {
        host->log(
            host, "device",
            "cache: %s is not used: it must belong to the user and be writable by nobody else",
            path);
        close(folder);
        return -1;
    }
    return folder;
}

/* ------------------------------------------------------------------ key */

static void add_text(tess_sha256 *sha, const void *text, size_t size) {
    const uint64_t length = size;
    /* length first, so that no two lists of texts hash the same bytes */
    tess_sha256_add(sha, &length, sizeof length);
    tess_sha256_add(sha, text, size);
}

/* The file's header but for the size and checksum of the bytes. */
static void header_begin(const tess_cache_key *key, cache_header *header, char *names) {
    const uint32_t version[2] = {FORMAT, TESS_VERSION_NUMBER};
    tess_sha256 sha;
    memset(header, 0, sizeof *header);
    memcpy(header->magic, MAGIC, sizeof header->magic);
    header->format = version[0];
    header->library = version[1];
    tess_sha256_begin(&sha);
    add_text(&sha, version, sizeof version);
    const char *const texts[] = {key->backend, key->device, key->driver, key->options};
    for (size_t n = 0; n < sizeof texts / sizeof *texts; n++)
        add_text(&sha, texts[n], strlen(texts[n]));
    add_text(&sha, key->source, key->source_size);
    tess_sha256_end(&sha, header->key);
    for (size_t n = 0; n < 3; n++) {
        const size_t length = strnlen(texts[n], MOST_NAME);
        memcpy(names + header->names, texts[n], length);
        names[header->names + length] = '\0';
        header->names += (uint32_t)length + 1;
    }
}

enum { FILE_NAME = 128 };

static void file_name(const tess_cache_key *key, const cache_header *header, char name[FILE_NAME]) {
    int length = snprintf(name, FILE_NAME, "%.31s-", key->backend);
    for (size_t n = 0; n < TESS_SHA256_BYTES; n++)
        length += snprintf(name + length, FILE_NAME - (size_t)length, "%02x", header->key[n]);
}

static void checksum(const void *data, size_t size, unsigned char digest[TESS_SHA256_BYTES]) {
    tess_sha256 sha;
    tess_sha256_begin(&sha);
    tess_sha256_add(&sha, data, size);
    tess_sha256_end(&sha, digest);
}

/* ------------------------------------------------------------------ files */

static int read_all(int file, void *data, size_t size) {
    for (char *at = data; size > 0;) {
        const ssize_t part = read(file, at, size);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) return 0;
        at += part;
        size -= (size_t)part;
    }
    return 1;
}

static int write_all(int file, const void *data, size_t size) {
    for (const char *at = data; size > 0;) {
        const ssize_t part = write(file, at, size);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) return 0;
        at += part;
        size -= (size_t)part;
    }
    return 1;
}

/* Reads the bytes of an open file if it is what `wanted` and `names` say. */
static void *file_load(const tess_host *host, int file, const cache_header *wanted,
                       const char *names, size_t *size, const char **why) {
    struct stat status;
    cache_header header;
    char found[3 * (MOST_NAME + 1)];
    unsigned char digest[TESS_SHA256_BYTES];
    *why = "it is not a file of the user's alone";
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || !is_private(&status)) return NULL;
    *why = "it was written by another version or is damaged";
    if (status.st_size < (off_t)(sizeof header + wanted->names) || status.st_size > MOST_BYTES)
        return NULL;
    if (!read_all(file, &header, sizeof header) || !read_all(file, found, wanted->names))
        return NULL;
    if (memcmp(header.magic, wanted->magic, sizeof header.magic) != 0 ||
        header.format != wanted->format || header.library != wanted->library ||
        memcmp(header.key, wanted->key, sizeof header.key) != 0 || header.names != wanted->names ||
        header.reserved != 0 || memcmp(found, names, wanted->names) != 0)
        return NULL;
    if (header.size == 0 || header.size != (uint64_t)status.st_size - sizeof header - header.names)
        return NULL;
    *why = "there is no memory for it";
    void *data = host->alloc(host, (size_t)header.size, 64);
    if (!data) return NULL;
    *why = "its bytes are damaged";
    if (read_all(file, data, (size_t)header.size)) {
        checksum(data, (size_t)header.size, digest);
        if (memcmp(digest, header.checksum, sizeof digest) == 0) {
            *size = (size_t)header.size;
            return data;
        }
    }
    host->free(host, data, (size_t)header.size);
    return NULL;
}

void *tess_cache_load(const tess_host *host, const tess_cache_key *key, size_t *size) {
    cache_header header;
    char names[3 * (MOST_NAME + 1)], name[FILE_NAME];
    const char *why = "";
    void *data = NULL;
    *size = 0;
    const int folder = folder_open(host, 0);
    if (folder < 0) return NULL;
    header_begin(key, &header, names);
    file_name(key, &header, name);
    /* Without O_NONBLOCK a pipe of that name would block the caller for ever. */
    const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file >= 0) {
        data = file_load(host, file, &header, names, size, &why);
        if (!data) host->log(host, "device", "cache: %s is not used: %s", name, why);
        close(file);
    } else if (errno != ENOENT)
        host->log(host, "device", "cache: open %s: %s (%d)", name, strerror(errno), errno);
    close(folder);
    return data;
}

#define TEMPORARY ".new-"

/* A temporary name that no other thread or process uses now. Should one use it after all, nothing
 * is stored. */
static void temporary_name(char name[FILE_NAME]) {
    static uint32_t counter;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, FILE_NAME, TEMPORARY "%ld-%lld-%ld-%u", (long)getpid(), (long long)now.tv_sec,
             now.tv_nsec, __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED));
}

/* ------------------------------------------------------------------ room */

enum {
    LEFTOVER_SECONDS = 24 * 60 * 60, /* no store takes that long */
    OLDEST = 32,                     /* files removed in one pass over the folder */
};

typedef struct old_file {
    struct timespec stored;
    uint64_t bytes;
    char name[FILE_NAME];
} old_file;

/* Whether file_name could have made this. */
static int is_stored_name(const char *name) {
    const size_t length = strlen(name), digits = 2 * TESS_SHA256_BYTES;
    return length > digits + 1 && length < FILE_NAME && name[length - digits - 1] == '-' &&
           strspn(name + length - digits, "0123456789abcdef") == digits;
}

/* Whether temporary_name could. */
static int is_temporary_name(const char *name) {
    if (strncmp(name, TEMPORARY, sizeof TEMPORARY - 1) != 0) return 0;
    const char *at = name + sizeof TEMPORARY - 1;
    for (int number = 0;; number++) {
        const size_t digits = strspn(at, "0123456789");
        at += digits;
        if (digits == 0 || number == 3 || *at++ != '-')
            return digits > 0 && number == 3 && *at == '\0';
    }
}

/* Whether a file begins as the cache's own do: other programs may keep files with similar names in
 * a folder that the user named. */
static int is_stored_file(int folder, const char *name) {
    char found[sizeof MAGIC - 1];
    const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const int is_ours =
        file >= 0 && read_all(file, found, sizeof found) && memcmp(found, MAGIC, sizeof found) == 0;
    if (file >= 0) close(file);
    return is_ours;
}

static int is_older(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

/* Puts a file into its place among the oldest, if it is one of them. */
static void old_insert(old_file *files, int *count, const char *name, const struct stat *status) {
    int at = *count;
    while (at > 0 && is_older(&status->st_mtim, &files[at - 1].stored)) at--;
    if (at == OLDEST) return;
    if (*count < OLDEST) ++*count;
    memmove(&files[at + 1], &files[at], (size_t)(*count - at - 1) * sizeof *files);
    files[at].stored = status->st_mtim;
    files[at].bytes = (uint64_t)status->st_size;
    snprintf(files[at].name, sizeof files[at].name, "%s", name);
}

/* One pass over the folder: adds up the sizes, finds the oldest files other than `kept`, and
 * removes temporary files that a killed process left behind. */
static uint64_t scan(DIR *directory, const char *kept, old_file *files, int *count) {
    const int folder = dirfd(directory);
    const time_t now = time(NULL);
    uint64_t bytes = 0;
    *count = 0;
    rewinddir(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        struct stat status;
        const int leftover = is_temporary_name(entry->d_name);
        if ((!leftover && !is_stored_name(entry->d_name)) ||
            fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(status.st_mode))
            continue;
        if (leftover) {
            if (status.st_mtime < now - LEFTOVER_SECONDS) (void)unlinkat(folder, entry->d_name, 0);
            continue;
        }
        if (!is_stored_file(folder, entry->d_name)) continue;
        bytes += (uint64_t)status.st_size;
        if (strcmp(entry->d_name, kept) != 0) old_insert(files, count, entry->d_name, &status);
    }
    return bytes;
}

/* Removes the oldest entries until the rest is within the bound. Never touches files that the cache
 * did not write. */
static void make_room(const tess_host *host, int folder, const char *kept) {
    old_file files[OLDEST];
    int count, removed;
    const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = again >= 0 ? fdopendir(again) : NULL;
    if (!directory) {
        if (again >= 0) close(again);
        return;
    }
    do {
        uint64_t bytes = scan(directory, kept, files, &count);
        removed = 0;
        for (int n = 0; n < count && bytes > TESS_CACHE_MOST_BYTES; n++) {
            if (unlinkat(folder, files[n].name, 0) != 0 && errno != ENOENT) continue;
            host->log(host, "device",
                      "cache: %s was removed, which is among the oldest of more than %d bytes",
                      files[n].name, (int)TESS_CACHE_MOST_BYTES);
            bytes -= files[n].bytes;
            removed++;
        }
    } while (removed == OLDEST);
    closedir(directory);
}

void tess_cache_store(const tess_host *host, const tess_cache_key *key, const void *data,
                      size_t size) {
    cache_header header;
    char names[3 * (MOST_NAME + 1)], name[FILE_NAME], temporary[FILE_NAME];
    if (size == 0 || size > MOST_BYTES - sizeof header - sizeof names) return;
    const int folder = folder_open(host, 1);
    if (folder < 0) return;
    header_begin(key, &header, names);
    header.size = size;
    checksum(data, size, header.checksum);
    file_name(key, &header, name);
    temporary_name(temporary);
    const int file =
        openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int stored = 0;
    if (file >= 0) {
        stored = write_all(file, &header, sizeof header) && write_all(file, names, header.names) &&
                 write_all(file, data, size);
        stored &= close(file) == 0; /* some file systems report a full disk only here */
        stored = stored && renameat(folder, temporary, folder, name) == 0;
    }
    if (!stored) {
        host->log(host, "device", "cache: %s was not stored: %s (%d)", name, strerror(errno),
                  errno);
        if (file >= 0) (void)unlinkat(folder, temporary, 0);
    }
    make_room(host, folder, name); /* also after a failure: leftovers may have filled the disk */
    close(folder);
}
