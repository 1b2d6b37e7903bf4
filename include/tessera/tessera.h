/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: a portable attention runtime.
 *
 * Tessera computes softmax attention in which every query head reads its own shard of the context (Sparsely-Sharded, "S2",
 * attention, arXiv 2407.17678), with dense, sliding-window and user-supplied block patterns as other cases of the same thing.
 *
 *     O[b, p, h, :] = sum over kept t of softmax_t(scale * <Q[b, p, h, :], K[b, t, g, :]>) * V[b, t, g, :],   g = h div (n_heads / n_kv_heads)
 *     LSE[b, h, p]  = ln(sum over kept t of exp(scale * <Q[b, p, h, :], K[b, t, g, :]>))
 *
 * The way of data is   pattern -> layout -> plan -> run:
 *
 *     tess_runtime   settings, allocator, log, list of backends            one per application
 *     tess_device    a CPU or GPU, opened by id or wrapped                  one per device
 *     tess_layout    a pattern made concrete for heads and a context size   host only, shared by plans
 *     tess_plan      a layout and a batch bound to a device                 one per batch shape
 *     tess_run       the kernels of one plan on the application's memory    every step
 *
 * GENERAL RULES
 *
 * Status.     Every function that can fail returns a tess_status. After a failure tess_last_error() names the field or the native call.
 *             No argument makes the library abort, and outputs of a failed call are left as they were unless a function says otherwise.
 * Descriptors begin with `struct_size`, which the caller sets to sizeof the structure: `tess_plan_desc d = {sizeof d};` zeroes the rest. Fields are
 *             only ever appended; a larger structure from a newer header is accepted while its unknown tail is zero and refused with
 *             TESS_ERROR_VERSION otherwise. So is a size that cuts a field in two: a size is a multiple of the structure's alignment and
 *             ends between fields. Zero means "default" only for fields marked [0: ...]. Info structures that the library fills
 *             follow the same rules: at most struct_size bytes are written, and bytes that this library does not know are zeroed.
 * Ownership.  Handles are reference counted inside: a plan keeps its device and layout alive, a device its runtime, so handles may be released
 *             in any order. Strings returned by the library are owned by it and live as long as the handle they came from.
 *             Memory behind tess_buffer and tess_tensor always belongs to the caller.
 * Threads.    tess_runtime, tess_device, tess_layout and tess_plan may be used from any number of threads at once; creation and release of
 *             one handle must not race with its use. tess_last_error() is per thread.
 * fork().     Handles made before fork() fail with TESS_ERROR_INVALID in the child, with a message that says so; release is allowed.
 *             Memory from tess_alloc cannot be freed in the child; it goes with the process.
 * Sizes.      Lengths and strides are signed 64-bit and counted in tokens and elements, never bytes, unless the name says bytes.
 */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <stddef.h>
#include <stdint.h>

#define TESS_VERSION_MAJOR  0
#define TESS_VERSION_MINOR  1
#define TESS_VERSION_PATCH  0
#define TESS_VERSION_NUMBER (TESS_VERSION_MAJOR * 1000000 + TESS_VERSION_MINOR * 1000 + TESS_VERSION_PATCH)

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

/* ------------------------------------------------------------------ status */

/* X(name, text). Values are stable; new ones are appended. */
#define TESS_STATUS_LIST(X)                                                                              \
    X(TESS_OK, "success")                                                                                \
    X(TESS_ERROR_INVALID, "invalid argument")    /* the caller's mistake */                              \
    X(TESS_ERROR_UNSUPPORTED, "not supported")   /* legal, but no kernel or feature here does it */      \
    X(TESS_ERROR_UNAVAILABLE, "not available")   /* no such backend, device or driver on this machine */ \
    X(TESS_ERROR_OUT_OF_MEMORY, "out of memory") /* host or device; the objects stay usable */           \
    X(TESS_ERROR_VERSION, "version mismatch")    /* header, library, backend or data do not fit */       \
    X(TESS_ERROR_BUSY, "busy")                   /* max_in_flight runs are under way; wait and retry */  \
    X(TESS_ERROR_TIMEOUT, "timed out")           /* a wait reached its limit; the work goes on */        \
    X(TESS_ERROR_DEVICE_LOST, "device lost")     /* sticky: all calls on it but tess_free say this */    \
    X(TESS_ERROR_CORRUPT, "corrupt data")        /* serialised bytes are damaged */                      \
    X(TESS_ERROR_NATIVE, "native call failed")   /* any other failure of a driver or system call */

