/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a driver's library at run time. */
#ifndef TESS_COMMON_LIBRARY_H
#define TESS_COMMON_LIBRARY_H

#include <stddef.h>

/* Opens the first of the NULL-ended names that works with RTLD_NOW | RTLD_LOCAL; it is never
 * closed. NULL: `why` lists every name with the linker's reason. */
void *tess_library_open(const char *const *names, char *why, size_t size);

/* Puts the symbols of the NULL-ended names into `table`, in order. 0: one is missing and named in
 * `why`. A name that begins with '?' may be missing: NULL. */
int tess_library_symbols(void *library, const char *const *names, void (**table)(void), char *why,
                         size_t size);

#endif /* TESS_COMMON_LIBRARY_H */
