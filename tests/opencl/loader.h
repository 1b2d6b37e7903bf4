/* SPDX-License-Identifier: Apache-2.0 */
/* What the loader that fails on request counts, and how it is told to fail. */
#ifndef TESSERA_TESTS_OPENCL_LOADER_H
#define TESSERA_TESTS_OPENCL_LOADER_H

enum {
    LOADER_CONTEXT,
    LOADER_QUEUE,
    LOADER_MEM,
    LOADER_PROGRAM,
    LOADER_KERNEL,
    LOADER_EVENT,
    LOADER_DEVICE,
    LOADER_KINDS
};

typedef struct loader_control {
    int calls;              /* since it was last set to 0 */
    int fail_at;            /* the call that fails, counted from 1; 0: none */
    int sticky;             /* every later call fails as well */
    int code;               /* the error that failing calls give */
    int failures;           /* calls that failed */
    const char *failed;     /* the name of the last of them */
    int refused;            /* programs that nvidia.h had refused */
    int live[LOADER_KINDS]; /* references taken and not given back, by kind */
    int shown; /* the state that every event seems to have: CL_RUNNING or an error; 0: the truth */
} loader_control;

/* Exported by the loader. */
typedef loader_control *loader_control_fn(void);

#endif
