/* SPDX-License-Identifier: Apache-2.0 */
#include "extra.h"

#include <string.h>

/* All these structures hold pointers, so the size of every version is a multiple of this. */
#define ALIGNMENT ((uint32_t)sizeof(void *))

/* No structure grows by more than this between two compatible versions. A larger size is a field
 * that was never set, and reading that far would leave the caller's memory. */
enum { LARGEST_UNKNOWN_TAIL = 4096 };

tess_status tess_extra_read(const tess_host *host, const char *name, const void *structure,
                            void *copy, uint32_t known) {
    const unsigned char *bytes = structure;
    uint32_t size;
    memcpy(&size, structure, sizeof size);
    if (size < known || size > known + LARGEST_UNKNOWN_TAIL || size % ALIGNMENT != 0)
        return host->fail(
            host, TESS_ERROR_VERSION,
            "%s.struct_size: %u is not the size of this structure in any version (here it is %u)",
            name, (unsigned)size, (unsigned)known);
    for (uint32_t n = known; n < size; n++)
        if (bytes[n] != 0)
            return host->fail(host, TESS_ERROR_VERSION,
                              "%s.struct_size: byte %u is set, but this version of the library "
                              "knows only %u bytes",
                              name, (unsigned)n, (unsigned)known);
    memcpy(copy, structure, known);
    return TESS_OK;
}

tess_status tess_extra_read_native(const tess_host *host, const void *structure, void *copy,
                                   uint32_t known) {
    uint32_t words[2];
    TESS_RETURN_IF_ERROR(tess_extra_read(host, "native", structure, copy, known));
    memcpy(words, copy, sizeof words);
    if (words[1] == 0) return TESS_OK;
    return host->fail(host, TESS_ERROR_INVALID, "native.reserved: must be 0, got %u",
                      (unsigned)words[1]);
}
