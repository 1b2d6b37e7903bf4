/* SPDX-License-Identifier: Apache-2.0 */
/* How CUDA and HIP prepare a step, for the host and the device: threads of a workgroup, and the
 * workgroups of a storage group. */
#ifndef TESS_STEP_THREADS
#define TESS_STEP_THREADS 512u
#endif
#ifndef TESS_STEP_SHARES
#define TESS_STEP_SHARES 8u
#endif
