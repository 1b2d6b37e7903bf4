/* SPDX-License-Identifier: Apache-2.0 */
#include "find.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATTERN = 1024 };

/* dlsym gives an object pointer; POSIX says that its bytes are those of the function pointer. */
int find_symbol(void *library, const char *name, void *function) {
    void *p = dlsym(library, name);
    memcpy(function, &p, sizeof p);
    return p != NULL;
}

int find_symbols(void *library, ...) {
    const char *name;
    int found = 1;
    va_list list;
    va_start(list, library);
    while (found && (name = va_arg(list, const char *)))
        found = find_symbol(library, name, va_arg(list, void *));
    va_end(list);
    return found;
}

const char *const find_rocm_folders[] = {"$ROCM_PATH/lib", "/opt/rocm*/lib", NULL};

void *find_named(const char *const *names) {
    void *library = NULL;
    for (int i = 0; names[i] && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* Opens the first file of a folder that can be opened, what it needs from the same folder first. */
static void *open_in(const find_names *f, const char *folder) {
    char pattern[PATTERN + 64];
    glob_t found;
    void *library = NULL;
    snprintf(pattern, sizeof pattern, "%s/%s*", folder, f->file);
    if (glob(pattern, 0, NULL, &found) != 0) return NULL;
    for (size_t i = found.gl_pathc; i-- > 0 && !library;) { /* the newest version first */
        const char *path = found.gl_pathv[i], *name = strrchr(path, '/') + 1;
        char other[PATTERN];
        if (f->needs) {
            snprintf(other, sizeof other, "%.*s%s%s", (int)(name - path), path, f->needs,
                     name + strlen(f->file));
            dlopen(other, RTLD_NOW | RTLD_GLOBAL);
        }
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    globfree(&found);
    return library;
}

/* A pattern whose first part may be a variable. */
static void *open_folder(const find_names *f, const char *folder) {
    char name[64], whole[PATTERN];
    if (folder[0] != '$') return open_in(f, folder);
    const size_t length = strcspn(folder, "/");
    snprintf(name, sizeof name, "%.*s", (int)length - 1, folder + 1);
    const char *value = getenv(name);
    if (!value || !value[0] || strlen(value) > PATTERN / 2) return NULL;
    snprintf(whole, sizeof whole, "%s%s", value, folder + length);
    return open_in(f, whole);
}

/* Packages of the Python that the search path names, which may be of a virtual environment. */
static void *open_of_python(const find_names *f, const char *path) {
    void *library = NULL;
    while (path && *path && !library) {
        const int length = (int)strcspn(path, ":");
        char file[PATTERN];
        snprintf(file, sizeof file, "%.*s/python3", length < PATTERN / 2 ? length : 0, path);
        if (length && access(file, X_OK) == 0) {
            snprintf(file, sizeof file, "%.*s/../lib*/python3*/*-packages/%s",
                     length < PATTERN / 2 ? length : 0, path, f->package);
            library = open_in(f, file);
        }
        path += length + (path[length] == ':');
    }
    return library;
}

void *find_library(const find_names *f) {
    static const char *const roots[] = {
        "$VIRTUAL_ENV/lib/python3*/*-packages", "$CONDA_PREFIX/lib/python3*/*-packages",
        "$HOME/.local/lib/python3*/*-packages", "/usr/lib/python3*/*-packages",
        "/usr/local/lib/python3*/*-packages"};
    void *library = find_named(f->names);
    for (int i = 0; f->folders[i] && !library; i++) library = open_folder(f, f->folders[i]);
    for (size_t i = 0; i < sizeof roots / sizeof *roots && f->package && !library; i++) {
        char folder[PATTERN];
        snprintf(folder, sizeof folder, "%s/%s", roots[i], f->package);
        library = open_folder(f, folder);
    }
    return library || !f->package ? library : open_of_python(f, getenv("PATH"));
}
