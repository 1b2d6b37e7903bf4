/* SPDX-License-Identifier: Apache-2.0 */
/* The library of shim.h as a test calls it: shim.NAME() is shim_NAME() of the libvulkan that the
 * loader finds. */
#ifndef TESSERA_TESTS_VULKAN_SHIM_CALLS_H
#define TESSERA_TESTS_VULKAN_SHIM_CALLS_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "common/testlib.h"
#include "shim.h"

#define SHIM_FUNCTIONS(X)                                                         \
    X(reset, void, (long at, int stays, int result))                              \
    X(calls, long, (void))                                                        \
    X(failures, long, (void))                                                     \
    X(live, long, (char *text, size_t size))                                      \
    X(failed, const char *, (void))                                               \
    X(pretend, void, (int device_kind, unsigned most_groups))                     \
    X(pretend_buffers, void, (unsigned most))                                     \
    X(pretend_range, void, (unsigned bytes))                                      \
    X(dispatches, long, (void))                                                   \
    X(pretend_wide_only, void, (int is))                                          \
    X(pretend_vendor, void, (unsigned vendor))                                    \
    X(pretend_driver, void, (unsigned driver))                                    \
    X(pretend_matrices, void,                                                     \
      (unsigned m, unsigned n, unsigned k, unsigned result, const char *without)) \
    X(pretend_kernel, void, (int which))                                          \
    X(pretend_refusal, void, (int result))                                        \
    X(kernel_runs, long, (void))                                                  \
    X(kernel_modules, long, (void))                                               \
    X(watch, void, (int (*may)(void)))                                            \
    X(unwanted, long, (void))                                                     \
    X(pretend_shared, void, (unsigned bytes))                                     \
    X(pretend_threads, void, (unsigned most))                                     \
    X(submits, long, (void))                                                      \
    X(rows, long, (void))                                                         \
    X(signalled, long, (void))                                                    \
    X(cache_bytes, size_t, (void))
static struct {
#define MEMBER(name, result, parameters) result(*name) parameters;
    SHIM_FUNCTIONS(MEMBER)
#undef MEMBER
} shim;

/* Finds that library and a device to test on: 0, or the program's exit status after a line that
 * says what is missing. */
static inline int shim_find_device(void) {
    test_targets targets;
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
#define FIND(name, result, parameters)                                 \
    {                                                                  \
        void *symbol = library ? dlsym(library, "shim_" #name) : NULL; \
        memcpy(&shim.name, &symbol, sizeof symbol);                    \
    }
    SHIM_FUNCTIONS(FIND)
#undef FIND
    if (!shim.reset) {
        puts("libvulkan.so.1 is not the library of this test; run it through ctest");
        return 1;
    }
    const int status = test_targets_open(&targets, "vulkan", 0);
    if (status == 0) test_targets_close(&targets);
    return status;
}

#endif
