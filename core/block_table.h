/* SPDX-License-Identifier: Apache-2.0 */
/* The block table of a call, which names the pages of each storage group and sequence. */
#ifndef TESSERA_CORE_BLOCK_TABLE_H
#define TESSERA_CORE_BLOCK_TABLE_H

#include "plan.h"

/* As a descriptor has it. */
typedef struct tess_block_table {
    tess_buffer buffer;
    int64_t stride, pages;
} tess_block_table;

/* Checks the table of a plan with pages, and that there is none for a plan without. *bytes gets how
 * far it reaches; 0: there is none, or without keys none is needed. */
tess_status tess_block_table_check(const char *function, const tess_plan *plan,
                                   const tess_block_table *table, uint64_t *bytes);

/* Makes a storage group's part of a table that was checked the launch's. */
void tess_block_table_take(const tess_plan *plan, const tess_block_table *table, uint32_t storage,
                           tess_launch *launch);

#endif
