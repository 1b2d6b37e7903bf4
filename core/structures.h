/* SPDX-License-Identifier: Apache-2.0 */
/* The structures that begin with struct_size: where their fields lie, and how they are read and
 * written for callers of other versions. */
#ifndef TESSERA_CORE_STRUCTURES_H
#define TESSERA_CORE_STRUCTURES_H

#include <stddef.h>
#include <stdint.h>

#include <tessera/tessera.h>

typedef enum tess_structure_id {
    TESS_RUNTIME_DESC,
    TESS_DEVICE_DESC,
    TESS_PATTERN,
    TESS_LAYOUT_DESC,
    TESS_PLAN_DESC,
    TESS_RUN_DESC,
    TESS_BACKEND_INFO,
    TESS_DEVICE_INFO,
    TESS_SETTING_INFO,
    TESS_KERNEL_INFO,
    TESS_RULE_INFO,
    TESS_LAYOUT_INFO,
    TESS_KV_INFO,
    TESS_STORAGE_INFO,
    TESS_PLAN_INFO,
    TESS_APPEND_DESC,
    TESS_COPY_DESC,
    TESS_PARTS_DESC,
    TESS_PREPARE_DESC,
    TESS_STRUCTURE_COUNT
} tess_structure_id;

typedef struct tess_field {
    uint16_t at, size;
} tess_field;

typedef struct tess_structure {
    const char *name;
    uint16_t size, align;
    uint16_t n_fields;
    const tess_field *fields; /* all of them, in order, struct_size first */
} tess_structure;

extern const tess_structure tess_structures[TESS_STRUCTURE_COUNT];

/*
 * Copies a descriptor of any version into `copy`, which gets this version's size: fields that the
 * caller's version lacks are zero, and bytes that this version does not know must be zero. Messages
 * call the descriptor `field`. INVALID: NULL. VERSION: a struct_size that no version has had.
 */
tess_status tess_desc_read(const char *function, const char *field, const void *desc, void *copy,
                           tess_structure_id id);

/* Writes `full` over the caller's info structure: at most its struct_size bytes, and zeros where
 * the caller's version has fields that this one does not know. Fails as tess_desc_read does. */
tess_status tess_info_write(const char *function, void *info, const void *full,
                            tess_structure_id id);

#endif
