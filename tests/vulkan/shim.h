/* SPDX-License-Identifier: Apache-2.0 */
/* How a test steers the library that stands in for libvulkan. */
#ifndef TESSERA_TESTS_VULKAN_SHIM_H
#define TESSERA_TESTS_VULKAN_SHIM_H

#include <stddef.h>

#define SHIM_API __attribute__((visibility("default")))

/* In the environment: TESSERA_TEST_VULKAN_LIMITS=buffers=N,16bit=0,range=N,shared=N,threads=N,
 * vendor=N,driver=N lowers limits from the start, and tells another vendor and driver. */

/* From now on call number `at` (0: none) that returns a VkResult gives `result` and does nothing;
 * with `stays`, all later ones too. */
SHIM_API void shim_reset(long at, int stays, int result);
SHIM_API long shim_calls(void);
SHIM_API long shim_failures(void);
SHIM_API const char *shim_failed(void); /* the first function that failed */
/* How many objects live; `text` says of which kinds. */
SHIM_API long shim_live(char *text, size_t size);

/* The device says that it is of another kind (VkPhysicalDeviceType), and that a row of a grid holds
 * so many workgroups at most; 0: the truth. */
SHIM_API void shim_pretend(int device_kind, unsigned most_groups);
/* so many storage buffers in a stage at most; 0: the truth */
SHIM_API void shim_pretend_buffers(unsigned most);
/* so many bytes of a binding at most; 0: the truth */
SHIM_API void shim_pretend_range(unsigned bytes);
SHIM_API long shim_dispatches(void); /* so far */
/* no storageBuffer16BitAccess */
SHIM_API void shim_pretend_wide_only(int is);
SHIM_API void shim_pretend_vendor(unsigned vendor); /* its number in the PCI list; 0: the truth */
SHIM_API void shim_pretend_driver(unsigned driver); /* VkDriverId; 0: the truth */
/* Matrices of m x n x k float16 with results of `result` (VkComponentTypeKHR), and all that goes
 * with them but the extension or feature `without`, of subgroups of 8. m = 0: the truth, but for
 * `without`. */
SHIM_API void shim_pretend_matrices(unsigned m, unsigned n, unsigned k, unsigned result,
                                    const char *without);
/* What the kernel on matrices is: it does not compile; or it is the portable one in its place, for
 * products of 16 x 16 and a head_dim above 64, which may do its work or not. */
enum { SHIM_NO_STAND_IN, SHIM_WORKS, SHIM_DOES_NOTHING, SHIM_LEAVES_JOBS_OUT };
SHIM_API void shim_pretend_kernel(int which);
SHIM_API void shim_pretend_refusal(int result);    /* what not compiling gives; 0: UNKNOWN */
SHIM_API long shim_kernel_runs(void);              /* dispatches of it so far */
SHIM_API long shim_kernel_modules(void);           /* and how often somebody gave its code */
SHIM_API void shim_pretend_shared(unsigned bytes); /* of a workgroup at most; 0: the truth */
SHIM_API void shim_pretend_threads(unsigned most); /* of a workgroup; 0: the truth */
SHIM_API long shim_submits(void);                  /* submissions of commands so far */
/* From now on `may` is asked at each submission whether there may be one. NULL: nobody is. */
SHIM_API void shim_watch(int (*may)(void));
SHIM_API long shim_unwanted(void); /* submissions so far for which it said no */
/* dispatches so far with more than one row of workgroups */
SHIM_API long shim_rows(void);
SHIM_API long shim_signalled(void);     /* submissions so far whose fence was not reset */
SHIM_API size_t shim_cache_bytes(void); /* what the latest pipeline cache began with */

struct VkInstance_T;
SHIM_API void (*vkGetInstanceProcAddr(struct VkInstance_T *instance, const char *name))(void);

#endif
