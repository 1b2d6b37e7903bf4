/* SPDX-License-Identifier: Apache-2.0 */
/* Failed calls as statuses. */
#include "vk.h"

static const char *result_name(vk_result result) {
    switch (result) {
#define CASE(name, value) \
    case value: return "VK_" #name;
        VK_RESULT_LIST(CASE)
#undef CASE
    default: return "VkResult";
    }
}

tess_status tess_vk_fail(const tess_host *host, vk_result result, const char *call,
                         const char *what) {
    tess_status status = TESS_ERROR_NATIVE;
    switch (result) {
    case TVK_ERROR_OUT_OF_HOST_MEMORY:
    case TVK_ERROR_OUT_OF_DEVICE_MEMORY:
    case TVK_ERROR_OUT_OF_POOL_MEMORY:
    case TVK_ERROR_TOO_MANY_OBJECTS: status = TESS_ERROR_OUT_OF_MEMORY; break;
    case TVK_ERROR_DEVICE_LOST: status = TESS_ERROR_DEVICE_LOST; break;
    case TVK_TIMEOUT: status = TESS_ERROR_TIMEOUT; break;
    default: break;
    }
    return host->fail(host, status, "%s: %s (%s, %d)", call, what, result_name(result),
                      (int)result);
}
