/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A result file may come from anyone: every field is checked for presence, type and range, indices
 * are checked against their arrays, and text loses the control characters that could speak to a
 * terminal.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "checksum.h"
#include "json.h"
#include "json_fields.h"
#include "options.h"
#include "text.h"

enum { MAX_FILE = 256 << 20, MAX_ITEMS = 20000 };
/* Seconds; of anything shorter the rates may have no number. */
static const double SHORTEST = 1e-12;

/* Where the reader stands, and the first complaint. */
typedef struct reader {
    char at[96];
    char *error;
    size_t error_size;
    int failed;
    int version; /* of the schema */
} reader;

static void complain(reader *r, const char *key, const char *what) {
    if (r->failed) return;
    r->failed = 1;
    text_error(r->error, r->error_size, "%s%s%s%s%s", r->at, r->at[0] && key[0] ? "." : "", key,
               r->at[0] || key[0] ? ": " : "", what);
}

static const cJSON *member(reader *r, const cJSON *o, const char *key, int required) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    if (!item && required) complain(r, key, "missing");
    return item;
}

static const cJSON *get_object(reader *r, const cJSON *o, const char *key, int required) {
    const cJSON *item = member(r, o, key, required);
    if (item && !cJSON_IsObject(item)) complain(r, key, "not an object");
    return item;
}

static void get_text(reader *r, const cJSON *o, const char *key, int required, char *to,
                     size_t size) {
    const cJSON *item = member(r, o, key, required);
    to[0] = 0;
    if (!item) return;
    if (!cJSON_IsString(item)) {
        complain(r, key, "not a string");
        return;
    }
    snprintf(to, size, "%s", item->valuestring);
    cli_one_line(to);
}

/* A number within [min, max]; null counts as NaN where it is allowed, and a missing optional field
 * as `missing`. */
static double get_number(reader *r, const cJSON *o, const char *key, int required, double min,
                         double max, double missing) {
    const cJSON *item = member(r, o, key, required);
    if (!item) return missing;
    if (cJSON_IsNull(item) && !required) return NAN;
    if (!cJSON_IsNumber(item)) {
        complain(r, key, "not a number");
        return missing;
    }
    if (!(item->valuedouble >= min && item->valuedouble <= max)) {
        complain(r, key, "out of range");
        return missing;
    }
    return item->valuedouble;
}

static double get_seconds(reader *r, const cJSON *o, const char *key, int required) {
    return get_number(r, o, key, required, 0, 1e9, NAN);
}
/* Likewise without a fraction; null counts as the least. */
static double get_whole(reader *r, const cJSON *o, const char *key, int required, double min,
                        double max) {
    const double v = get_number(r, o, key, required, min, max, min);
    if (isnan(v)) return min;
    if (v != floor(v)) complain(r, key, "not a whole number");
    return v;
}
static uint64_t get_count(reader *r, const cJSON *o, const char *key, int required) {
    return (uint64_t)get_whole(r, o, key, required, 0, 9e15);
}
static int get_int(reader *r, const cJSON *o, const char *key, int required, int min, int max) {
    return (int)get_whole(r, o, key, required, min, max);
}

static int get_bool(reader *r, const cJSON *o, const char *key, int missing) {
    const cJSON *item = member(r, o, key, 0);
    if (!item) return missing;
    if (!cJSON_IsBool(item)) complain(r, key, "not true or false");
    return cJSON_IsTrue(item);
}

static uint32_t get_dtype(reader *r, const cJSON *o) {
    char name[16];
    get_text(r, o, "dtype", 1, name, sizeof name);
    int dtype = dtype_from_name(name);
    if (dtype < 0) complain(r, "dtype", "not f32, f16 or bf16");
    return dtype < 0 ? 0 : (uint32_t)dtype;
}

static int get_samples(reader *r, const cJSON *o, double *values, int capacity) {
    const cJSON *array = member(r, o, "samples_seconds", 0), *item;
    int n = 0;
    if (!array) return 0;
    if (!cJSON_IsArray(array)) {
        complain(r, "samples_seconds", "not an array");
        return 0;
    }
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 1e9))
            complain(r, "samples_seconds", "holds something that is no time");
        if (n < capacity) values[n++] = item->valuedouble;
    }
    return n;
}

