/* SPDX-License-Identifier: Apache-2.0 */
/* The disk cache of compiled kernels: what was stored comes back, and whatever is wrong with folder
 * or file is a miss and never a failure. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"
#include "common/testlib.h"
#include "sha256.h"

/* ------------------------------------------------------------------ a host */

static char setting[512]; /* of TESSERA_CACHE_DIR */
static int live, allocations_fail, logged;

static void *host_alloc(const tess_host *host, size_t size, size_t alignment) {
    (void)host;
    if (allocations_fail) return NULL;
    live++;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void host_free(const tess_host *host, void *pointer, size_t size) {
    (void)host;
    (void)size;
    if (pointer) live--;
    free(pointer);
}

static void host_log(const tess_host *host, const char *topic, const char *format, ...) {
    (void)host;
    (void)format;
    assert_string_equal(topic, "device");
    logged++;
}

static const char *host_setting(const tess_host *host, const char *name) {
    (void)host;
    assert_string_equal(name, "TESSERA_CACHE_DIR");
    return setting;
}

/* A cache never fails, so it has no use for host->fail. */
static const tess_host host = {.abi = TESS_BACKEND_ABI,
                               .struct_size = sizeof host,
                               .alloc = host_alloc,
                               .free = host_free,
                               .log = host_log,
                               .setting = host_setting};

/* ------------------------------------------------------------------ folders */

static char scratch[64], folder[128];

static int setup(void **state) {
    (void)state;
    snprintf(scratch, sizeof scratch, "/tmp/tessera-cache-XXXXXX");
    assert_non_null(mkdtemp(scratch));
    snprintf(folder, sizeof folder, "%s/cache", scratch);
    snprintf(setting, sizeof setting, "%s", folder);
    allocations_fail = live = logged = 0;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    assert_int_equal(live, 0);
    return system(command);
}

/* The one file of the folder; fails if there are others. */
static void only_file(char path[512]) {
    DIR *directory = opendir(folder);
    int count = 0;
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(path, 512, "%s/%s", folder, entry->d_name);
        count++;
    }
    closedir(directory);
    assert_int_equal(count, 1);
}

static size_t read_file(const char *path, unsigned char *data, size_t room) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(data, 1, room, file);
    fclose(file);
    return size;
}

