/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that a workgroup of the kernel for copies takes, for the shader and for the host. It reads
 * from the binding of tables and writes to that of the workspace, which have one number on every
 * device. Preprocessor only. */
#ifndef TESS_VULKAN_KERNELS_COPY_SHAPE_H
#define TESS_VULKAN_KERNELS_COPY_SHAPE_H

#define TESS_COPY_THREADS 256
#define TESS_COPY_EACH    4
#define TESS_COPY_BYTES   (16 * TESS_COPY_THREADS * TESS_COPY_EACH)

#endif /* TESS_VULKAN_KERNELS_COPY_SHAPE_H */
