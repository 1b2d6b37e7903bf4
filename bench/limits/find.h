/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are in the system, or in folders that the loader does not know. */
#ifndef TESSERA_BENCH_LIMITS_FIND_H
#define TESSERA_BENCH_LIMITS_FIND_H

typedef struct find_names {
    const char *const *names; /* for the loader, the best first; a NULL at the end */
    const char *file;         /* "libcublas.so": how the files begin */
    const char *needs;        /* another file's beginning that has to be open before, or NULL */
    /* folders, as patterns, before the last part of which a variable of the environment may stand:
     * "$CUDA_HOME/lib64"; a NULL at the end */
    const char *const *folders;
    const char *package; /* below site-packages, as a pattern; NULL: in none */
} find_names;

/* An open library, or NULL. */
void *find_library(const find_names *f);

/* The first of some files that the loader opens, a NULL at the end; or NULL. */
void *find_named(const char *const *names);

/* Where ROCm's libraries lie. */
extern const char *const find_rocm_folders[];

/* dlsym into a pointer to a function; 1 when it is there. */
int find_symbol(void *library, const char *name, void *function);
/* The same of pairs of a name and a pointer, a NULL at the end; 1 when all are there. */
int find_symbols(void *library, ...) __attribute__((sentinel));

#endif
