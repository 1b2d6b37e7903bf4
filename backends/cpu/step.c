/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a step: one thread for each storage group, which takes microseconds. */
#include "cpu.h"
#include "prepare.h"

static const int32_t *lengths(const tess_tensor *t) {
    return (const int32_t *)(uintptr_t)(t->buffer.handle + t->buffer.offset);
}

void tess_cpu_prepare(const tess_launch *l, uint64_t group) {
    const tess_tables *t = l->tables;
    const uint32_t *classes = (const uint32_t *)(const void *)t->classes;
    const tess_buffer *step = &l->tensor[TESS_ROLE_STEP].buffer;
    tess_args args;
    tess_prepare_args(l, 1, &args);
    tess_prepare_group(
        &args, (uint32_t)group, classes - args.classes_at, lengths(&l->tensor[TESS_ROLE_CU_ROWS]),
        lengths(&l->tensor[TESS_ROLE_KV_LENS]), lengths(&l->tensor[TESS_ROLE_Q_FIRST]),
        lengths(&l->tensor[TESS_ROLE_KV_FIRST]),
        (uint32_t *)(uintptr_t)(step->handle + step->offset));
}
