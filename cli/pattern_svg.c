/* SPDX-License-Identifier: Apache-2.0 */
/* The page around the traces: a grid of panels, one a head, with axes, a legend and what the pattern means. Heads that look alike are drawn once and reused. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "pattern.h"
#include "text.h"

enum {
    FILE_BUDGET = 1536 * 1024, /* bytes of all traces: what browsers and viewers open at once */
    HEAD_BUDGET_MIN = 4096,
    EXACT_CELLS = 32, /* up to this many blocks a side single blocks are set apart by lines */
};

static const struct {
    const char *colour, *name;
} kinds[N_KINDS] = {
    [KIND_LOCAL] = {"#2563eb", "local"},   [KIND_STRIDED] = {"#f59e0b", "strided"}, [KIND_DENSE] = {"#7c3aed", "dense"},
    [KIND_WINDOW] = {"#0d9488", "window"}, [KIND_SINK] = {"#e11d48", "sinks"},      [KIND_MASK] = {"#475569", "kept by the mask"},
};

/* Sizes in pixels of the page. */
typedef struct page {
    double width, height, left, top, side, gap_x, gap_y;
    int32_t columns, rows;
} page;

static const double margin = 28, axis_room = 46, header = 118, footer_line = 18;

static page lay_out(int32_t heads, int footer_lines) {
    page g = {.left = margin + axis_room, .top = header};
    g.columns = (int32_t)ceil(sqrt(heads * 1.35));
    if (g.columns > heads) g.columns = heads;
    g.rows = (heads + g.columns - 1) / g.columns;
    g.gap_x = heads == 1 ? 0 : 18;
    g.gap_y = heads == 1 ? 0 : 32;
    double wanted = 1160.0 / g.columns - g.gap_x;
    g.side = wanted > 620 ? 620 : wanted < 84 ? 84 : wanted;
    g.width = g.left + g.columns * g.side + (g.columns - 1) * g.gap_x + margin;
    if (g.width < 760) g.width = 760; /* the legend's width */
    g.height = g.top + g.rows * g.side + (g.rows - 1) * g.gap_y + axis_room + 14 + footer_lines * footer_line + margin;
    return g;
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

static void write_legend(FILE *f, const problem *p, const page *g, const unsigned *used) {
    double x = g->left, y = 84;
    for (int kind = 1; kind < N_KINDS; kind++) {
        if (!(*used >> kind & 1)) continue;
        char label[128];
        if (kind == KIND_LOCAL)
            snprintf(label, sizeof label, "local: %" PRId32 " block%s to the diagonal", p->local, p->local == 1 ? "" : "s");
        else if (kind == KIND_STRIDED && p->causal)
            snprintf(label, sizeof label, "strided: every %" PRId32 ". block, shifted by head", p->stride);
        else if (kind == KIND_STRIDED)
            snprintf(label, sizeof label, "strided: every %" PRId32 ". block", p->stride);
        else if (kind == KIND_DENSE && p->pattern == TESS_PATTERN_S2)
            snprintf(label, sizeof label, "dense head");
        else if (kind == KIND_SINK)
            snprintf(label, sizeof label, "sinks: the first %" PRId64 " tokens", p->sinks);
        else
            snprintf(label, sizeof label, "%s", kinds[kind].name);
        fprintf(f, "<rect x='%.1f' y='%.1f' width='13' height='13' rx='2.5' fill='%s'/><text x='%.1f' y='%.1f' class='l'>", x, y, kinds[kind].colour,
                x + 19, y + 11);
        fprintf(f, "%s</text>\n", label);
        x += 19 + 6.6 * (double)strlen(label) + 26;
    }
    fprintf(f, "<rect x='%.1f' y='%.1f' width='13' height='13' rx='2.5' fill='#eceff3'/><text x='%.1f' y='%.1f' class='l'>not kept</text>\n", x, y,
            x + 19, y + 11);
}

static void write_head(FILE *f, const problem *p, const page *g, const tess_layout_info *info, int64_t cell) {
    static const char *const names[] = {"Dense attention", "S2 attention", "Window attention", "Block mask"};
    char tokens[TEXT_SIZE];
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' width='%.0f' height='%.0f' viewBox='0 0 %.0f %.0f' "
            "font-family=\"Inter,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif\">\n",
            g->width, g->height, g->width, g->height);
    fputs("<style>.t{font-size:21px;font-weight:600;fill:#0f172a}.s{font-size:12.5px;fill:#64748b}.l{font-size:12.5px;fill:#334155}"
          ".h{font-size:12px;font-weight:600;fill:#334155}.k{font-size:10.5px;fill:#94a3b8}.a{font-size:12.5px;fill:#64748b}</style>\n"
          "<rect width='100%' height='100%' fill='#ffffff'/>\n",
          f);
    fprintf(f, "<text x='%.1f' y='42' class='t'>%s%s, %" PRId32 " head%s, %s tokens</text>\n", g->left, names[p->pattern],
            p->causal ? "" : " in both directions", p->heads, p->heads == 1 ? "" : "s",
            text_count(tokens, sizeof tokens, (uint64_t)info->max_tokens));
    fprintf(f, "<text x='%.1f' y='64' class='s'>%" PRId64 " blocks of %" PRId32 " tokens a side", g->left, info->n_blocks, info->block);
    if (cell > 1) fprintf(f, "; a cell is %" PRId64 " x %" PRId64 " blocks, lighter where fewer are kept", cell, cell);
    fputs("</text>\n", f);
}

