/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a compiler makes the instances for a range of head_dim: all, or with TESS_ONLY_DIMS those
 * for that range alone. */
#ifndef TESS_COMMON_ONLY_DIMS_H
#define TESS_COMMON_ONLY_DIMS_H

#ifdef TESS_ONLY_DIMS
#define TESS_HAS_DIMS(dims) (TESS_ONLY_DIMS == (dims))
#else
#define TESS_HAS_DIMS(dims) 1
#endif

#endif
