/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends that are part of the library. The core declares it and backends/registry.c
 * defines it, so that a new backend needs no edit in the core; a unit test that brings backends of
 * its own defines it instead. */
#ifndef TESSERA_CORE_REGISTRY_H
#define TESSERA_CORE_REGISTRY_H

#include <stdbool.h>

#include <tessera/tessera_backend.h>

typedef struct tess_registered {
    const tess_backend *backend;
    /* listing its devices opens a driver or a driver loader, which may run code that the
     * environment names */
    bool opens_driver;
} tess_registered;

extern const tess_registered tess_registry[]; /* best first; ends with a NULL backend */

#endif
