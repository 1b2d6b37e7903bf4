/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bindings of descriptor set 0, for the shaders and for the host. Parameters are a uniform
 * buffer with one tess_args for each dispatch, at a dynamic offset; all others are storage buffers.
 * Indices in the parameters count elements from the start of the bound range. A binding that a
 * dispatch does not use (LSE, the block table, scales, or the workspace) still needs some buffer
 * behind it.
 *
 * Specialization constants of the forward kernel: 0 = head_dim of the instance, 1 = rows, 2 = keys,
 * 3 = threads (of tess_portable_shape). The merge has none of them; its workgroups have
 * TESS_MERGE_THREADS threads. Modules of pairs (dialect_glsl.h) have 4 = the element type.
 * Workgroup n is x + y * (workgroups in x).
 *
 * Preprocessor only: GLSL reads this file too.
 */
#ifndef TESS_VULKAN_KERNELS_BINDINGS_H
#define TESS_VULKAN_KERNELS_BINDINGS_H

#define TESS_BIND_ARGS      0
#define TESS_BIND_TABLES    1
#define TESS_BIND_WORKSPACE 2

/* Tensors, in the order of tess_portable_tensors. */
#define TESS_BIND_TENSORS 3
#define TESS_BIND_Q       3
#define TESS_BIND_K       4
#define TESS_BIND_V       5
#define TESS_BIND_O       6
#define TESS_BIND_LSE     7
#define TESS_BIND_TABLE   8 /* of blocks */
#define TESS_BIND_K_SCALE 9
#define TESS_BIND_V_SCALE 10

/* The tensors of the kernels that write a cache, in the order of tess_paging_tensors. */
#define TESS_BIND_NEW_K        3
#define TESS_BIND_NEW_V        4
#define TESS_BIND_POOL_K       5
#define TESS_BIND_POOL_V       6
#define TESS_BIND_PAGES        7
#define TESS_BIND_POOL_K_SCALE 8
#define TESS_BIND_POOL_V_SCALE 9

/* Those of the kernel that prepares steps, in the order of tess_prepare_tensors. */
#define TESS_BIND_CU_ROWS  3
#define TESS_BIND_KV_LENS  4
#define TESS_BIND_STEP     5
#define TESS_BIND_Q_FIRST  6
#define TESS_BIND_KV_FIRST 7

/* Bindings in all, and those of them that are storage buffers. */
#define TESS_BINDINGS        11
#define TESS_STORAGE_BUFFERS 10

#endif /* TESS_VULKAN_KERNELS_BINDINGS_H */
