/* SPDX-License-Identifier: Apache-2.0 */
#include "submit.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Appends letters and digits in small letters, and one hyphen for whatever lies between them. */
static void append_slug(char *to, size_t size, const char *text, size_t most) {
    size_t n = strlen(to);
    const size_t end = n + most < size - 1 ? n + most : size - 1;
    for (int gap = n > 0; *text && n < end; text++) {
        const unsigned char c = (unsigned char)*text;
        if (!isalnum(c)) {
            gap = n > 0;
            continue;
        }
        if (gap && to[n - 1] != '-') to[n++] = '-';
        gap = 0;
        if (n < end) to[n++] = (char)tolower(c);
    }
    to[n] = 0;
}

void submit_name(const bench_report *r, char *name, size_t size) {
    const char *device = r->machine.cpu;
    char time[24] = "";
    size_t n = 0;
    for (int i = r->n_devices - 1; i >= 0; i--)
        if (strcmp(r->devices[i].kind, "gpu") == 0) device = r->devices[i].name;
    for (const char *c = r->created; *c && n + 1 < sizeof time; c++)
        if (isalnum((unsigned char)*c)) time[n++] = *c;
    time[n] = 0;
    if (size) name[0] = 0;
    if (size < 80) return;
    append_slug(name, size - 32, device, 48);
    n = strlen(name);
    snprintf(name + n, size - n, "%s%s.json", n ? "-" : "tessera-", time);
}

/* Puts dots in place of each path from the root or a home, as messages of other programs name them:
 * a slash or tilde at the beginning of a word, up to its end. */
static void hide_paths(char *text) {
    char *to = text;
    for (const char *at = text; *at;) {
        const int begins = at == text || strchr(" \"'(=:,", at[-1]) != NULL;
        const size_t length = strcspn(at, " \"'():,;");
        if (begins && strchr("/~", *at) && length > 1) {
            for (size_t i = 0; i < 3 && i < length; i++) *to++ = '.';
            at += length;
        } else {
            *to++ = *at++;
        }
    }
    *to = 0;
}

void submit_clean(bench_report *r) {
    snprintf(r->command, sizeof r->command, "tessera bench %.120s", r->suite);
    int kept = 0;
    for (int i = 0; i < r->n_settings; i++)
        if (!strchr(r->settings[i].value, '/')) r->settings[kept++] = r->settings[i];
    r->n_settings = kept;
    for (int i = 0; i < r->n_devices; i++) hide_paths(r->devices[i].ceiling_note);
    for (int i = 0; i < r->n_peers; i++) hide_paths(r->peers[i].note);
    for (int i = 0; i < r->n_results; i++) hide_paths(r->results[i].note);
}
