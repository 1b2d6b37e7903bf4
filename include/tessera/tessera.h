/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: a portable attention runtime.
 *
 * Tessera computes softmax attention in which every query head reads its own shard of the context
 * (Sparsely-Sharded, "S2", attention, arXiv 2407.17678). Dense, sliding-window and user-supplied
 * block patterns are other cases of the same thing.
 *
 *     s(t)          = scale * <Q[b, p, h, :], K[b, t, g, :]>,   g = h div (n_heads / n_kv_heads)
 *     O[b, p, h, :] = sum over kept t of softmax_t(s(t)) * V[b, t, g, :]
 *     LSE[b, h, p]  = ln(sum over kept t of exp(s(t)))
 *
 * Data flows pattern -> layout -> plan -> run:
 *
 *     tess_runtime   settings, allocator, log, list of backends        one per application
 *     tess_device    a CPU or GPU, opened by id or wrapped             one per device
 *     tess_layout    a pattern bound to heads and a context size       host only, shared by plans
 *     tess_plan      a layout and a batch bound to a device            one per batch shape
 *     tess_run       runs the kernels of one plan on caller's memory   every step
 *
 * GENERAL RULES
 *
 * Status.       Every function that can fail returns a tess_status. After a failure
 *               tess_last_error() names the field or the native call. No argument makes the
 *               library abort. A failed call leaves its outputs as they were unless the function
 *               says otherwise.
 * Descriptors   begin with `struct_size`, which the caller sets to sizeof the structure:
 *               `tess_plan_desc d = {sizeof d};` zeroes the rest. Fields are only ever appended.
 *               A larger structure from a newer header is accepted while its unknown tail is zero
 *               and refused with TESS_ERROR_VERSION otherwise. A size must be a multiple of the
 *               structure's alignment and end between two fields; one that does not is refused
 *               with TESS_ERROR_VERSION too. Zero means "default" only for fields marked
 *               [0: ...].
 * Infos         are structures that the library fills. They follow the same rules: at most
 *               struct_size bytes are written, and bytes that this library does not know are
 *               zeroed.
 * Ownership.    Handles are reference counted inside: a plan keeps its device and layout alive, a
 *               device its runtime. So handles may be released in any order. Strings that the
 *               library returns belong to it and live as long as the handle they came from. The
 *               memory behind tess_buffer and tess_tensor always belongs to the caller.
 * Threads.      tess_runtime, tess_device, tess_layout and tess_plan may be used from any number
 *               of threads at once. Creation and release of one handle must not race with its
 *               use. tess_last_error() is per thread.
 * fork().       Handles made before fork() fail with TESS_ERROR_INVALID in the child, with a
 *               message that says so; release is allowed. Memory from tess_alloc cannot be freed
 *               in the child; it goes with the process.
 * Sizes.        Lengths and strides are signed 64-bit and count tokens and elements, never bytes,
 *               unless the name says bytes.
 */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <stddef.h>
#include <stdint.h>

#define TESS_VERSION_MAJOR 0
#define TESS_VERSION_MINOR 1
#define TESS_VERSION_PATCH 0
#define TESS_VERSION_NUMBER \
    (TESS_VERSION_MAJOR * 1000000 + TESS_VERSION_MINOR * 1000 + TESS_VERSION_PATCH)

#if defined(_WIN32)
#if defined(TESS_BUILDING)
#define TESS_API __declspec(dllexport)
#else
#define TESS_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define TESS_API __attribute__((visibility("default")))
#else
#define TESS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------------- status */

/* X(name, text). Values are stable; new ones are appended. */
#define TESS_STATUS_LIST(X)                                                                        \
    X(TESS_OK, "success")                                                                          \
    X(TESS_ERROR_INVALID, "invalid argument")    /* the caller's mistake */                        \
    X(TESS_ERROR_UNSUPPORTED, "not supported")   /* legal, but no kernel or feature does it */     \
    X(TESS_ERROR_UNAVAILABLE, "not available")   /* no such backend, device or driver here */      \
    X(TESS_ERROR_OUT_OF_MEMORY, "out of memory") /* host or device; the objects stay usable */     \
    X(TESS_ERROR_VERSION, "version mismatch")    /* header, library, backend or data do not fit */ \
    X(TESS_ERROR_BUSY, "busy")                   /* max_in_flight runs are under way; retry */     \
    X(TESS_ERROR_TIMEOUT, "timed out")           /* a wait reached its limit; the work goes on */  \
    X(TESS_ERROR_DEVICE_LOST, "device lost")     /* sticky: all calls but tess_free answer this */ \
    X(TESS_ERROR_CORRUPT, "corrupt data")        /* serialised bytes are damaged */                \
    X(TESS_ERROR_NATIVE, "native call failed")   /* any other failure of a driver or system call */

typedef enum tess_status {
#define TESS_STATUS_ENUM(name, text) name,
    TESS_STATUS_LIST(TESS_STATUS_ENUM)
#undef TESS_STATUS_ENUM
} tess_status;

/* The name of a status, "TESS_OK" and so on; "TESS_ERROR_?" for a value that is none. Static
 * storage. Thread-safe, cannot fail. */
TESS_API const char *tess_status_name(tess_status status);

/* One line about the last failure on the calling thread: the function, then the field or native
 * call, then what is wrong with it. Valid until the next failing call on this thread. Empty if
 * nothing failed yet. A successful call leaves it as it was.
 * A thread's first failure takes memory for the text from malloc: under 512 bytes, freed when the
 * thread ends. Where there is none, the text says what kind of failure it was and no more. */
TESS_API const char *tess_last_error(void);

/* TESS_VERSION_NUMBER of the library that is running, to compare with the header's. Cannot fail. */
TESS_API uint32_t tess_version(void);

/* -------------------------------------------------------------------------------------- runtime */

typedef struct tess_runtime tess_runtime;
typedef struct tess_device tess_device;
typedef struct tess_layout tess_layout;
typedef struct tess_plan tess_plan;

/* Host allocator. Both functions may be called from any thread that calls the library, and never
 * inside tess_run.
 * alloc: returns memory aligned to `alignment` (a power of two), or NULL.
 * free:  gets back what `alloc` gave, with the same size; never NULL. */