typedef enum tess_status {
#define TESS_STATUS_ENUM(name, text) name,
    TESS_STATUS_LIST(TESS_STATUS_ENUM)
#undef TESS_STATUS_ENUM
} tess_status;

/* The name of a status, "TESS_OK" and so on; "TESS_ERROR_?" for a value that is none. Static storage. Thread-safe, cannot fail. */
TESS_API const char *tess_status_name(tess_status status);

/* One line about the last failure on the calling thread: the function, then the field or native
 * call, then what is wrong with it. Valid until the next failing call on this thread. Empty if
 * nothing failed yet. A successful call leaves it as it was. A thread's first failure takes
 * memory for it from malloc, under 512 bytes that go back when the thread ends; while there is
 * none, the text says what kind of failure it was and no more. */
TESS_API const char *tess_last_error(void);

/* TESS_VERSION_NUMBER of the library that is running, to compare with the header's. Cannot fail. */
TESS_API uint32_t tess_version(void);

/* ------------------------------------------------------------------ runtime */

typedef struct tess_runtime tess_runtime;
typedef struct tess_device tess_device;
typedef struct tess_layout tess_layout;
typedef struct tess_plan tess_plan;

/* Host allocator. `alloc` returns memory aligned to `alignment` (a power of two), or NULL; `free` gets back what `alloc` gave, with
 * the same size, and never NULL. Both may be called from any thread that calls the library, and never inside tess_run. */
typedef struct tess_allocator {
    void *(*alloc)(void *user, size_t size, size_t alignment);
    void (*free)(void *user, void *pointer, size_t size);
    void *user;
} tess_allocator;

/* Receives one line of log without a newline. May be called from any thread that calls the library; must not call the library back. */
typedef void (*tess_log_fn)(void *user, const char *line);

typedef struct tess_runtime_desc {
    uint32_t struct_size;
    uint32_t flags;           /* must be 0 */
    tess_allocator allocator; /* [0: malloc and free] both functions or neither */
    tess_log_fn log;          /* [0: standard error] */
    void *log_user;
    /* Each string below is copied, and beats the environment variable named beside it. NULL means: use the environment. "" means unset. */
    const char *backend;      /* TESSERA_BACKEND: `name`, `name:index`, or a comma list in order of preference */
    const char *kernel;       /* TESSERA_KERNEL: `backend/kernel`; a kernel that refuses a problem makes it TESS_ERROR_UNSUPPORTED */
    const char *verbose;      /* TESSERA_VERBOSE: comma list of `errors`, `device`, `dispatch`, `plan`, `all` */
    const char *cache_dir;    /* TESSERA_CACHE_DIR: where compiled kernels are kept, 256 MiB at most, the newest; absolute */
    const char *tune_file;    /* TESSERA_TUNE_FILE: rules that say which kernel is tried first for which shape (docs/tune.md); absolute */
    const char *backend_path; /* TESSERA_BACKEND_PATH: colon list of absolute paths of backend libraries to load */
    /* [0: TESSERA_CPU_THREADS, else no bound] Most threads of a CPU device, its caller's included, 1 to
     * 1024. Never more are used than the CPUs that the process may keep busy when the runtime is
     * created: its affinity mask, lowered to the quota of its control groups. */
    uint32_t cpu_threads;
    uint32_t reserved; /* must be 0 */
} tess_runtime_desc;

/* Reads the settings once (descriptor, then environment) and lists the backends; opens no driver. `desc` may be NULL for all defaults.
 * Environment variables are read through secure_getenv where it exists. Later changes of the environment have no effect.
 * The tune file is read here and never again; a file that is named and cannot be used is an error, whose message names the setting and the line.
 * INVALID: a malformed setting, unknown backend name in `backend`, allocator with one function, a tune file that is not there, no regular file or too large.
 * CORRUPT: a malformed tune file. VERSION: a descriptor or a tune file of a later version. NATIVE: the tune file cannot be read. OUT_OF_MEMORY. */
TESS_API tess_status tess_runtime_create(const tess_runtime_desc *desc, tess_runtime **runtime);

/* Drops the caller's reference; NULL is ignored. Memory goes back once the last device, layout and plan made from it is released. */
TESS_API void tess_runtime_release(tess_runtime *runtime);

typedef struct tess_backend_info {
    uint32_t struct_size;
    uint32_t device_count;
    tess_status status; /* TESS_OK, or why there is no device: usually TESS_ERROR_UNAVAILABLE */
    uint32_t reserved;
    char name[32];
    char reason[512]; /* one line when status is not TESS_OK: library names tried, driver too old, no device */
} tess_backend_info;

