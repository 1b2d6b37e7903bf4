/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that write a cache, for both sizes of elements, in languages whose instances share a
 * translation unit. */
#define TESS_BITS 16
#define TESS_UNIT unsigned short
#include "append.inl"
#include "copy_pages.inl"
#undef TESS_BITS
#undef TESS_UNIT

#define TESS_BITS 32
#define TESS_UNIT uint
#include "append.inl"
#include "copy_pages.inl"
#undef TESS_BITS
#undef TESS_UNIT
