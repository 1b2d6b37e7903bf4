/* SPDX-License-Identifier: Apache-2.0 */
#include "checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint32_t crc32_of(const char *bytes, size_t size) {
    const uint32_t polynomial = 0xedb88320;
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t n = 0; n < 256; n++) {
        table[n] = n;
        for (int bit = 0; bit < 8; bit++)
            table[n] = table[n] >> 1 ^ (table[n] & 1 ? polynomial : 0);
    }
    for (size_t i = 0; i < size; i++)
        crc = table[(crc ^ (unsigned char)bytes[i]) & 0xff] ^ crc >> 8;
    return ~crc;
}

void checksum_text(const char *bytes, size_t size, char text[CHECKSUM_TEXT]) {
    snprintf(text, CHECKSUM_TEXT, "crc32:%08" PRIx32, crc32_of(bytes, size));
}

static size_t skip(const char *file, size_t size, size_t at, const char *blanks) {
    while (at < size && file[at] && strchr(blanks, file[at])) at++;
    return at;
}

int checksum_right(const char *file, size_t size) {
    static const char name[] = "\"checksum\"";
    const size_t length = sizeof name - 1;
    char wanted[CHECKSUM_TEXT];
    if (size < length) return 0;
    size_t at = size - length;
    while (memcmp(file + at, name, length) != 0)
        if (at-- == 0) return 0;
    checksum_text(file, at, wanted);
    size_t end = skip(file, size, at + length, " \t\r\n:");
    if (end >= size || file[end] != '"') return 0;
    end++;
    const size_t digits = strlen(wanted);
    if (size - end < digits || memcmp(file + end, wanted, digits) != 0) return 0;
    end += digits;
    if (end >= size || file[end] != '"') return 0;
    return skip(file, size, end + 1, " \t\r\n}") == size;
}
