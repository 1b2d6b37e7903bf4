/* SPDX-License-Identifier: Apache-2.0 */
/* How a test finds the library that stands in for a driver. */
#ifndef TESSERA_TESTS_DRIVERS_FAKE_FIND_H
#define TESSERA_TESTS_DRIVERS_FAKE_FIND_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

/* The stand-in of the backend, and its library for symbols of the test's own. NULL, with a line
 * that says so, if the loader finds another library first. */
static inline const fake_exports *fake_find(const char *backend, void **library) {
    const char *name = strcmp(backend, "cuda") == 0 ? "libcuda.so.1" : "libamdhip64.so.6";
    union {
        void *symbol;
        fake_get_fn *function;
    } get = {NULL};
    *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (*library) get.symbol = dlsym(*library, "fake_get");
    if (get.symbol) return get.function();
    fprintf(stderr,
            "the first %s that is found is not the one of this test; run it through ctest\n", name);
    return NULL;
}

#endif
