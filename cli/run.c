/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera run`: attention, or its gradients, on the user's NumPy arrays. Shapes come from the
 * arrays; words that repeat one are checked against it. All outputs are complete on the disk under
 * temporary names before the first of them gets its own. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache.h"
#include "cli.h"
#include "npy.h"
#include "tensors.h"
#include "text.h"

static const char help[] =
    "usage: tessera run WORDS --q F --k F --v F --o F [--lse F] [--backend B]\n"
    "       tessera run op=bwd WORDS --q F --k F --v F --do F [--dlse F] [--o F --lse F]\n"
    "                   [--dq F] [--dk F] [--dv F] [--backend B]\n\n"
    "Reads Q, K and V from .npy files and writes O, and LSE if asked, as .npy files. Arrays are in "
    "C order:\n"
    "  Q and O [batch, q_len, heads, head_dim], K and V [batch, kv_len, kv_heads, head_dim], or "
    "packed [total tokens, heads,\n"
    "  head_dim] with q_lens= and kv_lens=; float32, float16, or uint16 holding bfloat16 bits, "
    "which needs dtype=bf16.\n"
    "  O has Q's type. LSE is float32, the natural logarithm of the sum of exponentials: [batch, "
    "heads, q_len] or [heads, total].\n"
    "Shapes and type come from the arrays, so only pattern words are needed; a word that "
    "contradicts an array is an error.\n"
    "With op=decode and page= or compact=1, K and V are laid into pages and slots first; the "
    "result "
    "is the same.\n"
    "With op=bwd it reads dO, which is like O, and dLSE, like LSE, and writes the gradients that "
    "are asked for, like Q, K and V,\n"
    "  or float32 with dq_f32=1 and dkv_f32=1. O and LSE are read too, or computed where neither "
    "is given.\n\n"
    "  --q F --k F --v F   inputs\n"
    "  --o F               output, which appears only when everything succeeded; may be one of the "
    "inputs\n"
    "  --lse F             output of LSE, likewise\n"
    "  --do F --dlse F     op=bwd: inputs, the gradients of O and of LSE\n"
    "  --dq F --dk F --dv F\n"
    "                      op=bwd: outputs, at least one\n"
    "  --backend B         the device, as TESSERA_BACKEND: a name, name:index, or a list in order "
    "of preference\n"
    "  --help              this text\n"
    "  --version           the version\n\n";

#define WAIT_LIMIT_NS \
    3600000000000u /* an hour: a device that hangs must not hold the command for ever */

/* The tensors' options come first. */
enum { OPT_BACKEND = RUN_TENSORS, N_OPTIONS };

/* What may need memory of the device, after the tensors. */
enum { WORKSPACE = RUN_TENSORS, TABLE, FORWARD_WORKSPACE, N_MEMORY };

typedef struct job {
    const char *command;
    cli_option options[N_OPTIONS];
    problem p;
    npy_array in[RUN_TENSORS]; /* inputs, by number of run_tensors */
    void *out[RUN_TENSORS];    /* outputs that were asked for, likewise */
    uint64_t bytes[RUN_TENSORS];
    int no_memory; /* for an output */
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan *forward; /* of op=bwd, where O and LSE are not given */
    /* kind NONE where the device reads host memory */
    tess_buffer device_memory[N_MEMORY];
    cache cache;    /* where problem_cached */
    double seconds; /* of the run, as the command sees it */
    /* of each storage group, K before V */
    tess_buffer *pool_memory;
    tess_tensor *pools;
} job;

static unsigned op_bit(const job *x) {
    return 1u << (x->p.op == PROBLEM_BACKWARD ? TESS_OP_BACKWARD : TESS_OP_FORWARD);
}
static int is_input(const job *x, int row) {
    return (run_tensors[row].inputs & op_bit(x)) && x->options[row].given;
}
static int is_output(const job *x, int row) {
    return (run_tensors[row].outputs & op_bit(x)) && x->options[row].given;
}

static const char *path_of(const job *x, int option) { return x->options[option].value; }

/* ------------------------------------------------------------------ shapes */

/* The word `key` must say what the array says; it is added if it was not given. */
static int match_word(job *x, const char *key, int64_t given, int64_t value, const char *array) {
    char word[64], error[CLI_LINE];
    if (problem_has(&x->p, key)) {
        if (given == value) return CLI_GO_ON;
        return cli_error(CLI_USAGE, x->command,
                         "%s: the word says %" PRId64 ", the array of --%s says %" PRId64, key,
                         given, array, value);
    }
    snprintf(word, sizeof word, "%s=%" PRId64, key, value);
    /* The value is the array's, so a refusal is not about the command line. */
    if (problem_word(&x->p, word, error, sizeof error) != 0)
        return cli_error(CLI_FAILED, x->command, "--%s: %s", array, error);
    return CLI_GO_ON;
}

static int match_type(job *x) {
    static const uint32_t dtypes[] = {
        [NPY_F32] = TESS_F32, [NPY_F16] = TESS_F16, [NPY_U16] = TESS_BF16};
    static const char *const words[] = {"f32", "f16", "bf16"};
    for (int i = 0; i < 3; i++) {
        npy_type type = x->in[i].type;
        const char *name = x->options[i].name;
        if (type != NPY_F32 && type != NPY_F16 && type != NPY_U16)
            return cli_error(
                CLI_FAILED, x->command,
                "--%s: holds %s; float32, float16 and uint16 (bfloat16 bits) are taken", name,
                npy_type_name(type));
        if (type != x->in[0].type)
            return cli_error(CLI_FAILED, x->command, "--%s: holds %s, but --q holds %s", name,
                             npy_type_name(type), npy_type_name(x->in[0].type));
    }
    uint32_t dtype = dtypes[x->in[0].type];
    int given = problem_has(&x->p, "dtype");
    if (dtype == TESS_BF16 && !given)
        return cli_error(CLI_USAGE, x->command,
                         "dtype: missing; --q holds uint16, which is taken as bfloat16 bits only "
                         "with dtype=bf16");
    if (problem_has(&x->p, "kv_dtype"))
        return cli_error(CLI_USAGE, x->command, "kv_dtype: K and V are of the arrays' type");
    if (given && x->p.dtype != dtype)
        return cli_error(CLI_USAGE, x->command,
                         "dtype: the word says %s, the array of --q holds %s", words[x->p.dtype],
                         npy_type_name(x->in[0].type));
    x->p.dtype = dtype;
    return CLI_GO_ON;
}

/* The lengths of packed sequences, the word `key`, must add up to the tokens of the array. */
static int match_lengths(const job *x, const char *key, const int64_t *lengths, int64_t tokens,
                         const char *array) {
    int64_t sum = 0;
    for (int64_t b = 0; b < x->p.batch; b++)
        if (__builtin_add_overflow(sum, lengths[b], &sum))
            return cli_error(CLI_USAGE, x->command, "%s: the sum exceeds 2^63 - 1", key);
    if (sum == tokens) return CLI_GO_ON;
    return cli_error(CLI_USAGE, x->command,
                     "%s: the lengths add up to %" PRId64 ", the array of --%s has %" PRId64
                     " tokens",
                     key, sum, array, tokens);
}

static int match_packed(const job *x) {
    const problem *p = &x->p;
    if (!p->q_lens)
        return cli_error(CLI_USAGE, x->command, "q_lens: missing; --q is packed (3 dimensions)");
    int status = match_lengths(x, "q_lens", p->q_lens, x->in[0].shape[0], "q");
    if (status != CLI_GO_ON) return status;
    return match_lengths(x, p->kv_lens ? "kv_lens" : "q_lens", p->kv_lens ? p->kv_lens : p->q_lens,
                         x->in[1].shape[0], "k");
}

static int match_padded(job *x) {
    problem *p = &x->p;
    if (p->q_lens || p->kv_lens)
        return cli_error(CLI_USAGE, x->command,
                         "%s: is for packed arrays of 3 dimensions; --q has 4",
                         p->q_lens ? "q_lens" : "kv_lens");
    if (x->in[0].shape[0] != x->in[1].shape[0])
        return cli_error(CLI_FAILED, x->command, "--k: batch of %" PRId64 ", but --q has %" PRId64,
                         x->in[1].shape[0], x->in[0].shape[0]);
    int status = match_word(x, "batch", p->batch, x->in[0].shape[0], "q");
    if (status == CLI_GO_ON) status = match_word(x, "q_len", p->q_len, x->in[0].shape[1], "q");
    if (status == CLI_GO_ON) status = match_word(x, "kv_len", p->kv_len, x->in[1].shape[1], "k");
    return status;
}

/* An input of backward: as Q, or a number for each row and head. */
static int match_like(const job *x, int row, npy_type type, int n_dims, const int64_t *shape) {
    const npy_array *a = &x->in[row];
    const char *name = run_tensors[row].name;
    if (!is_input(x, row)) return CLI_GO_ON;
    if (a->type != type)
        return cli_error(CLI_FAILED, x->command, "--%s: holds %s, not %s", name,
                         npy_type_name(a->type), npy_type_name(type));
    if (a->n_dims != n_dims)
        return cli_error(CLI_FAILED, x->command, "--%s: has %d dimensions, not %d", name, a->n_dims,
                         n_dims);
    for (int i = 0; i < n_dims; i++)
        if (a->shape[i] != shape[i])
            return cli_error(CLI_FAILED, x->command,
                             "--%s: dimension %d is %" PRId64 ", not %" PRId64, name, i,
                             a->shape[i], shape[i]);
    return CLI_GO_ON;
}

/* The shape of LSE, of which the last dimension is rows. */
static int lse_shape(const job *x, int64_t shape[3]) {
    const npy_array *q = &x->in[TESS_ROLE_Q];
    const int n = q->n_dims;
    shape[0] = q->shape[0];
    shape[n - 3] = q->shape[n - 2];
    shape[n - 2] = q->shape[n - 3];
    return n - 1;
}

static int match_backward(const job *x) {
    const npy_array *q = &x->in[TESS_ROLE_Q];
    int64_t shape[3];
    const int dims = lse_shape(x, shape);
    int status = match_like(x, TESS_ROLE_O, q->type, q->n_dims, q->shape);
    if (status == CLI_GO_ON) status = match_like(x, RUN_D_O, q->type, q->n_dims, q->shape);
    if (status == CLI_GO_ON) status = match_like(x, TESS_ROLE_LSE, NPY_F32, dims, shape);
    if (status == CLI_GO_ON) status = match_like(x, RUN_D_LSE, NPY_F32, dims, shape);
    return status;
}

/* Every shape of the problem from the arrays. */
static int match_arrays(job *x) {
    const npy_array *q = &x->in[0], *k = &x->in[1], *v = &x->in[2];
    int status = match_type(x);
    if (status != CLI_GO_ON) return status;
    if (q->n_dims != 3 && q->n_dims != 4)
        return cli_error(
            CLI_FAILED, x->command,
            "--q: has %d dimensions; 4 [batch, q_len, heads, head_dim] or, packed, 3 are taken",
            q->n_dims);
    if (k->n_dims != q->n_dims)
        return cli_error(CLI_FAILED, x->command, "--k: has %d dimensions, but --q has %d",
                         k->n_dims, q->n_dims);
    if (v->n_dims != k->n_dims)
        return cli_error(CLI_FAILED, x->command, "--v: has %d dimensions, but --k has %d",
                         v->n_dims, k->n_dims);
    for (int i = 0; i < k->n_dims; i++)
        if (k->shape[i] != v->shape[i])
            return cli_error(CLI_FAILED, x->command,
                             "--v: dimension %d is %" PRId64 ", but --k has %" PRId64, i,
                             v->shape[i], k->shape[i]);
    int n = q->n_dims;
    if (q->shape[n - 1] != k->shape[n - 1])
        return cli_error(CLI_FAILED, x->command,
                         "--k: head_dim of %" PRId64 ", but --q has %" PRId64, k->shape[n - 1],
                         q->shape[n - 1]);
    if (k->shape[n - 2] > 0 && q->shape[n - 2] % k->shape[n - 2])
        return cli_error(CLI_FAILED, x->command,
                         "--k: %" PRId64 " kv heads do not divide the %" PRId64 " heads of --q",
                         k->shape[n - 2], q->shape[n - 2]);
    status = n == 3 ? match_packed(x) : match_padded(x);
    if (status == CLI_GO_ON && x->p.op == PROBLEM_BACKWARD) status = match_backward(x);
    if (status == CLI_GO_ON) status = match_word(x, "heads", x->p.heads, q->shape[n - 2], "q");
    if (status == CLI_GO_ON)
        status = match_word(x, "kv_heads", x->p.kv_heads, k->shape[n - 2], "k");
    if (status == CLI_GO_ON)
        status = match_word(x, "head_dim", x->p.head_dim, q->shape[n - 1], "q");
    return status;
}

/* ------------------------------------------------------------------ steps */

static int read_arrays(job *x) {
    char error[CLI_LINE];
    for (int i = 0; i < RUN_TENSORS; i++)
        if (is_input(x, i) && npy_read(&x->in[i], path_of(x, i), error, sizeof error) != 0)
            return cli_error(CLI_FAILED, x->command, "--%s: %s", x->options[i].name, error);
    return CLI_GO_ON;
}

/* Whether every output could be written now. */
static int probe_outputs(const job *x) {
    char error[CLI_LINE];
    for (int i = 0; i < RUN_TENSORS; i++)
        if (is_output(x, i) && text_file_probe(path_of(x, i), error, sizeof error) != 0)
            return cli_error(CLI_FAILED, x->command, "--%s: %s", x->options[i].name, error);
    return CLI_GO_ON;
}

static int make_plan(job *x, uint32_t op, tess_plan **plan) {
    if (!x->layout && problem_layout(&x->p, x->runtime, &x->layout) != TESS_OK)
        return cli_refused(x->command, &x->p);
    tess_plan_desc desc;
    int64_t *cu = NULL;
    if (problem_plan_desc(&x->p, &desc, &cu) != 0)
        return cli_error(CLI_FAILED, x->command, "out of memory");
    if (op == TESS_OP_FORWARD && x->p.op == PROBLEM_BACKWARD) {
        desc.op = op;
        desc.determinism = 0;
        desc.tile_rows = 0;
        desc.flags &= TESS_PLAN_BATCH_INVARIANT;
    }
    tess_status status = tess_plan_create(x->device, x->layout, &desc, plan);
    free(cu);
    return status == TESS_OK ? CLI_GO_ON : cli_refused(x->command, &x->p);
}

/* A tensor in memory that the device can read: the host's own where it is a CPU, else a copy.
 * `data` is NULL for outputs. */
static tess_status place(job *x, int at, int host_memory, const void *host, const void *data,
                         uint64_t bytes, tess_buffer *buffer) {
    if (host_memory) {
        *buffer = tess_host_buffer(host, bytes);
        return TESS_OK;
    }
    tess_status status = tess_alloc(x->device, bytes ? bytes : 16, &x->device_memory[at]);
    *buffer = x->device_memory[at];
    if (status == TESS_OK && data && bytes)
        status = tess_copy(x->device, *buffer, tess_host_buffer(data, bytes), bytes);
    return status;
}

static void *output(uint64_t bytes) {
    return bytes > SIZE_MAX - 64 ? NULL : aligned_alloc(64, ((size_t)bytes / 64 + 1) * 64);
}

/* Long work goes in pieces, so that its progress can be shown; the result is the same. */
static tess_status run_pieces(job *x, tess_run_desc *run) {
    enum { PIECES = 100 };
    static const double long_work = 2e11; /* FLOPs: a second or more on a CPU */
    tess_plan_info info = {.struct_size = sizeof info};
    tess_status status = tess_plan_query(x->plan, &info);
    if (status != TESS_OK) return status;
    cli_progress progress;
    cli_progress_begin(&progress, "running");
    if (!progress.active || info.flops < long_work || info.n_jobs < 2)
        return tess_run(x->plan, run);
    uint64_t step = info.n_jobs / PIECES + 1;
    for (uint64_t first = 0; first < info.n_jobs && status == TESS_OK; first += step) {
        run->first_job = first;
        run->job_count = first + step < info.n_jobs ? step : info.n_jobs - first;
        status = tess_run(x->plan, run);
        cli_progress_show(&progress, (double)first / (double)info.n_jobs);
    }
    cli_progress_end(&progress);
    return status;
}

/* Contiguous tensors of the plan's shapes, with the arrays' elements. Backward has O and LSE from a
 * forward of its own where they are not given. */
static tess_status place_tensors(job *x, int host_memory, tess_run_desc *run) {
    const tess_buffer none = {0};
    for (int row = 0; row < RUN_TENSORS; row++) {
        tess_tensor *t = run_tensor(run, row);
        const int computed = x->forward &&
                             (row == TESS_ROLE_O || row == TESS_ROLE_LSE), /* an output of that */
            written = computed || is_output(x, row);
        if (!written && !is_input(x, row)) continue;
        if (problem_cached(&x->p) && (row == TESS_ROLE_K || row == TESS_ROLE_V)) continue;
        tess_status status =
            tess_plan_tensor(x->plan, run_tensors[row].role, none, t, &x->bytes[row]);
        if (status != TESS_OK) return status;
        if (written) {
            x->out[row] = output(x->bytes[row]);
            x->no_memory = !x->out[row];
            if (x->no_memory) return TESS_ERROR_OUT_OF_MEMORY;
        }
        const void *data = written ? x->out[row] : x->in[row].data;
        status = place(x, row, host_memory, data, written ? NULL : data, x->bytes[row], &t->buffer);
        if (status != TESS_OK) return status;
    }
    return TESS_OK;
}

/* K or V of a storage group. Places that no key has are 0. */
static tess_status place_pool(job *x, int host_memory, uint32_t n, uint32_t group,
                              const void *plain) {
    const uint64_t bytes = cache_pool_bytes(&x->cache, group, CACHE_ELEMENTS);
    x->pools[n] = cache_pool(&x->cache, group, CACHE_ELEMENTS, (tess_buffer){0});
    if (bytes == 0) return TESS_OK;
    tess_status status = tess_alloc(x->device, bytes, &x->pool_memory[n]);
    if (status != TESS_OK) return status;
    const tess_buffer memory = x->pools[n].buffer = x->pool_memory[n];
    void *image =
        host_memory ? (char *)(uintptr_t)(memory.handle + memory.offset) : calloc(bytes, 1);
    if (!image) return x->no_memory = 1, TESS_ERROR_OUT_OF_MEMORY;
    if (host_memory) memset(image, 0, bytes);
    status = cache_lay(&x->cache, group, CACHE_ELEMENTS, plain, image);
    if (host_memory) return status;
    if (status == TESS_OK)
        status = tess_copy(x->device, memory, tess_host_buffer(image, bytes), bytes);
    free(image);
    return status;
}

/* K and V into pages and slots. */
static tess_status place_cache(job *x, int host_memory, tess_run_desc *run) {
    tess_status status = cache_create(&x->cache, &x->p, x->layout);
    if (status != TESS_OK) return status;
    const cache *c = &x->cache;
    const uint32_t groups = c->n_groups;
    x->pools = calloc(2 * (size_t)groups, sizeof *x->pools);
    x->pool_memory = calloc(2 * (size_t)groups, sizeof *x->pool_memory);
    x->no_memory = !x->pools || !x->pool_memory;
    if (x->no_memory) return TESS_ERROR_OUT_OF_MEMORY;
    for (uint32_t n = 0; n < 2 * groups && status == TESS_OK; n++)
        status = place_pool(x, host_memory, n, n % groups,
                            x->in[n < groups ? TESS_ROLE_K : TESS_ROLE_V].data);
    run->pages = c->pages;
    run->table_stride = c->table_stride;
    if (status == TESS_OK && c->table_bytes)
        status =
            place(x, TABLE, host_memory, c->table, c->table, c->table_bytes, &run->block_table);
    if (groups > 1) {
        run->k_pools = x->pools;
        run->v_pools = x->pools + groups;
    } else {
        run->k = x->pools[0];
        run->v = x->pools[1];
    }
    return status;
}

/* O and LSE, from which backward begins. */
static tess_status run_forward(job *x, const tess_run_desc *of_backward) {
    tess_run_desc run = {.struct_size = sizeof run,
                         .q = of_backward->q,
                         .k = of_backward->k,
                         .v = of_backward->v,
                         .o = of_backward->o,
                         .lse = of_backward->lse};
    tess_plan_info info = {.struct_size = sizeof info};
    tess_buffer *workspace = &x->device_memory[FORWARD_WORKSPACE];
    tess_status status = tess_plan_query(x->forward, &info);
    if (status == TESS_OK) status = tess_alloc(x->device, info.workspace_bytes, workspace);
    run.workspace = *workspace;
    return status == TESS_OK ? tess_run(x->forward, &run) : status;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static tess_status attend(job *x) {
    tess_run_desc run = {.struct_size = sizeof run};
    tess_plan_info info = {.struct_size = sizeof info};
    tess_buffer probe = {0}, *workspace = &x->device_memory[WORKSPACE];
    tess_status status = tess_alloc(x->device, 16, &probe);
    if (status != TESS_OK) return status;
    const int host_memory = probe.kind == TESS_BUFFER_HOST;
    tess_free(x->device, &probe);
    status = place_tensors(x, host_memory, &run);
    if (status == TESS_OK && problem_cached(&x->p)) status = place_cache(x, host_memory, &run);
    if (status == TESS_OK) status = tess_plan_query(x->plan, &info);
    if (status == TESS_OK) status = tess_alloc(x->device, info.workspace_bytes, workspace);
    run.workspace = *workspace;
    if (status == TESS_OK && x->forward) status = run_forward(x, &run);
    const double start = now();
    if (status == TESS_OK) status = run_pieces(x, &run);
    if (status == TESS_OK && !host_memory) status = tess_wait(x->device, WAIT_LIMIT_NS);
    x->seconds = now() - start;
    if (status != TESS_OK || host_memory) return status;

    for (int row = 0; row < RUN_TENSORS && status == TESS_OK; row++)
        if (is_output(x, row) && x->bytes[row])
            status = tess_copy(x->device, tess_host_buffer(x->out[row], x->bytes[row]),
                               run_tensor(&run, row)->buffer, x->bytes[row]);
    return status;
}

/* Writes an output under a temporary name. */
static int write_output(const job *x, int row, text_file *file, char *error, size_t error_size) {
    const npy_array *q = &x->in[TESS_ROLE_Q],
                    *like = row == RUN_D_K || row == RUN_D_V ? &x->in[TESS_ROLE_K] : q;
    const int wide = row == RUN_D_Q ? x->p.dq_f32 : like != q && x->p.dkv_f32;
    if (text_file_open(file, path_of(x, row), error, error_size) != 0) return -1;
    if (row == TESS_ROLE_LSE) {
        int64_t shape[3];
        const int dims = lse_shape(x, shape);
        npy_put(file->stream, NPY_F32, dims, shape, x->out[row]);
    } else {
        npy_put(file->stream, wide ? NPY_F32 : q->type, like->n_dims, like->shape, x->out[row]);
    }
    return text_file_close(file, error, error_size);
}

/* What was computed, by what, in what time, and where it is. */
static void tell(const job *x) {
    char time[TEXT_SIZE], rate[TEXT_SIZE];
    tess_plan_info plan = {.struct_size = sizeof plan};
    tess_device_info device = {.struct_size = sizeof device};
    int length = problem_format(&x->p, NULL, 0);
    char *line = length > 0 ? malloc((size_t)length + 1) : NULL;
    if (line) {
        problem_format(&x->p, line, (size_t)length + 1);
        cli_one_line(line);
        puts(line);
        free(line);
    }
    if (tess_plan_query(x->plan, &plan) == TESS_OK &&
        tess_device_query(x->device, &device) == TESS_OK)
        printf(
            "%s on %s (%s): %s, %s, with the first run's overhead\n", plan.kernel, device.id,
            device.name, text_seconds(time, sizeof time, x->seconds),
            text_rate(rate, sizeof rate, x->seconds > 0 ? plan.flops / x->seconds : 0, "FLOP/s"));
    for (int row = 0; row < RUN_TENSORS; row++) {
        char shown[TEXT_PATH];
        if (!is_output(x, row)) continue;
        text_path(shown, path_of(x, row));
        cli_one_line(shown);
        printf("wrote %s\n", shown);
    }
}

static int write_outputs(const job *x) {
    char error[CLI_LINE];
    text_file files[RUN_TENSORS] = {{0}};
    int bad = -1; /* the output that the error is about */
    for (int row = 0; row < RUN_TENSORS && bad < 0; row++)
        if (is_output(x, row) && write_output(x, row, &files[row], error, sizeof error) != 0)
            bad = row;
    for (int row = 0; row < RUN_TENSORS && bad < 0; row++)
        if (is_output(x, row) && text_file_publish(&files[row], error, sizeof error) != 0)
            bad = row;
    for (int row = 0; row < RUN_TENSORS; row++) text_file_discard(&files[row]);
    if (bad >= 0) return cli_error(CLI_FAILED, x->command, "--%s: %s", x->options[bad].name, error);
    tell(x);
    return CLI_OK;
}

/* Which options are there: those of the operation, and no output in the place of another. */
static int check_options(const job *x) {
    int outputs = 0;
    for (int i = 0; i < RUN_TENSORS; i++) {
        const char *name = x->options[i].name;
        if ((run_tensors[i].required & op_bit(x)) && !x->options[i].given)
            return cli_error(CLI_USAGE, x->command, "--%s: missing", name);
        if (x->options[i].given && !is_input(x, i) && !is_output(x, i))
            return cli_error(CLI_USAGE, x->command, "--%s: belongs to op=bwd only", name);
        outputs += is_output(x, i);
        for (int other = 0; other < i && is_output(x, i); other++)
            if (is_output(x, other) && text_same_file(path_of(x, other), path_of(x, i)))
                return cli_error(CLI_USAGE, x->command, "--%s: is the same file as --%s", name,
                                 x->options[other].name);
    }
    if (x->p.op != PROBLEM_BACKWARD) return CLI_GO_ON;
    if (!outputs)
        return cli_error(CLI_USAGE, x->command, "--dq: missing, and so are --dk and --dv");
    if (x->options[TESS_ROLE_O].given != x->options[TESS_ROLE_LSE].given)
        return cli_error(CLI_USAGE, x->command, "--%s: missing; it goes with --%s",
                         x->options[TESS_ROLE_O].given ? "lse" : "o",
                         x->options[TESS_ROLE_O].given ? "o" : "lse");
    if (x->p.dq_add || x->p.dkv_add)
        return cli_error(CLI_USAGE, x->command, "%s: the outputs of run are new arrays",
                         x->p.dq_add ? "dq_add" : "dkv_add");
    return CLI_GO_ON;
}

static int work(job *x) {
    int status = check_options(x);
    if (status == CLI_GO_ON) status = read_arrays(x);
    if (status == CLI_GO_ON) status = match_arrays(x);
    if (status == CLI_GO_ON) status = cli_finish(x->command, &x->p);
    if (status == CLI_GO_ON) status = probe_outputs(x);
    if (status == CLI_GO_ON)
        status = cli_open(x->command, path_of(x, OPT_BACKEND), &x->runtime, &x->device);
    const int backward = x->p.op == PROBLEM_BACKWARD;
    if (status == CLI_GO_ON)
        status = make_plan(x, backward ? TESS_OP_BACKWARD : TESS_OP_FORWARD, &x->plan);
    if (status == CLI_GO_ON && backward && !x->options[TESS_ROLE_O].given)
        status = make_plan(x, TESS_OP_FORWARD, &x->forward);
    if (status != CLI_GO_ON) return status;
    tess_status result = attend(x);
    if (result != TESS_OK)
        return cli_error(CLI_FAILED, x->command, "%s", x->no_memory ? "out of memory" : cli_why());
    return write_outputs(x);
}

static void release(job *x) {
    for (size_t i = 0; i < sizeof x->device_memory / sizeof *x->device_memory; i++)
        if (x->device_memory[i].kind != TESS_BUFFER_NONE)
            tess_free(x->device, &x->device_memory[i]);
    for (uint32_t n = 0; x->pool_memory && n < 2 * x->cache.n_groups; n++)
        if (x->pool_memory[n].kind != TESS_BUFFER_NONE) tess_free(x->device, &x->pool_memory[n]);
    free(x->pool_memory);
    free(x->pools);
    cache_release(&x->cache);
    tess_plan_release(x->forward);
    tess_plan_release(x->plan);
    tess_layout_release(x->layout);
    tess_device_release(x->device);
    tess_runtime_release(x->runtime);
    for (int i = 0; i < RUN_TENSORS; i++) {
        npy_free(&x->in[i]);
        free(x->out[i]);
    }
    problem_free(&x->p);
}

int run_main(int argc, char **argv) {
    job x = {.command = argv[0]};
    for (int i = 0; i < N_OPTIONS; i++)
        x.options[i] = (cli_option){.name = i == OPT_BACKEND ? "backend" : run_tensors[i].name,
                                    .takes_value = 1};
    size_t n_words;
    int status = cli_problem_options(argc, argv, help, x.options, N_OPTIONS, &n_words);
    if (status != CLI_GO_ON) return status;
    problem_init(&x.p);
    status = cli_words(x.command, argv + 1, n_words, &x.p);
    if (status == CLI_GO_ON) status = work(&x);
    release(&x);
    return status;
}