typedef struct tess_allocator {
    void *(*alloc)(void *user, size_t size, size_t alignment);
    void (*free)(void *user, void *pointer, size_t size);
    void *user; /* handed to both */
} tess_allocator;

/* Receives one line of log without a newline. May be called from any thread that calls the
 * library; must not call the library back. */
typedef void (*tess_log_fn)(void *user, const char *line);

/*
 * Settings of the application. A field whose comment names an environment variable beats that
 * variable. Strings are copied. A NULL string means "use the environment", "" means unset.
 *
 * backend:      `name` or `name:index`, or a comma list of these in order of preference.
 * kernel:       a problem that this kernel refuses is TESS_ERROR_UNSUPPORTED.
 * verbose:      what to log: a comma list of errors, device, dispatch, plan, all.
 * cache_dir:    absolute path. The newest compiled kernels are kept there, 256 MiB at most.
 * tune_file:    absolute path of a file of rules that say which kernel is tried first for which
 *               shape (docs/tune.md).
 * backend_path: colon list of absolute paths of backend libraries.
 * cpu_threads:  most threads of a CPU device, its caller's included. Never more are used than the
 *               CPUs that the process may keep busy when the runtime is created: its affinity
 *               mask, lowered to the quota of its control groups.
 */
typedef struct tess_runtime_desc {
    uint32_t struct_size;
    uint32_t flags;           /* must be 0 */
    tess_allocator allocator; /* [0: malloc and free] both functions or neither */
    tess_log_fn log;          /* [0: standard error] */
    void *log_user;           /* handed to `log` */
    const char *backend;      /* TESSERA_BACKEND: device to open, or a list of them */
    const char *kernel;       /* TESSERA_KERNEL: `backend/kernel`, the only one plans may use */
    const char *verbose;      /* TESSERA_VERBOSE: what to log */
    const char *cache_dir;    /* TESSERA_CACHE_DIR: folder of compiled kernels */
    const char *tune_file;    /* TESSERA_TUNE_FILE: which kernel is tried first */
    const char *backend_path; /* TESSERA_BACKEND_PATH: backend libraries to load */
    uint32_t cpu_threads;     /* [0: TESSERA_CPU_THREADS, else no bound] 1 to 1024 */
    uint32_t reserved;        /* must be 0 */
} tess_runtime_desc;

/* Reads the settings once (descriptor, then environment) and lists the backends; opens no driver.
 * `desc` may be NULL for all defaults. Environment variables are read through secure_getenv where
 * it exists; later changes of the environment have no effect. The tune file is read here and never
 * again. A file that is named and cannot be used is an error, whose message names the setting and
 * the line.
 * INVALID: a malformed setting; an unknown backend name in `backend`; an allocator with one
 *   function; a tune file that is not there, no regular file, or too large.
 * CORRUPT: a malformed tune file.
 * VERSION: a descriptor or a tune file of a later version.
 * NATIVE: the tune file cannot be read.
 * OUT_OF_MEMORY. */
TESS_API tess_status tess_runtime_create(const tess_runtime_desc *desc, tess_runtime **runtime);

/* Drops the caller's reference; NULL is ignored. Memory goes back once the last device, layout and
 * plan made from it is released. */
TESS_API void tess_runtime_release(tess_runtime *runtime);

typedef struct tess_backend_info {
    uint32_t struct_size;
    uint32_t device_count; /* devices of the backend */
    tess_status status;    /* TESS_OK, or why there is no device: usually TESS_ERROR_UNAVAILABLE */
    uint32_t reserved;     /* 0 */
    char name[32];         /* "cuda" */
    char reason[512];      /* one line if not TESS_OK: libraries tried, driver too old, no device */
} tess_backend_info;

/* Describes backend `index` (0, 1, ...; order of preference), probing its driver on first use.
 * In a process with more rights than its user (set-user-ID, set-group-ID, file capabilities) no
 * GPU driver is opened unless tess_runtime_desc.backend or tess_device_desc.id names the backend;
 * until then it is UNAVAILABLE and has no devices. Drivers and their loaders obey environment
 * variables of their own, so an application that names a GPU backend there gives the user the
 * rights of the process: see SECURITY.md.
 * INVALID: index is past the last. */
TESS_API tess_status tess_runtime_backend(tess_runtime *runtime, uint32_t index,
                                          tess_backend_info *info);

typedef enum tess_device_kind {
    TESS_DEVICE_CPU = 0,
    TESS_DEVICE_GPU = 1,
    TESS_DEVICE_SOFTWARE = 2, /* a GPU API emulated on the CPU */
} tess_device_kind;

typedef struct tess_device_info {
    uint32_t struct_size;
    uint32_t kind;          /* tess_device_kind */
    uint32_t compute_units; /* threads used on a CPU, multiprocessors on a GPU */
    uint32_t reserved;      /* 0 */
    uint64_t memory_bytes;  /* of the device; of the machine for a CPU */
    char id[40];            /* "cpu:0"; what tess_device_open and TESSERA_BACKEND take */
    char backend[32];       /* "cpu" */
    char name[128];         /* marketing name */
    char arch[96];          /* instruction sets or architecture */
    char driver[96];        /* driver or library version */
} tess_device_info;

/* Describes device `index` over all backends (0, 1, ...), in order of preference.
 * INVALID: index is past the last. */
TESS_API tess_status tess_runtime_device(tess_runtime *runtime, uint32_t index,
                                         tess_device_info *info);

typedef struct tess_setting_info {
    uint32_t struct_size;
    uint32_t reserved;   /* 0 */
    const char *name;    /* environment variable */
    const char *value;   /* as used; "" when unset */
    const char *source;  /* "default", "environment" or "descriptor" */
    const char *meaning; /* one sentence */
} tess_setting_info;

/* Describes setting `index` (0, 1, ...). Strings live as long as the runtime.
 * INVALID: index is past the last. */
TESS_API tess_status tess_runtime_setting(const tess_runtime *runtime, uint32_t index,
                                          tess_setting_info *info);

/* --------------------------------------------------------------------------------------- device */