/* Describes backend `index` (0, 1, ...; order of preference), probing its driver on first use.
 * INVALID when index is past the last. In a process with more rights than its user (set-user-ID,
 * set-group-ID, file capabilities) no driver of a GPU is opened unless tess_runtime_desc.backend
 * or tess_device_desc.id names the backend; until then it is UNAVAILABLE and has no devices.
 * Drivers and their loaders obey variables of their own, so who names one there gives the user
 * those rights: see SECURITY.md. */
TESS_API tess_status tess_runtime_backend(tess_runtime *runtime, uint32_t index, tess_backend_info *info);

typedef enum tess_device_kind {
    TESS_DEVICE_CPU = 0,
    TESS_DEVICE_GPU = 1,
    TESS_DEVICE_SOFTWARE = 2 /* a GPU API emulated on the CPU */
} tess_device_kind;

typedef struct tess_device_info {
    uint32_t struct_size;
    uint32_t kind;          /* tess_device_kind */
    uint32_t compute_units; /* threads used on a CPU, multiprocessors on a GPU */
    uint32_t reserved;
    uint64_t memory_bytes; /* of the device; of the machine for a CPU */
    char id[40];           /* "cpu:0"; what tess_device_open and TESSERA_BACKEND take */
    char backend[32];
    char name[128];  /* marketing name */
    char arch[96];   /* instruction sets or architecture */
    char driver[96]; /* driver or library version */
} tess_device_info;

/* Describes device `index` over all backends (0, 1, ...), in order of preference. INVALID when index is past the last. */
TESS_API tess_status tess_runtime_device(tess_runtime *runtime, uint32_t index, tess_device_info *info);

typedef struct tess_setting_info {
    uint32_t struct_size;
    uint32_t reserved;
    const char *name;    /* environment variable */
    const char *value;   /* as used; "" when unset */
    const char *source;  /* "default", "environment" or "descriptor" */
    const char *meaning; /* one sentence */
} tess_setting_info;

/* Describes setting `index` (0, 1, ...). Strings live as long as the runtime. INVALID when index is past the last. */
TESS_API tess_status tess_runtime_setting(const tess_runtime *runtime, uint32_t index, tess_setting_info *info);

/* ------------------------------------------------------------------ device */

typedef struct tess_device_desc {
    uint32_t struct_size;
    uint32_t flags;     /* must be 0 */
    const char *id;     /* [NULL: the setting `backend`, else the best device that works] same grammar as TESSERA_BACKEND */
    const void *native; /* [NULL: the library opens the device] a structure of tessera_<backend>.h that wraps the application's own context */
} tess_device_desc;

/* Opens a device. An unknown backend name is INVALID; names that are not available here are
 * skipped; if none is left the error is UNAVAILABLE and lists what exists. With `native`, `id`
 * must be `name:index`, the device that the context belongs to, or `name`, and then it is found
 * among the backend's devices (UNAVAILABLE if it is none of them); the backend's own status
 * comes back. OUT_OF_MEMORY ends the search: it says nothing about which device works. `desc`
 * may be NULL. Software devices rank below the CPU. In a process with more rights than its user
 * backends of GPUs that no descriptor names are not looked at (tess_runtime_backend). The choice
 * is made here, once, never per problem. */
TESS_API tess_status tess_device_open(tess_runtime *runtime, const tess_device_desc *desc, tess_device **device);
TESS_API void tess_device_release(tess_device *device);
TESS_API tess_status tess_device_query(const tess_device *device, tess_device_info *info);

enum {
    TESS_KERNEL_ONLY_NAMED = 1u << 0, /* taken only where the setting or the plan names it: made for tests, never the best */
};

typedef struct tess_kernel_info {
    uint32_t struct_size;
    uint32_t op;        /* tess_op */
    tess_status status; /* TESS_OK, or UNAVAILABLE with the reason: this device cannot run it */
    uint32_t flags;     /* TESS_KERNEL_ONLY_NAMED */
    char name[64];      /* "cpu/avx512": what TESSERA_KERNEL and tess_plan_desc.kernel take */
    char reason[128];
} tess_kernel_info;

/* Describes kernel `index` (0, 1, ...) of the device, in the order in which they are tried. INVALID when index is past the last. */
TESS_API tess_status tess_device_kernel(const tess_device *device, uint32_t index, tess_kernel_info *info);

typedef enum tess_rule_basis {
    TESS_BASIS_NONE = 0,     /* the rule does not say */
    TESS_BASIS_MEASURED = 1, /* on such a device */
    TESS_BASIS_REASONED = 2, /* from what the device is, without one at hand */
} tess_rule_basis;