static void write_file(const char *path, const unsigned char *data, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

static tess_cache_key a_key(void) {
    return (tess_cache_key){.backend = "test",
                            .device = "a device",
                            .driver = "a driver 1.0",
                            .source = "source",
                            .source_size = 6,
                            .options = "-O2"};
}

static const unsigned char bytes[] = "the compiled kernel";

static void store(const tess_cache_key *key) { tess_cache_store(&host, key, bytes, sizeof bytes); }

/* 1: the bytes came back; 0: a miss. Anything else fails. */
static int loads(const tess_cache_key *key) {
    size_t size = 77;
    void *data = tess_cache_load(&host, key, &size);
    if (!data) {
        assert_int_equal(size, 0);
        return 0;
    }
    assert_int_equal(size, sizeof bytes);
    assert_memory_equal(data, bytes, sizeof bytes);
    host_free(&host, data, size);
    return 1;
}

/* ------------------------------------------------------------------ SHA-256 */

static void digest_is(const void *data, size_t size, size_t piece, const char *wanted) {
    unsigned char digest[TESS_SHA256_BYTES];
    char text[2 * TESS_SHA256_BYTES + 1];
    tess_sha256 sha;
    tess_sha256_begin(&sha);
    for (size_t at = 0; at < size; at += piece)
        tess_sha256_add(&sha, (const char *)data + at, size - at < piece ? size - at : piece);
    tess_sha256_end(&sha, digest);
    for (size_t n = 0; n < sizeof digest; n++) snprintf(text + 2 * n, 3, "%02x", digest[n]);
    assert_string_equal(text, wanted);
}

/* The vectors of FIPS 180-4 and its companions, in pieces of every size. */
static void test_sha256(void **state) {
    (void)state;
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static const char long_one[] = "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmn"
                                   "oijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    digest_is("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (size_t piece = 1; piece <= 130; piece++) {
        digest_is("abc", 3, piece,
                  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        digest_is(two_blocks, 56, piece,
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        digest_is(long_one, 112, piece,
                  "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    }
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    digest_is(million, 1000000, 1000000,
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    digest_is(million, 1000000, 997,
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

/* ------------------------------------------------------------------ what works */

static void test_what_was_stored_comes_back(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    struct stat status;
    char path[512];
    assert_false(loads(&key));
    assert_int_equal(stat(folder, &status), -1); /* looking makes no folder */
    store(&key);
    assert_true(loads(&key));
    store(&key); /* over itself */
    assert_true(loads(&key));
    only_file(path);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(stat(folder, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0700);
    assert_int_equal(logged, 0);
}

static void test_every_part_of_the_key_counts(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    tess_cache_key others[7];
    for (int n = 0; n < 7; n++) others[n] = key;
    others[0].backend = "other";
    others[1].device = "a device ";
    others[2].driver = "a driver 1.1";
    others[3].options = "-O3";
    others[4].source = "Source";
    others[5].source_size = 5;
    others[6].device = "a devicea"; /* the same letters in a row, cut elsewhere */
    others[6].driver = " driver 1.0";
    store(&key);
    for (int n = 0; n < 7; n++) {
        assert_false(loads(&others[n]));
        store(&others[n]);
        assert_true(loads(&others[n]));
    }
    assert_true(loads(&key));
}

static void test_names_of_any_length(void **state) {
    (void)state;
    char device[5000];
    tess_cache_key key = a_key();
    memset(device, 'd', sizeof device);
    device[sizeof device - 1] = '\0';
    key.device = device;
    store(&key);
    assert_true(loads(&key));
    device[sizeof device - 2] = 'e'; /* beyond what the header holds */
    assert_false(loads(&key));
}

static void test_default_folders(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    char path[256];
    struct stat status;
    setting[0] = '\0';
    setenv("XDG_CACHE_HOME", scratch, 1);
    setenv("HOME", "/nowhere", 1);
    store(&key);
    assert_true(loads(&key));
    snprintf(path, sizeof path, "%s/tessera", scratch);
    assert_int_equal(stat(path, &status), 0);
    setenv("XDG_CACHE_HOME", "relative", 1); /* to be ignored */
    setenv("HOME", scratch, 1);
    assert_false(loads(&key));
    store(&key);
    assert_true(loads(&key));
    snprintf(path, sizeof path, "%s/.cache/tessera", scratch);
    assert_int_equal(stat(path, &status), 0);
    unsetenv("XDG_CACHE_HOME");
    assert_true(loads(&key));
    unsetenv("HOME");
    assert_false(loads(&key));
    store(&key);
    setenv("HOME", "also/relative", 1);
    assert_false(loads(&key));
    store(&key);
    assert_int_equal(access("also", F_OK), -1);
}

/* ------------------------------------------------------------------ what is wrong with a file */

static void test_every_flipped_byte_is_a_miss(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    unsigned char good[1024], bad[1024];
    char path[512];
    store(&key);
    only_file(path);
    const size_t size = read_file(path, good, sizeof good);
    assert_in_range(size, sizeof bytes + 64, sizeof good - 1);
    for (size_t at = 0; at < size; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, good, size);
            bad[at] = (unsigned char)(bad[at] ^ 1 << bit);
            write_file(path, bad, size);
            if (loads(&key))
                fail_msg("bit %d of byte %d was flipped and the file was taken", bit, (int)at);
        }
    store(&key); /* replaces the damaged one */
    assert_true(loads(&key));
}

static void test_every_other_length_is_a_miss(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    unsigned char good[1024] = {0};
    char path[512];
    store(&key);
    only_file(path);
    const size_t size = read_file(path, good, sizeof good);
    for (size_t length = 0; length <= size + 3; length++) {
        write_file(path, good, length);
        assert_int_equal(loads(&key), length == size);
    }
}

/* A size that promises more than any memory holds must not be believed. */
static void test_a_false_size(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    unsigned char good[1024];
    char path[512];
    store(&key);
    only_file(path);
    const size_t size = read_file(path, good, sizeof good);
    memset(good + 16, 0xff, 8);
    write_file(path, good, size);
    assert_false(loads(&key));
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    assert_false(loads(&key));
}

/* A file under the name of another key: what a collision or a rename by hand gives. */
static void test_a_file_of_another_key(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    tess_cache_key other = key;
    unsigned char data[1024];
    char path[512];
    other.options = "-O0";
    store(&other);
    only_file(path);
    const size_t size = read_file(path, data, sizeof data);
    assert_int_equal(unlink(path), 0);
    store(&key);
    only_file(path);
    write_file(path, data, size);
    assert_false(loads(&key));
}

static void test_files_that_are_not_private(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    char path[512], away[256];
    store(&key);
    only_file(path);
    static const mode_t modes[] = {0620, 0602, 0666, 0777};
    for (size_t n = 0; n < sizeof modes / sizeof *modes; n++) {
        assert_int_equal(chmod(path, modes[n]), 0);
        assert_false(loads(&key));
    }
    assert_int_equal(chmod(path, 0644), 0);
    assert_true(loads(&key)); /* others may read */
    snprintf(away, sizeof away, "%s/away", scratch);
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(symlink(away, path), 0);
    assert_false(loads(&key));
    store(&key); /* replaces the link and not what it points to */
    assert_true(loads(&key));
    struct stat status;
    assert_int_equal(lstat(path, &status), 0);
    assert_true(S_ISREG(status.st_mode));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(loads(&key)); /* and does not wait for a writer */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(loads(&key));
    store(&key);
    assert_false(loads(&key));
    only_file(path); /* no temporary file is left behind */
}

static void test_a_file_of_another_user(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    char path[512];
    if (geteuid() != 0) skip();
    store(&key);
    only_file(path);
    assert_int_equal(chown(path, 12345, 12345), 0);
    assert_false(loads(&key));
    assert_int_equal(chown(path, 0, 0), 0);
    assert_true(loads(&key));
    assert_int_equal(chown(folder, 12345, 12345), 0);
    assert_false(loads(&key));
}

/* ------------------------------------------------------------------ what is wrong with a folder */

static void test_folders_that_are_not_private(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    char away[256];
    store(&key);
    static const mode_t modes[] = {0720, 0702, 0777, 01777};
    for (size_t n = 0; n < sizeof modes / sizeof *modes; n++) {
        assert_int_equal(chmod(folder, modes[n]), 0);
        logged = 0;
        assert_false(loads(&key));
        assert_int_equal(logged, 1);
    }
    assert_int_equal(chmod(folder, 0755), 0);
    assert_true(loads(&key));
    snprintf(away, sizeof away, "%s/away", scratch);
    assert_int_equal(rename(folder, away), 0);
    assert_int_equal(symlink(away, folder), 0);
    assert_false(loads(&key));
    store(&key);
    assert_false(loads(&key));
}

static void test_folders_that_cannot_be(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    char long_path[2000];
    static const char *const paths[] = {"/dev/null", "/dev/null/below", "/proc/nothing/here",
                                        "relative/folder"};
    for (size_t n = 0; n < sizeof paths / sizeof *paths; n++) {
        snprintf(setting, sizeof setting, "%s", paths[n]);
        store(&key);
        assert_false(loads(&key));
    }
    assert_int_equal(access("relative", F_OK), -1);
    memset(long_path, 'x', sizeof long_path);
    long_path[0] = '/';
    long_path[sizeof long_path - 1] = '\0';
    setting[0] = '\0';
    setenv("XDG_CACHE_HOME", long_path, 1);
    store(&key);
    assert_false(loads(&key));
    unsetenv("XDG_CACHE_HOME");
    /* Missing ones are made, with what is above them. */
    snprintf(setting, sizeof setting, "%s/a/b/c", scratch);
    store(&key);
    assert_true(loads(&key));
    /* One that cannot be written to; root may write everywhere. */
    if (geteuid() == 0) return;
    tess_cache_key other = key;
    other.options = "";
    assert_int_equal(chmod(setting, 0500), 0);
    assert_true(loads(&key));
    store(&other);
    assert_false(loads(&other));
    assert_int_equal(chmod(setting, 0700), 0);
}

/* ----------------------------------------------------- others at the same time, lack of memory */

enum { WRITERS = 4, ROUNDS = 60, BIG = 200000 };

static void test_processes_store_at_once(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    unsigned char *data = malloc(BIG);
    char path[512];
    assert_non_null(data);
    for (int n = 0; n < BIG; n++) data[n] = (unsigned char)(n * 7 + n / 256);
    for (int w = 0; w < WRITERS; w++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child != 0) continue;
        int wrong = 0;
        for (int round = 0; round < ROUNDS; round++) {
            size_t size;
            tess_cache_store(&host, &key, data, BIG);
            void *got = tess_cache_load(&host, &key, &size);
            wrong |= !got || size != BIG || memcmp(got, data, BIG) != 0;
            host_free(&host, got, size);
        }
        _exit(wrong);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status = 1;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    free(data);
    only_file(path); /* no temporary file is left behind */
}

static void test_no_memory(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    store(&key);
    allocations_fail = 1;
    assert_false(loads(&key));
    allocations_fail = 0;
    assert_true(loads(&key));
}

static void test_nothing_and_too_much(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    tess_cache_store(&host, &key, bytes, 0);
    assert_false(loads(&key));
    tess_cache_store(&host, &key, bytes, (size_t)1 << 40); /* not read at all */
    assert_false(loads(&key));
    assert_int_equal(access(folder, F_OK), -1);
}

/* ------------------------------------------------------------------ room */

/* A file of the cache's folder that begins with `text`, without anything else in it that would take
 * room on the disk. */
static void put_text(const char *name, const char *text, int64_t size, int64_t age) {
    char path[512];
    struct timespec times[2];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    assert_int_equal(ftruncate(file, size), 0);
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= age;
    times[1] = times[0];
    assert_int_equal(futimens(file, times), 0);
    assert_int_equal(close(file), 0);
}

static void put(const char *name, int64_t size, int64_t age) {
    put_text(name, "tesscach", size, age);
}

/* The name of kernel `n` of some backend. */
static const char *kernel_name(int n) {
    static char name[128];
    snprintf(name, sizeof name, "vulkan-%064x", n);
    return name;
}

static int is_there(const char *name) {
    char path[512];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return lstat(path, &status) == 0;
}

enum { MIB = 1024 * 1024, HOUR = 3600 };

/* More files than one pass removes, of ages in no order. */
static void test_the_oldest_go(void **state) {
    (void)state;
    enum {
        FILES = 100,
        SIZE = 8 * MIB,
        STAY = TESS_CACHE_MOST_BYTES / SIZE - 1 /* the new one needs room as well */
    };
    const tess_cache_key key = a_key();
    assert_int_equal(mkdir(folder, 0700), 0);
    for (int n = 0; n < FILES; n++) put(kernel_name(n), SIZE, HOUR * (1 + n * 37 % FILES));
    store(&key);
    assert_true(loads(&key));
    for (int n = 0; n < FILES; n++)
        if (is_there(kernel_name(n)) != (n * 37 % FILES < STAY))
            fail_msg("the file of rank %d in age: %s", n * 37 % FILES,
                     is_there(kernel_name(n)) ? "is there" : "is gone");
    assert_int_equal(logged, FILES - STAY);
    store(&key); /* now there is room */
    assert_int_equal(logged, FILES - STAY);
}

/* When the clock was set back, the newest file is not the one to be removed. */
static void test_what_was_just_stored_stays(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    assert_int_equal(mkdir(folder, 0700), 0);
    put(kernel_name(0), TESS_CACHE_MOST_BYTES, -10 * HOUR);
    put(kernel_name(1), 8, -10 * HOUR);
    store(&key);
    assert_true(loads(&key));
    assert_int_equal(is_there(kernel_name(0)) + is_there(kernel_name(1)), 1);
}

static void test_files_of_others_stay(void **state) {
    (void)state;
    static const char *const names[] = {"notes", "vulkan-0123", "vulkan-", ".hidden",
                                        "new-1-2-3-4"};
    const tess_cache_key key = a_key();
    char longer[160], upper[128], path[512];
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(longer, sizeof longer, "%s0", kernel_name(0) + 7);
    snprintf(upper, sizeof upper, "vulkan-%064X", 0xabc);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        put(names[n], TESS_CACHE_MOST_BYTES, 1000 * HOUR);
    put(longer, TESS_CACHE_MOST_BYTES, 1000 * HOUR);
    put(upper, TESS_CACHE_MOST_BYTES, 1000 * HOUR);
    snprintf(path, sizeof path, "%s/%s", folder, kernel_name(1));
    assert_int_equal(symlink("notes", path), 0);
    snprintf(path, sizeof path, "%s/%s", folder, kernel_name(2));
    assert_int_equal(mkdir(path, 0700), 0);
    put(kernel_name(3), MIB, 1000 * HOUR);
    store(&key);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) assert_true(is_there(names[n]));
    assert_true(is_there(longer));
    assert_true(is_there(upper));
    for (int n = 1; n <= 3; n++) assert_true(is_there(kernel_name(n)));
    assert_true(loads(&key));
    assert_int_equal(logged, 0);
}

/* A folder that the user named may hold files of other programs under names that look alike. */
static void test_files_that_look_alike_stay(void **state) {
    (void)state;
    static const char *const temporaries[] = {".new-",       ".new-mail",      ".new-1-2-3",
                                              ".new-1-2-3-", ".new-1-2-3-4-5", ".new-1-2-3-4x",
                                              ".new-1--3-4"};
    const tess_cache_key key = a_key();
    assert_int_equal(mkdir(folder, 0700), 0);
    put_text(kernel_name(0), "somebody else's", TESS_CACHE_MOST_BYTES, 1000 * HOUR);
    put_text(kernel_name(1), "tessca", 6, 1000 * HOUR);
    for (size_t n = 0; n < sizeof temporaries / sizeof *temporaries; n++)
        put(temporaries[n], MIB, 1000 * HOUR);
    /* those of others do not count, so there is room for it */
    put(kernel_name(2), TESS_CACHE_MOST_BYTES / 2, 1000 * HOUR);
    store(&key);
    assert_true(loads(&key));
    for (int n = 0; n < 3; n++) assert_true(is_there(kernel_name(n)));
    for (size_t n = 0; n < sizeof temporaries / sizeof *temporaries; n++)
        if (!is_there(temporaries[n])) fail_msg("%s is gone", temporaries[n]);
    assert_int_equal(logged, 0);
}

/* What a process left that ended in the middle of a store. */
static void test_leftovers_go_after_a_day(void **state) {
    (void)state;
    const tess_cache_key key = a_key();
    assert_int_equal(mkdir(folder, 0700), 0);
    put(".new-1-2-3-4", MIB, 25 * HOUR);
    put(".new-1-2-3-5", MIB, 1000 * HOUR);
    put(".new-1-2-3-6", MIB, 23 * HOUR);
    put(".new-1-2-3-7", MIB, -HOUR);
    assert_false(loads(&key)); /* looking changes nothing */
    assert_true(is_there(".new-1-2-3-4"));
    store(&key);
    assert_true(loads(&key));
    assert_false(is_there(".new-1-2-3-4"));
    assert_false(is_there(".new-1-2-3-5"));
    assert_true(is_there(".new-1-2-3-6"));
    assert_true(is_there(".new-1-2-3-7"));
}

int main(void) {
    return RUN_TESTS_BETWEEN(
        setup, teardown, TEST(test_sha256), TEST(test_what_was_stored_comes_back),
        TEST(test_every_part_of_the_key_counts), TEST(test_names_of_any_length),
        TEST(test_default_folders), TEST(test_every_flipped_byte_is_a_miss),
        TEST(test_every_other_length_is_a_miss), TEST(test_a_false_size),
        TEST(test_a_file_of_another_key), TEST(test_files_that_are_not_private),
        TEST(test_a_file_of_another_user), TEST(test_folders_that_are_not_private),
        TEST(test_folders_that_cannot_be), TEST(test_processes_store_at_once), TEST(test_no_memory),
        TEST(test_nothing_and_too_much), TEST(test_the_oldest_go),
        TEST(test_what_was_just_stored_stays), TEST(test_files_of_others_stay),
        TEST(test_files_that_look_alike_stay), TEST(test_leftovers_go_after_a_day));
}
