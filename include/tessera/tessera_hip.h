/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera inside an application that uses HIP.
 *
 * A HIP device is opened by id ("hip:0"). HIP has one context for each GPU and process, which the
 * application and Tessera share, so there is nothing to wrap: tess_device_desc.native must be NULL.
 * Every call sets the calling thread's current device on entry and puts it back before it returns.
 *
 * Buffers.   TESS_BUFFER_POINTER: `handle` is a device pointer (hipMalloc); `offset` bytes are
 *            added to it. Elements must be aligned to their size and to nothing more.
 * Streams.   TESS_STREAM_DEFAULT is a stream of the device's own, in which work runs in the order
 *            of the calls. It does not wait for the null stream.
 *            TESS_STREAM_SUBMIT: `handle` is a hipStream_t; 0 is the null stream. `extra` is NULL.
 *            TESS_STREAM_RECORD is UNSUPPORTED: capture a stream into a graph instead, and give
 *            that stream as SUBMIT, without device_seconds.
 * Plans.     The first plan of a device loads its code. There is code for the instruction sets that
 *            the library was built for and for no others: UNSUPPORTED names them.
 * Memory.    tess_alloc, tess_copy and tess_wait use the device's own stream and know nothing of
 *            the application's.
 * Errors.    Errors after which HIP answers nothing else (700, 702, 709, 710, 714 to 719 among
 *            them) are TESS_ERROR_DEVICE_LOST.
 * Threads.   As tessera.h says. At most 8 calls with device_seconds at once; more are BUSY.
 */
#ifndef TESSERA_TESSERA_HIP_H
#define TESSERA_TESSERA_HIP_H

#include <tessera/tessera.h>

#endif /* TESSERA_TESSERA_HIP_H */