typedef struct tess_rule_info {
    uint32_t struct_size;
    uint32_t line;     /* of the table, counted from 1 */
    uint32_t built_in; /* 0: of the setting `tune_file`; 1: of a backend's own table */
    uint32_t basis;    /* tess_rule_basis */
    const char *table; /* the file's path, or the backend's name */
    const char *text;  /* the rule as it stands there, comments left out */
} tess_rule_info;

/*
 * Describes rule `index` (0, 1, ...) of those that are for `device`, or of all with NULL: the tune file's in order, then each backend's own. A plan without a kernel
 * of its own or the setting's takes the first rule of the file that is for its device and shape, and tries the rule's kernels in order; if there is none, or all of
 * them refuse, likewise with the backend's own rules; and then the backend's kernels in the order of tess_device_kernel. Strings live as long as the runtime.
 * INVALID when index is past the last, or the device belongs to another runtime.
 */
TESS_API tess_status tess_runtime_rule(const tess_runtime *runtime, const tess_device *device, uint32_t index, tess_rule_info *info);

/* ------------------------------------------------------------------ pattern and layout */

typedef enum tess_pattern_kind {
    TESS_PATTERN_DENSE = 0,  /* every key; with causal order, every key up to the query */
    TESS_PATTERN_S2 = 1,     /* a local window of blocks and every stride-th block, shifted by head */
    TESS_PATTERN_WINDOW = 2, /* p - left <= t <= p + right, exact to the token, and the first `sinks` keys */
    TESS_PATTERN_BLOCKS = 3, /* a boolean block mask of the caller's */
} tess_pattern_kind;

enum {
    TESS_PATTERN_BIDIRECTIONAL = 1u << 0, /* keys after the query may be seen; without it t <= p is always required */
    TESS_PATTERN_PER_KV_HEAD = 1u << 1,   /* S2: the query heads of one kv head share a pattern */
    TESS_PATTERN_HOMOGENEOUS = 1u << 2,   /* S2: all heads share one pattern (step = 0); `offset` still counts */
};

/*
 * p is the absolute position of a query: p = (kv_len - q_len) + query index, so the last query meets the last key (bottom-right alignment).
 * t is the position of a key, B = block, i = floor(p / B), j = floor(t / B). H = heads_total, V = stride, L = local.
 *
 * S2 (arXiv 2407.17678; the same formula as vLLM, TensorRT-LLM, ONNX Runtime and Phi-3-small), with step = 0 if HOMOGENEOUS else max(1, V div H):
 *     kept(h, p, t) = t <= p and ( dense(h) or i - j < L or (j + g(h) * step + offset) mod V == 0 )
 *     g(h) = h, or h div (heads_total / kv_heads_total) with PER_KV_HEAD; h counts the heads of the whole model; dense(h): the last dense_heads of them.
 * S2, BIDIRECTIONAL: with a = max(0, i - j - L + 1) and b = max(0, j - i - local_right + 1), kept = dense(h) or (a + b) mod V == 0.
 *     PER_KV_HEAD, HOMOGENEOUS and offset must then be 0.
 * WINDOW: kept = (p - left <= t <= p + right or t < sinks), and t <= p unless BIDIRECTIONAL.
 * BLOCKS: kept = mask[h or 0][i][j] != 0, and t <= p unless BIDIRECTIONAL. Blocks outside the mask are not kept.
 *
 * Queries before the first key (p < 0, when q_len > kv_len) follow the same formulas; in causal order they keep nothing.
 */
typedef struct tess_pattern {
    uint32_t struct_size;
    uint32_t kind;             /* tess_pattern_kind */
    uint32_t flags;            /* TESS_PATTERN_BIDIRECTIONAL, ... */
    int32_t block;             /* tokens a block. S2, BLOCKS: at least 1. DENSE, WINDOW: [0: 64] the granularity of reports and of tiles */
    int32_t local;             /* S2: local blocks, the diagonal one included; at least 1 */
    int32_t local_right;       /* S2 BIDIRECTIONAL: [0: local] likewise to the right; else must be 0 */
    int32_t stride;            /* S2: V, at least 1; 1 is dense */
    int32_t offset;            /* S2: at least 0 */
    int32_t dense_heads;       /* S2: how many of the model's last heads are dense; 0 to heads_total */
    int32_t mask_heads;        /* BLOCKS: 1, or n_heads */
    int64_t left, right;       /* WINDOW: tokens, at least 0, or -1 for unbounded; `right` counts as 0 in causal order */
    int64_t sinks;             /* WINDOW: at least 0 */
    const uint8_t *mask;       /* BLOCKS: [mask_heads, mask_query_blocks, mask_key_blocks], contiguous, any non-zero byte is true; copied */
    int64_t mask_query_blocks; /* BLOCKS: at least 0 */
    int64_t mask_key_blocks;   /* BLOCKS: at least 0 */
} tess_pattern;

