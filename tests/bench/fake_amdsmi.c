/* SPDX-License-Identifier: Apache-2.0 */
/* AMD SMI for tests: one GPU, at 0001:1b:02.3, which spends 3 J between two looks. */
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

enum { OK = 0, INVALID = 1, GPUS = 1 << 1 };

static int ready;

FAKE_API int amdsmi_init(uint64_t flags);
FAKE_API int amdsmi_get_processor_handle_from_bdf(uint64_t bdf, void **processor);
FAKE_API int amdsmi_get_energy_count(void *processor, uint64_t *count, float *microjoules,
                                     uint64_t *nanoseconds);

int amdsmi_init(uint64_t flags) {
    ready = flags == GPUS;
    return ready ? OK : INVALID;
}

int amdsmi_get_processor_handle_from_bdf(uint64_t bdf, void **processor) {
    if (!ready || bdf != (1u << 16 | 0x1b << 8 | 2 << 3 | 3)) return INVALID;
    *processor = &ready;
    return OK;
}

int amdsmi_get_energy_count(void *processor, uint64_t *count, float *microjoules,
                            uint64_t *nanoseconds) {
    static uint64_t sum;
    if (processor != &ready) return INVALID;
    *count = sum += 200000;
    *microjoules = 15;
    *nanoseconds = 1;
    return OK;
}
