/* SPDX-License-Identifier: Apache-2.0 */
/* What stands for backends/opencl/kernels/nv_mma.cl on a device without tensor cores: a forward
 * kernel that does nothing, since its work is done on the host (nvidia.cpp), and the true merge. It
 * stands for intel_dpas.cl as well. Given: TESS_THREADS. */
#include "dialect_opencl.h"

TESS_FORWARD_KERNEL {
    if (args.items == 0u) O[0] = 0;
}

#include "merge.inl"
