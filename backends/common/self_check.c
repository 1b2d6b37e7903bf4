/* SPDX-License-Identifier: Apache-2.0 */
#include "self_check.h"

#include <stdio.h>
#include <string.h>

#include "check_problem.h"
#include "polling.h"

/* Some drivers compile a kernel when it first runs. */
#define WAIT_LIMIT_NS UINT64_C(600000000000)
enum { DEVICE_TEXT = 1024 };

/* What a file of the cache holds. */
typedef struct verdict {
    uint32_t passed; /* 1: yes; 0: no, and `failure` says why */
    char failure[sizeof((tess_checked_row *)0)->failure];
} verdict;

typedef struct instance {
    int dtype, dims; /* indices of tess_checked_row.passed */
} instance;

static uint32_t dtype_of(instance i) { return i.dtype ? TESS_BF16 : TESS_F16; }
static int32_t dims_of(instance i) { return 64 << i.dims; }

static instance instance_of(const tess_kernel_key *key) {
    return (instance){key->dtype == TESS_BF16, key->head_dim <= 64    ? 0
                                               : key->head_dim <= 128 ? 1
                                                                      : 2};
}

void tess_checks_init(tess_checks *checks) {
    memset(checks, 0, sizeof *checks);
    pthread_mutex_init(&checks->lock, NULL);
}

void tess_checks_destroy(tess_checks *checks) { pthread_mutex_destroy(&checks->lock); }

/* ------------------------------------------------------------------ verdicts */

typedef struct verdict_key {
    tess_cache_key key;
    char options[96], device[DEVICE_TEXT];
} verdict_key;

static void make_key(const tess_check_subject *s, instance i, verdict_key *k) {
    snprintf(k->options, sizeof k->options, "self-check of %s: %s, head_dim %d", s->name,
             i.dtype ? "bf16" : "f16", (int)dims_of(i));
    s->code(s->device, s->row, dtype_of(i), &k->key, k->device, sizeof k->device);
    k->key.options = k->options;
}

static tess_checked_row *row_of(const tess_check_subject *s) { return &s->checks->rows[s->row]; }

static void load_one(const tess_check_subject *s, instance i) {
    tess_checked_row *row = row_of(s);
    verdict_key k;
    verdict found;
    size_t size = 0;
    make_key(s, i, &k);
    void *data = tess_cache_load(s->host, &k.key, &size);
    if (!data) return;
    if (size == sizeof found) {
        memcpy(&found, data, size);
        found.failure[sizeof found.failure - 1] = '\0';
        if (found.passed == 1) row->passed[i.dtype][i.dims] = 1;
        if (found.passed == 0 && found.failure[0])
            memcpy(row->failure, found.failure, sizeof row->failure);
    }
    s->host->free(s->host, data, size);
}

/* Once a device; the lock is held. */
static void load(const tess_check_subject *s) {
    if (row_of(s)->loaded) return;
    row_of(s)->loaded = 1;
    for (int n = 0; n < TESS_CHECK_DTYPES * TESS_CHECK_DIMS; n++)
        load_one(s, (instance){n / TESS_CHECK_DIMS, n % TESS_CHECK_DIMS});
}

static void keep(const tess_check_subject *s, instance i, const char *failure) {
    verdict_key k;
    verdict v;
    memset(&v, 0, sizeof v);
    v.passed = !failure;
    if (failure)
        snprintf(v.failure, sizeof v.failure, "self-check (%s, head_dim %d): %.60s; please report",
                 i.dtype ? "bf16" : "f16", (int)dims_of(i), failure);
    memcpy(row_of(s)->failure, v.failure, sizeof v.failure);
    row_of(s)->passed[i.dtype][i.dims] = !failure;
    make_key(s, i, &k);
    tess_cache_store(s->host, &k.key, &v, sizeof v);
    if (failure)
        s->host->log(s->host, "dispatch",
                     "%s/%s gives wrong results on this device and is not used. Please report this "
                     "with what `tessera info` prints: %s",
                     s->backend->name, s->name, v.failure);
}

const char *tess_check_failure(const tess_check_subject *s, char *why, size_t size) {
    pthread_mutex_lock(&s->checks->lock);
    load(s);
    snprintf(why, size, "%s", row_of(s)->failure);
    pthread_mutex_unlock(&s->checks->lock);
    return why[0] ? why : NULL;
}

/* ------------------------------------------------------------------ the check */

/* What a check takes and gives back. */
typedef struct check {
    tess_kernel kernels[TESS_CHECK_KERNELS];
    tess_check_problem problem;
    tess_buffer buffer;
    void *image;
    uint64_t begin; /* when all code was there */
} check;