/* The elements of an array of objects, one after the other; NULL after the last or after a
 * complaint. */
static const cJSON *elements(reader *r, const cJSON *root, const char *key, int required) {
    const cJSON *array = member(r, root, key, required), *item;
    if (!array) return NULL;
    if (!cJSON_IsArray(array)) complain(r, key, "not an array");
    if (cJSON_GetArraySize(array) > MAX_ITEMS) complain(r, key, "too many elements");
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsObject(item)) complain(r, key, "holds something that is no object");
    }
    return r->failed ? NULL : array->child;
}

/* ------------------------------------------------------------------ parts */

/* Fields of `x` that may be missing in `o`. */
#define TEXT(field)    get_text(r, o, #field, 0, x->field, sizeof x->field);
#define COUNT(field)   x->field = get_count(r, o, #field, 0);
#define SECONDS(field) x->field = get_seconds(r, o, #field, 0);

static void read_machine(reader *r, const cJSON *o, bench_machine *x) {
    snprintf(r->at, sizeof r->at, "machine");
    get_text(r, o, "cpu", 1, x->cpu, sizeof x->cpu);
    x->cpus = get_int(r, o, "cpus", 0, 0, 1 << 20);
    x->cpus_allowed = get_int(r, o, "cpus_allowed", 0, 0, 1 << 20);
    MACHINE_COUNTS(COUNT)
    MACHINE_TEXTS(TEXT)
    x->other_load = get_number(r, o, "other_load", 0, 0, 1e3, NAN);
    r->at[0] = 0;
}

static void read_library(reader *r, const cJSON *root, bench_report *out) {
    const cJSON *o = get_object(r, root, "library", 0);
    get_text(r, o, "version", 0, out->library_version, sizeof out->library_version);
    get_text(r, o, "commit", 0, out->commit, sizeof out->commit);
    get_text(r, o, "compiler", 0, out->compiler, sizeof out->compiler);
    get_text(r, o, "build", 0, out->build, sizeof out->build);
}

static void read_setting(reader *r, const cJSON *o, bench_setting *x, int n_devices) {
    (void)n_devices;
    get_text(r, o, "name", 1, x->name, sizeof x->name);
    SETTING_TEXTS(TEXT)
}

static void read_ceiling(reader *r, const cJSON *o, bench_ceiling *x) {
    char what[16];
    get_text(r, o, "what", 1, what, sizeof what);
    x->unit = strcmp(what, "copy") == 0   ? BENCH_COPY
              : strcmp(what, "read") == 0 ? BENCH_READ
                                          : BENCH_GEMM;
    if (x->unit == BENCH_GEMM) {
        if (strcmp(what, "gemm") != 0) complain(r, "what", "not gemm, copy or read");
        x->dtype = get_dtype(r, o);
    }
    x->rate = get_number(r, o, "rate", 1, 0, 1e20, 0);
    x->best = get_number(r, o, "best", 0, 0, 1e20, x->rate);
    x->size = (int64_t)get_count(r, o, "size", 0);
    x->threads = get_int(r, o, "threads", 0, 0, 1 << 20);
    x->own_loop = get_bool(r, o, "own_loop", 0);
    CEILING_TEXTS(TEXT)
    x->n_samples = get_samples(r, o, x->samples, (int)(sizeof x->samples / sizeof *x->samples));
}

static void read_device(reader *r, const cJSON *o, bench_device *x, int index) {
    const cJSON *item;
    int n = 0;
    snprintf(r->at, sizeof r->at, "devices[%d]", index);
    get_text(r, o, "id", 1, x->id, sizeof x->id);
    DEVICE_TEXTS(TEXT)
    x->compute_units = (uint32_t)get_int(r, o, "compute_units", 0, 0, 1 << 24);
    COUNT(memory_bytes)
    x->drift = get_number(r, o, "drift", 0, 0, 1e6, NAN);
    x->rounds = get_int(r, o, "rounds", 0, 0, 1 << 20);
    item = get_object(r, o, "stages_seconds", 0);
    for (int i = 0; i < N_STAGES && item; i++)
        x->stages[i] = get_number(r, item, stage_name(i), 0, 0, 1e9, 0);
    for (item = elements(r, o, "ceilings", 0); item && !r->failed; item = item->next) {
        bench_ceiling *c = device_add_ceiling(x);
        snprintf(r->at, sizeof r->at, "devices[%d].ceilings[%d]", index, n++);
        if (c)
            read_ceiling(r, item, c);
        else
            complain(r, "", "out of memory");
    }
}

