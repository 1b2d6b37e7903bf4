/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a backend library for tests, whose functions all begin with `prefix`, and the
 * library's entry point. */
#ifndef TESSERA_TESTS_COMMON_BACKEND_TABLE_H
#define TESSERA_TESTS_COMMON_BACKEND_TABLE_H

#include <tessera/tessera_backend.h>

#define TEST_BACKEND(prefix, backend_name)                                               \
    static const tess_backend backend = {.abi = TESS_BACKEND_ABI,                        \
                                         .struct_size = sizeof backend,                  \
                                         .name = (backend_name),                         \
                                         .list = prefix##_list,                          \
                                         .open = prefix##_open,                          \
                                         .close = prefix##_close,                        \
                                         .query = prefix##_query,                        \
                                         .kernel = prefix##_kernel,                      \
                                         .launch = prefix##_launch,                      \
                                         .alloc = prefix##_alloc,                        \
                                         .free = prefix##_free,                          \
                                         .copy = prefix##_copy,                          \
                                         .wait = prefix##_wait};                         \
    __attribute__((visibility("default"))) const tess_backend *tess_backend_entry(void); \
    const tess_backend *tess_backend_entry(void) { return &backend; }

#endif
