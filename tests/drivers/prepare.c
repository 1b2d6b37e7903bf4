/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-ins' kernel that prepares steps: the same body in C. */
#include "prepare.h"

#include <stdio.h>
#include <string.h>

#include "fake.h"
#include "kernels/words.h"

const size_t fake_prepare_parameters[] = {8, 8, 8, 8, 8, 8, sizeof(tess_args), 0};

static tess_args args_of(void *const *parameters) {
    tess_args a;
    memcpy(&a, parameters[TESS_PREPARE_BUFFERS], sizeof a);
    return a;
}

static void *buffer_of(void *const *parameters, int n) {
    uint64_t pointer;
    memcpy(&pointer, parameters[n], sizeof pointer);
    return fake_host(pointer);
}

void fake_prepare_describe(void *const *parameters, char *text, size_t size) {
    const tess_args a = args_of(parameters);
    snprintf(text, size, " sequences %u plan at %u", a.items, a.items_at);
}

void fake_prepare_run(unsigned groups, void *const *parameters) {
    const tess_args a = args_of(parameters);
    const uint32_t *tables = buffer_of(parameters, TESS_PREPARE_TENSORS),
                   own = a.group * FAKE_PREPARE_SHARES, plans = groups / own;
    if (groups != plans * own)
        fake_misuse(700, "a step of %u workgroups a kernel has %u", own, groups);
    for (uint32_t n = 0; n < plans; n++)
        if (tables[a.items_at + n * a.first_item + TESS_WORD_PLAN_GROUPS] != a.group)
            fake_misuse(701, "kernel %u of a step has not %u storage groups", n, a.group);
    tess_prepare_on_host(&a, plans, tables, buffer_of(parameters, 0), buffer_of(parameters, 1),
                         buffer_of(parameters, 3), buffer_of(parameters, 4),
                         buffer_of(parameters, 2));
}
