/* SPDX-License-Identifier: Apache-2.0 */
/* Tune files and tables out of measurements. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"
#include "text.h"
#include "tune.h"

/* A rule names the winner and what comes next should it refuse; the library refuses longer
 * lines. */
enum { KERNELS_OF_RULE = 4, LINE_BYTES = 512 };

static const char *percent(char *buffer, size_t size, const tune_kernel *k) {
    snprintf(buffer, size, "%.1f %%", k->median > 0 ? 100 * k->spread / k->median : 0);
    return buffer;
}

/* What a rule's pattern can hold: blanks and what is no printable ASCII, or would mean something
 * else there, become '?', which stands for any byte. */
static void pattern_of(const char *text, char *buffer, size_t size) {
    size_t n = 0;
    for (; *text && n + 1 < size; text++)
        buffer[n++] = *text > ' ' && *text < 127 && *text != '*' ? *text : '?';
    buffer[n] = 0;
}

/* Comments have room for so much of a text; control characters would make the file a malformed
 * one. */
static void comment(FILE *f, const char *text) {
    fputs("# ", f);
    size_t length = strlen(text);
    if (length > LINE_BYTES - 8) length = LINE_BYTES - 8;
    for (size_t n = 0; n < length; n++)
        fputc((unsigned char)text[n] < ' ' || text[n] == 127 ? ' ' : text[n], f);
    fputc('\n', f);
}

static void write_device(const bench_device *d, FILE *f) {
    char text[LINE_BYTES];
    fputc('\n', f);
    snprintf(text, sizeof text, "%s: %s (%s), %s, %" PRIu32 " %s", d->id, d->name, d->arch,
             d->driver, d->compute_units,
             strcmp(d->kind, "gpu") == 0 ? "multiprocessors" : "threads");
    comment(f, text);
}

static void write_rule(const bench_device *d, const tune_result *r, FILE *f) {
    char text[LINE_BYTES], name[128], arch[96], kernels[TUNE_KERNELS * 64] = "", time[TEXT_SIZE],
                                                                       spread[24];
    size_t used = 0;
    int named = 0;
    snprintf(text, sizeof text, "%s", r->shape.line);
    comment(f, text);
    for (int i = 0; i < r->n_kernels && used < sizeof text; i++)
        used += (size_t)snprintf(
            text + used, sizeof text - used, "%s%s %s (spread %s)%s", i ? ", " : "  ",
            r->kernels[i].name, text_seconds(time, sizeof time, r->kernels[i].median),
            percent(spread, sizeof spread, &r->kernels[i]),
            strcmp(r->kernels[i].name, r->usual) == 0 ? " as without a tune file" : "");
    if (!r->n_kernels) snprintf(text, sizeof text, "  no rule: %s", r->note);
    comment(f, text);
    used = 0;
    for (int i = 0; i < r->n_kernels && named < KERNELS_OF_RULE; i++) {
        if (r->kernels[i].only_named) continue;
        used += (size_t)snprintf(kernels + used, sizeof kernels - used, "%s%s", named ? "," : "",
                                 r->kernels[i].name);
        named++;
    }
    if (!named) return;
    pattern_of(d->name, name, sizeof name);
    pattern_of(d->arch, arch, sizeof arch);
    if (*name) fprintf(f, "device=%s ", name);
    if (*arch) fprintf(f, "arch=%s ", arch);
    fprintf(f, "dtype=%s head_dim=%d..%d pattern=%s ", dtype_name(r->shape.dtype),
            r->shape.least_head_dim, r->shape.head_dim, r->shape.sparse ? "s2" : "dense");
    if (r->shape.backward)
        fputs("op=bwd", f);
    else if (r->shape.few)
        fprintf(f, "q_len=..%d", TUNE_FEW_ROWS);
    else
        fprintf(f, "q_len=%d..", TUNE_FEW_ROWS + 1);
    fprintf(f, " kernel=%s basis=measured\n", kernels);
}

int tune_write(const bench_report *report, const tune_result *results, int n_results, FILE *f) {
    char text[1024];
    fputs("tessera-tune 1\n", f);
    snprintf(text, sizeof text, "Measured on %s by Tessera %s: %s", report->created,
             report->library_version, report->command);
    comment(f, text);
    comment(f, "Every rule stands for a class of shapes and was measured with the problem above "
               "it: median and spread (distance of the quartiles) of "
               "each kernel.");
    comment(f, "docs/tune.md describes the words. The first rule that fits counts; kernels that "
               "refuse are passed over.");
    for (int i = 0; i < n_results; i++) {
        const bench_device *d = &report->devices[results[i].device];
        if (i == 0 || results[i].device != results[i - 1].device) write_device(d, f);
        write_rule(d, &results[i], f);
    }
    return 0;
}

int tune_table(const bench_report *report, const tune_result *results, int n_results, FILE *f) {
    static const char *const heads[] = {"<device", "<type",   "D",    "<pattern",
                                        "q_len",   "<kernel", "time", "spread",
                                        "<second", "time",    "<"};
    table t;
    table_init(&t, sizeof heads / sizeof *heads, heads);
    for (int i = 0; i < n_results; i++) {
        const tune_result *r = &results[i];
        const tune_kernel *first = r->n_kernels ? &r->kernels[0] : NULL,
                          *second = r->n_kernels > 1 ? &r->kernels[1] : NULL;
        char time[TEXT_SIZE], spread[24];
        table_cell(&t, "%s", report->devices[r->device].id);
        table_cell(&t, "%s", dtype_name(r->shape.dtype));
        table_cell(&t, "%d..%d", r->shape.least_head_dim, r->shape.head_dim);
        table_cell(&t, "%s", r->shape.sparse ? "s2" : "dense");
        if (r->shape.backward)
            table_cell(&t, "bwd");
        else
            table_cell(&t, r->shape.few ? "..%d" : "%d..",
                       r->shape.few ? TUNE_FEW_ROWS : TUNE_FEW_ROWS + 1);
        table_cell(&t, "%s", first ? first->name : "-");
        table_cell(&t, "%s", first ? text_seconds(time, sizeof time, first->median) : "-");
        table_cell(&t, "%s", first ? percent(spread, sizeof spread, first) : "-");
        table_cell(&t, "%s", second ? second->name : "-");
        table_cell(&t, "%s", second ? text_seconds(time, sizeof time, second->median) : "-");
        table_cell(&t, "%s", r->displaced ? "new" : r->note);
    }
    table_text(&t, f);
    return table_free(&t);
}