typedef struct tess_layout_desc {
    uint32_t struct_size;
    uint32_t flags;              /* must be 0 */
    const tess_pattern *pattern; /* read during creation only */
    int32_t n_heads;             /* query heads here, 1 to 65535; a multiple of n_kv_heads */
    int32_t n_kv_heads;          /* at least 1 */
    int32_t head_first;          /* id of head 0 within the whole model (tensor parallelism) */
    int32_t heads_total;         /* [0: head_first + n_heads] query heads of the whole model */
    int32_t kv_heads_total;      /* [0: heads_total * n_kv_heads / n_heads, if whole] kv heads of the whole model; divides heads_total */
    int32_t reserved;            /* must be 0 */
    int64_t max_tokens;          /* longest kv_len that plans of this layout may have; at least 0 */
    int64_t max_chunk;           /* [0: 1] most new tokens per step, for the KV ring of tess_layout_kv */
} tess_layout_desc;

/* Makes a pattern concrete. Takes time and memory in proportion to the heads alone, whatever the
 * context: a layout holds formulas and no lists. Only a caller's mask is read as a whole and
 * kept, compressed. INVALID names the field. UNSUPPORTED: more than 2^31 - 1 blocks.
 * OUT_OF_MEMORY. VERSION. */
TESS_API tess_status tess_layout_create(tess_runtime *runtime, const tess_layout_desc *desc, tess_layout **layout);
TESS_API void tess_layout_release(tess_layout *layout);

typedef struct tess_layout_info {
    uint32_t struct_size;
    uint32_t n_classes; /* groups of heads with equal patterns */
    uint32_t n_heads, n_kv_heads;
    int64_t max_tokens;
    int64_t n_blocks; /* ceil(max_tokens / block) */
    int32_t block;
    uint32_t kv_efficient;   /* 1: causal order, and once a later query block does not read a key block, no still later one does; else 0 */
    uint32_t residues;       /* S2: distinct residues mod stride that the heads cover; 0 for other kinds */
    uint32_t residues_total; /* S2: stride; 0 for other kinds */
    double coverage;         /* share of the blocks that a query could see which at least one head does see, over max_tokens; 1 is full context */
    double kept_share;       /* kept (query, key) pairs over those of the dense pattern of the same order, all heads, over max_tokens */
    uint64_t host_bytes;     /* memory of this layout */
} tess_layout_info;

TESS_API tess_status tess_layout_query(const tess_layout *layout, tess_layout_info *info);

typedef struct tess_kv_info {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t blocks;           /* ceil(max_tokens / block) */
    int64_t blocks_kept;      /* union of the strided blocks of the group's heads, and the last `local` blocks */
    int64_t blocks_allocated; /* slots: one for each strided block, and a ring of local + ceil(max_chunk / block); `blocks` if that is less
                                  or if the pattern is not KV-efficient */
    int64_t slots_fixed;      /* slots that are never reused */
    int64_t slots_ring;       /* slots of the ring, after the fixed ones */
} tess_kv_info;

/* KV storage that one kv head needs when blocks that no head can see again are dropped. INVALID: kv_head out of range. */
TESS_API tess_status tess_layout_kv(const tess_layout *layout, int32_t kv_head, tess_kv_info *info);

/* The slot in which kv head `kv_head` keeps key block `block`: fixed slots in block order, then the ring. INVALID: out of range. */
TESS_API tess_status tess_layout_slot(const tess_layout *layout, int32_t kv_head, int64_t block, int64_t *slot);

/* Writes row[j] = 1 if any kept (query, key) pair of query block `query_block` and key block j exists for `head`, else 0, for every
 * j in [0, n_blocks), positions being 0 .. max_tokens - 1. `row_blocks` is the capacity of `row`, at least n_blocks. */
TESS_API tess_status tess_layout_row(const tess_layout *layout, int32_t head, int64_t query_block, uint8_t *row, int64_t row_blocks);

/* Writes 1 to *kept if head `head` keeps the pair (query position, key position), else 0. Any query position is legal; 0 <= key < max_tokens. */
TESS_API tess_status tess_layout_kept(const tess_layout *layout, int32_t head, int64_t query, int64_t key, int *kept);

