/* SPDX-License-Identifier: Apache-2.0 */
/* How a test steers the library that stands in for libvulkan. */
#ifndef TESSERA_TESTS_VULKAN_SHIM_H
#define TESSERA_TESTS_VULKAN_SHIM_H

#include <stddef.h>

#define SHIM_API __attribute__((visibility("default")))

/* From now on call number `at` (0: none) that returns a VkResult gives `result` and does nothing; with `stays`, all later ones too. */
SHIM_API void shim_reset(long at, int stays, int result);
SHIM_API long shim_calls(void);
SHIM_API long shim_failures(void);
SHIM_API const char *shim_failed(void); /* the first function that failed */
/* How many objects live; `text` says of which kinds. */
SHIM_API long shim_live(char *text, size_t size);

struct VkInstance_T;
SHIM_API void (*vkGetInstanceProcAddr(struct VkInstance_T *instance, const char *name))(void);

#endif
