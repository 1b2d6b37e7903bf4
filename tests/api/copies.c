/* SPDX-License-Identifier: Apache-2.0 */
/* Twelve copies of the library in one process, as plugins that know nothing of each other bring
 * them along: each loads, works, and keeps its own messages. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <tessera/tessera.h>

enum { COPIES = 12, MOST_TLS = 16 /* a pointer and a flag */ };

static char folder[] = "/tmp/tessera-copies-XXXXXX";

static void copy_to(const char *from, const char *to) {
    static char block[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;)
        assert_int_equal(fwrite(block, 1, n, out), n);
    assert_int_equal(fclose(in), 0);
    assert_int_equal(fclose(out), 0);
}

typedef struct seen {
    int copies;
    size_t largest;
} seen;

static int look(struct dl_phdr_info *info, size_t size, void *user) {
    seen *s = user;
    (void)size;
    if (strncmp(info->dlpi_name, folder, strlen(folder)) != 0) return 0;
    s->copies++;
    for (int n = 0; n < info->dlpi_phnum; n++)
        if (info->dlpi_phdr[n].p_type == PT_TLS && info->dlpi_phdr[n].p_memsz > s->largest)
            s->largest = info->dlpi_phdr[n].p_memsz;
    return 0;
}

static void test_copies(void **state) {
    __typeof__(&tess_runtime_create) create[COPIES];
    __typeof__(&tess_runtime_release) release[COPIES];
    __typeof__(&tess_device_open) open_device[COPIES];
    __typeof__(&tess_device_release) release_device[COPIES];
    __typeof__(&tess_last_error) last_error[COPIES];
    char path[128];
    assert_non_null(mkdtemp(folder));
    for (int n = 0; n < COPIES; n++) {
        snprintf(path, sizeof path, "%s/%d.so", folder, n);
        copy_to(*state, path);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) fail_msg("copy %d of %d: %s", n + 1, (int)COPIES, dlerror());
        assert_int_equal(unlink(path), 0);
#define LOAD(pointer, name) assert_non_null(*(void **)&(pointer)[n] = dlsym(library, #name))
        LOAD(create, tess_runtime_create);
        LOAD(release, tess_runtime_release);
        LOAD(open_device, tess_device_open);
        LOAD(release_device, tess_device_release);
        LOAD(last_error, tess_last_error);
    }
    assert_int_equal(rmdir(folder), 0);
    for (int n = 0; n < COPIES; n++) {
        tess_runtime *runtime;
        tess_device *device;
        char id[16];
        const tess_device_desc none = {.struct_size = sizeof none, .id = id},
                               cpu = {.struct_size = sizeof cpu, .id = "cpu"};
        assert_string_equal(last_error[n](), "");
        assert_int_equal(create[n](NULL, &runtime), TESS_OK);
        snprintf(id, sizeof id, "none%d", n);
        assert_int_equal(open_device[n](runtime, &none, &device), TESS_ERROR_INVALID);
        assert_int_equal(open_device[n](runtime, &cpu, &device), TESS_OK);
        release_device[n](device);
        release[n](runtime);
    }
    for (int n = 0; n < COPIES; n++) {
        char id[16];
        snprintf(id, sizeof id, "'none%d'", n);
        assert_non_null(strstr(last_error[n](), id));
    }
    seen s = {0};
    dl_iterate_phdr(look, &s);
    assert_int_equal(s.copies, COPIES);
    assert_in_range(s.largest, 1, MOST_TLS);
}

/* Threads that failed while the library was open, and end after it was closed. */
static pthread_barrier_t barrier;

static void *fail_and_stay(void *function) {
    __typeof__(&tess_runtime_create) create;
    *(void **)&create = function;
    (void)create(NULL, NULL);
    pthread_barrier_wait(&barrier); /* it has failed */
    pthread_barrier_wait(&barrier); /* the library is closed */
    return NULL;
}

/* Open, use and close the library more often than a process has thread-specific keys. */
static void test_opened_again_and_again(void **state) {
    enum { TIMES = PTHREAD_KEYS_MAX + 10, THREADS_AT = 20 };
    assert_int_equal(pthread_barrier_init(&barrier, NULL, 2), 0);
    for (int n = 0; n < TIMES; n++) {
        __typeof__(&tess_runtime_create) create;
        __typeof__(&tess_last_error) last_error;
        pthread_t thread;
        void *library = dlopen(*state, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fail_msg("time %d: %s", n, dlerror());
            return;
        }
        assert_non_null(*(void **)&create = dlsym(library, "tess_runtime_create"));
        assert_non_null(*(void **)&last_error = dlsym(library, "tess_last_error"));
        assert_string_equal(last_error(), "");
        assert_int_equal(create(NULL, NULL), TESS_ERROR_INVALID);
        assert_string_equal(last_error(), "tess_runtime_create: runtime: must not be NULL");
        if (n < THREADS_AT) {
            assert_int_equal(pthread_create(&thread, NULL, fail_and_stay, *(void **)&create), 0);
            pthread_barrier_wait(&barrier);
        }
        assert_int_equal(dlclose(library), 0);
        if (n < THREADS_AT) {
            pthread_barrier_wait(&barrier);
            assert_int_equal(pthread_join(thread, NULL), 0);
        }
    }
    assert_null(dlopen(*state, RTLD_NOW | RTLD_NOLOAD)); /* it was closed indeed */
    pthread_barrier_destroy(&barrier);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_copies, argv[1]),
        cmocka_unit_test_prestate(test_opened_again_and_again, argv[1])};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
