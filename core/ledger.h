/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: sizes and places of a plan's tables and of its workspace, computed by one function,
 * so that they cannot disagree. */
#ifndef TESSERA_CORE_LEDGER_H
#define TESSERA_CORE_LEDGER_H

#include "common.h"

typedef struct tess_ledger {
    /* What there is. */
    uint64_t n_sequences, n_classes, n_jobs, n_merges, n_entries, n_bits;
    uint64_t scratch_bytes, n_partials, partial_rows, value_head_dim, workspace_align;
    /* What it comes to. */
    uint64_t table_bytes;
    uint64_t partials_at, workspace_bytes;
} tess_ledger;

/* Counts (base NULL: pointers stay as they are) or places every table at `base`: sets the offsets,
 * and with a base the pointers, of `tables`. False on overflow. */
bool tess_ledger_settle(tess_ledger *ledger, tess_tables *tables, void *base);

#endif
