/* SPDX-License-Identifier: Apache-2.0 */
/* Which values of struct_size are legal, and how much of a structure they cover. */
#include "structures.h"

#include <string.h>

#include "common.h"

/* ------------------------------------------------------------------ fields */

/* NOLINTBEGIN(bugprone-sizeof-expression): of a field that is a pointer its own size is meant. */
#define F(type, name) \
    { offsetof(type, name), sizeof(((type *)0)->name) }

#define T tess_runtime_desc
static const tess_field runtime_desc[] = {
    F(T, struct_size),  F(T, flags),       F(T, allocator), F(T, log),       F(T, log_user),
    F(T, backend),      F(T, kernel),      F(T, verbose),   F(T, cache_dir), F(T, tune_file),
    F(T, backend_path), F(T, cpu_threads), F(T, reserved)};
#undef T
#define T tess_device_desc
static const tess_field device_desc[] = {F(T, struct_size), F(T, flags), F(T, id), F(T, native)};
#undef T
#define T tess_pattern
static const tess_field pattern[] = {
    F(T, struct_size),    F(T, kind),   F(T, flags),  F(T, block),       F(T, local),
    F(T, local_right),    F(T, stride), F(T, offset), F(T, dense_heads), F(T, mask_heads),
    F(T, left),           F(T, right),  F(T, sinks),  F(T, mask),        F(T, mask_query_blocks),
    F(T, mask_key_blocks)};
#undef T
#define T tess_layout_desc
static const tess_field layout_desc[] = {F(T, struct_size), F(T, flags),          F(T, pattern),
                                         F(T, n_heads),     F(T, n_kv_heads),     F(T, head_first),
                                         F(T, heads_total), F(T, kv_heads_total), F(T, reserved),
                                         F(T, max_tokens),  F(T, max_chunk),      F(T, head_ids)};
#undef T
#define T tess_plan_desc
static const tess_field plan_desc[] = {
    F(T, struct_size),   F(T, flags),         F(T, op),
    F(T, dtype),         F(T, head_dim),      F(T, value_head_dim),
    F(T, scale),         F(T, softcap),       F(T, batch),
    F(T, q_len),         F(T, kv_len),        F(T, q_lens),
    F(T, kv_lens),       F(T, cu_q_lens),     F(T, cu_kv_lens),
    F(T, kv_split),      F(T, tile_rows),     F(T, determinism),
    F(T, max_in_flight), F(T, time_limit_us), F(T, kernel),
    F(T, kv_dtype),      F(T, page),          F(T, max_rows),
    F(T, q_first),       F(T, kv_first)};
#undef T
#define T tess_run_desc
static const tess_field run_desc[] = {F(T, struct_size),
                                      F(T, flags),
                                      F(T, q),
                                      F(T, k),
                                      F(T, v),
                                      F(T, o),
                                      F(T, lse),
                                      F(T, workspace),
                                      F(T, stream),
                                      F(T, first_job),
                                      F(T, job_count),
                                      F(T, device_seconds),
                                      F(T, sink_logits),
                                      F(T, k_scale),
                                      F(T, v_scale),
                                      F(T, q_lens),
                                      F(T, kv_lens),
                                      F(T, block_table),
                                      F(T, d_o),
                                      F(T, d_q),
                                      F(T, d_k),
                                      F(T, d_v),
                                      F(T, d_lse),
                                      F(T, step),
                                      F(T, table_stride),
                                      F(T, pages),
                                      F(T, k_pools),
                                      F(T, v_pools),
                                      F(T, k_scale_pools),
                                      F(T, v_scale_pools)};
#undef T
#define T tess_backend_info
static const tess_field backend_info[] = {F(T, struct_size), F(T, device_count), F(T, status),
                                          F(T, reserved),    F(T, name),         F(T, reason)};
#undef T
#define T tess_device_info
static const tess_field device_info[] = {
    F(T, struct_size), F(T, kind),    F(T, compute_units), F(T, reserved), F(T, memory_bytes),
    F(T, id),          F(T, backend), F(T, name),          F(T, arch),     F(T, driver)};
#undef T
#define T tess_setting_info
static const tess_field setting_info[] = {F(T, struct_size), F(T, reserved), F(T, name),
                                          F(T, value),       F(T, source),   F(T, meaning)};