static void write_foot(FILE *f, const problem *p, const page *g, const tess_layout *layout, const tess_layout_info *info, int lines) {
    double y = g->height - margin - (lines - 1) * footer_line + 4;
    double saving = info->kept_share > 0 ? 1 / info->kept_share : 0;
    fprintf(f, "<text x='%.1f' y='%.1f' class='l'>kept share %.3g %% of dense", g->left, y, info->kept_share * 100);
    if (saving > 0) fprintf(f, " (ideal saving %.3g \xc3\x97)", saving);
    fprintf(f, " \xc2\xb7 coverage %.4g %%", info->coverage * 100);
    if (info->residues_total) fprintf(f, " (%" PRIu32 " of %" PRIu32 " residues)", info->residues, info->residues_total);
    fprintf(f, " \xc2\xb7 %s", info->kv_efficient ? "KV-efficient" : "not KV-efficient");
    tess_kv_info kv = {.struct_size = sizeof kv};
    if (tess_layout_kv(layout, 0, &kv) == TESS_OK && kv.blocks > 0)
        fprintf(f, " \xc2\xb7 kv head 0 keeps %.3g %% of its blocks, allocates %.3g %%", (double)kv.blocks_kept / (double)kv.blocks * 100,
                (double)kv.blocks_allocated / (double)kv.blocks * 100);
    fputs("</text>\n", f);
    int length = problem_format(p, NULL, 0);
    char *line = malloc((size_t)length + 1);
    if (!line) return;
    problem_format(p, line, (size_t)length + 1);
    fprintf(f, "<text x='%.1f' y='%.1f' class='s' font-family='monospace'>", g->left, y + footer_line);
    if (length > 170) strcpy(line + 166, " ...");
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
                    "<text x='%.1f' y='%.1f' class='k' text-anchor='end'>0</text><text x='%.1f' y='%.1f' class='k' text-anchor='end'>%" PRId64
                    "</text>\n",
                    x - 6, y + 8, x - 6, y + g->side, blocks - 1);
        if (lowest)
            fprintf(f, "<text x='%.1f' y='%.1f' class='k'>0</text><text x='%.1f' y='%.1f' class='k' text-anchor='end'>%" PRId64 "</text>\n", x,
                    y + g->side + 13, x + g->side, y + g->side + 13, blocks - 1);
    }
    double middle = g->top + (bottom_row * (g->side + g->gap_y) + g->side) / 2, x = margin + 6;
    fprintf(f, "<text transform='translate(%.1f %.1f) rotate(-90)' class='a' text-anchor='middle'>query block</text>\n", x, middle);
    double centre = g->left + (g->columns * (g->side + g->gap_x) - g->gap_x) / 2;
    fprintf(f, "<text x='%.1f' y='%.1f' class='a' text-anchor='middle'>key block</text>\n", centre,
            g->top + bottom_row * (g->side + g->gap_y) + g->side + 32);
}

/* ------------------------------------------------------------------ panels */

/* The drawing of one look in units of cells, as a definition that panels refer to. */
static void write_trace(FILE *f, const trace *t, int id) {
    fprintf(f, "<g id='p%d' shape-rendering='%s'>\n", id, t->cells <= 96 ? "crispEdges" : "auto");
    for (int kind = 1; kind < N_KINDS; kind++)
        for (int level = 0; level < TRACE_LEVELS; level++) {
            if (!t->paths[kind][level]) continue;
            fprintf(f, "<path fill='%s'", kinds[kind].colour);
            /* Even one block of many must be seen, hence the floor. */
            if (level < TRACE_LEVELS - 1) fprintf(f, " fill-opacity='%.2f'", 0.16 + 0.84 * (level + 1) / TRACE_LEVELS);
            fprintf(f, " d='%s'/>\n", t->paths[kind][level]);
        }
    fputs("</g>\n", f);
}

