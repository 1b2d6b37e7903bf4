/* SPDX-License-Identifier: Apache-2.0 */
/* What one run of the bench suite knows: machine, devices with ceilings, planning times, results.
 * Filled by the measurement or read from a file, and turned into tables, CSV, Markdown, HTML and
 * JSON. docs/bench.md describes every field under the name that it has in the JSON. */
#ifndef TESSERA_BENCH_RESULTS_H
#define TESSERA_BENCH_RESULTS_H

#include <stddef.h>
#include <stdint.h>

enum {
    BENCH_SCHEMA_VERSION = 1,
    BENCH_MAX_SAMPLES = 64, /* timed runs of one problem */
    BENCH_LINE = 2048,      /* longest problem line */
};

typedef enum bench_unit { BENCH_GEMM = 0, BENCH_COPY = 1 } bench_unit;

/* One measured limit of a device. */
typedef struct bench_ceiling {
    int unit;       /* bench_unit */
    uint32_t dtype; /* tess_dtype; GEMM only */
    double rate;    /* median, FLOP/s or B/s (read and written bytes) */
    double best;    /* of the fastest sample */
    int64_t size;   /* n of an n x n x n product, or bytes of one array copied */
    int threads;    /* 0: a GPU */
    int own_loop;   /* 1: measured with a loop of the suite's own, since no library was found */
    char library[96];
    char method[128];
    int n_samples;
    double samples[16]; /* seconds */
} bench_ceiling;

typedef struct bench_device {
    char id[40], backend[32], kind[16], name[128], arch[96], driver[96];
    uint32_t compute_units;
    uint64_t memory_bytes;
    bench_ceiling *ceilings; /* everything measured; the best of each kind counts */
    int n_ceilings;
    char ceiling_note[256]; /* why a ceiling is missing; "" otherwise */
} bench_device;

typedef struct bench_setting {
    char name[48], value[256], source[24];
} bench_setting;

typedef struct bench_machine {
    char cpu[128], os[128], kernel[128], arch[32];
    int cpus, cpus_allowed;
    uint64_t memory_bytes, l2_bytes, l3_bytes;
    double other_load; /* share of all CPUs that other work took during the run; NaN: unknown */
} bench_machine;

/* One plan timed: tess_plan_create alone, the layout apart. */
typedef struct bench_planning {
    int device;    /* index into devices */
    char name[64]; /* what it stands for */
    int64_t sequences;
    uint64_t jobs, host_bytes, device_bytes;
    double layout_seconds, seconds; /* median */
    double seconds_min, seconds_max;
    int runs;
    int bar; /* 1: the 65,536-job plan that the bars in milliseconds and MiB are about */
} bench_planning;

typedef enum bench_status {
    BENCH_OK = 0,
    BENCH_FAILED = 1,  /* the check against the reference failed, or a call did: no numbers */
    BENCH_SKIPPED = 2, /* not run, with the reason */
} bench_status;

typedef struct bench_result {
    int status;     /* bench_status */
    char note[512]; /* why it failed or was skipped */
    int device;     /* index into devices */
    char family[32];
    char line[BENCH_LINE]; /* the problem */
    /* the dense problem of the same shape; "" when the problem is dense itself */
    char twin_line[BENCH_LINE];
    char kernel[64];
    char pattern[16];
    uint32_t dtype;
    int64_t batch, q_len, kv_len; /* longest of a packed batch */
    int heads, heads_total, kv_heads, head_dim;
    int decode, page, compact; /* op=decode, and where K and V lie */
    int backward;              /* op=bwd */
    double need_seconds;       /* skipped for lack of time: about what it would take; 0 otherwise */
    /* All below only when status is BENCH_OK. */
    int64_t checked_rows;
    /* f32: NMSE and its bound; 16 bits: greatest difference and the tolerance */
    double check_error, check_allowed;
    double layout_seconds, plan_seconds, first_seconds;
    double median, q1, q3, min, max; /* of the samples, seconds of device time */
    int n_samples;
    double samples[BENCH_MAX_SAMPLES];
    double flops; /* useful: of the pairs that the mask keeps */
    uint64_t bytes_min, kept_pairs, dense_pairs, n_jobs;
    uint64_t workspace_bytes, plan_bytes; /* plan_bytes: host and device tables */
    /* K and V of one sequence of kv_len tokens, all kv heads */
    uint64_t kv_bytes, kv_bytes_kept, kv_bytes_allocated;
    double ideal_speedup; /* dense_pairs / kept_pairs */
    /* Of decode, else 0: layers that took turns, K and V of one of them, attention jobs over those
     * of a plan that splits no row's keys, and the host's time of tess_run (NaN where that does the
     * work itself). */
    int layers;
    uint64_t cache_bytes;
    double parts, host_seconds;
    /* Derived by results_derive. NaN where there is nothing to compare with. */
    double speedup;                   /* median of the dense twin / median */
    double speedup_low, speedup_high; /* from the quartiles of both */
    double flop_rate, byte_rate;      /* per second */
    double gemm_share, copy_share;    /* of the ceilings */
    int gemm_ceiling, copy_ceiling;   /* index into the device's ceilings, or -1 */
} bench_result;

typedef struct bench_report {
    char created[40]; /* ISO 8601, UTC */
    char suite[128], command[512];
    double elapsed_seconds, budget_seconds;
    int complete; /* 0: interrupted */
    char library_version[32], compiler[128], build[32];
    bench_machine machine;
    bench_setting *settings;
    int n_settings;
    bench_device *devices;
    int n_devices;
    bench_planning *planning;
    int n_planning;
    bench_result *results;
    int n_results;
} bench_report;

/* Each appends a zeroed element and returns it, or NULL when out of memory. The pointer is valid
 * until the next call. */
bench_setting *report_add_setting(bench_report *r);
bench_device *report_add_device(bench_report *r);
bench_ceiling *device_add_ceiling(bench_device *d);
bench_planning *report_add_planning(bench_report *r);
bench_result *report_add_result(bench_report *r);
void report_free(bench_report *r);

/* The best ceiling of a device: for GEMM the fastest product of `dtype` or of f32 (a kernel may
 * always compute in f32); -1 if there is none. */
int device_ceiling(const bench_device *d, int unit, uint32_t dtype);

/* Sets the order statistics of one result from its samples. */
int result_summarize(bench_result *r);
/* Sets every derived field of every result. */
void results_derive(bench_report *r);

/* The kernel-for-kernel dense twin of result `index`, or NULL. */
const bench_result *result_twin(const bench_report *r, int index);

const char *dtype_name(uint32_t dtype);
int dtype_from_name(const char *name); /* -1: none */
size_t dtype_size(uint32_t dtype);
const char *status_word(int status);

/* "heads/of" when the problem is a slice of a larger model's heads, else "heads". Returns the
 * buffer. */
const char *result_heads(const bench_result *r, char *buffer, size_t size);

#endif
