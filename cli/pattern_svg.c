/* SPDX-License-Identifier: Apache-2.0 */
/* The page around the traces: a grid of panels, one a head, with axes, a legend and what the
 * pattern means. Heads that look alike are drawn once and reused. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "pattern.h"
#include "text.h"

enum {
    MAIN_BUDGET = 1280 * 1024, /* bytes of all traces: what browsers and viewers open at once */
    INSET_BUDGET = 384 * 1024,
    EXACT_CELLS = 32, /* up to this many blocks a side single blocks are set apart by lines */
    /* blocks a side of the inset that shows the start of a large pattern, where the panel cannot
     * resolve single blocks */
    INSET_MAX = 64,
    INSET_MIN = 16,
};

static const struct {
    const char *colour, *name;
} kinds[N_KINDS] = {
    [KIND_LOCAL] = {"#2563eb", "local"}, [KIND_STRIDED] = {"#f59e0b", "strided"},
    [KIND_DENSE] = {"#7c3aed", "dense"}, [KIND_WINDOW] = {"#0d9488", "window"},
    [KIND_SINK] = {"#e11d48", "sinks"},  [KIND_MASK] = {"#475569", "kept by the mask"},
};

static int32_t panels_of(const problem *p) {
    return p->heads < PATTERN_PANELS ? p->heads : PATTERN_PANELS;
}

/* Sizes in pixels of the page. */
typedef struct page {
    double width, height, left, top, side, gap_x, gap_y;
    int32_t columns, rows;
} page;

static const double margin = 28, axis_room = 46, header = 134, footer_line = 18, inset_share = 0.46;

/* Columns such that few places stay empty and the page is wider than high. */
static int32_t choose_columns(int32_t heads) {
    int32_t best = 1;
    double least = INFINITY;
    for (int32_t columns = 1; columns <= heads && columns <= 2 * sqrt(heads) + 2; columns++) {
        int32_t rows = (heads + columns - 1) / columns;
        int32_t empty = rows * columns - heads;
        double cost = empty + 4 * fabs(log((double)columns / rows / 1.6));
        if (cost < least) {
            least = cost;
            best = columns;
        }
    }
    return best;
}

static page lay_out(int32_t heads, int footer_lines) {
    page g = {.left = margin + axis_room, .top = header};
    g.columns = choose_columns(heads);
    g.rows = (heads + g.columns - 1) / g.columns;
    g.gap_x = heads == 1 ? 0 : 18;
    g.gap_y = heads == 1 ? 0 : 32;
    double wanted = 1160.0 / g.columns - g.gap_x;
    g.side = wanted > 620 ? 620 : wanted < 84 ? 84 : wanted;
    if (g.rows > 1 && g.side > 430) g.side = 430;
    g.width = g.left + g.columns * g.side + (g.columns - 1) * g.gap_x + margin;
    if (g.width < 800) g.width = 800; /* the legend's width */
    g.height = g.top + g.rows * g.side + (g.rows - 1) * g.gap_y + axis_room + 14 +
               footer_lines * footer_line + margin;
    return g;
}

/* What all panels show: how many blocks a cell of the picture has on a side, and of how many blocks
 * the inset consists (0: none). */
typedef struct view {
    int64_t blocks, cell, inset;
} view;

static view choose_view(const problem *p, const page *g, int64_t blocks) {
    view v = {.blocks = blocks, .cell = 1};
    /* cells well below a pixel would only blur */
    while ((double)blocks / (double)v.cell > 1.5 * g->side) v.cell *= 2;
    int64_t detail = p->pattern == TESS_PATTERN_S2 ? p->local + 3 * (int64_t)p->stride : INSET_MAX;
    detail = detail < INSET_MIN ? INSET_MIN : detail > INSET_MAX ? INSET_MAX : detail;
    /* In causal order the upper right triangle is free. Blocks below a pixel would show nothing. */
    if (p->causal && (double)blocks > g->side / 3 && 4 * detail <= blocks &&
        (double)detail <= inset_share * g->side)
        v.inset = detail;
    return v;
}

