/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of head ids: the query heads of a layout by their numbers within the whole model. */
#ifndef TESSERA_CORE_HEAD_IDS_H
#define TESSERA_CORE_HEAD_IDS_H

#include "layout.h"

/* Checks a list of n_heads ids for a layout of which the numbers of heads are known: ids are within
 * the model, none stands twice, and those of one kv head are of one kv head of the model. INVALID:
 * names the head. OUT_OF_MEMORY. */
tess_status tess_head_ids_check(const tess_layout *layout, const char *function,
                                const int32_t *ids);

/* Whether each id is the one before plus 1, so that the first tells them all. */
bool tess_head_ids_follow(const int32_t *ids, int32_t n_heads);

#endif