/* Writes the layout as bytes to `data` of capacity *size and sets *size to the length. With data == NULL only sets *size. The bytes are the
 * same on every machine and hold no pointers. INVALID when the capacity is too small (then *size is the length needed). */
TESS_API tess_status tess_layout_serialize(const tess_layout *layout, void *data, size_t *size);

/* Makes a layout from such bytes, which are not trusted: CORRUPT or VERSION for anything that
 * tess_layout_create would not have accepted or tess_layout_serialize would not have written. */
TESS_API tess_status tess_layout_deserialize(tess_runtime *runtime, const void *data, size_t size, tess_layout **layout);

/* ------------------------------------------------------------------ buffers, tensors, streams */

typedef enum tess_buffer_kind {
    TESS_BUFFER_NONE = 0,    /* no buffer: legal for optional tensors and for an empty workspace */
    TESS_BUFFER_HOST = 1,    /* handle is a host pointer; only CPU devices take it, and GPU devices answer INVALID: nothing is copied in silence */
    TESS_BUFFER_POINTER = 2, /* handle is a device pointer (CUdeviceptr, hipDeviceptr_t) */
    TESS_BUFFER_OBJECT = 3,  /* handle is a native buffer object (cl_mem, VkBuffer) */
} tess_buffer_kind;

typedef struct tess_buffer {
    uint32_t kind;     /* tess_buffer_kind */
    uint32_t reserved; /* must be 0 */
    uint64_t handle;
    uint64_t offset; /* bytes from the start of the buffer; the sum must be aligned to the element size and to nothing more */
    uint64_t
        size; /* [0: unknown, nothing is checked] bytes of the buffer from its start; if given, every access is checked against it before a launch */
} tess_buffer;

/* A tensor [batch, token, head, element] with unit stride over elements; other strides in elements, at least 0. Inputs may have equal or zero strides;
 * strides of outputs must keep elements apart (INVALID otherwise). For LSE the element dimension does not exist. For packed batches
 * (cu_q_lens, cu_kv_lens) tokens of all sequences follow each other and stride_batch is not used.
 * Outputs must not overlap inputs or each other. tess_run refuses outputs of which an element
 * certainly lies within another tensor, as addresses and strides tell; of equal lengths it finds
 * every overlap of tensors without gaps, whatever the order of their dimensions, and nearly all
 * others. Tensors may alternate in one buffer, as packed Q, K and V do, since only elements count. */
typedef struct tess_tensor {
    tess_buffer buffer;
    int64_t stride_batch;
    int64_t stride_token;
    int64_t stride_head;
} tess_tensor;

typedef enum tess_stream_kind {
    TESS_STREAM_DEFAULT = 0, /* the device's own queue */
    TESS_STREAM_SUBMIT = 1,  /* a native stream or queue; see tessera_<backend>.h */
    TESS_STREAM_RECORD = 2,  /* record into the application's command buffer */
} tess_stream_kind;

typedef struct tess_stream {
    uint32_t kind;     /* tess_stream_kind */
    uint32_t reserved; /* must be 0 */
    uint64_t handle;
    const void *extra; /* waits and signals; see tessera_<backend>.h */
} tess_stream;

/* ------------------------------------------------------------------ plan */

typedef enum tess_op { TESS_OP_FORWARD = 0, TESS_OP_BACKWARD = 1 /* UNSUPPORTED in this version */ } tess_op;
typedef enum tess_dtype { TESS_F32 = 0, TESS_F16 = 1, TESS_BF16 = 2 } tess_dtype;

enum {
    TESS_PLAN_BATCH_INVARIANT = 1u << 0, /* the bits of a sequence's result do not depend on the other sequences of the batch */
};

