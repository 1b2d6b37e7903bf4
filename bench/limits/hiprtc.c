/* SPDX-License-Identifier: Apache-2.0 */
#include "hiprtc.h"

#include <stdio.h>
#include <stdlib.h>

#include "find.h"

typedef struct compiler {
    int (*create)(void **, const char *, const char *, int, const char **, const char **);
    int (*compile)(void *, int, const char **);
    int (*code_size)(void *, size_t *);
    int (*code)(void *, char *);
    int (*destroy)(void **);
} compiler;

static int find_compiler(compiler *c) {
    static const char *const names[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5",
                                        "libhiprtc.so", NULL};
    const find_names hiprtc = {names, "libhiprtc.so", NULL, find_rocm_folders, "_rocm_sdk_*/lib"};
    void *l = find_library(&hiprtc);
    return l && find_symbols(l, "hiprtcCreateProgram", &c->create, "hiprtcCompileProgram",
                             &c->compile, "hiprtcGetCodeSize", &c->code_size, "hiprtcGetCode",
                             &c->code, "hiprtcDestroyProgram", &c->destroy, NULL);
}

char *hiprtc_compile(const char *source, char *why, size_t size) {
    compiler c;
    void *program = NULL;
    size_t bytes = 0;
    char *code = NULL;
    if (!find_compiler(&c)) return snprintf(why, size, "libhiprtc.so cannot be used"), NULL;
    int status = c.create(&program, source, "loops.hip", 0, NULL, NULL);
    if (status == 0) status = c.compile(program, 0, NULL);
    if (status == 0) status = c.code_size(program, &bytes);
    if (status == 0 && (code = malloc(bytes))) status = c.code(program, code);
    if (program) c.destroy(&program);
    if (status == 0 && code) return code;
    snprintf(why, size, "hiprtc: error %d", status);
    free(code);
    return NULL;
}
