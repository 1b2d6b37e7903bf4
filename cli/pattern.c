/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera pattern`: the block mask of every head as rows of 0 and 1, what it means for coverage
 * and KV storage, and the picture. */
#include "pattern.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "text.h"

static const char help[] =
    "usage: tessera pattern WORDS [--head H] [--svg F]\n\n"
    "Prints one line for each query block, from block 0 to ceil(kv_len / block) - 1, with a 0 or 1 "
    "for each key block: 1 if any\n"
    "(query, key) pair of the two blocks is kept. Every head follows a line '# head h'. To "
    "standard error go coverage,\n"
    "KV-efficiency, the share of pairs kept, and the KV blocks kept. head_dim and q_len may be "
    "left out.\n\n"
    "  --head H    only head H, without the '# head' line\n"
    "  --svg F     also draw the heads, at most the first 512, into the file F\n"
    "  --help      this text\n"
    "  --version   the version\n\n";

/* A head number below `heads`; -1 for anything else. */
static int32_t head_number(const char *text, int32_t heads) {
    int32_t value = 0;
    if (!*text) return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return -1;
        value = value * 10 + (*text - '0');
        if (value >= heads) return -1;
    }
    return value;
}

/* One head's rows to standard output. The row buffer has room for a line end behind its blocks. */
static tess_status print_head(const tess_layout *layout, int32_t head, int64_t blocks, uint8_t *row,
                              cli_progress *progress, double done, double share) {
    for (int64_t i = 0; i < blocks; i++) {
        tess_status status = tess_layout_row(layout, head, i, row, blocks);
        if (status != TESS_OK) return status;
        for (int64_t j = 0; j < blocks; j++) row[j] = (uint8_t)('0' + row[j]);
        row[blocks] = '\n';
        fwrite(row, 1, (size_t)blocks + 1, stdout);
        if (ferror(stdout)) return TESS_OK; /* main tells */
        cli_progress_show(progress, done + share * (double)i / (double)blocks);
    }
    return TESS_OK;
}

static int print_rows(const char *command, const problem *p, const tess_layout *layout,
                      int64_t blocks, int32_t only) {
    uint8_t *row = malloc((size_t)blocks + 1);
    if (!row) return cli_error(CLI_FAILED, command, "out of memory for %" PRId64 " blocks", blocks);
    int32_t first = only < 0 ? 0 : only, last = only < 0 ? p->heads : only + 1;
    tess_status status = TESS_OK;
    cli_progress progress;
    cli_progress_begin(&progress, "writing rows");
    for (int32_t h = first; h < last && status == TESS_OK && !ferror(stdout); h++) {
        if (only < 0) printf("# head %" PRId32 "\n", h);
        double share = 1.0 / (last - first);
        status = print_head(layout, h, blocks, row, &progress, (h - first) * share, share);
    }
    cli_progress_end(&progress);
    free(row);
    return status == TESS_OK ? CLI_GO_ON : cli_refused(command, p);
}

/* kv heads with equal numbers share a line. */
static void report_kv(const problem *p, const tess_layout *layout) {
    for (int32_t first = 0, next; first < p->kv_heads; first = next) {
        tess_kv_info kv = {.struct_size = sizeof kv}, other = {.struct_size = sizeof other};
        if (tess_layout_kv(layout, first, &kv) != TESS_OK) return;
        for (next = first + 1; next < p->kv_heads; next++) {
            if (tess_layout_kv(layout, next, &other) != TESS_OK) return;
            if (other.blocks_kept != kv.blocks_kept ||
                other.blocks_allocated != kv.blocks_allocated)
                break;
        }
        double all = kv.blocks ? (double)kv.blocks : 1;
        if (next - first > 1)
            fprintf(stderr, "kv heads %" PRId32 "-%" PRId32, first, next - 1);
        else
            fprintf(stderr, "kv head %" PRId32, first);
        fprintf(stderr,
                ": %" PRId64 " of %" PRId64 " KV blocks kept (%.1f %%), %" PRId64
                " allocated (%.1f %%)\n",
                kv.blocks_kept, kv.blocks, (double)kv.blocks_kept / all * 100, kv.blocks_allocated,
                (double)kv.blocks_allocated / all * 100);
    }
}

static void report(const char *command, const problem *p, const tess_layout *layout,
                   const tess_layout_info *info) {
    fprintf(stderr, "coverage: %.6g %% of past blocks are seen by some head", info->coverage * 100);
    if (info->residues_total)
        fprintf(stderr, "; heads cover %" PRIu32 " of %" PRIu32 " residues", info->residues,
                info->residues_total);
    fprintf(stderr, "\nKV-efficient: %s\n",
            info->kv_efficient ? "yes" : "no, so no KV block is ever dropped");
    fprintf(stderr, "kept share: %.4g %% of the dense pairs\n", info->kept_share * 100);
    report_kv(p, layout);
    if (info->residues < info->residues_total)
        cli_error(0, command,
                  "warning: heads cover only %" PRIu32 " of %" PRIu32
                  " residues; past blocks of the others are seen by no head beyond the local ones",
                  info->residues, info->residues_total);
    else if (info->coverage < 1)
        cli_error(0, command,
                  "warning: %.4g %% of the blocks that a query could see are seen by no head",
                  (1 - info->coverage) * 100);
}

static int draw(const char *command, const char *path, const problem *p, const tess_layout *layout,
                const tess_layout_info *info) {
    char error[CLI_LINE];
    text_file file;
    if (text_file_open(&file, path, error, sizeof error) != 0)
        return cli_error(CLI_FAILED, command, "--svg: %s", error);
    if (pattern_svg(file.stream, p, layout, info, error, sizeof error) != 0) {
        text_file_discard(&file);
        return cli_error(CLI_FAILED, command, "--svg: %s", error);
    }
    if (text_file_close(&file, error, sizeof error) != 0 ||
        text_file_publish(&file, error, sizeof error) != 0)
        return cli_error(CLI_FAILED, command, "--svg: %s", error);
    if (p->heads > PATTERN_PANELS)
        cli_error(0, command,
                  "--svg: shows the first %d of %" PRId32
                  " heads; head_ids= and heads_total= choose others",
                  PATTERN_PANELS, p->heads);
    return CLI_GO_ON;
}

/* The mask depends on neither head_dim nor q_len, so this command does not insist on them. */
static int add_missing_words(const char *command, problem *p) {
    char word[40], error[CLI_LINE];
    if (!problem_has(p, "head_dim") && problem_word(p, "head_dim=64", error, sizeof error) != 0)
        return cli_error(CLI_USAGE, command, "%s", error);
    if (p->kv_lens && !p->q_lens) {
        size_t bytes = (size_t)p->batch * sizeof *p->q_lens;
        p->q_lens = malloc(bytes ? bytes : 1);
        if (!p->q_lens) return cli_error(CLI_FAILED, command, "kv_lens: out of memory");
        memcpy(p->q_lens, p->kv_lens, bytes);
    }
    if (!problem_has(p, "q_len") && !p->q_lens && problem_has(p, "kv_len")) {
        snprintf(word, sizeof word, "q_len=%" PRId64, p->kv_len);
        if (problem_word(p, word, error, sizeof error) != 0)
            return cli_error(CLI_USAGE, command, "%s", error);
    }
    return CLI_GO_ON;
}

int pattern_main(int argc, char **argv) {
    enum { HEAD, SVG, N_OPTIONS };
    cli_option options[N_OPTIONS] = {
        [HEAD] = {.name = "head", .takes_value = 1}, [SVG] = {.name = "svg", .takes_value = 1}};
    const char *command = argv[0];
    size_t n_words;
    int status = cli_problem_options(argc, argv, help, options, N_OPTIONS, &n_words);
    if (status != CLI_GO_ON) return status;

    problem p;
    tess_runtime *runtime = NULL;
    tess_layout *layout = NULL;
    tess_layout_info info = {.struct_size = sizeof info};
    int32_t only = -1;
    problem_init(&p);
    status = cli_words(command, argv + 1, n_words, &p);
    if (status == CLI_GO_ON) status = add_missing_words(command, &p);
    if (status == CLI_GO_ON) status = cli_finish(command, &p);
    if (status == CLI_GO_ON && options[HEAD].given) {
        only = head_number(options[HEAD].value, p.heads);
        if (only < 0)
            status = cli_error(CLI_USAGE, command,
                               "--head: '%.60s' is not a head; heads are 0 to %" PRId32,
                               options[HEAD].value, p.heads - 1);
    }
    if (status == CLI_GO_ON) status = cli_open(command, NULL, &runtime, NULL);
    if (status == CLI_GO_ON && (problem_layout(&p, runtime, &layout) != TESS_OK ||
                                tess_layout_query(layout, &info) != TESS_OK))
        status = cli_refused(command, &p);
    if (status == CLI_GO_ON && options[SVG].given)
        status = draw(command, options[SVG].value, &p, layout, &info);
    if (status == CLI_GO_ON) status = print_rows(command, &p, layout, info.n_blocks, only);
    if (status == CLI_GO_ON) {
        report(command, &p, layout, &info);
        status = CLI_OK;
    }
    tess_layout_release(layout);
    tess_runtime_release(runtime);
    problem_free(&p);
    return status;
}