typedef struct tess_plan_desc {
    uint32_t struct_size;
    uint32_t flags;         /* TESS_PLAN_BATCH_INVARIANT */
    uint32_t op;            /* tess_op */
    uint32_t dtype;         /* tess_dtype of Q, K, V and O; accumulation and LSE are float32 */
    int32_t head_dim;       /* multiples of 8 from 8 to 256; anything else positive is UNSUPPORTED */
    int32_t value_head_dim; /* [0: head_dim] anything else is UNSUPPORTED in this version */
    float scale;            /* [0: 1 / sqrt(head_dim)] finite, 2^-120 to 2^120 in magnitude; multiplies <q, k> before the softmax */
    float softcap;          /* [0: none] UNSUPPORTED in this version */
    /* Sequences. 0 is legal and has no other meaning: a plan whose batch was forgotten computes
     * nothing. With q_len above 0 the setting `verbose` logs that under `plan`. Sequences without
     * rows cost no memory. */
    int64_t batch;
    int64_t q_len, kv_len; /* of every sequence, where the arrays below are NULL; 0 is legal; q_len > kv_len is legal */
    /* Arrays are copied. Padded batches: lengths per sequence, at most q_len and kv_len if those are not 0; rows past a length are neither read nor
     * written. Packed batches: cumulative lengths, batch + 1 values, the first 0, never falling; both or neither of cu_q_lens and cu_kv_lens. */
    const int64_t *q_lens, *kv_lens;
    const int64_t *cu_q_lens, *cu_kv_lens;
    /* [0: the plan decides, by the kernel's costs and all lengths of the batch] 1: never split the
     * keys of a row; n > 1: into at most n parts. Parts are merged in a fixed order, by each row's
     * largest score and sum of exponentials in float32. */
    int32_t kv_split;
    /* [0: the kernel's; the plan may take fewer where jobs are few and short] query rows of a job
     * at most; rounded down to what the kernel can do */
    int32_t tile_rows;
    uint32_t determinism;   /* [0: run to run] other levels are UNSUPPORTED in this version */
    uint32_t max_in_flight; /* [0: 4] tess_run calls that may be under way at once, where the device needs objects per call */
    uint64_t time_limit_us; /* [0: the device's own limit, if any] of one range of tess_plan_range; an estimate, not a promise */
    const char *kernel;     /* [NULL: setting `kernel`, else as the tune tables prefer, else the first that accepts] "backend/kernel" */
} tess_plan_desc;

/* Binds a layout and a batch to a device: picks the kernel, cuts the rows into tiles, orders the jobs longest first, and places the workspace.
 * Costs O(jobs). INVALID names the field. UNSUPPORTED: no kernel accepts it (the message says which and why), a reserved feature, or a
 * length of 2^31 - 65536 or more. OUT_OF_MEMORY. DEVICE_LOST. The plan is immutable and may run from several threads at once on different workspaces. */
TESS_API tess_status tess_plan_create(tess_device *device, const tess_layout *layout, const tess_plan_desc *desc, tess_plan **plan);
TESS_API void tess_plan_release(tess_plan *plan);

typedef struct tess_plan_info {
    uint32_t struct_size;
    uint32_t tile_rows;
    uint64_t n_jobs;          /* attention jobs and, after them, merge jobs: what tess_run's range counts */
    uint64_t n_merge_jobs;    /* of these */
    uint64_t n_ranges;        /* for tess_plan_range */
    uint64_t kept_pairs;      /* (query, key) pairs that the token-exact mask keeps, all heads and sequences */
    uint64_t dense_pairs;     /* the same for the dense pattern of the same order */
    double flops;             /* 4 * head_dim * kept_pairs (two products; a multiply and an add each) */
    uint64_t bytes_min;       /* Q, K, V read once (keys that some head of the kv head keeps) and O written once */
    uint64_t workspace_bytes; /* exact; what tess_run needs */
    uint64_t workspace_align; /* of the workspace's address */
    uint64_t host_bytes;      /* memory of the plan on the host, tables included */
    uint64_t device_bytes;    /* tables on the device; 0 where they are the host's */
    double create_seconds;    /* how long tess_plan_create took */
    char kernel[64];          /* "backend/kernel" */
} tess_plan_info;

/* kept_pairs, dense_pairs, flops and bytes_min are computed here, in closed form: O(heads) a
 * sequence, or O(query blocks * heads) and a little memory for a caller's mask. The rest is
 * stored. OUT_OF_MEMORY. */
TESS_API tess_status tess_plan_query(const tess_plan *plan, tess_plan_info *info);

/* Range `index` of the jobs, in order, such that one range stays under the time limit. INVALID when index is past the last. */
TESS_API tess_status tess_plan_range(const tess_plan *plan, uint64_t index, uint64_t *first_job, uint64_t *job_count);

typedef enum tess_role { TESS_ROLE_Q = 0, TESS_ROLE_K = 1, TESS_ROLE_V = 2, TESS_ROLE_O = 3, TESS_ROLE_LSE = 4 } tess_role;

/* Fills strides for a contiguous tensor of the plan at `buffer`, and sets *bytes (may be NULL) to its size: Q, O [batch, q_len, n_heads, head_dim],
 * K, V [batch, kv_len, n_kv_heads, head_dim], LSE [batch, n_heads, q_len]; packed: [tokens, heads, head_dim] and LSE [n_heads, tokens]. With length
 * arrays in a padded batch, q_len and kv_len are the descriptor's where not 0, else the longest. */
