/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels of backward of one dtype, as instances.inl has those of forward. */
#include "only_dims.h"
#include "shapes.h"

#include "backward_delta.inl"

#if TESS_HAS_DIMS(64)
#define TESS_DIMS    64
#define TESS_TILE    TESS_BACKWARD_TILE_64
#define TESS_THREADS TESS_BACKWARD_THREADS_64
#include "backward_rows.inl"

#include "backward_columns.inl"
#undef TESS_DIMS
#undef TESS_TILE
#undef TESS_THREADS
#endif

#if TESS_HAS_DIMS(128)
#define TESS_DIMS    128
#define TESS_TILE    TESS_BACKWARD_TILE_128
#define TESS_THREADS TESS_BACKWARD_THREADS_128
#include "backward_rows.inl"

#include "backward_columns.inl"
#undef TESS_DIMS
#undef TESS_TILE
#undef TESS_THREADS
#endif

#if TESS_HAS_DIMS(256)
#define TESS_DIMS    256
#define TESS_TILE    TESS_BACKWARD_TILE_256
#define TESS_THREADS TESS_BACKWARD_THREADS_256
#include "backward_rows.inl"

#include "backward_columns.inl"
#undef TESS_DIMS
#undef TESS_TILE
#undef TESS_THREADS
#endif
