/* SPDX-License-Identifier: Apache-2.0 */
/* What one run of the bench suite knows: machine, devices with ceilings, planning times, results.
 * Filled by the measurement or read from a file, and turned into tables, CSV, Markdown, HTML and
 * JSON. docs/bench.md describes every field under the name that it has in the JSON. */
#ifndef TESSERA_BENCH_RESULTS_H
#define TESSERA_BENCH_RESULTS_H

#include <stddef.h>
#include <stdint.h>

#include "stages.h"

enum {
    BENCH_SCHEMA_VERSION = 2, /* of files written; files of version 1 are read as well */
    BENCH_MAX_SAMPLES = 64,   /* rounds of one problem */
    BENCH_LINE = 2048,        /* longest problem line */
    BENCH_MAX_ROUNDS = 16,    /* of a limit that is measured again between problems */
};
/* A result whose quartiles lie further apart than this share of its median is marked. */
#define BENCH_NOISY 0.10
/* So far above a limit of another type that this is none. */
#define BENCH_ABOVE_LIMIT 1.05

typedef enum bench_unit { BENCH_GEMM = 0, BENCH_COPY = 1, BENCH_READ = 2 } bench_unit;

/* One measured limit of a device. */
typedef struct bench_ceiling {
    int unit;       /* bench_unit */
    uint32_t dtype; /* tess_dtype; GEMM only */
    double rate;    /* median, FLOP/s or B/s (a copy counts read and written bytes) */
    double best;    /* of the fastest sample */
    int64_t size;   /* n of an n x n x n product, or bytes of one array copied */
    int threads;    /* 0: a GPU */
    int own_loop;   /* 1: a loop of the suite's own */
    char library[96];
    char method[128];
    char via[40]; /* the device through which one and the same GPU was measured; "": this one */
    int n_samples;
    double samples[16]; /* seconds */
    /* Not in files: how products on a CPU are measured in another round, and the rates of rounds.
     */
    int provider, variant, n_rounds;
    double rounds[BENCH_MAX_ROUNDS];
} bench_ceiling;

typedef struct bench_device {
    char id[40], backend[32], kind[16], name[128], arch[96], driver[96];
    uint32_t compute_units;
    uint64_t memory_bytes;
    bench_ceiling *ceilings; /* everything measured; the best of each kind counts */
    int n_ceilings;
    char ceiling_note[256]; /* why a ceiling is missing; "" otherwise */
    char planning_note[96]; /* which plans were left out and why; "": none */
    /* Two devices with one UUID or one PCI address are interfaces of one GPU; "" where unknown. */
    char uuid[40];    /* 8-4-4-4-12 hexadecimal digits in small letters */
    char pci[24];     /* "0000:19:00.0" */
    char sensors[96]; /* what clock, power and temperature were read from; "" where nothing is */
    int ordinal;      /* among devices of its backend with its name; not in files */
    /* Of a CPU: how far fixed loops drifted over the run, the distance of the quartiles of their
     * rounds over the median, and how many rounds that were; NaN: unknown. */
    double drift;
    int rounds;
    char energy[96];         /* what joules were read from; "" where nothing is */
    double stages[N_STAGES]; /* seconds that the suite spent on the device, by stage */
} bench_device;

/* What a device told about itself at some moment; NaN where it cannot be read. */
typedef struct bench_sensors {
    double clock_hz, memory_clock_hz, power_watts, temperature_celsius;
} bench_sensors;

/* One problem of the suite that was asked for, in its order. */
typedef struct bench_line {
    char family[32];
    char title[96]; /* for people: "Prefill, dense, 4k" */
    char line[BENCH_LINE];
} bench_line;

/* A tool that a user would pick instead, measured beside our kernels. */
typedef struct bench_peer {
    char name[48];    /* as in bench_result.peer: "PyTorch SDPA" */
    char version[64]; /* "2.5.1" */
    char note[256];   /* why it has no results; "" otherwise */
} bench_peer;

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
    BENCH_FAILED = 1, /* the check against the reference failed, or a call did: no numbers */
    /* Not run, each with the reason in `note`: */
    BENCH_SLOW = 2,        /* would not fit the time: need_seconds tells how long it would take */
    BENCH_MEMORY = 3,      /* would not fit the memory */
    BENCH_REFUSED = 4,     /* the device, the kernel or the peer does not take it */
    BENCH_INTERRUPTED = 5, /* somebody ended the run */
} bench_status;