/* What lies under and over every drawing: the blocks that dense attention of this order would see, and lines between single blocks. */
static void write_frame(FILE *f, const problem *p, int64_t cells) {
    fputs("<g id='under'>", f);
    if (!p->causal) {
        fprintf(f, "<rect width='%" PRId64 "' height='%" PRId64 "' fill='#eceff3'/>", cells, cells);
    } else if (cells <= 256) {
        fputs("<path shape-rendering='crispEdges' fill='#eceff3' d='M0 0", f);
        for (int64_t i = 0; i < cells; i++) fputs("h1v1", f);
        fputs("H0z'/>", f);
    } else {
        fprintf(f, "<path fill='#eceff3' d='M0 0L%" PRId64 " %" PRId64 "H0z'/>", cells, cells);
    }
    fputs("</g>\n<g id='over'>", f);
    if (cells <= EXACT_CELLS) {
        fprintf(f, "<path stroke='#ffffff' stroke-width='%.4f' d='", 0.0028 * (double)cells);
        for (int64_t i = 1; i < cells; i++) fprintf(f, "M%" PRId64 " 0V%" PRId64 "M0 %" PRId64 "H%" PRId64, i, cells, i, cells);
        fputs("'/>", f);
    }
    fputs("</g>\n", f);
}

static void write_panels(FILE *f, const problem *p, const page *g, const int *look, int64_t cells) {
    for (int32_t h = 0; h < p->heads; h++) {
        double x = g->left + h % g->columns * (g->side + g->gap_x), y = g->top + (double)(h / g->columns) * (g->side + g->gap_y);
        fprintf(f, "<text x='%.1f' y='%.1f' class='h'>head %" PRId64 "</text>\n", x, y - 7, (int64_t)p->head_first + h);
        if (cells > 0)
            fprintf(
                f,
                "<g transform='translate(%.2f %.2f) scale(%.8g)'><use xlink:href='#under'/><use xlink:href='#p%d'/><use xlink:href='#over'/></g>\n",
                x, y, g->side / (double)cells, look[h]);
        fprintf(f, "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='none' stroke='#cbd5e1'/>\n", x, y, g->side, g->side);
    }
}

/* Traces every head, coarser and coarser until all fit the budget; look[h] is the index of the trace that head h shows. */
static int trace_all(const problem *p, const tess_layout *layout, int64_t blocks, trace *traces, int *look, int *n_traces) {
    size_t budget = FILE_BUDGET / (size_t)p->heads;
    if (budget < HEAD_BUDGET_MIN) budget = HEAD_BUDGET_MIN;
    cli_progress progress;
    cli_progress_begin(&progress, "drawing");
    int result = 1;
    for (int64_t cell = 1; result == 1; cell *= 2) {
        result = 0;
        *n_traces = 0;
        for (int32_t h = 0; h < p->heads && result == 0; h++) {
            trace *t = &traces[*n_traces];
            result = trace_head(t, p, layout, h, blocks, cell, budget);
            int same = 0;
            while (same < *n_traces && !trace_equal(&traces[same], t)) same++;
            look[h] = same;
            if (result == 0 && same == *n_traces)
                (*n_traces)++;
            else
                trace_free(t);
            cli_progress_show(&progress, (double)h / p->heads);
        }
        for (int i = 0; i < *n_traces && result != 0; i++) trace_free(&traces[i]);
    }
    cli_progress_end(&progress);
    return result;
}

int pattern_svg(FILE *stream, const problem *p, const tess_layout *layout, const tess_layout_info *info, char *error, size_t error_size) {
    trace *traces = calloc((size_t)p->heads, sizeof *traces);
    int *look = calloc((size_t)p->heads, sizeof *look);
    int n_traces = 0;
    if (!traces || !look || trace_all(p, layout, info->n_blocks, traces, look, &n_traces) != 0) {
        free(traces);
        free(look);
        return text_error(error, error_size, "out of memory for the picture");
    }
    enum { FOOTER_LINES = 2 };
    page g = lay_out(p->heads, FOOTER_LINES);
    int64_t cells = traces[0].cells;
    unsigned used = 0;
    for (int i = 0; i < n_traces; i++)
        for (int kind = 1; kind < N_KINDS; kind++)
            for (int level = 0; level < TRACE_LEVELS; level++)
                if (traces[i].paths[kind][level]) used |= 1u << kind;
    write_head(stream, p, &g, info, traces[0].cell);
    write_legend(stream, p, &g, &used);
    fputs("<defs>\n", stream);
    write_frame(stream, p, cells);
    for (int i = 0; i < n_traces; i++) write_trace(stream, &traces[i], i);
    fputs("</defs>\n", stream);
    write_panels(stream, p, &g, look, cells);
    if (cells > 0) write_axes(stream, &g, p->heads, info->n_blocks);
    write_foot(stream, p, &g, layout, info, FOOTER_LINES);
    fputs("</svg>\n", stream);
    for (int i = 0; i < n_traces; i++) trace_free(&traces[i]);
    free(traces);
    free(look);
    return 0;
}