#undef T
#define T tess_kernel_info
static const tess_field kernel_info[] = {F(T, struct_size), F(T, op),   F(T, status),
                                         F(T, flags),       F(T, name), F(T, reason),
                                         F(T, most_rows)};
#undef T
#define T tess_rule_info
static const tess_field rule_info[] = {F(T, struct_size), F(T, line),  F(T, built_in),
                                       F(T, basis),       F(T, table), F(T, text)};
#undef T
#define T tess_layout_info
static const tess_field layout_info[] = {
    F(T, struct_size), F(T, n_classes),  F(T, n_heads),      F(T, n_kv_heads), F(T, max_tokens),
    F(T, n_blocks),    F(T, block),      F(T, kv_efficient), F(T, residues),   F(T, residues_total),
    F(T, coverage),    F(T, kept_share), F(T, host_bytes),   F(T, n_storage),  F(T, reserved)};
#undef T
#define T tess_kv_info
static const tess_field kv_info[] = {F(T, struct_size), F(T, reserved),         F(T, blocks),
                                     F(T, blocks_kept), F(T, blocks_allocated), F(T, slots_fixed),
                                     F(T, slots_ring)};
#undef T
#define T tess_storage_info
static const tess_field storage_info[] = {F(T, struct_size), F(T, n_kv_heads), F(T, ring_slots),
                                          F(T, stride), F(T, slots_per_stride)};
#undef T
#define T tess_plan_info
static const tess_field plan_info[] = {
    F(T, struct_size),  F(T, tile_rows),       F(T, n_jobs),          F(T, n_merge_jobs),
    F(T, n_ranges),     F(T, kept_pairs),      F(T, dense_pairs),     F(T, flops),
    F(T, bytes_min),    F(T, workspace_bytes), F(T, workspace_align), F(T, host_bytes),
    F(T, device_bytes), F(T, create_seconds),  F(T, kernel),          F(T, step_bytes),
    F(T, n_storage),    F(T, few_tile_rows),   F(T, few_kernel),      F(T, n_columns),
    F(T, tile_keys),    F(T, reserved)};
#undef T

#define T tess_prepare_desc
static const tess_field prepare_desc[] = {F(T, struct_size), F(T, batch),   F(T, cu_rows),
                                          F(T, kv_lens),     F(T, q_first), F(T, kv_first),
                                          F(T, step),        F(T, stream)};
#undef T
#define T tess_append_desc
static const tess_field append_desc[] = {
    F(T, struct_size), F(T, flags),         F(T, k),
    F(T, v),           F(T, k_scale),       F(T, v_scale),
    F(T, k_pools),     F(T, v_pools),       F(T, step),
    F(T, block_table), F(T, table_stride),  F(T, pages),
    F(T, stream),      F(T, k_scale_pools), F(T, v_scale_pools)};
#undef T
#define T tess_copy_desc
static const tess_field copy_desc[] = {
    F(T, struct_size), F(T, flags), F(T, dtype),   F(T, n_pools), F(T, n_heads), F(T, head_dim),
    F(T, page),        F(T, pages), F(T, n_pairs), F(T, pools),   F(T, pairs),   F(T, stream)};
#undef T

#define T tess_parts_desc
static const tess_field parts_desc[] = {
    F(T, struct_size), F(T, flags),   F(T, n_parts),   F(T, n_heads), F(T, head_dim), F(T, dtype),
    F(T, rows),        F(T, o_parts), F(T, lse_parts), F(T, o),       F(T, lse),      F(T, stream)};
#undef T

/* NOLINTEND(bugprone-sizeof-expression) */