/* Text of the user's (file names) inside markup. */
static void escaped(FILE *f, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '&')
            fputs("&amp;", f);
        else if (c == '<')
            fputs("&lt;", f);
        else if (c == '>')
            fputs("&gt;", f);
        else
            fputc(c < ' ' || c >= 0x7f ? '?' : c, f);
    }
}

/* ------------------------------------------------------------------ page furniture */

static void write_legend(FILE *f, const problem *p, const page *g, unsigned used) {
    double x = g->left, y = 84;
    const char *th = p->stride % 100 / 10 == 1 ? "th"
                     : p->stride % 10 == 1     ? "st"
                     : p->stride % 10 == 2     ? "nd"
                     : p->stride % 10 == 3     ? "rd"
                                               : "th";
    for (int kind = 1; kind < N_KINDS; kind++) {
        if (!(used >> kind & 1)) continue;
        char label[128];
        if (kind == KIND_LOCAL && !p->causal)
            snprintf(label, sizeof label,
                     "local: %" PRId32 " to the left, %" PRId32
                     " to the right, the diagonal in both",
                     p->local, p->local_right);
        else if (kind == KIND_LOCAL)
            snprintf(label, sizeof label, "local: %" PRId32 " block%s to the diagonal", p->local,
                     p->local == 1 ? "" : "s");
        else if (kind == KIND_STRIDED && p->causal)
            snprintf(label, sizeof label, "strided: every %" PRId32 "%s block%s", p->stride, th,
                     p->homo ? "" : ", shifted by head");
        else if (kind == KIND_STRIDED)
            snprintf(label, sizeof label, "strided: every %" PRId32 "%s block", p->stride, th);
        else if (kind == KIND_DENSE && p->pattern == TESS_PATTERN_S2)
            snprintf(label, sizeof label, "dense head");
        else if (kind == KIND_SINK)
            snprintf(label, sizeof label, "sinks: the first %" PRId64 " tokens", p->sinks);
        else
            snprintf(label, sizeof label, "%s", kinds[kind].name);
        fprintf(f,
                "<rect x='%.1f' y='%.1f' width='13' height='13' rx='2.5' fill='%s'/><text x='%.1f' "
                "y='%.1f' class='l'>",
                x, y, kinds[kind].colour, x + 19, y + 11);
        fprintf(f, "%s</text>\n", label);
        x += 19 + 6.6 * (double)strlen(label) + 26;
    }
    fprintf(f,
            "<rect x='%.1f' y='%.1f' width='13' height='13' rx='2.5' fill='#eceff3'/><text "
            "x='%.1f' y='%.1f' class='l'>not kept</text>\n",
            x, y, x + 19, y + 11);
}

static void write_head(FILE *f, const problem *p, const page *g, const tess_layout_info *info,
                       const view *v) {
    static const char *const names[] = {"Dense attention", "S2 attention", "Window attention",
                                        "Block mask"};
    char tokens[TEXT_SIZE];
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' "
            "width='%.0f' height='%.0f' viewBox='0 0 %.0f %.0f' "
            "font-family=\"Inter,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif\">\n",
            g->width, g->height, g->width, g->height);
    fputs("<style>.t{font-size:21px;font-weight:600;fill:#0f172a}.s{font-size:12.5px;fill:#64748b}."
          "l{font-size:12.5px;fill:#334155}"
          ".h{font-size:12px;font-weight:600;fill:#334155}.k{font-size:10.5px;fill:#94a3b8}.a{font-"
          "size:12.5px;fill:#64748b}</style>\n"
          "<rect width='100%' height='100%' fill='#ffffff'/>\n",
          f);
    fprintf(f, "<text x='%.1f' y='42' class='t'>%s%s, %" PRId32 " head%s, %s tokens</text>\n",
            g->left, names[p->pattern], p->causal ? "" : " in both directions", p->heads,
            p->heads == 1 ? "" : "s",
            text_count(tokens, sizeof tokens, (uint64_t)info->max_tokens));
    fprintf(f, "<text x='%.1f' y='64' class='s'>%" PRId64 " blocks of %" PRId32 " tokens a side",
            g->left, info->n_blocks, info->block);
    if (v->cell > 1)
        fprintf(f,
                "; a cell is %" PRId64 " \xc3\x97 %" PRId64 " blocks, lighter where fewer are kept",
                v->cell, v->cell);
    if (panels_of(p) < p->heads) fprintf(f, "; drawn are the first %d heads", PATTERN_PANELS);
    if (v->inset) fprintf(f, "; insets: the first %" PRId64 " blocks", v->inset);
    fputs("</text>\n", f);
}

