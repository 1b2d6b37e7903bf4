/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA backend share. */
#ifndef TESS_CUDA_CUDA_H
#define TESS_CUDA_CUDA_H

#include "driver.h"

/* Made at build time: the portable kernels, those for Hopper, and those for Ampere and later. Lists
 * end with data NULL and are empty in a build without nvcc. */
extern const tess_driver_image tess_cuda_images[], tess_cuda_sm90_images[], tess_cuda_sm80_images[],
    tess_cuda_decode_images[], tess_cuda_sm90_backward_images[], tess_cuda_sm80_backward_images[];

/* Places among tess_driver.extra that other files use; cuda.c has the whole list. */
enum { CUDA_SET_FUNCTION_ATTRIBUTE = 6, CUDA_ENCODE_TENSOR_MAP = 7 };

/* Modules of a device, after the portable one. */
enum {
    CUDA_SM90_MODULE = 1,
    CUDA_SM80_MODULE = 2,
    CUDA_DECODE_MODULE = 3,
    CUDA_SM90_BACKWARD_MODULE = 4,
    CUDA_SM80_BACKWARD_MODULE = 5
};

extern const tess_driver_row tess_cuda_sm90, tess_cuda_sm80, tess_cuda_tf32, tess_cuda_decode,
    tess_cuda_sm90_backward, tess_cuda_sm80_backward;

/* What these share (tensor_cores.c). The best image for the device, or NULL. */
const tess_driver_image *tess_cuda_image(const tess_driver_device *d,
                                         const tess_driver_image *images);
/* Why a kernel of these images, for sm_80 and later and f16 or bf16, does not run on the device or
 * does not take the key's dtype (no key: the device alone), or NULL. */
const char *tess_cuda_image_refusal(const tess_driver_device *d, const tess_driver_image *images,
                                    const tess_kernel_key *key, char *buffer, size_t size);
/* The same for the kernels for Hopper, whose blocks are multiples of 8. */
const char *tess_cuda_hopper_refusal(const tess_driver_device *d, const tess_driver_image *images,
                                     const tess_kernel_key *key, char *buffer, size_t size);
/* Bytes of shared memory that a thread block of the device may have. */
unsigned tess_cuda_shared_bytes(const tess_driver_device *d);
/* Allows a function that many bytes; `name` is for messages. */
tess_status tess_cuda_set_shared(tess_driver_device *d, void *function, unsigned bytes,
                                 const char *name);
/* Makes the state of a plan: the forward kernel of a module
 * ("sm80", "sm90", "decode16") for that head_dim, with so much workgroup memory, and the merge
 * kernel. */
tess_status tess_cuda_prepare(tess_driver_device *d, const tess_kernel_key *key, int module,
                              const tess_driver_image *image, const char *kernel_name,
                              int32_t head_dim, unsigned shared_bytes, tess_kernel *kernel);

/* Fills what tess_sm80_args, tess_sm90_args and tess_decode_args have in common, for `items` jobs
 * behind the first `done`, and clears the rest. */
#define CUDA_FORWARD_ARGS(args, l, done, items)                                \
    do {                                                                       \
        memset((args), 0, sizeof *(args));                                     \
        tess_portable_forward_args(l, done, items, 1, &(args)->common);        \
        (args)->q = tess_driver_address(&(l)->tensor[TESS_ROLE_Q].buffer);     \
        (args)->k = tess_driver_address(&(l)->tensor[TESS_ROLE_K].buffer);     \
        (args)->v = tess_driver_address(&(l)->tensor[TESS_ROLE_V].buffer);     \
        (args)->o = tess_driver_address(&(l)->tensor[TESS_ROLE_O].buffer);     \
        (args)->lse = tess_driver_address(&(l)->tensor[TESS_ROLE_LSE].buffer); \
        (args)->tables = tess_driver_address(&(l)->tables->device);            \
        (args)->workspace = tess_driver_address(&(l)->workspace);              \
        (args)->wide = tess_cuda_wide(l);                                      \
    } while (0)

/* Whether a tensor's rows start on 16-byte boundaries. `unit`: elements of 16 bytes; `batched`: the
 * stride of batches or pages is used. */
int tess_cuda_is_wide(const tess_tensor *t, int unit, int batched);
/* The tensors whose rows do, which wide loads and tensor maps need. Bit 0: Q, bit 1: K and V, bit
 * 2: O. */
uint32_t tess_cuda_wide(const tess_launch *l);

/* `why` if there is a reason already; else why no kernel for full tiles takes the key, or NULL. */
const char *tess_cuda_refusal(const char *why, const tess_kernel_key *key);

/* Which kernels are tried first on which device (docs/tune.md). */
extern const char tess_cuda_tune[];

#endif /* TESS_CUDA_CUDA_H */
