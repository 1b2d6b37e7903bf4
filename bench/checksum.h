/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of a result file, against damage on its way and edits by hand, not against forgery.
 * It is the last member of the object, and covers every byte before its own name. */
#ifndef TESSERA_BENCH_CHECKSUM_H
#define TESSERA_BENCH_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_TEXT = 24 };

/* "crc32:0123abcd" of so many bytes; the CRC-32 of zip and PNG. */
void checksum_text(const char *bytes, size_t size, char text[CHECKSUM_TEXT]);

/* Whether a file ends in the checksum of what stands before it. */
int checksum_right(const char *file, size_t size);

#endif
