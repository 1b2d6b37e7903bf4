/* SPDX-License-Identifier: Apache-2.0 */
/* The state behind tess_runtime. */
#ifndef TESSERA_CORE_RUNTIME_H
#define TESSERA_CORE_RUNTIME_H

#include <pthread.h>

#include "backends.h"
#include "common.h"
#include "settings.h"
#include "spare.h"
#include "tune.h"

struct tess_runtime {
    atomic_uint refs;
    bool elevated;       /* the process has more rights than its user */
    unsigned generation; /* number of fork() calls that led to the process that made the runtime */
    uint64_t id;         /* never used twice in a process */
    tess_runtime *next;  /* in the list of runtimes that log errors */
    tess_allocator allocator;
    tess_log_fn log;
    void *log_user;
    tess_settings settings;
    tess_tune tune;          /* from the file that the setting names */
    pthread_mutex_t probing; /* guards the results of probing in `backends` */
    tess_backend_entry *backends;
    size_t backends_bytes;
    uint32_t n_backends;
    tess_spares spares;
};

#endif
