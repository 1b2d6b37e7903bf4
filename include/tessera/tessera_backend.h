/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: the interface between the core and a backend. In-tree and out-of-tree backends are
 * written against this header alone. What launches read, from jobs to steps, is described in
 * tessera_tables.h, which comes with it.
 *
 * A backend is one constant tess_backend: an ABI number, a name, and ten functions, none of them
 * optional; what a backend cannot do it says in `query` and `kernel`. A table of preferred kernels
 * and marks of places in streams may follow them. The core calls `list` to enumerate devices,
 * `open` once per device, `kernel` for each row of the backend's table when it chooses one for a
 * plan, and `launch` from tess_run. Every function may be called from any thread; calls on one
 * device are concurrent.
 *
 * Errors: return host->fail(host, status, "native_call: what and its code"), which stores the
 * message for tess_last_error() and returns the status.
 * Memory: host memory comes from host->alloc, and never inside `launch`.
 */
#ifndef TESSERA_TESSERA_BACKEND_H
#define TESSERA_TESSERA_BACKEND_H

#include "tessera.h"
#include "tessera_tables.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a structure of this header changes incompatibly. Checked before any other field
 * of a backend is read. */
#define TESS_BACKEND_ABI 2u

/* The symbol that a backend library exports: `const tess_backend *tess_backend_entry(void)`. */
#define TESS_BACKEND_ENTRY "tess_backend_entry"

/* Leaves the function with the status of `expr` unless that is TESS_OK. */
#define TESS_RETURN_IF_ERROR(expr)                            \
    do {                                                      \
        const tess_status status_of_expr = (expr);            \
        if (status_of_expr != TESS_OK) return status_of_expr; \
    } while (0)

/* -------------------------------------------------------------------------- host services */

typedef struct tess_host tess_host;
struct tess_host {
    uint32_t abi; /* TESS_BACKEND_ABI of the core */
    uint32_t struct_size;
    /* NULL when out of memory. */
    void *(*alloc)(const tess_host *host, size_t size, size_t alignment);
    /* NULL pointers are ignored. */
    void (*free)(const tess_host *host, void *pointer, size_t size);
    /* Stores a printf-style message for tess_last_error() and returns `status`. */
    tess_status (*fail)(const tess_host *host, tess_status status, const char *format, ...);
    /* Logs a line under `topic` ("errors", "device", "dispatch", "plan") if TESSERA_VERBOSE asks
     * for it. */
    void (*log)(const tess_host *host, const char *topic, const char *format, ...);
    /* The value of a setting by its environment name ("TESSERA_CACHE_DIR"); "" when unset. */
    const char *(*setting)(const tess_host *host, const char *name);
    /* Workers that a launch on the CPU may have: the setting, or fewer CPUs. */
    uint32_t cpu_threads;
};

/* ------------------------------------------------------------------------------ the backend */

/* tess_caps.features. Each addition to jobs, tables and launches that an older backend would
 * misread has a bit; the core never hands such a launch to a backend that does not set the bit, and
 * a bit that the core does not know means nothing. */
enum {
    /* Kernels read tess_sequence.q_first and kv_batch. Without it these are kv_len - q_len and
     * batch, and kv_start is not negative. */
    TESS_FEATURE_POSITIONS = 1u << 0,
    /* Kernels read tess_launch.page and compact, or refuse them in the key; and kv_batch. */
    TESS_FEATURE_PAGES = 1u << 1,
    TESS_FEATURE_APPEND = 1u << 2, /* there are TESS_OP_APPEND and TESS_OP_COPY_PAGES */
    TESS_FEATURE_MERGE = 1u << 3,  /* there is TESS_OP_MERGE */
    /* There is TESS_OP_PREPARE, and kernels read tess_tables.step or refuse it in the key. */
    TESS_FEATURE_STEPS = 1u << 4,
    /* Kernels read tess_launch.kv_dtype and scales, or refuse them in the key. Without it kv_dtype
     * is dtype. */
    TESS_FEATURE_KV_8BIT = 1u << 5,
    TESS_FEATURE_BACKWARD = 1u << 6, /* there is TESS_OP_BACKWARD */
    /* Parts of the keys in compact plans, of TESS_OP_APPEND and of TESS_OP_PREPARE, where these
     * are: kernels read kv_start of compact plans, TESS_SEQUENCE_FIRST_BLOCK and
     * TESS_ROLE_KV_FIRST. */
    TESS_FEATURE_PARTS = 1u << 7,
};

