/* SPDX-License-Identifier: Apache-2.0 */
/* Properties, each tested on every device and every kernel found; the state of each is a
 * test_target. */
#ifndef TESSERA_TESTS_CONFORMANCE_PROPERTIES_H
#define TESSERA_TESTS_CONFORMANCE_PROPERTIES_H

typedef struct property {
    const char *name;
    void (*test)(void **state);
    int once; /* on the plan's own choice of kernel only */
} property;

extern const property memory_properties[]; /* memory.c: strides, offsets, poison */
/* bits.c: repeats, threads, ranges, batch composition, packed heads */
extern const property bits_properties[];
/* values.c: partitions, LSE, empty rows, wrong patterns are seen */
extern const property value_properties[];
extern const property size_properties[];  /* sizes.c: both sides of 2^31 and 2^32 */
extern const property cache_properties[]; /* cache.c: pages and slots of K and V */

#endif