/*
 * id:     same grammar as TESSERA_BACKEND: `name` or `name:index`, or a comma list of these.
 * native: a structure of tessera_<backend>.h that wraps the application's own context.
 */
typedef struct tess_device_desc {
    uint32_t struct_size;
    uint32_t flags;     /* must be 0 */
    const char *id;     /* [NULL: the setting `backend`, else the best device that works] */
    const void *native; /* [NULL: the library opens the device] the application's own context */
} tess_device_desc;

/* Opens a device. The choice is made here, once, never per problem. `desc` may be NULL.
 * Names in `id` that are not available here are skipped. Software devices rank below the CPU. In a
 * process with more rights than its user, GPU backends that no descriptor names are not looked at
 * (tess_runtime_backend).
 * With `native`, `id` must be `name:index`, the device that the context belongs to, or `name`;
 * then the device is found among the backend's devices. The backend's own status comes back.
 * INVALID: an unknown backend name.
 * UNAVAILABLE: none of the names is left; the message lists what exists. With `native` and `name`:
 *   the context belongs to none of the backend's devices.
 * OUT_OF_MEMORY: ends the search, since it says nothing about which device works. */
TESS_API tess_status tess_device_open(tess_runtime *runtime, const tess_device_desc *desc,
                                      tess_device **device);
TESS_API void tess_device_release(tess_device *device);
TESS_API tess_status tess_device_query(const tess_device *device, tess_device_info *info);

enum {
    /* Taken only where the setting or the plan names it: made for tests, never the best. */
    TESS_KERNEL_ONLY_NAMED = 1u << 0,
};

typedef struct tess_kernel_info {
    uint32_t struct_size;
    uint32_t op;        /* tess_op */
    tess_status status; /* TESS_OK, or UNAVAILABLE: this device cannot run it */
    uint32_t flags;     /* TESS_KERNEL_ONLY_NAMED */
    char name[64];      /* "cpu/avx512": what TESSERA_KERNEL and tess_plan_desc.kernel take */
    char reason[128];   /* why it is UNAVAILABLE */
    uint32_t most_rows; /* [0: any] rows that it is for: q_len times query heads per kv head */
} tess_kernel_info;

/* Describes kernel `index` (0, 1, ...) of the device, in the order in which they are tried.
 * INVALID: index is past the last. */
TESS_API tess_status tess_device_kernel(const tess_device *device, uint32_t index,
                                        tess_kernel_info *info);

typedef enum tess_rule_basis {
    TESS_BASIS_NONE = 0,     /* the rule does not say */
    TESS_BASIS_MEASURED = 1, /* measured on such a device */
    TESS_BASIS_REASONED = 2, /* derived from what the device is, without one at hand */
} tess_rule_basis;

typedef struct tess_rule_info {
    uint32_t struct_size;
    uint32_t line;     /* of the table, counted from 1 */
    uint32_t built_in; /* 0: of the setting `tune_file`; 1: of a backend's own table */
    uint32_t basis;    /* tess_rule_basis */
    const char *table; /* the file's path, or the backend's name */
    const char *text;  /* the rule as it stands there, without comments */
} tess_rule_info;

/* Describes tune rule `index` (0, 1, ...) of those for `device`, or of all rules with NULL: first
 * the tune file's in order, then each backend's own. Strings live as long as the runtime.
 * A plan without a kernel of its own or the setting's chooses in three steps:
 *   1. The first rule of the file for its device and shape; that rule's kernels in order.
 *   2. If there is none, or all of them refuse: likewise with the backend's own rules.
 *   3. Then the backend's kernels in the order of tess_device_kernel.
 * INVALID: index is past the last, or the device belongs to another runtime. */
TESS_API tess_status tess_runtime_rule(const tess_runtime *runtime, const tess_device *device,
                                       uint32_t index, tess_rule_info *info);

/* --------------------------------------------------------------------------- pattern and layout */

typedef enum tess_pattern_kind {
    TESS_PATTERN_DENSE = 0,  /* every key; in causal order, every key up to the query */
    TESS_PATTERN_S2 = 1,     /* local blocks and every stride-th block, shifted by head */
    TESS_PATTERN_WINDOW = 2, /* p - left <= t <= p + right, and the first `sinks` keys */
    TESS_PATTERN_BLOCKS = 3, /* a boolean block mask of the caller's */
} tess_pattern_kind;

enum {
    TESS_PATTERN_BIDIRECTIONAL = 1u << 0, /* keys after the query may be seen; else t <= p */
    TESS_PATTERN_PER_KV_HEAD = 1u << 1,   /* S2: the query heads of one kv head share a pattern */
    TESS_PATTERN_HOMOGENEOUS = 1u << 2,   /* S2: all heads share one, with `offset` (step = 0) */
};

/*
 * Symbols of the formulas:
 *
 *     p    absolute position of a query, (kv_len - q_len) + query index: the last query meets the
 *          last key (bottom-right alignment) unless the plan has q_first or kv_first
 *     t    position of a key
 *     B    block
 *     i    floor(p / B), the query's block
 *     j    floor(t / B), the key's block
 *     h    head, counted over the whole model
 *     H    heads_total
 *     V    stride
 *     L    local
 *
 * S2 (arXiv 2407.17678; the same formula as vLLM, TensorRT-LLM, ONNX Runtime and Phi-3-small):
 *
 *     kept(h, p, t) = t <= p and (dense(h) or i - j < L or (j + g(h) * step + offset) mod V == 0)
 *     step          = 0 if HOMOGENEOUS, else max(1, V div H)
 *     g(h)          = h div (heads_total / kv_heads_total) if PER_KV_HEAD, else h
 *     dense(h)      = h is one of the last dense_heads heads of the model
 *
 * S2 with BIDIRECTIONAL, where PER_KV_HEAD, HOMOGENEOUS and offset must be 0:
 *
 *     kept(h, p, t) = dense(h) or (a + b) mod V == 0
 *     a             = max(0, i - j - L + 1)
 *     b             = max(0, j - i - local_right + 1)
 *
 * WINDOW:
 *
 *     kept(h, p, t) = (p - left <= t <= p + right or t < sinks) and (t <= p unless BIDIRECTIONAL)
 *
 * BLOCKS; blocks outside the mask are not kept:
 *
 *     kept(h, p, t) = mask[h or 0][i][j] != 0 and (t <= p unless BIDIRECTIONAL)
 *
 * Queries before the first key (p < 0, when q_len > kv_len) follow the same formulas; in causal
 * order they keep nothing.
 *
 * block:       tokens a block. S2, BLOCKS: at least 1. DENSE, WINDOW: [0: 64]; the granularity of
 *              reports and of tiles.
 * left, right: tokens, at least 0, or -1 for unbounded; `right` counts as 0 in causal order.
 * mask:        [mask_heads, mask_query_blocks, mask_key_blocks], contiguous; any non-zero byte is
 *              true; copied.
 */
