/* SPDX-License-Identifier: Apache-2.0 */
#include "sha256.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, unsigned n) { return (x >> n) | (x << (32 - n)); }

static void compress(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], v[8];
    for (size_t t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (size_t t = 16; t < 64; t++) {
        const uint32_t small0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ (w[t - 15] >> 3);
        const uint32_t small1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16] + small0 + w[t - 7] + small1;
    }
    memcpy(v, state, sizeof v);
    for (size_t t = 0; t < 64; t++) {
        const uint32_t big1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25),
                       choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        const uint32_t one = v[7] + big1 + choice + constants[t] + w[t];
        const uint32_t big0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22),
                       majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + big0 + majority;
    }
    for (size_t n = 0; n < 8; n++) state[n] += v[n];
}

void tess_sha256_begin(tess_sha256 *sha) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, start, sizeof start);
    sha->length = 0;
}

void tess_sha256_add(tess_sha256 *sha, const void *data, size_t size) {
    const unsigned char *bytes = data;
    size_t held = (size_t)(sha->length % 64);
    sha->length += size;
    while (size > 0) {
        if (held == 0 && size >= 64) {
            compress(sha->state, bytes);
            bytes += 64;
            size -= 64;
            continue;
        }
        const size_t part = size < 64 - held ? size : 64 - held;
        memcpy(sha->block + held, bytes, part);
        held = (held + part) % 64;
        if (held == 0) compress(sha->state, sha->block);
        bytes += part;
        size -= part;
    }
}

void tess_sha256_end(tess_sha256 *sha, unsigned char digest[TESS_SHA256_BYTES]) {
    static const unsigned char padding[64] = {0x80};
    unsigned char bits[8];
    for (size_t n = 0; n < 8; n++) bits[n] = (unsigned char)((sha->length * 8) >> (56 - 8 * n));
    const size_t held = (size_t)(sha->length % 64);
    tess_sha256_add(sha, padding, held < 56 ? 56 - held : 120 - held);
    tess_sha256_add(sha, bits, sizeof bits);
    for (size_t n = 0; n < TESS_SHA256_BYTES; n++)
        digest[n] = (unsigned char)(sha->state[n / 4] >> (24 - 8 * (n % 4)));
}
