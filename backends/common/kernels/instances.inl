/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels of one dtype, for languages whose instances share a translation unit. Given:
 * TESS_DTYPE_NAME and TESS_ELEMENT. TESS_HAS_DIMS says for which ranges of head_dim. */
#include "only_dims.h"
#include "shapes.h"

#if TESS_HAS_DIMS(64)
#define TESS_DIMS    64
#define TESS_ROWS    TESS_ROWS_64
#define TESS_KEYS    TESS_KEYS_64
#define TESS_THREADS TESS_THREADS_64
#include "forward.inl"
#undef TESS_DIMS
#undef TESS_ROWS
#undef TESS_KEYS
#undef TESS_THREADS

#define TESS_DIMS    64
#define TESS_ROWS    TESS_FEW_ROWS_64
#define TESS_KEYS    TESS_FEW_KEYS_64
#define TESS_THREADS TESS_FEW_THREADS_64
#include "forward_few.inl"
#undef TESS_DIMS
#undef TESS_ROWS
#undef TESS_KEYS
#undef TESS_THREADS
#endif

#if TESS_HAS_DIMS(128)
#define TESS_DIMS    128
#define TESS_ROWS    TESS_ROWS_128
#define TESS_KEYS    TESS_KEYS_128
#define TESS_THREADS TESS_THREADS_128
#include "forward.inl"
#undef TESS_DIMS
#undef TESS_ROWS
#undef TESS_KEYS
#undef TESS_THREADS

#define TESS_DIMS    128
#define TESS_ROWS    TESS_FEW_ROWS_128
#define TESS_KEYS    TESS_FEW_KEYS_128
#define TESS_THREADS TESS_FEW_THREADS_128
#include "forward_few.inl"
#undef TESS_DIMS
#undef TESS_ROWS
#undef TESS_KEYS
#undef TESS_THREADS
#endif

#if TESS_HAS_DIMS(256)
#define TESS_DIMS    256
#define TESS_ROWS    TESS_ROWS_256
#define TESS_KEYS    TESS_KEYS_256
#define TESS_THREADS TESS_THREADS_256
#include "forward.inl"
#undef TESS_DIMS
#undef TESS_ROWS
#undef TESS_KEYS
#undef TESS_THREADS

#define TESS_DIMS    256
#define TESS_ROWS    TESS_FEW_ROWS_256
#define TESS_KEYS    TESS_FEW_KEYS_256
#define TESS_THREADS TESS_FEW_THREADS_256
#include "forward_few.inl"
#undef TESS_DIMS
#undef TESS_ROWS
#undef TESS_KEYS
#undef TESS_THREADS
#endif

#include "merge.inl"

#include "merge_parts.inl"
