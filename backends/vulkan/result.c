/* SPDX-License-Identifier: Apache-2.0 */
/* Failed calls as statuses. */
#include "vk.h"

const char *tess_vk_result_name(vk_result result) {
    switch (result) {
#define CASE(name, value) \
    case value: return "VK_" #name;
        VK_RESULT_LIST(CASE)
#undef CASE
    default: return "VkResult";
    }
}

tess_status tess_vk_status(vk_result result) {
    switch (result) {
    case TVK_ERROR_OUT_OF_HOST_MEMORY:
    case TVK_ERROR_OUT_OF_DEVICE_MEMORY:
    case TVK_ERROR_OUT_OF_POOL_MEMORY:
    case TVK_ERROR_TOO_MANY_OBJECTS: return TESS_ERROR_OUT_OF_MEMORY;
    case TVK_ERROR_DEVICE_LOST: return TESS_ERROR_DEVICE_LOST;
    case TVK_TIMEOUT: return TESS_ERROR_TIMEOUT;
    default: return TESS_ERROR_NATIVE;
    }
}

tess_status tess_vk_fail(const tess_host *host, vk_result result, const char *call,
                         const char *what) {
    return host->fail(host, tess_vk_status(result), "%s: %s (%s, %d)", call, what,
                      tess_vk_result_name(result), (int)result);
}
