/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings, and how their values are read and checked. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "settings.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#elif !defined(__linux__) && !defined(_WIN32)
#include <unistd.h>
#endif

static const char function[] = "tess_runtime_create";

static const char *const topics[] = {"errors", "device", "dispatch", "plan"};
enum { N_TOPICS = sizeof topics / sizeof topics[0] };

uint32_t tess_topic_bit(const char *topic, size_t length) {
    for (uint32_t n = 0; n < N_TOPICS; n++)
        if (strlen(topics[n]) == length && memcmp(topics[n], topic, length) == 0) return 1u << n;
    return 0;
}

/* ----------------------------------------- checks of the values; no text is empty */

typedef tess_status check_fn(tess_settings *settings, const char *label, const char *text);

static tess_status check_list(tess_settings *settings, const char *label, const char *text) {
    (void)settings;
    size_t length = strlen(text);
    if (text[0] == ',' || text[length - 1] == ',' || strstr(text, ",,") != NULL)
        return tess_invalid("%s: %s: '%.80s' has an empty item", function, label, text);
    return TESS_OK;
}

static tess_status check_kernel(tess_settings *settings, const char *label, const char *text) {
    (void)settings;
    const char *slash = strchr(text, '/');
    if (slash == NULL || slash == text || slash[1] == '\0' ||
        strlen(text) >= sizeof((tess_kernel_info *)0)->name)
        return tess_invalid("%s: %s: '%.80s' is not of the form backend/kernel", function, label,
                            text);
    return TESS_OK;
}

static tess_status check_verbose(tess_settings *settings, const char *label, const char *text) {
    TESS_RETURN_IF_ERROR(check_list(settings, label, text));
    for (const char *item = text; item != NULL;) {
        size_t length = strcspn(item, ",");
        uint32_t bit = length == 3 && memcmp(item, "all", 3) == 0 ? (1u << N_TOPICS) - 1
                                                                  : tess_topic_bit(item, length);
        if (bit == 0)
            return tess_invalid("%s: %s: '%.*s' is none of errors, device, dispatch, plan, all",
                                function, label, (int)(length < 80 ? length : 80), item);
        settings->topics |= bit;
        item = item[length] == ',' ? item + length + 1 : NULL;
    }
    return TESS_OK;
}

static tess_status check_absolute(tess_settings *settings, const char *label, const char *text) {
    (void)settings;
    if (text[0] != '/')
        return tess_invalid("%s: %s: '%.200s' is not an absolute path", function, label, text);
    return TESS_OK;
}

static tess_status check_path(tess_settings *settings, const char *label, const char *text) {
    /* Many programs take an empty item for the current directory, so it is refused like any other
     * relative path. */
    for (const char *item = text; item != NULL;
         item = strchr(item, ':') != NULL ? strchr(item, ':') + 1 : NULL)
        if (item[0] != '/')
            return tess_invalid("%s: %s: '%.*s' is not an absolute path", function, label,
                                (int)(strcspn(item, ":") < 200 ? strcspn(item, ":") : 200), item);
    (void)settings;
    return TESS_OK;
}

static tess_status check_threads(tess_settings *settings, const char *label, const char *text) {
    size_t length = strlen(text);
    unsigned long threads = 0;
    bool digits = length <= 9 && strspn(text, "0123456789") == length;
    if (digits) threads = strtoul(text, NULL, 10);
    if (threads < 1 || threads > TESS_CPU_THREADS_MOST)
        return tess_invalid("%s: %s: '%.80s' is not an integer from 1 to %d", function, label, text,
                            TESS_CPU_THREADS_MOST);
    /* More workers than CPUs would wait for each other: a launch cannot end while one of them
     * sleeps. */
    const uint32_t cpus = tess_cpus_usable();
    settings->cpu_threads = threads < cpus ? (uint32_t)threads : cpus;
    return TESS_OK;
}

/* -------------------------------------------------- the table, in the order of tess_setting_id */