/*
 * What an open device is. Jobs consist of (row tile, key block) steps; the two numbers about steps
 * turn a time into a number of jobs, and are cautious estimates. Of the cache, kv heads that are
 * worked on together fill at most half.
 */

typedef struct tess_caps {
    uint32_t struct_size;
    uint32_t host_memory;      /* 1: kernels read host memory; nothing is uploaded; kind HOST */
    uint32_t buffer_kind;      /* tess_buffer_kind that tensors and workspace must have */
    uint32_t parallel_jobs;    /* that keep the device busy, for kernels without `costs` */
    uint64_t workspace_align;  /* a power of two */
    uint64_t range_blocks;     /* [0: no limit] steps that fit one submission's time limit */
    uint64_t steps_per_second; /* [0: unknown] for time_limit_us */
    uint64_t cache_bytes;      /* [0: not used] of the cache that K and V are read through */
    uint32_t features;         /* TESS_FEATURE_... */
    uint32_t reserved;         /* 0 */
} tess_caps;

/*
 * Everything that decides which kernel serves a plan, or some of its sequences.
 *
 * A kernel that is not meant for long queries says so in tess_kernel_info.most_rows, for the key at
 * hand. It gets the sequences with at most that many rows, if any, and the core goes on
 * with the rows below for the others. The kernel that is made ready is asked with max_q_len of its
 * own sequences. In batch-invariant plans max_kv_len and batch are the largest there can be, and
 * so is max_q_len when a kernel is made ready: the longest that most_rows allows. Before that, a
 * row is asked with the shortest one that has no kernel yet, again and again while it takes more.
 * A plan for steps has kernels for all lengths up to its capacity.
 */
typedef struct tess_kernel_key {
    uint32_t struct_size;
    uint32_t op, dtype;
    int32_t head_dim, value_head_dim;
    int32_t block;
    uint32_t class_flags; /* of all classes, or-ed */
    uint32_t has_entries; /* some class has lists */
    int64_t max_q_len;    /* of the sequences that the kernel is to serve */
    int64_t max_kv_len;   /* of all sequences */
    uint32_t group;       /* query heads per kv head */
    uint32_t n_heads;     /* query heads */
    uint32_t batch;       /* sequences */
    uint32_t packed;      /* 1: sequences follow each other in one dimension */
    uint32_t max_in_flight;
    uint32_t head_classes; /* kv heads, each counted for every class that its query heads have */
    uint32_t kv_dtype;     /* tess_dtype of K and V */
    int32_t page;          /* tokens of a page of K and V; 0: contiguous */
    uint32_t compact;      /* 1: K and V lie by slot */
    uint32_t steps;        /* 1: jobs lie in a step buffer; rows are packed, and K and V are not */
    int64_t kv_keys;       /* of all sequences together; 0: not known, or must not matter */
    /* Of TESS_OP_BACKWARD: as in tess_plan_desc, and its TESS_PLAN_DQ_F32 and so on. */
    uint32_t determinism, gradients;
    /* 1: turns can be had (tess_kernel.turns). They are for rows in intervals, and there are none
     * for bidirectional S2 and block masks. A kernel that needs them refuses these. */
    uint32_t turns;
    uint32_t reserved; /* 0 */
} tess_kernel_key;

/*
 * What the jobs of a kernel cost on the device's architecture, for a plan that decides whether to
 * split the keys of its rows (docs/layout.md has the model). Constants of the kernel, the
 * architecture and the key, and never measured on the machine: the bits of results depend on them.
 * workers 0: the kernel says nothing, and the plan guesses.
 */
typedef struct tess_kernel_costs {
    uint32_t workers;           /* jobs that run at a time; must not depend on settings */
    uint32_t step_keys;         /* keys of a job that are worked on together: fewer cost as much */
    uint32_t step_ns;           /* of that many keys and a full tile, or the rows of the key */
    uint32_t job_ns;            /* of a job beside its steps */
    uint32_t merge_ns;          /* of merging beside the traffic of the partial results ... */
    uint32_t part_ns;           /* ... and for each part of the job that has most */
    uint32_t partial_bandwidth; /* [0: no bound] of partial results, written and read, in MB/s */
    uint32_t bandwidth;         /* [0: no bound] of reading K and V, in MB/s */
} tess_kernel_costs;

