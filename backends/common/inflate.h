/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels are kept deflated in the library (RFC 1951): SPIR-V, OpenCL's sources and machine code
 * have so much in common that a third of their bytes is enough. A blob is what gzip writes without
 * its header of 10 bytes: the stream, a checksum that nobody reads here, and the size of the
 * contents in 4 bytes, lowest first.
 */
#ifndef TESS_COMMON_INFLATE_H
#define TESS_COMMON_INFLATE_H

#include <tessera/tessera_backend.h>

/* The bytes that a blob says it holds. */
size_t tess_inflated_size(const unsigned char *blob, size_t size);

/* Writes them to `to`. 0, or -1 where the stream does not make exactly `to_size` bytes. */
int tess_inflate(const unsigned char *blob, size_t size, unsigned char *to, size_t to_size);

/* The contents and a 0 behind them, from host->alloc: *bytes with the 0, to be freed with. NULL
 * where there is no memory, and the message says what it was for. */
void *tess_inflate_new(const tess_host *host, const unsigned char *blob, size_t size,
                       const char *what, size_t *bytes);

#endif /* TESS_COMMON_INFLATE_H */
