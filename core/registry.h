/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends that are part of the library. The core declares it and backends/registry.c defines it, so that a new backend needs no edit
 * in the core; a unit test that brings backends of its own defines it instead. */
#ifndef TESSERA_CORE_REGISTRY_H
#define TESSERA_CORE_REGISTRY_H

#include <tessera/tessera_backend.h>

extern const tess_backend *const tess_registry[]; /* best first, NULL-terminated */

#endif