static void read_planning(reader *r, const cJSON *o, bench_planning *x, int n_devices) {
    x->device = get_int(r, o, "device", 1, 0, n_devices - 1);
    get_text(r, o, "name", 1, x->name, sizeof x->name);
    x->sequences = (int64_t)get_count(r, o, "sequences", 0);
    x->jobs = get_count(r, o, "jobs", 1);
    SECONDS(layout_seconds)
    x->seconds = get_seconds(r, o, "median_seconds", 1);
    x->seconds_min = get_seconds(r, o, "min_seconds", 0);
    x->seconds_max = get_seconds(r, o, "max_seconds", 0);
    x->runs = get_int(r, o, "runs", 0, 0, 1 << 30);
    PLANNING_COUNTS(COUNT)
    x->bar = get_bool(r, o, "bar", 0);
}

static void read_pattern(reader *r, const cJSON *o, int required, bench_result *x) {
    static const char *const names[] = {"dense", "s2", "window", "blocks"};
    get_text(r, o, "pattern", required, x->pattern, sizeof x->pattern);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(x->pattern, names[i]) == 0) return;
    if (required) complain(r, "pattern", "not dense, s2, window or blocks");
}

/* Files of before this field hold forward problems alone. */
static void read_op(reader *r, const cJSON *o, bench_result *x) {
    char op[16];
    get_text(r, o, "op", 0, op, sizeof op);
    x->decode = strcmp(op, "decode") == 0;
    x->backward = strcmp(op, "bwd") == 0;
    if (op[0] && !x->decode && !x->backward && strcmp(op, "fwd") != 0)
        complain(r, "op", "not fwd, bwd or decode");
    if (!x->decode) return;
    x->page = get_int(r, o, "page", 0, 0, 1 << 20);
    x->compact = get_bool(r, o, "compact", 0);
}

/* Version 1 calls everything that was not run "skipped", and tells the reason in words. */
static void read_status(reader *r, const cJSON *o, bench_result *x) {
    char status[16];
    get_text(r, o, "status", 1, status, sizeof status);
    get_text(r, o, "note", 0, x->note, sizeof x->note);
    x->need_seconds = get_number(r, o, "need_seconds", 0, 0, 1e12, 0);
    x->estimate_seconds = get_number(r, o, "estimate_seconds", 0, 0, 1e12, NAN);
    x->status = status_from_word(status);
    if (r->version == 1 && strcmp(status, "skipped") == 0)
        x->status = x->need_seconds > 0                         ? BENCH_SLOW
                    : strcmp(x->note, "interrupted") == 0       ? BENCH_INTERRUPTED
                    : strncmp(x->note, "needs about ", 12) == 0 ? BENCH_MEMORY
                                                                : BENCH_REFUSED;
    if (x->status >= 0) return;
    complain(r, "status", "not ok, failed, slow, memory, refused or interrupted");
    x->status = BENCH_FAILED;
}

static void read_sensors(reader *r, const cJSON *o, const char *key, bench_sensors *s) {
    const cJSON *e = get_object(r, o, key, 0);
    s->clock_hz = get_number(r, e, "clock_hz", 0, 0, 1e12, NAN);
    s->memory_clock_hz = get_number(r, e, "memory_clock_hz", 0, 0, 1e12, NAN);
    s->power_watts = get_number(r, e, "power_watts", 0, 0, 1e6, NAN);
    s->temperature_celsius = get_number(r, e, "temperature_celsius", 0, -273.15, 1e4, NAN);
}

