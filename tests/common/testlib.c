/* SPDX-License-Identifier: Apache-2.0 */
#include "testlib.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void test_log_nothing(void *user, const char *line) {
    (void)user;
    (void)line;
}

char test_logged[16384];

void test_log_keep(void *user, const char *line) {
    (void)user;
    const size_t used = strlen(test_logged);
    snprintf(test_logged + used, sizeof test_logged - used, "%s\n", line);
}

void test_assert_logged(const char *text, const char *file, int line) {
    if (strstr(test_logged, text)) return;
    print_error("'%s' is not in:\n%s", text, test_logged);
    _fail(file, line);
}

/* Whether a comma list names the backend. */
static int names_backend(const char *list, const char *backend) {
    const size_t length = strlen(backend);
    for (const char *item = list; item && *item;
         item = strchr(item, ',') ? strchr(item, ',') + 1 : NULL)
        if (strncmp(item, backend, length) == 0 && (item[length] == ',' || item[length] == '\0'))
            return 1;
    return 0;
}

static int required_missing(tess_runtime *runtime) {
    const char *require = getenv("TESSERA_REQUIRE");
    int missing = 0;
    if (!require || !*require) return 0;
    char *copy = strdup(require), *rest = NULL;
    for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        tess_device_info info = {.struct_size = sizeof info};
        int found = 0;
        for (uint32_t i = 0; !found && tess_runtime_device(runtime, i, &info) == TESS_OK; i++)
            found = strcmp(info.backend, name) == 0;
        if (found) continue;
        fprintf(stderr, "TESSERA_REQUIRE names '%s', and no device of it was found\n", name);
        missing = 1;
    }
    free(copy);
    return missing;
}

/* Whether the part of `wanted` before a kernel's name is that of a backend or of a device. */
static int names_device(const char *wanted, const char *name) {
    const size_t length = strcspn(wanted, "/");
    return strlen(name) == length && strncmp(wanted, name, length) == 0;
}

/* Whether `wanted` leaves the kernel open, or names this one. */
static int names_kernel(const char *wanted, const char *kernel) {
    const char *named = wanted ? strchr(wanted, '/') : NULL, *name = strchr(kernel, '/');
    return !named || (name && strcmp(named, name) == 0);
}

/* Software devices take part when they are asked for; never under a sanitizer, which sees neither
 * their compiled kernels nor what their drivers keep. */
static int takes_part(const tess_device_info *info, const char *wanted) {
    if (wanted) return names_device(wanted, info->backend) || names_device(wanted, info->id);
    return info->kind != TESS_DEVICE_SOFTWARE ||
           (!test_sanitized() && names_backend(getenv("TESSERA_REQUIRE"), info->backend));
}

static int is_host_memory(tess_device *device) {
    tess_buffer buffer;
    if (tess_alloc(device, 256, &buffer) != TESS_OK) return 0;
    const int host = buffer.kind == TESS_BUFFER_HOST;
    tess_free(device, &buffer);
    return host;
}

static void add_targets(test_targets *targets, tess_device *device, const tess_device_info *info,
                        const char *wanted, unsigned flags) {
    test_target base = {.device = device,
                        .host_memory = is_host_memory(device),
                        .software = info->kind == TESS_DEVICE_SOFTWARE,
                        .turn = info->backend[0] % 2};
    snprintf(base.id, sizeof base.id, "%s", info->id);
    snprintf(base.backend, sizeof base.backend, "%s", info->backend);
    const int own_choice = names_kernel(wanted, "");
    if (own_choice) targets->items[targets->count++] = base;
    if (own_choice && !(flags & TEST_EACH_KERNEL)) return;
    const int first = targets->count;
    const uint32_t op = flags & TEST_BACKWARD ? TESS_OP_BACKWARD : TESS_OP_FORWARD;
    for (uint32_t k = 0;; k++) {
        tess_kernel_info kernel = {.struct_size = sizeof kernel};
        if (tess_device_kernel(device, k, &kernel) != TESS_OK) break;
        if (kernel.status != TESS_OK || kernel.op != op || !names_kernel(wanted, kernel.name) ||
            targets->count == (int)(sizeof targets->items / sizeof targets->items[0]))
            continue;
        test_target *target = &targets->items[targets->count++];
        *target = base;
        snprintf(target->kernel, sizeof target->kernel, "%s", kernel.name);
        target->turn = base.turn + targets->count - first - 1;
        const char *name = strchr(kernel.name, '/');
        /* Vulkan's would have the turn of OpenCL's first kernel. OpenCL's is the same body with
         * smaller tiles, for which one instance is enough. */
        if (base.software && name && strcmp(name, "/portable_small") == 0) {
            if (base.turn == 0) target->turn = TEST_NO_TURN;
            target->narrow = 1;
        }
        target->portable = name && strcmp(name, "/portable") == 0;
    }
    /* the only kernel is the device's own choice already; without one there is none */
    if (!own_choice) return;
    if (targets->count == first + 1 || (targets->count == first && flags & TEST_BACKWARD))
        targets->count--;
    for (int n = first - 1; n < targets->count; n++)
        targets->items[n].kernels = targets->count - first;
}