static void write_foot(FILE *f, const problem *p, const page *g, const tess_layout *layout,
                       const tess_layout_info *info, int lines) {
    double y = g->height - margin - (lines - 1) * footer_line + 4;
    double saving = info->kept_share > 0 ? 1 / info->kept_share : 0;
    fprintf(f, "<text x='%.1f' y='%.1f' class='l'>kept share %.3g %% of dense", g->left, y,
            info->kept_share * 100);
    if (saving > 0) fprintf(f, " (ideal saving %.3g \xc3\x97)", saving);
    fprintf(f, " \xc2\xb7 coverage %.4g %%", info->coverage * 100);
    if (info->residues_total)
        fprintf(f, " (%" PRIu32 " of %" PRIu32 " residues)", info->residues, info->residues_total);
    fprintf(f, " \xc2\xb7 %s", info->kv_efficient ? "KV-efficient" : "not KV-efficient");
    tess_kv_info kv = {.struct_size = sizeof kv};
    fprintf(f, "</text>\n<text x='%.1f' y='%.1f' class='l'>", g->left, y += footer_line);
    if (tess_layout_kv(layout, 0, &kv) == TESS_OK && kv.blocks > 0)
        fprintf(f, "KV storage: kv head 0 keeps %.3g %% of its blocks and allocates %.3g %%",
                (double)kv.blocks_kept / (double)kv.blocks * 100,
                (double)kv.blocks_allocated / (double)kv.blocks * 100);
    fputs("</text>\n", f);
    int length = problem_format(p, NULL, 0);
    char *line = malloc((size_t)length + 1);
    if (!line) return;
    problem_format(p, line, (size_t)length + 1);
    fprintf(f, "<text x='%.1f' y='%.1f' class='s' font-family='monospace'>", g->left,
            y + footer_line);
    if (length > 170) memcpy(line + 166, " ...", 5);
    escaped(f, line);
    fputs("</text>\n", f);
    free(line);
}

/* Which panels carry numbers: the left column and the lowest panel of each column. */
static void write_axes(FILE *f, const page *g, int32_t heads, int64_t blocks) {
    const double bottom_row = g->rows - 1;
    for (int32_t h = 0; h < heads; h++) {
        int32_t column = h % g->columns, row = h / g->columns;
        double x = g->left + column * (g->side + g->gap_x), y = g->top + row * (g->side + g->gap_y);
        int lowest = h + g->columns >= heads;
        if (column == 0)
            fprintf(f,
                    "<text x='%.1f' y='%.1f' class='k' text-anchor='end'>0</text><text x='%.1f' "
                    "y='%.1f' class='k' text-anchor='end'>%" PRId64 "</text>\n",
                    x - 6, y + 8, x - 6, y + g->side, blocks - 1);
        if (lowest)
            fprintf(f,
                    "<text x='%.1f' y='%.1f' class='k'>0</text><text x='%.1f' y='%.1f' class='k' "
                    "text-anchor='end'>%" PRId64 "</text>\n",
                    x, y + g->side + 13, x + g->side, y + g->side + 13, blocks - 1);
    }
    double middle = g->top + (bottom_row * (g->side + g->gap_y) + g->side) / 2, x = margin + 6;
    fprintf(f,
            "<text transform='translate(%.1f %.1f) rotate(-90)' class='a' "
            "text-anchor='middle'>query block</text>\n",
            x, middle);
    double centre = g->left + (g->columns * (g->side + g->gap_x) - g->gap_x) / 2;
    fprintf(f, "<text x='%.1f' y='%.1f' class='a' text-anchor='middle'>key block</text>\n", centre,
            g->top + bottom_row * (g->side + g->gap_y) + g->side + 32);
}