static void read_result(reader *r, const cJSON *o, bench_result *x, int n_devices) {
    read_status(r, o, x);
    int ok = x->status == BENCH_OK; /* what could not be run may lack its shape */
    x->device = get_int(r, o, "device", 1, 0, n_devices - 1);
    get_text(r, o, "family", ok, x->family, sizeof x->family);
    get_text(r, o, "problem", 1, x->line, sizeof x->line);
    get_text(r, o, "dense_twin", 0, x->twin_line, sizeof x->twin_line);
    get_text(r, o, "kernel", ok, x->kernel, sizeof x->kernel);
    get_text(r, o, "peer", 0, x->peer, sizeof x->peer);
    read_pattern(r, o, ok, x);
    x->dtype = get_dtype(r, o);
#define SIZE(field)  x->field = (int64_t)get_count(r, o, #field, ok);
#define HEADS(field) x->field = get_int(r, o, #field, ok, ok, 1 << 20);
    RESULT_SIZES(SIZE)
    RESULT_HEADS(HEADS)
    x->heads_total = get_int(r, o, "heads_total", ok, ok, INT32_MAX);
    read_op(r, o, x);
    x->ideal_speedup = get_number(r, o, "ideal_speedup", 0, 0, 1e30, NAN);
    if (!ok) return;
    x->checked_rows = (int64_t)get_count(r, o, "checked_rows", 0);
#define CHECKED(field) x->field = get_number(r, o, #field, 0, 0, 1e30, NAN);
    RESULT_CHECKS(CHECKED)
    RESULT_SECONDS(SECONDS)
    x->median = get_seconds(r, o, "median_seconds", 1);
    if (!(x->median >= SHORTEST)) complain(r, "median_seconds", "too short for a run");
    x->q1 = get_seconds(r, o, "q1_seconds", 1);
    x->q3 = get_seconds(r, o, "q3_seconds", 1);
    x->min = get_seconds(r, o, "min_seconds", 1);
    x->max = get_seconds(r, o, "max_seconds", 1);
    if (!(x->q1 <= x->median)) complain(r, "q1_seconds", "above the median");
    if (!(x->q3 >= x->median)) complain(r, "q3_seconds", "below the median");
    if (!(x->min <= x->q1)) complain(r, "min_seconds", "above the first quartile");
    if (!(x->max >= x->q3)) complain(r, "max_seconds", "below the third quartile");
    x->n_samples = get_samples(r, o, x->samples, BENCH_MAX_SAMPLES);
    x->runs = (int64_t)get_count(r, o, "runs", 0);
    read_sensors(r, o, "before", &x->before);
    read_sensors(r, o, "after", &x->after);
    x->joules = get_number(r, o, "joules", 0, 0, 1e12, NAN);
    x->flops = get_number(r, o, "flops", 1, 0, 1e30, 0);
#define WORK(field) x->field = get_count(r, o, #field, 1);
    RESULT_WORK(WORK)
    x->ideal_speedup = x->kept_pairs ? (double)x->dense_pairs / (double)x->kept_pairs : NAN;
    x->n_jobs = get_count(r, o, "jobs", 0);
    RESULT_COUNTS(COUNT)
    if (x->decode) {
        x->layers = get_int(r, o, "layers", 0, 0, 1 << 20);
        x->cache_bytes = get_count(r, o, "cache_bytes", 0);
        x->parts = get_number(r, o, "parts", 0, 0, 1e9, NAN);
        x->host_seconds = get_seconds(r, o, "host_seconds", 0);
    }
    /* Everything that follows from these is computed again instead of believed. */
}

static void read_line(reader *r, const cJSON *o, bench_line *l, int n_devices) {
    (void)n_devices;
    get_text(r, o, "family", 0, l->family, sizeof l->family);
    get_text(r, o, "title", 0, l->title, sizeof l->title);
    get_text(r, o, "problem", 1, l->line, sizeof l->line);
}

static void read_peer(reader *r, const cJSON *o, bench_peer *x, int n_devices) {
    (void)n_devices;
    get_text(r, o, "name", 1, x->name, sizeof x->name);
    PEER_TEXTS(TEXT)
}