/*
 * The stages of TESS_OP_BACKWARD. A run has a launch for each one that its kernel has and the
 * wanted gradients need, in this order. first_job and n_jobs count the jobs of that stage.
 *
 *     stage     jobs     what they do
 *     DELTA     strips   get ready what later stages need of their rows: Delta, accumulators of 0
 *     ROWS      jobs     write d_q. These are forward's jobs, without parts
 *     COLUMNS   columns  write d_k and d_v
 *     FINISH    strips   write d_q
 *
 * A kernel of two passes has DELTA, ROWS and COLUMNS. One of a single pass has DELTA, COLUMNS and
 * FINISH: its columns also add to accumulators of dQ, which FINISH turns into d_q. A kernel of two
 * passes has no launch of ROWS without d_q, and none of COLUMNS without d_k and d_v. One of a
 * single pass has none of FINISH without d_q. A column may find d_k, d_v or both of kind NONE.
 *
 * Whatever stages hand on to each other lies in the workspace: the kernel's scratch, and behind it
 * strip_bytes for each strip and query head, and n_sums times sum_bytes where columns are cut. How
 * these are laid out is the kernel's choice; Delta as float [n_heads][n_strips * strip_rows] is a
 * good one. Row r of sequence s belongs to strip first_strips[s] + r / strip_rows.
 */
enum {
    TESS_STAGE_DELTA = 1u << 0,
    TESS_STAGE_ROWS = 1u << 1,
    TESS_STAGE_COLUMNS = 1u << 2,
    TESS_STAGE_FINISH = 1u << 3,
    TESS_STAGES = 4 /* how many there are */
};

/* What a plan must know of the kernel that it got. Low tiles are for few and short jobs, where all
 * of them run at a time. */
typedef struct tess_kernel tess_kernel;
struct tess_kernel {
    uint32_t struct_size;
    uint32_t tile_rows;     /* most rows * heads of a job */
    uint32_t tile_step;     /* tile_rows may be lowered to any positive multiple of this */
    uint32_t pack_rows;     /* heads are packed while rows * heads <= pack_rows; 0: never */
    uint64_t scratch_bytes; /* workspace of a run before the partials, however many jobs it has */
    const void *impl;       /* the backend's, such as a row of its table */
    void *state;            /* the backend's, per plan; may be NULL */
    void (*release)(tess_kernel *kernel); /* frees `state` when the plan goes; never NULL */
    tess_kernel_costs costs;              /* [workers 0: unknown] */
    uint32_t
        short_rows;  /* [0: none] rows of short tiles, which take less time each than full ones */
    uint32_t stages; /* TESS_OP_BACKWARD: the TESS_STAGE_... that it has; else 0, as all below */
    uint32_t tile_keys;   /* most keys of a column, 1 to 4096 */
    uint32_t step_rows;   /* rows that a column works on at once, 1 to 4096 */
    uint32_t strip_rows;  /* 1 to 4096 */
    uint64_t strip_bytes; /* workspace for each strip and query head */
    /* 1: segments have turns, and are cut as strips are (tessera_turns.h). For a single pass whose
     * step_rows are its strip_rows, and a key with `turns`. */
    uint32_t turns;
    /* [0: a plan cuts no columns] Workspace for the sums of columns with the same keys, that is dK
     * and dV of tile_keys keys: see tess_launch.column_parts. */
    uint32_t sum_bytes;
};

/* Tensors that a launch may have; a tess_role is an index below it. New roles take free indices, so
 * that no field ever moves. */
enum { TESS_ROLES = 32 };

/*
 * A run of a plan with several kernels is a launch for each of them, one after the other, with its
 * own ranges of jobs and of merges, partials_at and partial_rows. They share the workspace's
 * scratch.
 *
 * TESS_OP_APPEND writes rows instead of running jobs. `n_jobs` counts rows from row `first_job` on,
 * over all sequences: packed, as they follow each other in the tensors; else q_tokens for each
 * entry of tables->sequences, of which those past its q_len do not exist. In a step there are
 * tess_step_head.n_rows rows at most, of n_sequences sequences.
 * TESS_ROLE_NEW_K and
 * TESS_ROLE_NEW_V are addressed as Q is, with kv heads. Row r of a sequence is key t = q_first + r,
 * and goes to where the address rule below puts that key in TESS_ROLE_K and TESS_ROLE_V, unless
 *     t is outside [0, kv_len) or in a block before TESS_SEQUENCE_FIRST_BLOCK, or
 *     the sequence's flags have TESS_SEQUENCE_NO_APPEND, or
 *     the plan is compact, and `next` of t's block is not past block (kv_len - 1) / block,
 *         both counted from that first one, or
 *     the kv head belongs to another storage group than the launch's, or
 *     the column u / page of the block table is not below its stride_batch, or
 *     its id is outside [0, pages).
 * Where kv_dtype has 8 bits, the row becomes codes as tess_append_desc says, and its scale goes to
 * the same place in TESS_ROLE_K_SCALE and TESS_ROLE_V_SCALE; of these, one with stride_token 0 is
 * read instead.
 *
 * TESS_OP_COPY_PAGES has no plan, and tables that are empty. n_jobs counts tokens, `page` of them
 * for each pair of int32 in TESS_ROLE_BLOCK_TABLE: token n % page of the first page goes to the
 * same token of the second, unless an id is outside [0, pages) or both are the same. TESS_ROLE_K is
 * the pool, with n_heads heads of head_dim elements.
 *
 * TESS_OP_MERGE has no plan, and tables that are empty. n_jobs counts vectors: vector n is row n /
 * n_heads of head n % n_heads, and both are below 2^31. It merges `batch` parts, in rising order,
 * of TESS_ROLE_O_PARTS and TESS_ROLE_LSE_PARTS (float32), where stride_batch is the part, into
 * TESS_ROLE_O and TESS_ROLE_LSE (which may be NONE), as tess_merge_parts says.
 */