typedef struct tess_pattern {
    uint32_t struct_size;
    uint32_t kind;             /* tess_pattern_kind */
    uint32_t flags;            /* TESS_PATTERN_BIDIRECTIONAL, ... */
    int32_t block;             /* tokens a block; [0: 64] for DENSE and WINDOW */
    int32_t local;             /* S2: local blocks, the diagonal one included; at least 1 */
    int32_t local_right;       /* S2 BIDIRECTIONAL: [0: local] likewise to the right; else 0 */
    int32_t stride;            /* S2: V, at least 1; 1 is dense */
    int32_t offset;            /* S2: at least 0 */
    int32_t dense_heads;       /* S2: the model's last heads that are dense; 0 to heads_total */
    int32_t mask_heads;        /* BLOCKS: 1, or n_heads */
    int64_t left, right;       /* WINDOW: tokens; -1 is unbounded */
    int64_t sinks;             /* WINDOW: at least 0 */
    const uint8_t *mask;       /* BLOCKS: a byte for each head, query block and key block */
    int64_t mask_query_blocks; /* BLOCKS: at least 0 */
    int64_t mask_key_blocks;   /* BLOCKS: at least 0 */
} tess_pattern;

/* With tensor parallelism a layout has a part of the model's heads: those from head_first on, or
 * those of head_ids, each once and in any order; the ids of a kv head must have the same id div
 * (heads_total / kv_heads_total). By default that is n_heads / n_kv_heads, if it comes out even. */
typedef struct tess_layout_desc {
    uint32_t struct_size;
    uint32_t flags;              /* must be 0 */
    const tess_pattern *pattern; /* read during creation only */
    int32_t n_heads;             /* query heads here, 1 to 65535; a multiple of n_kv_heads */
    int32_t n_kv_heads;          /* at least 1 */
    int32_t head_first;          /* id of head 0 within the whole model */
    int32_t heads_total;         /* [0: head_first + n_heads] query heads of the whole model */
    int32_t kv_heads_total;      /* [0: in proportion] kv heads of the model; divides heads_total */
    int32_t reserved;            /* must be 0 */
    int64_t max_tokens;          /* longest kv_len that plans of this layout may have; at least 0 */
    int64_t max_chunk;           /* [0: 1] most new tokens a step into a compact KV cache */
    const int32_t *head_ids;     /* [NULL: from head_first on, else 0] n_heads ids, copied */
} tess_layout_desc;

/* Binds a pattern to heads and a context size. Takes time and memory in proportion to the heads
 * alone, whatever the context: a layout holds formulas and no lists. Only a caller's mask is read
 * as a whole and kept, compressed.
 * INVALID: names the field.
 * UNSUPPORTED: more than 2^31 - 1 blocks.
 * OUT_OF_MEMORY. VERSION. */
TESS_API tess_status tess_layout_create(tess_runtime *runtime, const tess_layout_desc *desc,
                                        tess_layout **layout);
TESS_API void tess_layout_release(tess_layout *layout);

/*
 * kv_efficient: 1 if the order is causal and a key block that one query block no longer reads is
 *               read by no later one; else 0.
 * coverage:     of the blocks that a query could see, the share that at least one head does see,
 *               over max_tokens; 1 is full context.
 * kept_share:   kept (query, key) pairs over those of the dense pattern of the same order, all
 *               heads, over max_tokens.
 */
typedef struct tess_layout_info {
    uint32_t struct_size;
    uint32_t n_classes;           /* groups of heads with equal patterns */
    uint32_t n_heads, n_kv_heads; /* of this layout */
    int64_t max_tokens;           /* longest kv_len of its plans */
    int64_t n_blocks;             /* ceil(max_tokens / block) */
    int32_t block;                /* tokens a block */
    uint32_t kv_efficient;        /* 1: key blocks can be dropped for good; else 0 */
    uint32_t residues;            /* S2: residues mod stride that the heads cover; else 0 */
    uint32_t residues_total;      /* S2: stride; else 0 */
    double coverage;              /* share of the visible blocks that some head sees */
    double kept_share;            /* kept pairs over those of the dense pattern */
    uint64_t host_bytes;          /* memory of this layout */
    uint32_t n_storage;           /* storage groups of a compact KV cache, at least 1 */
    uint32_t reserved;            /* 0 */
} tess_layout_info;

TESS_API tess_status tess_layout_query(const tess_layout *layout, tess_layout_info *info);

/* Writes row[j] for every key block j in [0, n_blocks): 1 if `head` keeps any pair of a query of
 * block `query_block` and a key of block j, else 0. Positions are 0 .. max_tokens - 1.
 * `row_blocks` is the capacity of `row`, at least n_blocks. */
TESS_API tess_status tess_layout_row(const tess_layout *layout, int32_t head, int64_t query_block,
                                     uint8_t *row, int64_t row_blocks);

/* Writes 1 to *kept if `head` keeps the pair (query position, key position), else 0. Any query
 * position is legal; 0 <= key < max_tokens. */
TESS_API tess_status tess_layout_kept(const tess_layout *layout, int32_t head, int64_t query,
                                      int64_t key, int *kept);

/* Writes the layout as bytes to `data` of capacity *size and sets *size to the length. With
 * data == NULL only sets *size. The bytes are the same on every machine and hold no pointers.
 * INVALID: the capacity is too small; then *size is the length needed. */
TESS_API tess_status tess_layout_serialize(const tess_layout *layout, void *data, size_t *size);

