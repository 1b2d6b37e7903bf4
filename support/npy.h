/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files (format versions 1.0, 2.0 and 3.0): C-ordered arrays of f4, f2, u2 and b1/u1,
 * little endian. The reader treats the file as hostile. */
#ifndef TESSERA_SUPPORT_NPY_H
#define TESSERA_SUPPORT_NPY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { NPY_MAX_DIMS = 8 };
typedef enum npy_type { NPY_F32, NPY_F16, NPY_U16, NPY_BOOL, NPY_U8 } npy_type;

typedef struct npy_array {
    npy_type type;
    int n_dims;
    int64_t shape[NPY_MAX_DIMS];
    size_t bytes;
    void *data; /* owned, 64-byte aligned */
} npy_array;

size_t npy_type_size(npy_type type);
const char *npy_type_name(npy_type type); /* "float32", ... */

/* All return 0, or -1 with one line in `error`. Fortran order, big endian, unknown types, truncated
 * and over-long files are refused by name. npy_parse reads from memory (what the fuzz target
 * calls); the array owns a copy. */
int npy_parse(npy_array *array, const void *bytes, size_t size, char *error, size_t error_size);
int npy_read(npy_array *array, const char *path, char *error, size_t error_size);
/* Writes to a temporary file beside `path` and renames it; on failure nothing is left. */
int npy_write(const char *path, npy_type type, int n_dims, const int64_t *shape, const void *data,
              char *error, size_t error_size);
/* The same bytes into an open stream, whose errors the caller finds out about when it closes it.
 * n_dims is 1 to NPY_MAX_DIMS. */
void npy_put(FILE *stream, npy_type type, int n_dims, const int64_t *shape, const void *data);
void npy_free(npy_array *array);

#endif