typedef struct tess_launch {
    uint32_t struct_size;
    uint32_t op, dtype;
    int32_t head_dim, value_head_dim;
    int32_t block;
    uint32_t group;         /* kv head of query head h is h / group */
    uint32_t batch_strided; /* 0: packed, stride_batch is not used (sequence.batch is 0) */
    float scale;
    uint32_t batch;    /* sequences in the tensors' batch dimension; 1 if packed */
    uint32_t n_heads;  /* query heads */
    int64_t q_tokens;  /* extent of Q's tokens: of the longest sequence, or of all if packed */
    int64_t kv_tokens; /* likewise of K and V */
    const tess_kernel *kernel;
    const tess_tables *tables;
    uint64_t first_job, n_jobs; /* attention jobs; all before any merge */
    uint64_t first_merge, n_merges;
    tess_stream stream;
    double *seconds;          /* NULL, or where the device's own time goes, after waiting */
    tess_buffer workspace;    /* the kernel's scratch first, partials at partials_at */
    uint64_t workspace_bytes; /* from workspace.offset on that the plan may touch */
    uint64_t partials_at;     /* bytes from workspace.offset */
    /* Even. Partial n starts at float n * partial_rows * (value_head_dim + 2), on a 16-byte
     * boundary: partial_rows rows of O, the packed row r = head_in_pack * job.rows + row at
     * r * value_head_dim; then partial_rows references, then partial_rows sums. */
    uint32_t partial_rows;
    uint32_t reserved;
    /* By tess_role, checked by the core: kind, alignment, strides, sizes. Kind NONE: not given. */
    tess_tensor tensor[TESS_ROLES];
    /* Bytes from each tensor's offset on that the plan may touch; 0: none. For devices that bind
     * ranges of buffers. */
    uint64_t bytes[TESS_ROLES];
    /*
     * Where key t of kv head g lies, in elements from the start of K and of V:
     *
     *     u = compact ? slot of block t / block (tess_slot) * block + t % block : kv_start + t
     *     h = compact ? pool_head of g : g
     *     page 0: kv_batch * stride_batch + u * stride_token + h * stride_head
     *     else:         id * stride_batch + u % page * stride_token + h * stride_head
     *
     * where id is the int32 number kv_batch * stride_batch + u / page of TESS_ROLE_BLOCK_TABLE. A
     * key whose id is outside [0, pages) is absent: it counts as masked, and neither its K nor its
     * V is read. Compact plans have a launch for each storage group, whose jobs follow each other;
     * K, V and the block table are then the group's. Merges come with the last one.
     */
    int64_t pages;        /* of K and of V */
    int32_t page;         /* tokens: 16, 32, 64, 128 or 256; 0: contiguous */
    uint32_t compact;     /* 1: K and V lie by slot */
    uint32_t storage;     /* compact: the storage group of this launch */
    uint32_t n_sequences; /* in tables->sequences; of a step, room for as many */
    uint32_t kv_batch;    /* sequences in the batch dimension of K and V; 0: packed */
    /* tess_dtype of K and V. With one of 8 bits, TESS_ROLE_K_SCALE and TESS_ROLE_V_SCALE are there,
     * float32 and addressed as K and V are; K and V lie on 8-byte boundaries, and so do all of
     * their rows. */
    uint32_t kv_dtype;
    uint32_t stage;     /* TESS_OP_BACKWARD: a TESS_STAGE_...; else 0, as all below */
    uint32_t gradients; /* TESS_PLAN_DQ_F32, ..._ADD of the plan: what d_q, d_k and d_v are */
    uint32_t n_strips, n_columns; /* of the whole plan */
    uint64_t strips_at; /* bytes from workspace.offset: n_strips * n_heads * strip_bytes */
    /* 1: TESS_PLAN_TRUST_DEVICE: page ids, lengths and positions need no check. */
    uint32_t trusted;
    /*
     * COLUMNS: n_cut_columns long columns are cut by query heads, by rows or by both. Each has
     * become column_parts columns with the same keys; some of these may have no segments. They are
     * the first ones of the plan's table, those with the same keys one after the other. Their dK
     * and dV are added up in this order, and the last of them writes the result.
     *
     * With p = column_parts, columns n * p to n * p + p - 1 add up theirs in the place of number n
     * % n_sums, of n_sums places with sum_bytes each. So column n * p has to wait until those that
     * had the place before it are done. Every column waits for columns with lower numbers only.
     * With turns, each leaves the number of the first column with its keys (tessera_turns.h). The
     * launch of DELTA with job 0 clears what says whose turn it is to add, so that ranges may
     * split COLUMNS.
     */
    uint32_t column_parts; /* [1: no column is cut] */
    uint64_t sums_at;      /* [n_sums is 0: none] bytes from workspace.offset: n_sums * sum_bytes */
    uint64_t n_sums;
    uint64_t n_cut_columns;
} tess_launch;

