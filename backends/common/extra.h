/* SPDX-License-Identifier: Apache-2.0 */
/* Structures of tessera_<backend>.h that applications pass to a backend: tess_device_desc.native
 * and tess_stream.extra. */
#ifndef TESS_COMMON_EXTRA_H
#define TESS_COMMON_EXTRA_H

#include <tessera/tessera_backend.h>

/*
 * Copies `known` bytes of a structure that begins with struct_size. No version has had fewer; bytes
 * behind them must be zero. VERSION otherwise, with a message that calls the structure `name`.
 */
tess_status tess_extra_read(const tess_host *host, const char *name, const void *structure,
                            void *copy, uint32_t known);

/* The same for a tess_device_desc.native whose second word is reserved, INVALID where that is not
 * 0. */
tess_status tess_extra_read_native(const tess_host *host, const void *structure, void *copy,
                                   uint32_t known);

#endif /* TESS_COMMON_EXTRA_H */