int test_full(void) {
    const char *full = getenv("TESSERA_TEST_FULL");
    return full && *full == '1';
}

int test_kernel_is_named(void) {
    const char *kernel = getenv("TESSERA_KERNEL");
    return kernel && *kernel;
}

static int is_thinned(const test_target *target) { return target->kernels >= 2 && !test_full(); }

static int takes_turns(const test_target *target) { return target->software && is_thinned(target); }

int test_is_repetition(const test_target *target) {
    return !target->kernel[0] && takes_turns(target);
}

/* No divisor or multiple of a usual number of shards. */
enum { EACH_OWN_CHOICE = 7 };

/* Of three turns in a row one is that of a type and range of head_dim. */
static int in_turn(const test_target *target, uint32_t dtype, int32_t head_dim) {
    const int range = (head_dim > 64) + (head_dim > 128);
    if (target->narrow && range > 0) return 0;
    return target->turn != TEST_NO_TURN && ((int)dtype + range + target->turn) % TEST_TURNS == 0;
}

int test_has_instance(const test_target *target, uint32_t dtype, int32_t head_dim) {
    return !takes_turns(target) || in_turn(target, dtype, head_dim);
}

/* Whether a problem has a larger head_dim than the test is to meet. */
static int is_too_wide(int32_t head_dim) {
    const char *most = getenv("TESSERA_TEST_HEAD_DIM");
    return most && *most && head_dim > atoi(most);
}

int test_other_turn(const test_target *target, uint32_t dtype, int32_t head_dim) {
    if (is_too_wide(head_dim)) return 1;
    const int turns = (target->software || test_sanitized()) && is_thinned(target);
    return turns && target->kernel[0] && !in_turn(target, dtype, head_dim);
}

/* Whether the kernels of a device that is no software take turns, since a sanitizer slows them. */
static int is_slowed(const test_target *target) {
    return test_sanitized() && !target->software && is_thinned(target);
}

/* Whether a kernel of the CPU is one for other machines, written without the instructions that make
 * kernels fast. */
static int is_plain(const test_target *target) {
    const char *name = strcmp(target->backend, "cpu") == 0 ? strchr(target->kernel, '/') : NULL;
    return name && (target->portable || strstr(name, "_soft"));
}

/* Of problems in any order some: a list repeats values of its parameters every few problems. */
static int is_one_of_three(const test_target *target, int n) {
    return (((uint32_t)n * UINT32_C(2654435761) >> 16) + (uint32_t)target->turn) % TEST_TURNS == 0;
}

int test_leaves_out(const test_target *target, int n, uint32_t dtype, int32_t head_dim) {
    if (is_too_wide(head_dim)) return 1;
    if (is_slowed(target) || (is_plain(target) && is_thinned(target)))
        return target->kernel[0] ? !is_one_of_three(target, n) : n % EACH_OWN_CHOICE != 0;
    if (!takes_turns(target)) return 0;
    if (!target->kernel[0] && n % EACH_OWN_CHOICE != 0) return 1;
    /* Its own choice begins with the turn of its first kernel. */
    return !in_turn(target, dtype, head_dim);
}