TESS_API tess_status tess_plan_tensor(const tess_plan *plan, tess_role role, tess_buffer buffer, tess_tensor *tensor, uint64_t *bytes);

/* ------------------------------------------------------------------ run */

typedef struct tess_run_desc {
    uint32_t struct_size;
    uint32_t flags; /* must be 0 */
    tess_tensor q, k, v;
    tess_tensor o;
    tess_tensor lse;       /* optional: buffer kind NONE. float32, natural logarithm, -inf for rows without keys */
    tess_buffer workspace; /* at least workspace_bytes after offset, aligned to workspace_align; contents do not matter and are not kept */
    tess_stream stream;
    uint64_t first_job;     /* a range of jobs; ranges of one run share a workspace and are given in order */
    uint64_t job_count;     /* [0: all from first_job on] */
    double *device_seconds; /* [NULL: not wanted] the device's own time for this call; makes the call wait for it */
    /* Room for features that answer UNSUPPORTED in this version; buffers must be of kind NONE. */
    tess_tensor sink_logits, k_scale, v_scale;
    tess_buffer q_lens, kv_lens, block_table;
    tess_tensor d_o, d_q, d_k, d_v, d_lse;
} tess_run_desc;

/*
 * Runs the plan. Never allocates (a thread's first failure apart: tess_last_error), compiles,
 * synchronises (device_seconds apart) or reads the environment, so it can be captured into a
 * graph; on a CPU it returns when the work is done. A driver may do more within its own calls:
 * some finish compiling a kernel when it first runs, so run a plan once before you measure it or
 * capture it. Concurrent calls on one plan are safe with distinct workspaces and outputs.
 * On a CPU the calling thread is one of the workers, and takes at most 16 KiB of its stack for that.
 *
 * A row that keeps no key gets O = 0 and LSE = -inf. Keys at or past kv_len, and blocks that no
 * row of a tile keeps, contribute nothing even when they hold NaN. Inside a block that some row
 * of a tile keeps, a non-finite V may reach every row of that tile, never another head or tile.
 * The same call gives the same bits every time, and on a CPU with every number of threads. A
 * batch or q_len of 0 succeeds without a launch.
 *
 * LSE is the float32 nearest to scale * m + ln(sum exp(scale * (s - m))) for the row's largest
 * score m, up to a few units in the last place: a large score leaves few digits for the rest,
 * and a product beyond float32 gives infinity. O does not depend on that: it is computed from
 * differences of scores, also where keys are split.
 *
 * Weighted values are added up in float32 and divided by the sum of their weights at the end.
 * Where the first sum leaves float32's range, the element is infinite (NaN if a greater score
 * follows) although the quotient would be finite: V near the largest finite float32 or bfloat16
 * over many keys of nearly equal scores. V of up to 2^80 in magnitude never does that, and
 * float16 never can. Denormal numbers may count as 0, in inputs, on the way and in results:
 * below 2^-126 in float32 and bfloat16, where x86-64 and 64-bit ARM CPUs always do, and below
 * 2^-14 in float16, where some GPUs do and no CPU does.
 *
 * INVALID names the tensor and what is wrong: kind, alignment, stride, size, workspace too
 * small, range. UNSUPPORTED: a reserved feature. BUSY: max_in_flight. DEVICE_LOST. NATIVE. On
 * failure outputs may be partly written.
 */
TESS_API tess_status tess_run(const tess_plan *plan, const tess_run_desc *desc);

/* ------------------------------------------------------------------ memory, for applications without their own */

/* Memory of the device, at least 256-byte aligned. size 0 gives a buffer of kind NONE. OUT_OF_MEMORY, DEVICE_LOST. */
TESS_API tess_status tess_alloc(tess_device *device, uint64_t size, tess_buffer *buffer);

/* Frees what tess_alloc gave and clears *buffer; kind NONE is ignored. Waits for nothing: the caller makes sure that no run still uses it.
 * Works on a lost device too. INVALID: not a buffer of the device's kind, or a child of fork(). NATIVE. */
TESS_API tess_status tess_free(tess_device *device, tess_buffer *buffer);

/* Copies bytes between two buffers of the device, or between one and host memory (kind HOST), at their offsets, and returns when it is done.
 * INVALID names the side and the field: kind, range, or bytes of the two that overlap. */
TESS_API tess_status tess_copy(tess_device *device, tess_buffer destination, tess_buffer source, uint64_t bytes);

/* Waits until all work submitted to the device's default stream is done, or `timeout_ns` passed (TIMEOUT). UINT64_MAX waits without limit. */
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

#endif /* TESSERA_TESSERA_H */
