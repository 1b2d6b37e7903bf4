/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a backend whose functions have the interface's names behind a prefix of their own:
 * PREFIX_list, PREFIX_open and so on. */
#ifndef TESS_COMMON_FUNCTIONS_H
#define TESS_COMMON_FUNCTIONS_H

#include <tessera/tessera_backend.h>

#define TESS_BACKEND_FUNCTIONS(prefix)                                                   \
    .abi = TESS_BACKEND_ABI, .struct_size = sizeof(tess_backend), .list = prefix##_list, \
    .open = prefix##_open, .close = prefix##_close, .query = prefix##_query,             \
    .kernel = prefix##_kernel, .launch = prefix##_launch, .alloc = prefix##_alloc,       \
    .free = prefix##_free, .copy = prefix##_copy, .wait = prefix##_wait

#endif /* TESS_COMMON_FUNCTIONS_H */