/* Makes a layout from such bytes, which are not trusted.
 * CORRUPT, VERSION: anything that tess_layout_create would not have accepted or
 *   tess_layout_serialize would not have written. */
TESS_API tess_status tess_layout_deserialize(tess_runtime *runtime, const void *data, size_t size,
                                             tess_layout **layout);

/* -------------------------------------------------------------------- buffers, tensors, streams */

/* Only CPU devices take HOST: a GPU device answers INVALID, because nothing is copied silently. */
typedef enum tess_buffer_kind {
    TESS_BUFFER_NONE = 0,    /* no buffer: legal for optional tensors and an empty workspace */
    TESS_BUFFER_HOST = 1,    /* handle is a host pointer */
    TESS_BUFFER_POINTER = 2, /* handle is a device pointer (CUdeviceptr, hipDeviceptr_t) */
    TESS_BUFFER_OBJECT = 3,  /* handle is a native buffer object (cl_mem, VkBuffer) */
} tess_buffer_kind;

/* handle + offset must be aligned to the element size and to nothing more. If `size` is given,
 * every access is checked against it before a launch. */
typedef struct tess_buffer {
    uint32_t kind;     /* tess_buffer_kind */
    uint32_t reserved; /* must be 0 */
    uint64_t handle;   /* what `kind` says */
    uint64_t offset;   /* bytes from the start of the buffer */
    uint64_t size;     /* [0: unknown, nothing is checked] bytes of the buffer from its start */
} tess_buffer;

/*
 * A tensor [batch, token, head, element] with unit stride over elements. For LSE the element
 * dimension does not exist. In packed batches (cu_q_lens, cu_kv_lens) the tokens of all sequences
 * follow each other and stride_batch is not used.
 *
 * Inputs may have equal or zero strides. Strides of outputs must keep elements apart (INVALID
 * otherwise). Outputs must not overlap inputs or each other: tess_run refuses outputs of which an
 * element certainly lies within another tensor, as addresses and strides tell. Of equal lengths it
 * finds every overlap of tensors without gaps, whatever the order of their dimensions, and nearly
 * all others. Tensors may alternate in one buffer, as packed Q, K and V do, since only elements
 * count.
 */
typedef struct tess_tensor {
    tess_buffer buffer;
    int64_t stride_batch; /* elements from one sequence to the next, at least 0 */
    int64_t stride_token; /* elements from one token to the next, at least 0 */
    int64_t stride_head;  /* elements from one head to the next, at least 0 */
} tess_tensor;

typedef enum tess_stream_kind {
    TESS_STREAM_DEFAULT = 0, /* the device's own queue */
    TESS_STREAM_SUBMIT = 1,  /* a native stream or queue; see tessera_<backend>.h */
    TESS_STREAM_RECORD = 2,  /* record into the application's command buffer */
} tess_stream_kind;

typedef struct tess_stream {
    uint32_t kind;     /* tess_stream_kind */
    uint32_t reserved; /* must be 0 */
    uint64_t handle;   /* of the stream, queue or command buffer */
    const void *extra; /* waits and signals; see tessera_<backend>.h */
} tess_stream;

/* ----------------------------------------------------------------------------------------- plan */

typedef enum tess_op {
    TESS_OP_FORWARD = 0,
    TESS_OP_BACKWARD = 1, /* tessera_backward.h */
    /* Not of plans, but of other functions that have kernels of their own. */
    TESS_OP_APPEND = 2,     /* tess_append */
    TESS_OP_COPY_PAGES = 3, /* tess_copy_pages */
    TESS_OP_PREPARE = 4,    /* tess_prepare */
    TESS_OP_MERGE = 5,      /* tess_merge_parts */
} tess_op;

typedef enum tess_dtype {
    TESS_F32 = 0,
    TESS_F16 = 1,
    TESS_BF16 = 2,
    TESS_F8E4M3 = 3, /* of K and V alone: see tessera_serving.h */
    TESS_I8 = 4,     /* likewise */
} tess_dtype;

enum {
    /* A sequence's bits depend on no other. They depend on its own q_len: see docs/layout.md. */
    TESS_PLAN_BATCH_INVARIANT = 1u << 0,
    /* Lengths come from device memory, with tess_prepare; the descriptor's are capacities. */
    TESS_PLAN_DEVICE_LENGTHS = 1u << 1,
    /* K and V lie by slot: a head keeps only the key blocks that it can still see. The layout must
     * be causal and KV-efficient. */
    TESS_PLAN_COMPACT = 1u << 2,
    /* tess_append may be called with the plan: its kernel is made ready too. */
    TESS_PLAN_APPEND = 1u << 3,
    /* 1u << 4 to 1u << 7: see tessera_backward.h */
    /* Values in device memory are used unchecked: the caller promises page ids in [0, pages) for
     * every key below kv_len, and lengths and positions of steps within what tess_prepare says. */
    TESS_PLAN_TRUST_DEVICE = 1u << 8,
    /* With DEVICE_LENGTHS: steps may come with kv_first (tess_prepare). Positions then reach to the
     * layout's max_tokens, and kv_len is the capacity of a part. */
    TESS_PLAN_DEVICE_PARTS = 1u << 9,
};

