/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *tess_library_open(const char *const *names, char *why, size_t size) {
    size_t used = 0;
    if (size) why[0] = '\0';
    for (size_t n = 0; names[n]; n++) {
        void *library = dlopen(names[n], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        const char *reason = dlerror();
        if (used < size)
            used += (size_t)snprintf(why + used, size - used, "%s%s", used ? "; " : "",
                                     reason ? reason : names[n]);
    }
    return NULL;
}

int tess_library_symbols(void *library, const char *const *names, void (**table)(void), char *why,
                         size_t size) {
    for (size_t n = 0; names[n]; n++) {
        const int optional = names[n][0] == '?';
        void *symbol = dlsym(library, names[n] + optional);
        if (!symbol && !optional) {
            snprintf(why, size, "the driver is too old: it has no %s", names[n]);
            return 0;
        }
        memcpy(&table[n], &symbol, sizeof symbol);
    }
    return 1;
}