typedef struct tess_backend {
    uint32_t abi; /* TESS_BACKEND_ABI */
    uint32_t struct_size;
    const char *name; /* lower case, at most 31 characters */

    /* Describes device `index`; UNAVAILABLE past the last one, and for index 0 with the full reason
     * why there is none. Sets kind, compute_units, memory_bytes, name, arch and driver; the core
     * fills the rest. */
    tess_status (*list)(const tess_host *host, uint32_t index, tess_device_info *info);
    /* Opens device `index`, or wraps `native` (a structure of tessera_<name>.h) when that is not
     * NULL; UNAVAILABLE when `native` is of another device. `host` outlives the device. */
    tess_status (*open)(const tess_host *host, uint32_t index, const void *native, void **device);
    void (*close)(void *device);
    tess_status (*query)(void *device, tess_caps *caps);
    /*
     * Answers for row `index` of the backend's table of kernels; the core walks the table, best row
     * first, and logs what each row answers. INVALID past the last row, and needs no message.
     *
     * Describes the row in *info: op, flags, most_rows, and the name after "backend/". As its
     * status OK, or with the reason why not: with key NULL whether this device can run it at all
     * (UNAVAILABLE), with a key also whether it takes that problem (UNSUPPORTED).
     * With `kernel`, and if it takes the problem, the row makes itself ready and fills *kernel.
     * Where only this tells that it cannot be run, UNSUPPORTED or UNAVAILABLE comes back with a
     * message, which refuses likewise. Any other status is a failure of the call.
     */
    tess_status (*kernel)(void *device, uint32_t index, const tess_kernel_key *key,
                          tess_kernel_info *info, tess_kernel *kernel);
    /* Runs jobs and then merges on the launch's stream. */
    tess_status (*launch)(void *device, const tess_launch *launch);
    tess_status (*alloc)(void *device, uint64_t size, tess_buffer *buffer);
    /* Also called once the device is lost: then it drops what the host holds and returns OK. */
    tess_status (*free)(void *device, tess_buffer *buffer);
    tess_status (*copy)(void *device, tess_buffer destination, tess_buffer source, uint64_t bytes);
    tess_status (*wait)(void *device, uint64_t timeout_ns);

    /* [NULL: none] The backend's own tune table, text as docs/tune.md describes it, with kernels of
     * this backend only: which of them are tried first on which device for which shape. A tune file
     * of the user's comes before it, the order of the table of kernels after it. May be absent:
     * struct_size then ends before it. */
    const char *tune;

    /* [NULL: none] Marks of places in streams, which tell when runs no longer read a plan's tables
     * (tess_plan_release_after). `mark` sets *mark to where the stream is now; *mark is NULL, or
     * one whose place nobody asks for any more. `passed`: OK once the stream is past the place,
     * BUSY before, and any other status where that cannot be told, without a message. `unmark`
     * frees it. Calls for one mark never overlap. May be absent: struct_size then ends before them.
     */
    tess_status (*mark)(void *device, const tess_stream *stream, void **mark);
    tess_status (*passed)(void *device, void *mark);
    void (*unmark)(void *device, void *mark);
} tess_backend;

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_BACKEND_H */