int test_leaves_heavy(const test_target *target, int n) {
    if (is_slowed(target)) return !target->kernel[0] || (n + target->turn) % target->kernels != 0;
    return takes_turns(target) && !target->kernel[0];
}

int test_leaves_padded(const test_target *target) {
    return takes_turns(target) && (!target->kernel[0] || strcmp(target->backend, "vulkan") == 0);
}

int test_targets_open(test_targets *targets, const char *backend, unsigned flags) {
    memset(targets, 0, sizeof *targets);
    tess_runtime_desc desc = {.struct_size = sizeof desc};
    desc.log = test_log_nothing;
    if (tess_runtime_create(&desc, &targets->runtime) != TESS_OK) {
        fprintf(stderr, "%s\n", tess_last_error());
        return 1;
    }
    for (uint32_t i = 0; targets->n_devices < 16; i++) {
        tess_device_info info = {.struct_size = sizeof info};
        if (tess_runtime_device(targets->runtime, i, &info) != TESS_OK) break;
        if (!takes_part(&info, backend)) continue;
        tess_device_desc open = {.struct_size = sizeof open};
        open.id = info.id;
        tess_device *device = NULL;
        if (tess_device_open(targets->runtime, &open, &device) != TESS_OK) {
            fprintf(stderr, "device %s was listed and does not open: %s\n", info.id,
                    tess_last_error());
            return 1;
        }
        targets->devices[targets->n_devices++] = device;
        add_targets(targets, device, &info, backend, flags);
    }
    if (!targets->n_devices) {
        fprintf(stderr, "no device was found%s%s\n", backend ? " for backend " : "",
                backend ? backend : "");
        return required_missing(targets->runtime) != 0 || !backend ? 1 : TEST_SKIPPED;
    }
    const int missing = required_missing(targets->runtime);
    if (targets->count || missing) return missing;
    fprintf(stderr, "no device has the kernel %s\n", backend);
    test_targets_close(targets);
    return TEST_SKIPPED;
}

void test_targets_close(test_targets *targets) {
    for (int i = 0; i < targets->n_devices; i++) tess_device_release(targets->devices[i]);
    tess_runtime_release(targets->runtime);
    memset(targets, 0, sizeof *targets);
}

tess_runtime *test_runtime(uint32_t threads) {
    tess_runtime *runtime = NULL;
    tess_runtime_desc desc = {.struct_size = sizeof desc};
    desc.log = test_log_nothing;
    desc.cpu_threads = threads;
    assert_ok(tess_runtime_create(&desc, &runtime));
    return runtime;
}

tess_device *test_cpu(tess_runtime *runtime) {
    tess_device *device = NULL;
    tess_device_desc desc = {.struct_size = sizeof desc};
    desc.id = "cpu";
    assert_ok(tess_device_open(runtime, &desc, &device));
    return device;
}

tess_buffer test_upload(tess_device *device, const void *data, uint64_t bytes) {
    tess_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    assert_ok(tess_alloc(device, bytes, &buffer));
    if (data && bytes) assert_ok(tess_copy(device, buffer, tess_host_buffer(data, bytes), bytes));
    return buffer;
}

void test_download(tess_device *device, tess_buffer buffer, void *data, uint64_t bytes) {
    if (bytes) assert_ok(tess_copy(device, tess_host_buffer(data, bytes), buffer, bytes));
}

/* Each allocation is preceded by a header, found again by its place before the pointer. */
typedef struct heap_header {
    void *raw;
    size_t size;
    uint64_t magic;
} heap_header;
static const uint64_t heap_magic = 0x7465737468656170u;