typedef struct bench_result {
    int status;     /* bench_status */
    char note[512]; /* why it failed or was skipped */
    int device;     /* index into devices */
    char family[32];
    char line[BENCH_LINE]; /* the problem */
    /* the dense problem of the same shape; "" when the problem is dense itself */
    char twin_line[BENCH_LINE];
    char kernel[64]; /* "cuda/sm90"; of a peer what it calls its own: "sdpa/flash" */
    char peer[48];   /* the peer that computed it; "": Tessera */
    char pattern[16];
    uint32_t dtype;
    int64_t batch, q_len, kv_len; /* longest of a packed batch */
    int heads, heads_total, kv_heads, head_dim;
    int decode, page, compact; /* op=decode, and where K and V lie */
    int backward;              /* op=bwd */
    double need_seconds;       /* BENCH_SLOW: about what measuring would take; 0 otherwise */
    double estimate_seconds;   /* BENCH_SLOW: about what one run would take; NaN otherwise */
    /* All below only when status is BENCH_OK. */
    int64_t checked_rows;
    /* f32: NMSE and its bound; 16 bits: greatest difference and the tolerance */
    double check_error, check_allowed;
    double layout_seconds, plan_seconds; /* medians of a few */
    /* What the first plan took beyond that (a kernel is compiled then where it is at all), and the
     * first run as the application sees it. NaN: unknown. */
    double compile_seconds, first_seconds;
    double median, q1, q3, min, max;   /* of the samples, seconds of device time */
    int n_samples;                     /* rounds: in each, all contestants have their turn */
    double samples[BENCH_MAX_SAMPLES]; /* one a round: the mean of the runs in it */
    int64_t runs;                      /* timed runs in all rounds together */
    bench_sensors before, after;       /* all rounds */
    double joules;                     /* of one run; NaN: unknown */
    double flops;                      /* useful: of the pairs that the mask keeps */
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
    double speedup;                               /* median of the dense twin / median */
    double speedup_low, speedup_high;             /* from the quartiles of both */
    double spread;                                /* distance of the quartiles / median */
    int noisy;                                    /* spread above BENCH_NOISY, or warming */
    int suspect;                                  /* faster than ideal by more than the spread */
    int above_limit;                              /* likewise, faster than its limit */
    double drift;                                 /* of its device; 0: unknown */
    double flop_rate, byte_rate;                  /* per second */
    double gemm_share, copy_share, read_share;    /* of the ceilings */
    int gemm_ceiling, copy_ceiling, read_ceiling; /* index into the device's, or -1 */
    /* The least time that the device's ceilings allow, as a share of the median, and which ceiling
     * it is: products for prefill, bytes for decode. NaN and -1: unknown. */
    double limit_share;
    int limit_ceiling;
} bench_result;

typedef struct bench_report {
    char created[40]; /* ISO 8601, UTC */
    char suite[128], command[512];
    double elapsed_seconds, budget_seconds;
    int complete;       /* 0: interrupted */
    int schema_version; /* of the file that was read; 0: measured here */
    int changed;        /* read from a file whose checksum is wrong or missing */
    char library_version[32], compiler[128], build[32];
    char commit[64]; /* of the sources, where the build knew it: "4ac8b16d2f07"; else "" */
    bench_machine machine;
    bench_setting *settings;
    int n_settings;
    bench_device *devices;
    int n_devices;
    bench_planning *planning;
    int n_planning;
    bench_line *lines;
    int n_lines;
    bench_peer *peers;
    int n_peers;
    bench_result *results;
    int n_results;
} bench_report;

/* Each appends a zeroed element and returns it, or NULL when out of memory. The pointer is valid
 * until the next call. */
bench_setting *report_add_setting(bench_report *r);
bench_device *report_add_device(bench_report *r);
bench_ceiling *device_add_ceiling(bench_device *d);
bench_planning *report_add_planning(bench_report *r);
bench_line *report_add_line(bench_report *r);
bench_peer *report_add_peer(bench_report *r);
bench_result *report_add_result(bench_report *r);
void report_free(bench_report *r);

/* Whether two devices of a report are interfaces of one GPU. */
int device_same(const bench_device *a, const bench_device *b);

/* The best ceiling of a device: for GEMM the fastest product of `dtype` or of f32 (a kernel may
 * always compute in f32); -1 if there is none. */
int device_ceiling(const bench_device *d, int unit, uint32_t dtype);

/* Sets the order statistics of one result from its samples. */
int result_summarize(bench_result *r);
/* Sets every derived field of every result. */
void results_derive(bench_report *r);
/* Whether the clock of a GPU rose by more than BENCH_NOISY while it was timed: it had rested. */
int result_warming(const bench_report *r, const bench_result *x);

/* The kernel-for-kernel dense twin of result `index`, or NULL; of its family where it has several.
 */
const bench_result *result_twin(const bench_report *r, int index);

const char *dtype_name(uint32_t dtype);
int dtype_from_name(const char *name); /* -1: none */
size_t dtype_size(uint32_t dtype);
const char *status_word(int status);
int status_from_word(const char *word); /* -1: none */
/* Neither measured nor failed. */
int status_skipped(int status);

/* "16 threads", "132 multiprocessors"; "" where that is unknown. Returns the buffer, which has room
 * for 32. */
const char *device_units(const bench_device *d, char *buffer, size_t size);

/* "0.1.0 (4ac8b16d2f07)", without brackets where the commit is unknown. Returns the buffer. */
const char *report_version(const bench_report *r, char *buffer, size_t size);

/* "heads/of" when the problem is a slice of a larger model's heads, else "heads". Returns the
 * buffer. */
const char *result_heads(const bench_result *r, char *buffer, size_t size);

#endif
