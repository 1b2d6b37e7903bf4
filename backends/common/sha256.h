/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), for keys and checksums of the disk cache. */
#ifndef TESS_COMMON_SHA256_H
#define TESS_COMMON_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { TESS_SHA256_BYTES = 32 };

typedef struct tess_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    unsigned char block[64];
} tess_sha256;

void tess_sha256_begin(tess_sha256 *sha);
void tess_sha256_add(tess_sha256 *sha, const void *data, size_t size);
void tess_sha256_end(tess_sha256 *sha, unsigned char digest[TESS_SHA256_BYTES]);

#endif /* TESS_COMMON_SHA256_H */