static void read_all(reader *r, const cJSON *root, bench_report *out) {
    char schema[32];
    get_text(r, root, "schema", 1, schema, sizeof schema);
    if (!r->failed && strcmp(schema, "tessera-bench") != 0)
        complain(r, "schema", "not 'tessera-bench'; this is no result file of the bench suite");
    double version = get_number(r, root, "schema_version", 1, 0, 1e9, 0);
    if (!r->failed && version != 1 && version != BENCH_SCHEMA_VERSION)
        complain(r, "schema_version", "only versions 1 and 2 are understood");
    if (r->failed) return;
    r->version = out->schema_version = (int)version;
    get_text(r, root, "created", 0, out->created, sizeof out->created);
    get_text(r, root, "suite", 0, out->suite, sizeof out->suite);
    get_text(r, root, "command", 0, out->command, sizeof out->command);
    out->complete = get_bool(r, root, "complete", 1);
    out->elapsed_seconds = get_number(r, root, "elapsed_seconds", 0, 0, 1e9, 0);
    out->budget_seconds = get_number(r, root, "budget_seconds", 0, 0, 1e9, 0);
    read_machine(r, get_object(r, root, "machine", 1), &out->machine);
    read_library(r, root, out);
    for (const cJSON *o = elements(r, root, "devices", 1); o && !r->failed; o = o->next) {
        bench_device *d = report_add_device(out);
        if (d)
            read_device(r, o, d, out->n_devices - 1);
        else
            complain(r, "devices", "out of memory");
    }
#define READ_EACH(list, required, add, read)                                                  \
    r->at[0] = 0;                                                                             \
    for (const cJSON *o = elements(r, root, #list, required); o && !r->failed; o = o->next) { \
        bench_##add *x = report_add_##add(out);                                               \
        snprintf(r->at, sizeof r->at, #list "[%d]", out->n_##list - 1);                       \
        if (x)                                                                                \
            read(r, o, x, out->n_devices);                                                    \
        else                                                                                  \
            complain(r, "", "out of memory");                                                 \
    }
    READ_EACH(settings, 0, setting, read_setting)
    READ_EACH(planning, 0, planning, read_planning)
    READ_EACH(lines, 0, line, read_line)
    READ_EACH(peers, 0, peer, read_peer)
    READ_EACH(results, 1, result, read_result)
}

int json_parse(bench_report *r, const char *bytes, size_t size, char *error, size_t error_size) {
    reader state = {.error = error, .error_size = error_size};
    memset(r, 0, sizeof *r);
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(bytes, size, &end, 0);
    if (!root) {
        const size_t at = end ? (size_t)(end - bytes) : 0;
        return text_error(error, error_size, "not JSON from byte %zu of %zu on", at, size);
    }
    while (end < bytes + size && (*end == ' ' || *end == '\t' || *end == '\r' || *end == '\n'))
        end++;
    if (end != bytes + size)
        complain(&state, "", "something follows the object");
    else if (!cJSON_IsObject(root))
        complain(&state, "", "the file holds no object");
    if (!state.failed) read_all(&state, root, r);
    if (!state.failed && state.version > 1) r->changed = !checksum_right(bytes, size);
    cJSON_Delete(root);
    if (state.failed) {
        report_free(r);
        return -1;
    }
    results_derive(r);
    return 0;
}

/* The bytes of a regular file; anything else, such as a pipe that nobody writes to, could block.
 * Owned by the caller; NULL with the reason. */
static char *read_whole(const char *path, size_t *size, const char **why) {
    struct stat about;
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    FILE *f = NULL;
    char *bytes = NULL;
    *why = NULL;
    *size = 0;
    if (descriptor < 0 || fstat(descriptor, &about) != 0)
        *why = strerror(errno);
    else if (!S_ISREG(about.st_mode))
        *why = "not a regular file";
    else if (!(f = fdopen(descriptor, "rb")))
        *why = strerror(errno);
    if (descriptor >= 0 && !f) close(descriptor);
    for (size_t capacity = 0; f && !*why;) {
        if (*size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *larger = capacity <= MAX_FILE ? realloc(bytes, capacity) : NULL;
            if (!larger) {
                *why = "too large";
                break;
            }
            bytes = larger;
        }
        size_t n = fread(bytes + *size, 1, capacity - *size, f);
        if (n == 0) break;
        *size += n;
    }
    if (f && !*why && ferror(f)) *why = "cannot be read";
    if (f) fclose(f);
    if (!*why) return bytes;
    free(bytes);
    return NULL;
}

int json_read(bench_report *r, const char *path, char *error, size_t error_size) {
    char shown[TEXT_PATH], detail[256];
    const char *why;
    size_t size;
    memset(r, 0, sizeof *r);
    char *bytes = read_whole(path, &size, &why);
    if (bytes && json_parse(r, bytes, size, detail, sizeof detail) != 0) why = detail;
    free(bytes);
    return why ? text_error(error, error_size, "%s: %s", text_path(shown, path), why) : 0;
}