static const struct setting {
    const char *name;    /* environment variable */
    const char *field;   /* of tess_runtime_desc */
    size_t offset;       /* of that field */
    check_fn *check;     /* checks a value and derives what the runtime keeps of it */
    const char *meaning; /* one sentence for users */
} table[TESS_SETTING_COUNT] = {
    [TESS_SETTING_BACKEND] = {"TESSERA_BACKEND", "backend", offsetof(tess_runtime_desc, backend),
                              check_list,
                              "Device to open when the application names none: name, name:index, "
                              "or a comma list in order of preference."},
    [TESS_SETTING_KERNEL] = {"TESSERA_KERNEL", "kernel", offsetof(tess_runtime_desc, kernel),
                             check_kernel,
                             "The only kernel that plans may use, as backend/kernel; a problem "
                             "that it refuses is not supported."},
    [TESS_SETTING_VERBOSE] = {"TESSERA_VERBOSE", "verbose", offsetof(tess_runtime_desc, verbose),
                              check_verbose,
                              "What to log: a comma list of errors, device, dispatch, plan, all."},
    [TESS_SETTING_CACHE_DIR] = {"TESSERA_CACHE_DIR", "cache_dir",
                                offsetof(tess_runtime_desc, cache_dir), check_absolute,
                                "Folder for compiled kernels, an absolute path; by default tessera "
                                "in the user's cache folder, and /dev/null for none."},
    [TESS_SETTING_TUNE_FILE] = {"TESSERA_TUNE_FILE", "tune_file",
                                offsetof(tess_runtime_desc, tune_file), check_absolute,
                                "File of rules that say which kernel is tried first for which "
                                "shape, an absolute path; `tessera tune` measures and writes one."},
    [TESS_SETTING_BACKEND_PATH] = {"TESSERA_BACKEND_PATH", "backend_path",
                                   offsetof(tess_runtime_desc, backend_path), check_path,
                                   "Backend libraries to load: a colon list of absolute paths."},
    [TESS_SETTING_CPU_THREADS] = {"TESSERA_CPU_THREADS", "cpu_threads",
                                  offsetof(tess_runtime_desc, cpu_threads), check_threads,
                                  "Most threads of the CPU backend, 1 to 1024; never more are used "
                                  "than the CPUs that this process may use."},
};

bool tess_process_elevated(void) {
#if defined(__linux__)
    return getauxval(AT_SECURE) != 0;
#elif defined(_WIN32)
    return false;
#else
    return issetugid() != 0;
#endif
}

static const char *environment(const char *name) {
#if defined(__GLIBC__)
    return secure_getenv(name);
#else
    return tess_process_elevated() ? NULL : getenv(name);
#endif
}

static tess_status store(tess_runtime *runtime, tess_settings *settings, tess_setting_id id,
                         const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = tess_mem_alloc(runtime, bytes, 1);
    if (copy == NULL)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: %s: %zu bytes", function, table[id].name,
                         bytes);
    memcpy(copy, text, bytes);
    settings->values[id].text = copy;
    settings->values[id].bytes = bytes;
    return TESS_OK;
}

tess_status tess_settings_read(tess_runtime *runtime, const tess_runtime_desc *desc,
                               tess_settings *settings) {
    for (tess_setting_id id = 0; id < TESS_SETTING_COUNT; id++) {
        char number[16];
        const char *text = NULL;
        tess_source source = TESS_SOURCE_DESCRIPTOR;
        const unsigned char *field = (const unsigned char *)desc + table[id].offset;
        if (id == TESS_SETTING_CPU_THREADS) {
            uint32_t threads;
            memcpy(&threads, field, sizeof threads);
            snprintf(number, sizeof number, "%u", threads);
            if (threads != 0) text = number;
        } else
            memcpy(&text, field, sizeof text);
        if (text == NULL) {
            source = TESS_SOURCE_ENVIRONMENT;
            text = environment(table[id].name);
            if (text == NULL || text[0] == '\0') source = TESS_SOURCE_DEFAULT;
        }
        settings->values[id].source = source;
        if (text == NULL || text[0] == '\0') {
            if (id != TESS_SETTING_CPU_THREADS) continue;
            snprintf(number, sizeof number, "%u", tess_cpus_usable());
            text = number;
        }
        TESS_RETURN_IF_ERROR(table[id].check(settings, tess_setting_label(settings, id), text));
        TESS_RETURN_IF_ERROR(store(runtime, settings, id, text));
    }
    return TESS_OK;
}

void tess_settings_free(tess_runtime *runtime, tess_settings *settings) {
    for (tess_setting_id id = 0; id < TESS_SETTING_COUNT; id++)
        tess_mem_free(runtime, settings->values[id].text, settings->values[id].bytes);
}

const char *tess_setting_value(const tess_settings *settings, tess_setting_id id) {
    return settings->values[id].text != NULL ? settings->values[id].text : "";
}

const char *tess_setting_label(const tess_settings *settings, tess_setting_id id) {
    return settings->values[id].source == TESS_SOURCE_DESCRIPTOR ? table[id].field : table[id].name;
}

const char *tess_setting_named(const tess_settings *settings, const char *name) {
    for (tess_setting_id id = 0; id < TESS_SETTING_COUNT; id++)
        if (strcmp(table[id].name, name) == 0) return tess_setting_value(settings, id);
    return "";
}

tess_setting_info tess_setting_describe(const tess_settings *settings, tess_setting_id id) {
    static const char *const sources[] = {"default", "environment", "descriptor"};
    return (tess_setting_info){.struct_size = sizeof(tess_setting_info),
                               .name = table[id].name,
                               .value = tess_setting_value(settings, id),
                               .source = sources[settings->values[id].source],
                               .meaning = table[id].meaning};
}
