/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a runtime: one table of names, meanings and checks, and the values that a runtime
 * was created with. */
#ifndef TESSERA_CORE_SETTINGS_H
#define TESSERA_CORE_SETTINGS_H

#include "common.h"

typedef enum tess_setting_id {
    TESS_SETTING_BACKEND,
    TESS_SETTING_KERNEL,
    TESS_SETTING_VERBOSE,
    TESS_SETTING_CACHE_DIR,
    TESS_SETTING_TUNE_FILE,
    TESS_SETTING_BACKEND_PATH,
    TESS_SETTING_CPU_THREADS,
    TESS_SETTING_COUNT
} tess_setting_id;

enum { TESS_CPU_THREADS_MOST = 1024 };

typedef enum tess_source {
    TESS_SOURCE_DEFAULT,
    TESS_SOURCE_ENVIRONMENT,
    TESS_SOURCE_DESCRIPTOR
} tess_source;

typedef struct tess_settings {
    struct {
        char *text; /* from the runtime's allocator, NULL when unset */
        size_t bytes;
        tess_source source;
    } values[TESS_SETTING_COUNT];
    uint32_t topics;      /* bit n: topic n of TESSERA_VERBOSE */
    uint32_t cpu_threads; /* the setting's value, but never more than the usable CPUs */
} tess_settings;

/* Fills *settings, which are zero, from the descriptor, then the environment, and checks everything
 * but the names of backends, which are not known yet. On failure the settings may be half filled;
 * tess_settings_free copes. */
tess_status tess_settings_read(tess_runtime *runtime, const tess_runtime_desc *desc,
                               tess_settings *settings);
void tess_settings_free(tess_runtime *runtime, tess_settings *settings);

/* "" where unset */
const char *tess_setting_value(const tess_settings *settings, tess_setting_id id);
/* the same by the name in the environment; "" for a name that is no setting */
const char *tess_setting_named(const tess_settings *settings, const char *name);
tess_setting_info tess_setting_describe(const tess_settings *settings, tess_setting_id id);
/* What to call a setting in a message: the descriptor's field or the environment variable,
 * whichever it came from. */
const char *tess_setting_label(const tess_settings *settings, tess_setting_id id);

/* Whether this process has more rights than the user who started it (set-user-ID, set-group-ID,
 * file capabilities). The user's environment must not decide what code such a process runs. */
bool tess_process_elevated(void);

/* The bit of a topic of TESSERA_VERBOSE; 0 for an unknown name. */
uint32_t tess_topic_bit(const char *topic, size_t length);

/* cpus.c: how many CPUs this process may keep busy: its affinity mask, lowered to the quota of its
 * control groups; at least 1. */
uint32_t tess_cpus_usable(void);
/* CPUs that control groups grant a process, rounded up, UINT32_MAX without a quota: `membership`
 * lists the groups of the process, `mount` holds them. */
uint32_t tess_cpus_quota(const char *membership, const char *mount);

#endif