/* ------------------------------------------------------------------ panels */

/* The drawing of one look in units of cells, as a definition that panels refer to. */
static void write_trace(FILE *f, const trace *t, const char *id, int number) {
    fprintf(f, "<g id='%s%d' shape-rendering='%s'>\n", id, number,
            t->cells <= 96 ? "crispEdges" : "auto");
    for (int kind = 1; kind < N_KINDS; kind++)
        for (int level = 0; level < TRACE_LEVELS; level++) {
            if (!t->paths[kind][level]) continue;
            fprintf(f, "<path fill='%s'", kinds[kind].colour);
            /* Even one block of many must be seen, hence the floor. */
            if (level < TRACE_LEVELS - 1)
                fprintf(f, " fill-opacity='%.2f'", 0.16 + 0.84 * (level + 1) / TRACE_LEVELS);
            fprintf(f, " d='%s'/>\n", t->paths[kind][level]);
        }
    fputs("</g>\n", f);
}

/* What lies under and over every drawing: the blocks that dense attention of this order would see,
 * and lines between single blocks. */
static void write_frame(FILE *f, const problem *p, int64_t cells, const char *under,
                        const char *over) {
    fprintf(f, "<g id='%s'>", under);
    if (!p->causal) {
        fprintf(f, "<rect width='%" PRId64 "' height='%" PRId64 "' fill='#eceff3'/>", cells, cells);
    } else if (cells <= 256) {
        fputs("<path shape-rendering='crispEdges' fill='#eceff3' d='M0 0", f);
        for (int64_t i = 0; i < cells; i++) fputs("h1v1", f);
        fputs("H0z'/>", f);
    } else {
        fprintf(f, "<path fill='#eceff3' d='M0 0L%" PRId64 " %" PRId64 "H0z'/>", cells, cells);
    }
    fprintf(f, "</g>\n<g id='%s'>", over);
    if (cells <= EXACT_CELLS) {
        fprintf(f, "<path stroke='#ffffff' stroke-width='%.4f' d='", 0.0028 * (double)cells);
        for (int64_t i = 1; i < cells; i++)
            fprintf(f, "M%" PRId64 " 0V%" PRId64 "M0 %" PRId64 "H%" PRId64, i, cells, i, cells);
        fputs("'/>", f);
    }
    fputs("</g>\n", f);
}

/* One drawing at its place: (x, y) is the upper left corner, `side` its size on the page. */
static void write_drawing(FILE *f, double x, double y, double side, int64_t cells, const char *id,
                          int number) {
    const char *suffix = *id == 'i' ? "2" : "";
    fprintf(f,
            "<g transform='translate(%.2f %.2f) scale(%.8g)'><use xlink:href='#under%s'/><use "
            "xlink:href='#%s%d'/><use xlink:href='#over%s'/></g>\n",
            x, y, side / (double)cells, suffix, id, number, suffix);
    fprintf(f,
            "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='none' stroke='#cbd5e1'/>\n",
            x, y, side, side);
}

/* Every head of the problem as a trace; heads that look alike share one. */
typedef struct looks {
    trace *traces;
    int *of; /* of[h]: index of the trace that head h shows */
    int count;
} looks;

static void looks_free(looks *l) {
    for (int i = 0; i < l->count; i++) trace_free(&l->traces[i]);
    free(l->traces);
    free(l->of);
    *l = (looks){0};
}

/* Traces every head within the budget. Returns 0; 1 when cells must be larger; -1 when memory is
 * out. */
