/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_init(table *t, int columns, const char *const *heads) {
    *t = (table){.columns = columns, .heads = heads};
}

void table_cell(table *t, const char *format, ...) {
    char text[2304];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *copy = strdup(text);
    /* One row more at a time: tables have some hundred rows at most. */
    if (copy && t->n_cells % t->columns == 0) {
        char **larger = realloc(t->cells, (size_t)(t->n_cells + t->columns) * sizeof *larger);
        if (larger)
            t->cells = larger;
        else
            t->failed = 1;
    }
    if (!copy || t->failed) {
        t->failed = 1;
        free(copy);
        return;
    }
    t->cells[t->n_cells++] = copy;
}

int table_free(table *t) {
    int failed = t->failed;
    for (int i = 0; i < t->n_cells; i++) free(t->cells[i]);
    free(t->cells);
    *t = (table){0};
    return failed ? -1 : 0;
}

static int rows(const table *t) { return t->n_cells / t->columns; }
static int left(const table *t, int column) { return t->heads[column][0] == '<'; }
static const char *head(const table *t, int column) { return t->heads[column] + left(t, column); }

/* Columns on the screen: UTF-8 continuation bytes take none. */
static int width(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void padded(FILE *f, const char *text, int columns, int to_left) {
    int blanks = columns - width(text);
    if (blanks < 0) blanks = 0;
    fprintf(f, "%*s%s%*s", to_left ? 0 : blanks, "", text, to_left ? blanks : 0, "");
}

static int widest(const table *t, int column) {
    int most = width(head(t, column));
    for (int i = 0; i < rows(t); i++) {
        int w = width(t->cells[i * t->columns + column]);
        if (w > most) most = w;
    }
    return most;
}

void table_text(const table *t, FILE *f) {
    enum { SCREEN = 120 };
    int total = 0;
    for (int c = 0; c < t->columns; c++) total += widest(t, c) + 2;
    int gap = total - 2 > SCREEN ? 1 : 2;
    for (int r = -1; r < rows(t); r++) {
        for (int c = 0; c < t->columns; c++) {
            const char *text = r < 0 ? head(t, c) : t->cells[r * t->columns + c];
            /* No blanks at the end of a line. */
            padded(f, text, c + 1 == t->columns && left(t, c) ? 0 : widest(t, c), left(t, c));
            fprintf(f, "%*s", c + 1 < t->columns ? gap : 0, "");
        }
        fputc('\n', f);
    }
}

void write_markdown_escaped(FILE *f, const char *text) {
    for (; *text; text++) {
        if (strchr("|<>\\`*_[]", *text)) fputc('\\', f);
        fputc(*text, f);
    }
}

void table_markdown(const table *t, FILE *f) {
    for (int r = -1; r < rows(t); r++) {
        fputc('|', f);
        for (int c = 0; c < t->columns; c++) {
            fputc(' ', f);
            write_markdown_escaped(f, r < 0 ? head(t, c) : t->cells[r * t->columns + c]);
            fputs(" |", f);
        }
        fputc('\n', f);
        if (r >= 0) continue;
        fputc('|', f);
        for (int c = 0; c < t->columns; c++) fputs(left(t, c) ? " --- |" : " ---: |", f);
        fputc('\n', f);
    }
}

void write_html_escaped(FILE *f, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        case '\'': fputs("&#39;", f); break;
        default: fputc(*text, f);
        }
    }
}

void table_html(const table *t, FILE *f) {
    /* The style aligns columns on the left by their number, up to this many. */
    enum { MOST_FIRST = 4 };
    int first = 0;
    while (first < MOST_FIRST && first < t->columns && left(t, first)) first++;
    fprintf(f, "<div class=\"wide\" tabindex=\"0\"><table class=\"list first%d\">\n", first);
    for (int r = -1; r < rows(t); r++) {
        fputs(r < 0 ? "<thead><tr>" : "<tr>", f);
        for (int c = 0; c < t->columns; c++) {
            const char *tag = r < 0 ? "th" : "td";
            fprintf(f, "<%s%s>", tag, c >= first && left(t, c) ? " class=\"l\"" : "");
            write_html_escaped(f, r < 0 ? head(t, c) : t->cells[r * t->columns + c]);
            fprintf(f, "</%s>", tag);
        }
        fputs(r < 0 ? "</tr></thead><tbody>\n" : "</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
}