static tess_status prepare(const tess_check_subject *s, const tess_kernel_key *key, check *c) {
    tess_kernel *subject = &c->kernels[TESS_CHECK_SUBJECT],
                *reference = &c->kernels[TESS_CHECK_REFERENCE];
    subject->struct_size = reference->struct_size = sizeof *subject;
    tess_status status = s->prepare(s->device, s->row, key, subject);
    if (status != TESS_OK) {
        subject->release = NULL;
        return status;
    }
    for (int n = 0; n < 2; n++) {
        status = s->prepare(s->device, s->references[n], key, reference);
        if (status == TESS_OK) return TESS_OK;
        reference->release = NULL;
        if (status != TESS_ERROR_UNSUPPORTED) return status;
    }
    return s->host->fail(s->host, status, "no portable kernel is there for a self-check");
}

/* Both kernels solve the problem. The device is waited for between them, so that what happens to it
 * while the subject runs counts against that: *failure says what. */
static tess_status run(const tess_check_subject *s, check *c, const char **failure) {
    const tess_backend *b = s->backend;
    const tess_buffer host = {.kind = TESS_BUFFER_HOST,
                              .handle = (uint64_t)(uintptr_t)c->image,
                              .size = c->problem.bytes};
    TESS_RETURN_IF_ERROR(b->copy(s->device, c->buffer, host, c->problem.bytes));
    for (int n = 0; n < TESS_CHECK_KERNELS; n++) {
        tess_tables tables;
        tess_launch launch;
        tess_check_launch(&c->problem, n, &c->buffer, &tables, &launch);
        TESS_RETURN_IF_ERROR(b->launch(s->device, &launch));
        const tess_status status = b->wait(s->device, WAIT_LIMIT_NS);
        if (status != TESS_OK && n == TESS_CHECK_SUBJECT)
            *failure = status == TESS_ERROR_DEVICE_LOST ? "the device was lost"
                       : status == TESS_ERROR_TIMEOUT   ? "the kernel did not end in 600 s"
                                                        : NULL;
        TESS_RETURN_IF_ERROR(status);
    }
    return b->copy(s->device, host, c->buffer, c->problem.bytes);
}

static tess_status solve(const tess_check_subject *s, const tess_kernel_key *key, check *c,
                         const char **failure) {
    const tess_kernel *const kernels[] = {&c->kernels[0], &c->kernels[1]};
    TESS_RETURN_IF_ERROR(prepare(s, key, c));
    c->begin = tess_polling_now();
    tess_check_lay_out(key->dtype, key->head_dim, kernels, &c->problem);
    c->image = s->host->alloc(s->host, c->problem.bytes, 64);
    if (!c->image)
        return s->host->fail(s->host, TESS_ERROR_OUT_OF_MEMORY, "%llu bytes for a self-check",
                             (unsigned long long)c->problem.bytes);
    tess_check_fill(&c->problem, c->image);
    TESS_RETURN_IF_ERROR(s->backend->alloc(s->device, c->problem.bytes, &c->buffer));
    return run(s, c, failure);
}

/* Kernels go first: they wait for what still runs. */
static void give_back(const tess_check_subject *s, check *c) {
    for (int n = 0; n < TESS_CHECK_KERNELS; n++)
        if (c->kernels[n].release) c->kernels[n].release(&c->kernels[n]);
    if (c->buffer.kind != TESS_BUFFER_NONE) (void)s->backend->free(s->device, &c->buffer);
    s->host->free(s->host, c->image, c->problem.bytes);
}

/* The lock is held. */
static tess_status check_instance(const tess_check_subject *s, instance i) {
    char text[96];
    const char *failure = NULL;
    tess_kernel_key key;
    check c;
    memset(&c, 0, sizeof c);
    tess_check_key(dtype_of(i), dims_of(i), &key);
    const tess_status status = solve(s, &key, &c, &failure);
    if (status == TESS_OK) {
        if (!tess_check_compare(&c.problem, c.image, text, sizeof text)) failure = text;
        s->host->log(s->host, "dispatch", "%s/%s checked itself in %.1f ms: %s", s->backend->name,
                     s->name, 1e-6 * (double)(tess_polling_now() - c.begin), text);
    }
    give_back(s, &c);
    if (status == TESS_OK || failure) keep(s, i, failure);
    return status;
}

tess_status tess_self_check(const tess_check_subject *s, const tess_kernel_key *key) {
    const instance i = instance_of(key);
    const tess_checked_row *row = row_of(s);
    tess_status status = TESS_OK;
    pthread_mutex_lock(&s->checks->lock);
    load(s);
    if (!row->failure[0] && !row->passed[i.dtype][i.dims])
        status = s->may_run ? check_instance(s, i)
                            : s->host->fail(s->host, TESS_ERROR_UNSUPPORTED,
                                            "nobody has run it on such a device, and a wrapped one "
                                            "without a queue does not check it");
    if (status == TESS_OK && row->failure[0])
        status = s->host->fail(s->host, TESS_ERROR_UNSUPPORTED, "%s", row->failure);
    pthread_mutex_unlock(&s->checks->lock);
    return status;
}