/*
 * head_dim:      multiples of 8 from 8 to 256; anything else positive is UNSUPPORTED.
 * scale:         multiplies <q, k> before the softmax; finite, 2^-120 to 2^120 in magnitude.
 *
 * batch:         0 is legal and has no other meaning: a plan whose batch was forgotten computes
 *                nothing. With q_len above 0 the setting `verbose` logs that under `plan`.
 *                Sequences without rows cost no memory.
 * q_len, kv_len: of every sequence, without the arrays below. 0 is legal, so is q_len > kv_len.
 * q_lens, kv_lens:
 *                padded batches: a length for each sequence, at most q_len and kv_len if those are
 *                not 0. Rows past a length are neither read nor written.
 * cu_q_lens, cu_kv_lens:
 *                packed batches: cumulative lengths, batch + 1 values, the first 0, never falling.
 *                Both or neither. All four arrays are copied.
 *
 * kv_split:      0: the plan decides, by the kernel's costs and all lengths of the batch. 1: the
 *                keys of a row are never split. n > 1: they are split into at most n parts. Parts
 *                are merged in a fixed order, by each row's largest score and sum of exponentials
 *                in float32.
 * tile_rows:     rounded down to what the kernel can do. 0: the kernel's own; the plan may take
 *                fewer where jobs are few and short.
 * max_in_flight: counts where the device needs objects for each call.
 * time_limit_us: an estimate, not a promise.
 * kernel:        NULL: the setting `kernel`, else as the tune tables prefer, else the first that
 *                accepts. One with most_rows serves sequences with so few, the next the rest.
 * q_first, kv_first:
 *                positions for each sequence, `batch` values each, copied. Row r of the sequence is
 *                at position q_first[b] + r and key t at kv_first[b] + t, and the pattern compares
 *                these positions: with both, a sequence's rows read any part of its keys (see
 *                tess_merge_parts). kv_first[b] is a multiple of the pattern's block, and the keys
 *                end within the layout's max_tokens. q_first[b] is at least 0; rows may lie past
 *                all keys, as those of a later part do. Without q_first the last row is at the
 *                position of the last key. A KV cache may keep a part as well, compact ones from
 *                slot 0 on: see tess_layout_part_slot.
 *
 * max_rows:      only with DEVICE_LENGTHS: the capacity of Q and O in rows, of a whole step.
 * page:          K and V lie in pages of that many tokens, which a table names: tess_run_desc. With
 *                pages or TESS_PLAN_COMPACT, K and V have a batch dimension also where rows are
 *                packed, and cu_kv_lens tells only how many keys each sequence has.
 */
typedef struct tess_plan_desc {
    uint32_t struct_size;
    uint32_t flags;                        /* TESS_PLAN_BATCH_INVARIANT, ... */
    uint32_t op;                           /* tess_op */
    uint32_t dtype;                        /* of Q, O, and of K and V but for kv_dtype */
    int32_t head_dim;                      /* elements of a head: 8, 16, ... 256 */
    int32_t value_head_dim;                /* [0: head_dim] others UNSUPPORTED in this version */
    float scale;                           /* [0: 1 / sqrt(head_dim)] */
    float softcap;                         /* [0: none] others UNSUPPORTED in this version */
    int64_t batch;                         /* sequences */
    int64_t q_len, kv_len;                 /* tokens of every sequence */
    const int64_t *q_lens, *kv_lens;       /* [NULL: q_len, kv_len] of each, padded */
    const int64_t *cu_q_lens, *cu_kv_lens; /* [NULL: not packed] cumulative lengths, packed */
    int32_t kv_split;                      /* [0: the plan decides] most parts of a row's keys */
    int32_t tile_rows;                     /* [0: the kernel's] most query rows of a job */
    uint32_t determinism;                  /* [0: run to run] backward: 1: not guaranteed */
    uint32_t max_in_flight;                /* [0: 4] tess_run calls that may be under way */
    uint64_t time_limit_us;                /* [0: the device's, if any] of a tess_plan_range */
    const char *kernel;                    /* [NULL: the best that accepts] "backend/kernel" */
    uint32_t kv_dtype;                     /* [0: dtype] TESS_F8E4M3, TESS_I8: with scales */
    int32_t page;                          /* [0: contiguous] 16, 32, 64, 128 or 256 tokens */
    int64_t max_rows;                      /* [0: batch * q_len] most rows of a step */
    const int64_t *q_first;                /* [NULL: bottom-right] of each: position of row 0 */
    const int64_t *kv_first;               /* [NULL: 0] of each: position of its first key */
} tess_plan_desc;

/* Binds a layout and a batch to a device: picks the kernels, cuts the rows into tiles, orders the
 * jobs longest first, and places the workspace. Costs O(jobs). The plan is immutable and may run
 * from several threads at once on different workspaces.
 * INVALID: names the field.
 * UNSUPPORTED: no kernel accepts it (the message says which and why), a reserved feature, or a
 *   length of 2^31 - 65536 or more.
 * OUT_OF_MEMORY. DEVICE_LOST. */
TESS_API tess_status tess_plan_create(tess_device *device, const tess_layout *layout,
                                      const tess_plan_desc *desc, tess_plan **plan);
TESS_API void tess_plan_release(tess_plan *plan);

/* Releases a plan in the order of a stream, for training and serving on packed batches, which have
 * new lengths and so new plans in every step. tess_plan_release gives a plan's tables back to the
 * driver, which may wait until the device is idle. Here nothing waits: a later plan on the device
 * takes the tables' memory once the stream is past the runs so far. New tables are copied before
 * tess_plan_create returns, behind nothing but the device's own queue.
 *
 * plan:   all of its runs are on the stream, or on others for which the stream waits already. NULL
 *         is ignored.
 * stream: [NULL: the device's own queue] of kind DEFAULT or SUBMIT, without `extra`, and not being
 *         captured. A plan is released after the graphs that its runs were captured into.
 *
 * A device keeps tables of 64 plans and 256 MiB at most, until it is released. What is more goes
 * back at once, as with tess_plan_release; and so does all on devices but those of CUDA and HIP,
 * which wait for the device when memory is freed.
 * INVALID: the stream. The plan is not released then. */
TESS_API tess_status tess_plan_release_after(tess_plan *plan, const tess_stream *stream);

/*
 * n_jobs:      attention jobs and, after them, merge jobs: what tess_run's range counts. With
 *              DEVICE_LENGTHS, the most that a step can have; and as its lengths are not known,
 *              kept_pairs, dense_pairs, flops and bytes_min are 0, and there is one range.
 * kept_pairs:  (query, key) pairs that the token-exact mask keeps, all heads and sequences.
 * flops:       4 * head_dim * kept_pairs: two products, a multiply and an add each; backward has
 *              five products.
 * bytes_min:   Q, K, V read once (only keys that some head of the kv head keeps) and O written
 *              once. Backward reads O and dO too and writes all gradients.
 */