static void *heap_alloc(void *user, size_t size, size_t alignment) {
    test_heap *heap = user;
    const int64_t call = __atomic_add_fetch(&heap->calls, 1, __ATOMIC_SEQ_CST);
    if (alignment == 0 || (alignment & (alignment - 1))) heap->damaged = 1;
    if (heap->fail_at && (call == heap->fail_at || (heap->sticky && call > heap->fail_at))) {
        __atomic_add_fetch(&heap->failures, 1, __ATOMIC_SEQ_CST);
        return NULL;
    }
    const size_t room = alignment > sizeof(heap_header) ? alignment : sizeof(heap_header);
    char *raw = malloc(size + 2 * room);
    if (!raw) return NULL;
    const uintptr_t at =
        ((uintptr_t)raw + sizeof(heap_header) + alignment - 1) & ~(uintptr_t)(alignment - 1);
    const heap_header header = {raw, size, heap_magic};
    memcpy((void *)(at - sizeof header), &header, sizeof header);
    memset((void *)at, 0xa5, size); /* nothing may rely on zeroed memory */
    __atomic_add_fetch(&heap->live, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&heap->bytes, (int64_t)size, __ATOMIC_SEQ_CST);
    return (void *)at; // cppcheck-suppress memleak ; the header in front of it knows
}

static void heap_free(void *user, void *pointer, size_t size) {
    test_heap *heap = user;
    heap_header header;
    if (!pointer) {
        heap->damaged = 1;
        return;
    }
    memcpy(&header, (char *)pointer - sizeof header, sizeof header);
    if (header.magic != heap_magic || header.size != size) {
        heap->damaged = 1;
        return;
    }
    memset((char *)pointer - sizeof header, 0x5a, sizeof header + size);
    __atomic_sub_fetch(&heap->live, 1, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&heap->bytes, (int64_t)size, __ATOMIC_SEQ_CST);
    free(header.raw);
}

void test_heap_init(test_heap *heap, int64_t fail_at, int sticky) {
    memset(heap, 0, sizeof *heap);
    heap->allocator.alloc = heap_alloc;
    heap->allocator.free = heap_free;
    heap->allocator.user = heap;
    heap->fail_at = fail_at;
    heap->sticky = sticky;
}

int test_names_field(const char *text, const char *function, const char *field) {
    const size_t n = strlen(function), m = strlen(field);
    return strncmp(text, function, n) == 0 && strncmp(text + n, ": ", 2) == 0 &&
           strncmp(text + n + 2, field, m) == 0 && strchr(":.[ ", text[n + 2 + m]);
}

void test_assert_error(tess_status status, tess_status wanted, const char *function,
                       const char *field, const char *file, int line) {
    const char *text = tess_last_error();
    if (status != wanted) {
        print_error("%s is wanted and %s came; last error: %s\n", tess_status_name(wanted),
                    tess_status_name(status), text);
        _fail(file, line);
    }
    const size_t length = strlen(function);
    if (strncmp(text, function, length) != 0 || text[length] != ':') {
        print_error("the message does not begin with '%s:': %s\n", function, text);
        _fail(file, line);
    }
    if (!field) return;
    if (!test_names_field(text, function, field)) {
        print_error("the message does not name '%s' behind '%s': %s\n", field, function, text);
        _fail(file, line);
    }
    if (strchr(text, '\n')) {
        print_error("the message is more than one line: %s\n", text);
        _fail(file, line);
    }
}

void test_assert_error_has(const char *text, const char *file, int line) {
    if (strstr(tess_last_error(), text)) return;
    print_error("'%s' is not in '%s'\n", text, tess_last_error());
    _fail(file, line);
}

void test_assert_ok(tess_status status, const char *file, int line) {
    if (status == TESS_OK) return;
    print_error("%s: %s\n", tess_status_name(status), tess_last_error());
    _fail(file, line);
}

uint64_t test_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t test_between(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(test_random(state) % (uint64_t)(high - low + 1));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif
int test_sanitized(void) { return SANITIZED; }

int test_open_descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (!directory) return -1;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

int test_mappings(void) {
    int count = 0, c;
    FILE *file = fopen("/proc/self/maps", "r");
    if (!file) return -1;
    while ((c = getc(file)) != EOF) count += c == '\n';
    fclose(file);
    return count;
}

int64_t test_resident(void) {
    char line[128], *end;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return -1;
    const char *text = fgets(line, sizeof line, file);
    fclose(file);
    if (!text) return -1;
    strtoll(line, &end, 10); /* the size of the address space comes first */
    return strtoll(end, NULL, 10) * 4096;
}

void test_in_threads(void *(*function)(void *argument), void *argument) {
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, function, argument), 0);
    for (int n = 0; n < THREADS; n++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[n], &failed), 0);
        assert_null(failed);
    }
}
