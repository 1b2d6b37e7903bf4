/* SPDX-License-Identifier: Apache-2.0 */
#include "page_compact.h"

#include <ctype.h>
#include <string.h>

typedef struct text {
    const char *at, *end;
} text;

static int starts(const text *t, const char *word) {
    const size_t n = strlen(word);
    return (size_t)(t->end - t->at) >= n && memcmp(t->at, word, n) == 0;
}

/* Writes on to the end of `word`, or of the page. */
static void copy_to(text *t, const char *word, FILE *f) {
    while (t->at < t->end && !starts(t, word)) fputc(*t->at++, f);
}

/* A script or a style, whose lines stand on their own: no string of ours spans two. The licence's
 * name stays. */
static void copy_code(text *t, const char *end, FILE *f) {
    int comment = 0;
    while (t->at < t->end && !starts(t, end)) {
        while (t->at < t->end && *t->at == ' ') t->at++;
        const char *line = t->at, *stop = memchr(line, '\n', (size_t)(t->end - line));
        if (!stop) stop = t->end - 1;
        comment |= starts(t, "/*") && !starts(t, "/* SPDX");
        if (!comment && !starts(t, "//") && stop > line && !starts(t, end))
            fwrite(line, 1, (size_t)(stop - line) + 1, f);
        if (starts(t, end)) return;
        if (comment)
            for (const char *c = line; c < stop; c++)
                if (c[0] == '*' && c[1] == '/') comment = 0;
        t->at = stop + 1;
    }
}

/* JSON between two line ends. */
static void copy_data(text *t, FILE *f) {
    fputc('\n', f);
    for (; t->at < t->end && !starts(t, "</script>"); t->at++)
        if (*t->at != '\n') fputc(*t->at, f);
    fputc('\n', f);
}

/* A value that ends where a space or the tag does needs no quotes. */
static int is_plain(const char *from, const char *to) {
    static const char others[] = "_.:%#+-";
    for (const char *c = from; c < to; c++)
        if (!isalnum((unsigned char)*c) && !memchr(others, *c, sizeof others - 1)) return 0;
    return from < to;
}

/* A tag up to its '>'. Text in it is escaped, so that a '>' is its end. */
static void copy_tag(text *t, FILE *f) {
    while (t->at < t->end && *t->at != '>') {
        const char *value = t->at + 2,
                   *stop = starts(t, "=\"") ? memchr(value, '"', (size_t)(t->end - value)) : NULL;
        if (stop && is_plain(value, stop)) {
            fprintf(f, "=%.*s%s", (int)(stop - value), value, stop[1] == '/' ? " " : "");
            t->at = stop + 1;
        } else {
            fputc(*t->at++, f);
        }
    }
}

static int skips_end_tag(text *t, int bars) {
    static const char *const tags[] = {"</td>", "</th>", "</tr>",    "</li>",
                                       "</dd>", "</dt>", "</tbody>", "</thead>"};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (starts(t, tags[i])) {
            t->at += strlen(tags[i]);
            return 1;
        }
    /* Between bars, which nothing else stands beside. */
    if (!bars || !starts(t, "</p>")) return 0;
    t->at += strlen("</p>");
    return 1;
}

void page_compact(const char *page, size_t size, FILE *f) {
    text t = {page, page + size};
    int inside = 0; /* a picture, bars, a table below the first */
    while (t.at < t.end) {
        if (starts(&t, "<style>\n") || starts(&t, "<script>\n")) {
            const char *end = t.at[2] == 't' ? "</style>" : "</script>";
            copy_to(&t, "\n", f);
            copy_code(&t, end, f);
        } else if (starts(&t, "<script type=\"application/json\"")) {
            copy_to(&t, "\n", f);
            copy_data(&t, f);
        } else if (starts(&t, "<script")) { /* the chart library and its licence */
            copy_to(&t, "</script>", f);
        }
        if (starts(&t, "<svg")) inside |= 1;
        if (starts(&t, "</svg")) inside &= ~1;
        if (starts(&t, "<div class=\"bars\"")) inside |= 2;
        if (starts(&t, "<table class=\"list")) inside |= 4;
        if (starts(&t, "</table")) inside &= ~4;
        if (starts(&t, "<h3") || starts(&t, "</section")) inside &= ~2;
        if (t.at + 1 < t.end && *t.at == '<' && isalpha((unsigned char)t.at[1])) {
            copy_tag(&t, f);
        } else if (t.at < t.end && !skips_end_tag(&t, inside & 2)) {
            if (!inside || *t.at != '\n') fputc(*t.at, f);
            t.at++;
        }
    }
}