#define STRUCTURE(type, fields) \
    { #type, sizeof(type), _Alignof(type), sizeof(fields) / sizeof *(fields), fields }

const tess_structure tess_structures[TESS_STRUCTURE_COUNT] = {
    [TESS_RUNTIME_DESC] = STRUCTURE(tess_runtime_desc, runtime_desc),
    [TESS_DEVICE_DESC] = STRUCTURE(tess_device_desc, device_desc),
    [TESS_PATTERN] = STRUCTURE(tess_pattern, pattern),
    [TESS_LAYOUT_DESC] = STRUCTURE(tess_layout_desc, layout_desc),
    [TESS_PLAN_DESC] = STRUCTURE(tess_plan_desc, plan_desc),
    [TESS_RUN_DESC] = STRUCTURE(tess_run_desc, run_desc),
    [TESS_BACKEND_INFO] = STRUCTURE(tess_backend_info, backend_info),
    [TESS_DEVICE_INFO] = STRUCTURE(tess_device_info, device_info),
    [TESS_SETTING_INFO] = STRUCTURE(tess_setting_info, setting_info),
    [TESS_KERNEL_INFO] = STRUCTURE(tess_kernel_info, kernel_info),
    [TESS_RULE_INFO] = STRUCTURE(tess_rule_info, rule_info),
    [TESS_LAYOUT_INFO] = STRUCTURE(tess_layout_info, layout_info),
    [TESS_KV_INFO] = STRUCTURE(tess_kv_info, kv_info),
    [TESS_STORAGE_INFO] = STRUCTURE(tess_storage_info, storage_info),
    [TESS_PLAN_INFO] = STRUCTURE(tess_plan_info, plan_info),
    [TESS_APPEND_DESC] = STRUCTURE(tess_append_desc, append_desc),
    [TESS_COPY_DESC] = STRUCTURE(tess_copy_desc, copy_desc),
    [TESS_PARTS_DESC] = STRUCTURE(tess_parts_desc, parts_desc),
    [TESS_PREPARE_DESC] = STRUCTURE(tess_prepare_desc, prepare_desc),
};

/* ------------------------------------------------------------------ sizes */

/* No structure grows by more than this between two versions that understand each other. A larger
 * struct_size was never set, and reading that far would leave the caller's memory. */
enum { LARGEST_UNKNOWN_TAIL = 4096 };

enum { SMALLEST_STRUCTURE = 8 };

/* A structure's size is a multiple of its alignment, and a version ends where the next one's first
 * new field begins. Any other size cuts a field in two, and half a pointer leads to memory that is
 * nobody's. */
static bool size_is_legal(const tess_structure *s, uint32_t size) {
    if (size < SMALLEST_STRUCTURE || size % s->align != 0) return false;
    if (size >= s->size) return size <= (uint32_t)s->size + LARGEST_UNKNOWN_TAIL;
    for (uint32_t n = 1; n < s->n_fields; n++)
        if (s->fields[n].at == size) return true;
    return false;
}

static uint32_t struct_size(const void *structure) {
    uint32_t size;
    memcpy(&size, structure, sizeof size);
    return size;
}

static tess_status check_size(const char *function, const char *field, const void *structure,
                              const tess_structure *s) {
    if (structure == NULL) return tess_invalid("%s: %s: must not be NULL", function, field);
    if (size_is_legal(s, struct_size(structure))) return TESS_OK;
    return tess_fail(TESS_ERROR_VERSION,
                     "%s: %s.struct_size: %u is not the size of %s in any version (here it is %u)",
                     function, field, (unsigned)struct_size(structure), s->name, (unsigned)s->size);
}

tess_status tess_desc_read(const char *function, const char *field, const void *desc, void *copy,
                           tess_structure_id id) {
    const tess_structure *s = &tess_structures[id];
    const unsigned char *bytes = desc;
    TESS_RETURN_IF_ERROR(check_size(function, field, desc, s));
    uint32_t known = s->size, size = struct_size(desc);
    for (uint32_t n = known; n < size; n++)
        if (bytes[n] != 0)
            return tess_fail(TESS_ERROR_VERSION,
                             "%s: %s.struct_size: byte %u is set, but this version of the library "
                             "knows only %u bytes",
                             function, field, (unsigned)n, (unsigned)known);
    if (size > known) size = known;
    memset(copy, 0, known);
    memcpy(copy, desc, size);
    memcpy(copy, &known, sizeof known);
    return TESS_OK;
}

tess_status tess_info_write(const char *function, void *info, const void *full,
                            tess_structure_id id) {
    const tess_structure *s = &tess_structures[id];
    TESS_RETURN_IF_ERROR(check_size(function, "info", info, s));
    size_t size = struct_size(info);
    size_t common = size < s->size ? size : s->size;
    memcpy((unsigned char *)info + sizeof(uint32_t), (const unsigned char *)full + sizeof(uint32_t),
           common - sizeof(uint32_t));
    if (size > s->size) memset((unsigned char *)info + s->size, 0, size - s->size);
    return TESS_OK;
}
