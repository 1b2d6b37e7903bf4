/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels on tensor cores have in common on the host's side. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

const tess_driver_image *tess_cuda_image(const tess_driver_device *d,
                                         const tess_driver_image *images) {
    const int n = d->driver->vendor->image(images, d->arch, 0);
    return n < 0 ? NULL : &images[n];
}

const char *tess_cuda_image_refusal(const tess_driver_device *d, const tess_driver_image *images,
                                    const tess_kernel_key *key, char *buffer, size_t size) {
    if (!images[0].data) return "built without device code for sm_80 and later";
    if (!tess_cuda_image(d, images))
        return tess_driver_no_code(d, images, "needs sm_80 or later, and has ", buffer, size);
    if (d->image < 0) return "built without the merge kernel";
    return key && key->dtype == TESS_F32 ? "takes f16 and bf16 only" : NULL;
}

const char *tess_cuda_hopper_refusal(const tess_driver_device *d, const tess_driver_image *images,
                                     const tess_kernel_key *key, char *buffer, size_t size) {
    if (strcmp(d->arch, "sm_90") != 0) {
        snprintf(buffer, size, "needs sm_90, and the device is %s", d->arch);
        return buffer;
    }
    if (!images[0].data) return "built without device code for sm_90a";
    if (d->image < 0) return "built without the merge kernel";
    if (!key) return NULL;
    if (key->dtype == TESS_F32) return "takes f16 and bf16 only";
    return key->block % 8 != 0 ? "block is not a multiple of 8" : NULL;
}

unsigned tess_cuda_shared_bytes(const tess_driver_device *d) {
    static const struct {
        const char *arch;
        unsigned bytes;
    } large[] = {{"sm_80", 163 << 10},
                 {"sm_87", 163 << 10},
                 {"sm_90", 227 << 10},
                 {"sm_100", 227 << 10},
                 {"sm_103", 227 << 10}};
    for (size_t n = 0; n < sizeof large / sizeof *large; n++)
        if (strcmp(d->arch, large[n].arch) == 0) return large[n].bytes;
    return 99 << 10;
}

tess_status tess_cuda_set_shared(tess_driver_device *d, void *function, unsigned bytes,
                                 const char *name) {
    int (*const set)(void *, int, int) =
        (int (*)(void *, int, int))d->driver->extra[CUDA_SET_FUNCTION_ATTRIBUTE];
    int code = DRIVER_OK;
    pthread_mutex_lock(&d->loading);
    tess_driver_found *found = tess_driver_remembered(d, function);
    if (!found || found->shared_bytes != bytes)
        code = set(function, 8 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */, (int)bytes);
    if (found && code == DRIVER_OK) found->shared_bytes = bytes;
    pthread_mutex_unlock(&d->loading);
    return code == DRIVER_OK ? TESS_OK : tess_driver_fail(d, "cuFuncSetAttribute", name, code);
}

tess_status tess_cuda_prepare(tess_driver_device *d, const tess_kernel_key *key, int module,
                              const tess_driver_image *image, const char *kernel_name,
                              int32_t head_dim, unsigned shared_bytes, tess_kernel *kernel) {
    char name[64];
    snprintf(name, sizeof name, "tess_%s_%s_%d", kernel_name, tess_portable_dtype(key->dtype),
             (int)head_dim);
    TESS_RETURN_IF_ERROR(tess_driver_state_create(d, key, module, image, name, kernel));
    tess_driver_state *state = kernel->state;
    const tess_status status = tess_cuda_set_shared(d, state->forward, shared_bytes, name);
    if (status != TESS_OK) tess_driver_state_release(kernel);
    return status;
}

const char *tess_cuda_refusal(const char *why, const tess_kernel_key *key) {
    if (why || !key) return why;
    if (key->kv_dtype != key->dtype) return "does not read K and V of 8 bits";
    return tess_portable_refusal(key);
}

int tess_cuda_is_wide(const tess_tensor *t, int unit, int batched) {
    const uint64_t address = t->buffer.handle + t->buffer.offset;
    return address % 16 == 0 && t->stride_token % unit == 0 && t->stride_head % unit == 0 &&
           (!batched || t->stride_batch % unit == 0);
}

uint32_t tess_cuda_wide(const tess_launch *l) {
    const int rows = l->batch_strided != 0, keys = l->page != 0 || l->compact || l->kv_batch != 0,
              unit = tess_portable_has_codes(l->kv_dtype) ? 16 : 8;
    const int wide_keys = tess_cuda_is_wide(&l->tensor[TESS_ROLE_K], unit, keys) &&
                          tess_cuda_is_wide(&l->tensor[TESS_ROLE_V], unit, keys);
    return (tess_cuda_is_wide(&l->tensor[TESS_ROLE_Q], 8, rows) ? 1u : 0) | (wide_keys ? 2u : 0) |
           (tess_cuda_is_wide(&l->tensor[TESS_ROLE_O], 8, rows) ? 4u : 0);
}