typedef struct tess_plan_info {
    uint32_t struct_size;
    uint32_t tile_rows;       /* most query rows of a job */
    uint64_t n_jobs;          /* attention jobs and merge jobs */
    uint64_t n_merge_jobs;    /* of these, merge jobs */
    uint64_t n_ranges;        /* for tess_plan_range */
    uint64_t kept_pairs;      /* (query, key) pairs that the pattern keeps */
    uint64_t dense_pairs;     /* the same for the dense pattern of the same order */
    double flops;             /* of the kept pairs */
    uint64_t bytes_min;       /* least traffic of Q, K, V and O */
    uint64_t workspace_bytes; /* exact; what tess_run needs */
    uint64_t workspace_align; /* of the workspace's address */
    uint64_t host_bytes;      /* memory of the plan on the host, tables included */
    uint64_t device_bytes;    /* tables on the device; 0 where they are the host's */
    double create_seconds;    /* how long tess_plan_create took */
    char kernel[64];          /* "backend/kernel", of the sequences with most rows */
    uint64_t step_bytes;      /* exact; of a step buffer, with DEVICE_LENGTHS */
    uint32_t n_storage;       /* storage groups: pools of K, and of V. 1 unless COMPACT */
    uint32_t few_tile_rows;   /* likewise tile_rows, of few_kernel; 0: there is none */
    char few_kernel[64];      /* of the sequences with fewest rows, where it is another; or "" */
    uint64_t n_columns;       /* backward: of the jobs, those that compute dK and dV */
    uint32_t tile_keys;       /* backward: most keys of these */
    uint32_t reserved;        /* 0 */
} tess_plan_info;

/* kept_pairs, dense_pairs, flops and bytes_min are computed here, in closed form: O(heads) for each
 * sequence, or O(query blocks * heads) and a little memory for a caller's mask. The rest is stored.
 * OUT_OF_MEMORY. */
TESS_API tess_status tess_plan_query(const tess_plan *plan, tess_plan_info *info);

/* Range `index` of the jobs, in order, such that one range stays under the time limit.
 * INVALID: index is past the last. */
TESS_API tess_status tess_plan_range(const tess_plan *plan, uint64_t index, uint64_t *first_job,
                                     uint64_t *job_count);

typedef enum tess_role {
    TESS_ROLE_Q = 0,
    TESS_ROLE_K = 1,
    TESS_ROLE_V = 2,
    TESS_ROLE_O = 3,
    TESS_ROLE_LSE = 4,
    TESS_ROLE_BLOCK_TABLE = 5, /* int32 */
    TESS_ROLE_NEW_K = 6,       /* of tess_append */
    TESS_ROLE_NEW_V = 7,
    TESS_ROLE_STEP = 8,    /* of tess_prepare */
    TESS_ROLE_O_PARTS = 9, /* of tess_merge_parts */
    TESS_ROLE_LSE_PARTS = 10,
    TESS_ROLE_CU_ROWS = 11, /* of tess_prepare, int32 */
    TESS_ROLE_KV_LENS = 12, /* likewise */
    TESS_ROLE_Q_FIRST = 13, /* likewise */
    TESS_ROLE_K_SCALE = 14, /* float32 */
    TESS_ROLE_V_SCALE = 15,
    TESS_ROLE_D_O = 16, /* of backward plans */
    TESS_ROLE_D_Q = 17,
    TESS_ROLE_D_K = 18,
    TESS_ROLE_D_V = 19,
    TESS_ROLE_D_LSE = 20,    /* float32 */
    TESS_ROLE_KV_FIRST = 21, /* of tess_prepare, int32 */
} tess_role;

/* Fills strides for a contiguous tensor of the plan at `buffer`, and sets *bytes (may be NULL) to
 * its size:
 *
 *            padded                              packed
 *     Q, O   [batch, q_len, n_heads, head_dim]       [tokens, n_heads, head_dim]
 *     K, V   [batch, kv_len, n_kv_heads, head_dim]   [tokens, n_kv_heads, head_dim]
 *     LSE    [batch, n_heads, q_len]                 [n_heads, tokens]
 *     D_O, D_Q, D_LSE as Q and LSE, D_K, D_V as K and V
 *     NEW_K, NEW_V      [batch, q_len, n_kv_heads, head_dim]  [tokens, n_kv_heads, head_dim]
 *     K_SCALE, V_SCALE  [batch, kv_len, n_kv_heads]           [tokens, n_kv_heads]
 *     BLOCK_TABLE  [n_storage, batch, pages of the longest sequence], stride_batch is table_stride
 *
 * With length arrays in a padded batch, q_len and kv_len are the descriptor's where not 0, else the
 * longest. INVALID: the role is none; K or V of a plan with pages or several storage groups, whose
 * pools tess_plan_pool describes; BLOCK_TABLE or scales of a plan that has none. */
TESS_API tess_status tess_plan_tensor(const tess_plan *plan, tess_role role, tess_buffer buffer,
                                      tess_tensor *tensor, uint64_t *bytes);

/* ------------------------------------------------------------------------------------------ run */

/*
 * lse:            float32, natural logarithm; -inf for rows without keys.
 * step:           a step that tess_prepare wrote for this plan, earlier on the stream.
 * workspace:      at least workspace_bytes after its offset, aligned to workspace_align. Its
 *                 contents do not matter and are not kept. No element of a tensor lies within it.
 * first_job, job_count:
 *                 a range of jobs. Ranges of one run share a workspace and are given in order.
 * device_seconds: gets the device's own time for this call, and makes the call wait for it.
 *
 * A plan with pages, or with TESS_PLAN_COMPACT, reads K and V from a KV cache:
 *
 * k, v:           with pages [pages, page, kv head, element]: stride_batch leads from page to page,
 *                 and the other strides may have any order. Without them K and V are
 *                 [batch, token, kv head, element], also where rows are packed.
 * k_pools, v_pools:
 *                 where tess_plan_info.n_storage is above 1, a tensor of each storage group, with
 *                 the kv heads that tess_layout_storage lists; k and v are of kind NONE then.
 * block_table, table_stride:
 *                 int32 [n_storage][batch][table_stride]: entry u / page of a sequence's row is the
 *                 page of its token place u. Places are the positions of keys, or TESS_PLAN_COMPACT
 *                 by slot: tess_layout_slot. table_stride is at least the pages of the longest
 *                 sequence; entries past a sequence's last place are not read.
 * pages:          of every pool. An entry outside [0, pages), such as -1, is a hole: its keys count
 *                 as masked, and neither their K nor their V is read. Entries may be equal.
 *
 * Pools are inputs: they and the table may overlap each other, and outputs may not lie within them.
 * What no row reads may hold anything: other blocks of a slot, ends of pages, pages that no row of
 * the table names. Results do not depend on the page, the ids, the strides, or on whether K and V
 * lie in pages, by slot or in place: with one kernel and tile_rows they have the same bits.
 *
 * d_o to d_lse are of backward plans, where o and lse are inputs (tessera_backward.h); in others
 * they are of kind NONE. So are sink_logits, q_lens and kv_lens, which answer UNSUPPORTED.
 */
