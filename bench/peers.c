/* SPDX-License-Identifier: Apache-2.0 */
#include "peers.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "clock.h"
#include "options.h"
#include "text.h"

enum { MOST_PEERS = 8, MOST_LINE = 1 << 20, MOST_ANSWERS = 16 };
enum { LEAST_RUNS = 4 }; /* of a peer on a problem: the first, and three rounds */
/* Importing a large package takes a while; a problem may be compiled for. */
static const double HELLO_SECONDS = 60, ANSWER_SECONDS = 60;

typedef struct peer {
    pid_t process;
    int line; /* a socket to it; -1: closed */
    int index;
    char name[48], backends[128];
    char *text; /* what was read and not used yet */
    size_t size;
} peer;

struct peers {
    peer all[MOST_PEERS];
    int n;
    char folder[64]; /* for inputs and outputs */
};

/* ------------------------------------------------------------------ processes and lines */

static void end(peer *p) {
    int status;
    if (p->line >= 0) close(p->line);
    p->line = -1;
    if (p->process <= 0) return;
    for (int i = 0; i < 20 && waitpid(p->process, &status, WNOHANG) == 0; i++) {
        if (i == 10) kill(p->process, SIGKILL);
        usleep(50000);
    }
    p->process = 0;
}

static int launch(peer *p, const char *program) {
    int ends[2];
    p->line = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return -1;
    fflush(NULL);
    p->process = fork();
    if (p->process == 0) {
        close(ends[0]);
        if (dup2(ends[1], 0) < 0 || dup2(ends[1], 1) < 0) _exit(126);
        if (ends[1] > 1) close(ends[1]);
        /* Python's scripts need no mark as programs, which a copy may have lost. */
        const size_t n = strlen(program);
        if (n > 3 && strcmp(program + n - 3, ".py") == 0)
            execlp("python3", "python3", program, (char *)NULL);
        else
            execl(program, program, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    p->line = ends[0];
    (void)fcntl(p->line, F_SETFD, FD_CLOEXEC);
    if (p->process > 0) return 0;
    close(p->line);
    p->line = -1;
    return -1;
}

/* The next line as an object, or NULL with the reason: the peer is ended then. */
static cJSON *answer(peer *p, double seconds, const char **why) {
    const double until = clock_now() + seconds;
    *why = NULL;
    while (!*why) {
        char *newline = p->text ? memchr(p->text, '\n', p->size) : NULL;
        if (newline) {
            cJSON *object = cJSON_ParseWithLength(p->text, (size_t)(newline - p->text));
            const size_t used = (size_t)(newline - p->text) + 1;
            memmove(p->text, p->text + used, p->size - used);
            p->size -= used;
            if (cJSON_IsObject(object)) return object;
            cJSON_Delete(object);
            *why = "wrote something that is no JSON object";
            break;
        }
        const double left = until - clock_now();
        struct pollfd q = {.fd = p->line, .events = POLLIN};
        const int ready = left > 0 && p->line >= 0 ? poll(&q, 1, (int)(1e3 * left) + 1) : 0;
        if (ready < 0 && errno == EINTR && !clock_interrupted()) continue;
        char *larger = p->size < MOST_LINE ? realloc(p->text, p->size + 4096) : NULL;
        if (larger) p->text = larger;
        const ssize_t n = ready > 0 && larger ? read(p->line, p->text + p->size, 4096) : -1;
        if (ready <= 0)
            *why = "gave no answer in time";
        else if (n <= 0)
            *why = "ended, or wrote too much";
        else
            p->size += (size_t)n;
    }
    end(p);
    return NULL;
}

static int ask(peer *p, cJSON *request) {
    char *text = cJSON_PrintUnformatted(request);
    int good = text != NULL && p->line >= 0;
    for (size_t at = 0, size = good ? strlen(text) + 1 : 0; at < size && good;) {
        if (at == 0) text[size - 1] = '\n';
        const ssize_t n = send(p->line, text + at, size - at, MSG_NOSIGNAL);
        if (n > 0)
            at += (size_t)n;
        else
            good = n < 0 && errno == EINTR;
    }
    cJSON_free(text);
    return good ? 0 : -1;
}

static void copy_text(const cJSON *o, const char *key, char *to, size_t size) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    snprintf(to, size, "%s", cJSON_IsString(item) ? item->valuestring : "");
    cli_one_line(to);
}

/* ------------------------------------------------------------------ start and end */

static void hello(peer *p, const char *program, bench_peer *about) {
    const char *why = "cannot be started", *name = strrchr(program, '/');
    cJSON *first = launch(p, program) == 0 ? answer(p, HELLO_SECONDS, &why) : NULL;
    if (first) {
        copy_text(first, "name", about->name, sizeof about->name);
        copy_text(first, "version", about->version, sizeof about->version);
        copy_text(first, "note", about->note, sizeof about->note);
        copy_text(first, "backends", p->backends, sizeof p->backends);
        cJSON_Delete(first);
    } else {
        snprintf(about->note, sizeof about->note, "%s", why);
    }
    if (!about->name[0])
        snprintf(about->name, sizeof about->name, "%.40s", name ? name + 1 : program);
    snprintf(p->name, sizeof p->name, "%s", about->name);
    if (about->note[0]) end(p);
}

peers *peers_start(const char *list, bench_report *report) {
    peers *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    snprintf(p->folder, sizeof p->folder, "/tmp/tessera-peers-XXXXXX");
    if (!mkdtemp(p->folder)) p->folder[0] = 0;
    while (*list && p->n < MOST_PEERS) {
        char program[TEXT_PATH];
        const size_t length = strcspn(list, ",");
        bench_peer *about = report_add_peer(report);
        if (!about) break;
        snprintf(program, sizeof program, "%.*s", (int)(length < TEXT_PATH ? length : 0), list);
        p->all[p->n].line = -1;
        hello(&p->all[p->n++], program, about);
        list += length + (list[length] == ',');
    }
    return p;
}

int peers_count(const peers *p) { return p ? p->n : 0; }

void peers_stop(peers *p) {
    static const char *const names[] = {"q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v"};
    char path[TEXT_PATH];
    if (!p) return;
    for (int i = 0; i < p->n; i++) {
        end(&p->all[i]);
        free(p->all[i].text);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && p->folder[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", p->folder, names[i]);
        unlink(path);
    }
    if (p->folder[0]) rmdir(p->folder);
    free(p);
}

/* ------------------------------------------------------------------ problems */

static int write_file(const peers *p, const char *name, const void *bytes, uint64_t size) {
    char path[TEXT_PATH];
    snprintf(path, sizeof path, "%s/%s", p->folder, name);
    FILE *f = fopen(path, "wb");
    if (!f) return -1;
    const int good = fwrite(bytes, 1, (size_t)size, f) == size;
    return fclose(f) == 0 && good ? 0 : -1;
}

static int write_inputs(const peers *p, const instance *x, int backward) {
    const instance_backward *b = &x->backward;
    if (!p->folder[0] || write_file(p, "q", x->q, x->q_bytes) != 0 ||
        write_file(p, "k", x->k, x->k_bytes) != 0 || write_file(p, "v", x->v, x->v_bytes) != 0)
        return -1;
    return backward ? write_file(p, "d_o", b->host[INSTANCE_D_O], b->bytes[INSTANCE_D_O]) : 0;
}

/* Whole outputs alone; what a peer left out would be an old result otherwise. */
static int read_file(const peers *p, const char *name, void *to, uint64_t bytes) {
    char path[TEXT_PATH];
    snprintf(path, sizeof path, "%s/%s", p->folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    const int good = fread(to, 1, (size_t)bytes, f) == bytes && fgetc(f) == EOF;
    fclose(f);
    unlink(path);
    return good ? 0 : -1;
}

static int read_outputs(const peers *p, instance *x, int backward) {
    static const char *const names[] = {"d_q", "d_k", "d_v"};
    static const int parts[] = {INSTANCE_D_Q, INSTANCE_D_K, INSTANCE_D_V};
    if (!backward) return read_file(p, "o", x->o, x->o_bytes);
    for (int i = 0; i < 3; i++)
        if (read_file(p, names[i], x->backward.host[parts[i]], x->backward.bytes[parts[i]]) != 0)
            return -1;
    return 0;
}

static cJSON *describe(const peers *p, const contestant *c, const bench_device *d, double seconds,
                       double most) {
    const bench_result *r = &c->result;
    cJSON *o = cJSON_CreateObject();
    static const char *const ops[] = {"fwd", "bwd", "decode"};
    cJSON_AddStringToObject(o, "problem", r->line);
    cJSON_AddStringToObject(o, "folder", p->folder);
    cJSON_AddStringToObject(o, "backend", d->backend);
    cJSON_AddStringToObject(o, "device", d->id);
    cJSON_AddNumberToObject(o, "threads", d->compute_units);
    cJSON_AddNumberToObject(o, "seconds", seconds);
    cJSON_AddNumberToObject(o, "most_seconds", most);
    cJSON_AddStringToObject(o, "op", ops[r->decode ? 2 : r->backward ? 1 : 0]);
    cJSON_AddStringToObject(o, "dtype", dtype_name(r->dtype));
    cJSON_AddStringToObject(o, "pattern", r->pattern);
    cJSON_AddNumberToObject(o, "batch", (double)r->batch);
    cJSON_AddNumberToObject(o, "q_len", (double)r->q_len);
    cJSON_AddNumberToObject(o, "kv_len", (double)r->kv_len);
    cJSON_AddNumberToObject(o, "heads", r->heads);
    cJSON_AddNumberToObject(o, "kv_heads", r->kv_heads);
    cJSON_AddNumberToObject(o, "head_dim", r->head_dim);
    cJSON_AddNumberToObject(o, "scale", c->p.scale);
    cJSON_AddBoolToObject(o, "causal", c->p.causal != 0);
    cJSON_AddBoolToObject(o, "packed", c->p.q_lens != NULL);
    cJSON_AddNumberToObject(o, "page", r->page);
    cJSON_AddBoolToObject(o, "compact", r->compact != 0);
    return o;
}

static int refuse(bench_result *x, int status, const char *why) {
    x->status = status;
    snprintf(x->note, sizeof x->note, "%s", why);
    cli_one_line(x->note);
    return -1;
}

/* What a result file may hold as one. */
static int is_time(const cJSON *item) {
    return cJSON_IsNumber(item) && item->valuedouble > 0 && item->valuedouble < 1e9;
}

/* Times and the check of one answer. */
static int judge(const peers *p, contestant *c, const cJSON *a, double check_seconds,
                 bench_result *x) {
    const cJSON *times = cJSON_GetObjectItemCaseSensitive(a, "samples_seconds"), *item;
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(a, "first_seconds");
    instance_verdict verdict = {0};
    cJSON_ArrayForEach(item, times) {
        if (!is_time(item)) return refuse(x, BENCH_FAILED, "gave something that is no time");
        if (x->n_samples < BENCH_MAX_SAMPLES) x->samples[x->n_samples++] = item->valuedouble;
    }
    if (!x->n_samples) return refuse(x, BENCH_FAILED, "gave no times");
    if (read_outputs(p, &c->x, c->result.backward) != 0)
        return refuse(x, BENCH_FAILED, "wrote no output of the right size");
    instance_check(&c->x, measure_check_rows(&c->p, check_seconds), &verdict);
    if (!verdict.pass) {
        char text[320];
        snprintf(text, sizeof text, "wrong result: %s", verdict.what);
        return refuse(x, BENCH_FAILED, text);
    }
    x->checked_rows = verdict.rows;
    x->check_error = c->p.dtype == TESS_F32 ? verdict.nmse : verdict.worst;
    x->check_allowed = c->p.dtype == TESS_F32 ? 1e-10 : verdict.allowed;
    x->first_seconds = is_time(first) ? first->valuedouble : NAN;
    x->runs = x->n_samples;
    return result_summarize(x) == 0 ? 0 : refuse(x, BENCH_FAILED, "out of memory");
}

/* A result of the peer with the problem, but not the times, of ours. */
static bench_result *new_result(const peer *p, const contestant *c, const cJSON *a,
                                bench_report *report) {
    bench_result *x = report_add_result(report);
    if (!x) return NULL;
    const bench_result fresh = *x;
    *x = c->result;
    x->status = BENCH_OK;
    x->note[0] = 0;
    x->n_samples = 0;
    x->runs = 0;
    x->before = x->after = fresh.before;
    x->joules = x->compile_seconds = x->layout_seconds = x->plan_seconds = NAN;
    x->host_seconds = x->first_seconds = NAN;
    x->workspace_bytes = x->plan_bytes = x->n_jobs = 0;
    snprintf(x->peer, sizeof x->peer, "%s", p->name);
    copy_text(a, "kernel", x->kernel, sizeof x->kernel);
    return x;
}

static int takes(const peer *p, const bench_device *d) {
    char list[sizeof p->backends + 2], name[48];
    snprintf(list, sizeof list, ",%s,", p->backends);
    snprintf(name, sizeof name, ",%s,", d->backend);
    return p->line >= 0 && strstr(list, name) != NULL;
}

/* One that does not take the problem, or would need too long for it, as it says by a run's time. */
static void decline(bench_result *x, const cJSON *a, const char *note) {
    const cJSON *run = cJSON_GetObjectItemCaseSensitive(a, "run_seconds");
    const int slow = is_time(run);
    refuse(x, slow ? BENCH_SLOW : BENCH_REFUSED, note);
    if (!slow) return;
    x->estimate_seconds = run->valuedouble;
    x->need_seconds = LEAST_RUNS * run->valuedouble;
}

int peers_measure(peers *all, int index, contestant *c, bench_report *report, double seconds,
                  double check_seconds, double most) {
    peer *p = &all->all[index];
    const bench_device *d = &report->devices[c->result.device];
    const char *why = NULL;
    if (!takes(p, d) || !c->open || c->result.status != BENCH_OK) return 0;
    cJSON *request = describe(all, c, d, seconds, most);
    const int asked = write_inputs(all, &c->x, c->result.backward) == 0 && ask(p, request) == 0;
    cJSON_Delete(request);
    int status = 0;
    for (int n = 0; asked && status == 0; n++) {
        char note[256];
        cJSON *a = answer(p, ANSWER_SECONDS + 10 * seconds, &why);
        if (!a || cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(a, "done"))) {
            cJSON_Delete(a);
            break;
        }
        if (n == MOST_ANSWERS) { /* what follows would be taken for answers to the next problem */
            why = "gave too many answers";
            end(p);
            cJSON_Delete(a);
            break;
        }
        bench_result *r = new_result(p, c, a, report);
        copy_text(a, "note", note, sizeof note);
        if (!r)
            status = -1;
        else if (note[0])
            decline(r, a, note);
        else
            judge(all, c, a, check_seconds, r);
        /* The next answer may wait for this one to be read. */
        cJSON *go = cJSON_CreateObject();
        if (ask(p, go) != 0) end(p);
        cJSON_Delete(go);
        cJSON_Delete(a);
    }
    if (why) snprintf(report->peers[index].note, sizeof report->peers[index].note, "%s", why);
    return status;
}
