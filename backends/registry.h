/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESSERA_BACKENDS_REGISTRY_H
#define TESSERA_BACKENDS_REGISTRY_H

#include <tessera/tessera_backend.h>

extern const tess_backend *const tess_registry[]; /* NULL-terminated */

#endif