typedef struct tess_run_desc {
    uint32_t struct_size;
    uint32_t flags;         /* must be 0 */
    tess_tensor q, k, v;    /* inputs; k and v may be a pool of pages */
    tess_tensor o;          /* output; of backward plans an input */
    tess_tensor lse;        /* [kind NONE: not wanted] likewise; float32 */
    tess_buffer workspace;  /* [kind NONE: where workspace_bytes is 0] */
    tess_stream stream;     /* [0: the device's own queue] */
    uint64_t first_job;     /* of the range */
    uint64_t job_count;     /* [0: all from first_job on] */
    double *device_seconds; /* [NULL: not wanted] */
    tess_tensor sink_logits, k_scale, v_scale;
    tess_buffer q_lens, kv_lens, block_table;
    tess_tensor d_o, d_q, d_k, d_v, d_lse;
    tess_buffer step;     /* [kind NONE: without DEVICE_LENGTHS] from tess_prepare */
    int64_t table_stride; /* pages from one sequence's row of block_table to the next */
    int64_t pages;        /* of each pool; 1 to 2^31 - 1 */
    const tess_tensor *k_pools, *v_pools; /* [NULL: k, v] of each storage group, if several */
    const tess_tensor *k_scale_pools, *v_scale_pools; /* [NULL: k_scale, v_scale] likewise */
} tess_run_desc;

/*
 * Runs the plan. Never allocates (a thread's first failure apart: tess_last_error), compiles,
 * synchronises (device_seconds apart) or reads the environment, so it can be captured into a graph.
 * On a CPU it returns when the work is done. A driver may do more within its own calls: some finish
 * compiling a kernel when it first runs, so run a plan once before you measure it or capture it.
 * Concurrent calls on one plan are safe with distinct workspaces and outputs. On a CPU the calling
 * thread is one of the workers, and takes at most 16 KiB of its stack for that.
 *
 * A row that keeps no key gets O = 0 and LSE = -inf. Keys at or past kv_len, and blocks that no row
 * of a tile keeps, contribute nothing even when they hold NaN. Inside a block that some row of a
 * tile keeps, a non-finite V may reach every row of that tile, never another head or tile. The same
 * call gives the same bits every time, and on a CPU with every number of threads. A forward plan
 * with a batch or q_len of 0 succeeds without a launch.
 *
 * LSE is the float32 nearest to scale * m + ln(sum exp(scale * (s - m))) for the row's largest
 * score m, up to a few units in the last place: a large score leaves few digits for the rest, and a
 * product beyond float32 gives infinity. O does not depend on that: it is computed from differences
 * of scores, also where keys are split.
 *
 * Weighted values are added up in float32 and divided by the sum of their weights at the end. Where
 * the first sum leaves float32's range, the element is infinite (NaN if a greater score follows)
 * although the quotient would be finite: V near the largest finite float32 or bfloat16 over many
 * keys of nearly equal scores. V of up to 2^80 in magnitude never does that, and float16 never can.
 * Denormal numbers may count as 0 in inputs, in intermediate values and in results: below 2^-126 in
 * float32 and bfloat16, where x86-64 and 64-bit ARM CPUs always do, and below 2^-14 in float16,
 * where some GPUs do and no CPU does.
 *
 * On failure outputs may be partly written.
 * INVALID: names the tensor and what is wrong: kind, alignment, stride, size, workspace too small,
 *   range.
 * UNSUPPORTED: a reserved feature; stream.extra of a plan with several storage groups or kernels.
 * BUSY: max_in_flight runs are under way.
 * DEVICE_LOST. NATIVE.
 */
TESS_API tess_status tess_run(const tess_plan *plan, const tess_run_desc *desc);

/* --------------------------------------------------- memory, for applications without their own */

/* Memory of the device, at least 256-byte aligned. size 0 gives a buffer of kind NONE.
 * OUT_OF_MEMORY. DEVICE_LOST. */
TESS_API tess_status tess_alloc(tess_device *device, uint64_t size, tess_buffer *buffer);

/* Frees what tess_alloc gave and clears *buffer; kind NONE is ignored. Waits for nothing: the
 * caller makes sure that no run still uses it. Works on a lost device too.
 * INVALID: not a buffer of the device's kind, or a child of fork().
 * NATIVE. */
TESS_API tess_status tess_free(tess_device *device, tess_buffer *buffer);

/* Copies bytes between two buffers of the device, or between one and host memory (kind HOST), at
 * their offsets, and returns when it is done.
 * INVALID: names the side and the field: kind, range, or bytes of the two that overlap. */
TESS_API tess_status tess_copy(tess_device *device, tess_buffer destination, tess_buffer source,
                               uint64_t bytes);

/* Waits until all work of the device's default stream is done. UINT64_MAX waits without limit.
 * TIMEOUT: timeout_ns passed. */
TESS_API tess_status tess_wait(tess_device *device, uint64_t timeout_ns);

/* A buffer value for host memory. */
static inline tess_buffer tess_host_buffer(const void *pointer, uint64_t size) {
    tess_buffer buffer;
    buffer.kind = TESS_BUFFER_HOST;
    buffer.reserved = 0;
    buffer.handle = (uint64_t)(uintptr_t)pointer;
    buffer.offset = 0;
    buffer.size = size;
    return buffer;
}

#ifdef __cplusplus
}
#endif

#include "tessera_backward.h"
#include "tessera_serving.h"

#endif /* TESSERA_TESSERA_H */