static int trace_all(looks *l, const problem *p, const tess_layout *layout, int64_t blocks,
                     int64_t shown, int64_t cell, size_t budget) {
    int32_t heads = panels_of(p);
    *l = (looks){.traces = calloc((size_t)heads, sizeof *l->traces),
                 .of = calloc((size_t)heads, sizeof *l->of)};
    if (!l->traces || !l->of) return -1;
    int result = 0;
    cli_progress progress;
    cli_progress_begin(&progress, "drawing");
    for (int32_t h = 0; h < heads && result == 0; h++) {
        trace *t = &l->traces[l->count];
        result = trace_head(t, p, layout, h, blocks, shown, cell, budget / (size_t)heads, &progress,
                            (double)h / heads, 1.0 / heads);
        int same = 0;
        while (same < l->count && !trace_equal(&l->traces[same], t)) same++;
        l->of[h] = same;
        if (result == 0 && same == l->count)
            l->count++;
        else
            trace_free(t);
    }
    cli_progress_end(&progress);
    return result;
}

static void write_panels(FILE *f, const problem *p, const page *g, const looks *main_looks,
                         const looks *inset_looks, const view *v) {
    int64_t cells = main_looks->traces[0].cells;
    double inset_side = g->side * inset_share, inset_gap = g->side * 0.025;
    for (int32_t h = 0; h < panels_of(p); h++) {
        int32_t row = h / g->columns;
        double x = g->left + (h % g->columns) * (g->side + g->gap_x),
               y = g->top + row * (g->side + g->gap_y);
        fprintf(f, "<text x='%.1f' y='%.1f' class='h'>head %" PRId32 "</text>\n", x, y - 7, h);
        write_drawing(f, x, y, g->side, cells, "p", main_looks->of[h]);
        if (v->inset)
            write_drawing(f, x + g->side - inset_side - inset_gap, y + inset_gap, inset_side,
                          v->inset, "i", inset_looks->of[h]);
    }
}

static unsigned kinds_used(const looks *l) {
    unsigned used = 0;
    for (int i = 0; i < l->count; i++)
        for (int kind = 1; kind < N_KINDS; kind++)
            for (int level = 0; level < TRACE_LEVELS; level++)
                if (l->traces[i].paths[kind][level]) used |= 1u << kind;
    return used;
}

int pattern_svg(FILE *stream, const problem *p, const tess_layout *layout,
                const tess_layout_info *info, char *error, size_t error_size) {
    enum { FOOTER_LINES = 3 };
    page g = lay_out(panels_of(p), FOOTER_LINES);
    view v = choose_view(p, &g, info->n_blocks);
    looks main_looks, inset_looks = {0};
    int result;
    while ((result = trace_all(&main_looks, p, layout, v.blocks, v.blocks, v.cell, MAIN_BUDGET)) ==
           1) {
        looks_free(&main_looks);
        v.cell *= 2;
    }
    if (result == 0 && v.inset) {
        result = trace_all(&inset_looks, p, layout, v.blocks, v.inset, 1, INSET_BUDGET);
        if (result == 1) { /* too much detail for an inset: the picture is complete without */
            looks_free(&inset_looks);
            v.inset = result = 0;
        }
    }
    if (result == 0) {
        int64_t cells = main_looks.traces[0].cells;
        write_head(stream, p, &g, info, &v);
        write_legend(stream, p, &g, kinds_used(&main_looks));
        fputs("<defs>\n", stream);
        write_frame(stream, p, cells, "under", "over");
        if (v.inset) write_frame(stream, p, v.inset, "under2", "over2");
        for (int i = 0; i < main_looks.count; i++)
            write_trace(stream, &main_looks.traces[i], "p", i);
        for (int i = 0; i < inset_looks.count; i++)
            write_trace(stream, &inset_looks.traces[i], "i", i);
        fputs("</defs>\n", stream);
        if (cells > 0) {
            write_panels(stream, p, &g, &main_looks, &inset_looks, &v);
            write_axes(stream, &g, panels_of(p), info->n_blocks);
        } else {
            fprintf(stream,
                    "<text x='%.1f' y='%.1f' class='l'>Nothing to draw: there are no keys (kv_len "
                    "is 0).</text>\n",
                    g.left, g.top + 40);
        }
        write_foot(stream, p, &g, layout, info, FOOTER_LINES);
        fputs("</svg>\n", stream);
    }
    looks_free(&main_looks);
    looks_free(&inset_looks);
    return result == 0 ? 0 : text_error(error, error_size, "out of memory for the picture");
}
