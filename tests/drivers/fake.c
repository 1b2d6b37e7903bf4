/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900,
    MOST_OBJECTS = 512,
    MOST_DEPTH = 32,
    MOST_PARAMETERS = 11,
    MOST_NAME = 64
};

/* Added to every address that leaves the driver: whoever reads through it on the host crashes. */
static const uint64_t far_away = 1ULL << 60;

typedef struct work {
    struct work *next;
    enum { COPY, FILL, LAUNCH, RECORD } kind;
    void *to;
    const void *from;
    size_t bytes;
    unsigned value;
    fake_object *event;
    int kernel;
    unsigned groups;
    void *parameters[MOST_PARAMETERS];
} work;

struct fake_object {
    int kind, number, device;
    fake_object *context;
    char arch[MOST_NAME]; /* of a module */
    char *memory;
    size_t bytes;
    work *first, *last; /* of a stream or graph */
    fake_object *capture;
    fake_object *recorded; /* the stream that an event was last recorded in */
    int stamp;             /* of an event: when its record was reached */
};

typedef struct function {
    fake_object *module;
    int kernel;
    char name[MOST_NAME];
    struct function *next;
} function;

fake_control fake = {.only_device = -1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_object *objects[MOST_OBJECTS];
static fake_object primaries[FAKE_DEVICES] = {{.kind = FAKE_CONTEXT, .device = 0},
                                              {.kind = FAKE_CONTEXT, .device = 1}};
static fake_object null_streams[FAKE_DEVICES] = {{.kind = FAKE_STREAM, .device = 0},
                                                 {.kind = FAKE_STREAM, .device = 1}};
static function *functions;
static int clock_now;
static _Thread_local fake_object *stack[MOST_DEPTH];
static _Thread_local int top = -1;

static void flush_all(void);
static void give_up(void);

static const char *const kind_names[FAKE_KINDS] = {"context", "stream", "event",
                                                   "module",  "memory", "graph"};

/* ------------------------------------------------------------------ calls */

void fake_noted(int length) {
    if (fake.logging && length > 0) fake.used += (size_t)length;
    if (fake.used >= sizeof fake.log) fake.used = sizeof fake.log - 1; /* the rest did not fit */
}

int fake_misused(int code) {
    fake.wrong++;
    return code;
}

int fake_begin(const char *name) {
    return fake_begin_on(name, fake_current() ? fake_current()->device : -1);
}

int fake_begin_on(const char *name, int device) {
    pthread_mutex_lock(&lock);
    const char *version = strstr(name, "_v");
    fake_note("%.*s", version ? (int)(version - name) : (int)strlen(name), name);
    if (fake.only_device >= 0 && device != fake.only_device) return 0;
    fake.calls++;
    if (fake.failed && !fake.next) fake.next = name;
    if (!fake.fail_at ||
        (fake.calls != fake.fail_at && !(fake.sticky && fake.calls > fake.fail_at)))
        return 0;
    if (!fake.failures++) fake.failed = name;
    if (fake.sticky || (fake.code >= ILLEGAL_ADDRESS && strstr(name, "Synchronize"))) give_up();
    return fake.code;
}

int fake_end(int code) {
    if (code != OK) fake_note(" = %d", code);
    fake_note("\n");
    pthread_mutex_unlock(&lock);
    return code;
}

/* A program that misused the driver or leaked an object fails at its end, whatever its tests
 * say. */
__attribute__((destructor)) static void last_look(void) {
    for (int n = 0; n < FAKE_KINDS; n++)
        if (fake.live[n] != 0)
            fake_misuse(0, "%d of kind '%s' are left", fake.live[n], kind_names[n]);
    if (fake.depth != 0) fake_misuse(0, "%d contexts are left on the stack", fake.depth);
    if (!fake.wrong) return;
    fprintf(stderr, "the driver was misused %d times, first: %s\n", fake.wrong, fake.what);
    _exit(1);
}

/* ------------------------------------------------------------------ objects */

static fake_object *create(int kind) {
    fake_object *object = NULL;
    int number = 1;
    for (int n = 0; n < MOST_OBJECTS; n++) {
        if (objects[n] && objects[n]->kind == kind && objects[n]->number >= number)
            number = objects[n]->number + 1;
    }
    for (int n = 0; n < MOST_OBJECTS && !object; n++) {
        if (objects[n]) continue;
        object = objects[n] = calloc(1, sizeof *object);
        if (!object) abort();
    }
    if (!object) abort();
    object->kind = kind;
    object->number = number;
    object->context = fake_current();
    object->device = object->context ? object->context->device : 0;
    fake.live[kind]++;
    return object;
}

static void drop_work(fake_object *stream) {
    while (stream->first) {
        work *w = stream->first;
        stream->first = w->next;
        for (int n = 0; n < MOST_PARAMETERS; n++) free(w->parameters[n]);
        free(w);
    }
    stream->last = NULL;
}

static void destroy(fake_object *object) {
    for (int n = 0; n < MOST_OBJECTS; n++)
        if (objects[n] == object) objects[n] = NULL;
    fake.live[object->kind]--;
    drop_work(object);
    free(object->memory);
    free(object);
}

static int exists(const fake_object *object, int kind) {
    for (int n = 0; n < MOST_OBJECTS; n++)
        if (objects[n] == object && object) return object->kind == kind;
    return 0;
}

/* An object of the current context, or a code. */
static int check(const void *handle, int kind) {
    const fake_object *object = handle;
    if (!fake_current())
        return fake_misuse(INVALID_CONTEXT, "%s without a current context", kind_names[kind]);
    if (!exists(object, kind))
        return fake_misuse(INVALID_HANDLE, "this is no %s", kind_names[kind]);
    if (object->context != fake_current())
        return fake_misuse(INVALID_HANDLE, "%s %d is of another context", kind_names[kind],
                           object->number);
    return OK;
}

const char *fake_name(const void *handle) {
    static _Thread_local char text[4][40];
    static _Thread_local int turn;
    const fake_object *object = handle;
    char *to = text[turn++ % 4];
    if (!handle) return "0";
    snprintf(to, sizeof text[0], "?");
    for (int n = 0; n < FAKE_DEVICES; n++)
        if (object == &primaries[n]) snprintf(to, sizeof text[0], "primary %d", n);
    for (int n = 0; n < MOST_OBJECTS; n++)
        if (objects[n] == object)
            snprintf(to, sizeof text[0], "%s %d", kind_names[object->kind], object->number);
    return to;
}

/* ------------------------------------------------------------------ contexts */

fake_object *fake_primary(int device) { return &primaries[device]; }

fake_object *fake_context_create(int device) {
    fake_object *context = create(FAKE_CONTEXT);
    context->device = device;
    context->context = NULL;
    return context;
}

static int is_context(const fake_object *context) {
    for (int n = 0; n < FAKE_DEVICES; n++)
        if (context == &primaries[n]) return 1;
    return exists(context, FAKE_CONTEXT);
}

int fake_context_destroy(fake_object *context) {
    if (!exists(context, FAKE_CONTEXT))
        return fake_misuse(INVALID_CONTEXT, "this context cannot be destroyed");
    for (int n = 0; n < MOST_OBJECTS; n++)
        if (objects[n] && objects[n] != context && objects[n]->context == context)
            return fake_misuse(INVALID_CONTEXT, "a context goes before its objects");
    destroy(context);
    return OK;
}

int fake_number(const char *text) { return (int)strtol(text, NULL, 10); }

int fake_setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? fake_number(text) : otherwise;
}

const char *fake_arch(int device, const char *otherwise) {
    const char *wanted = getenv("FAKE_DRIVER_ARCH");
    if (!fake.arch[device][0])
        snprintf(fake.arch[device], sizeof fake.arch[device], "%s", wanted ? wanted : otherwise);
    return fake.arch[device];
}

int fake_device_of(const fake_object *context) { return context->device; }
fake_object *fake_current(void) { return top >= 0 ? stack[top] : NULL; }

void fake_set_current(fake_object *context) {
    if (top < 0) top = 0;
    stack[top] = context;
}

static void make_current(int device) { fake_set_current(fake_primary(device)); }
static int current_device(void) { return fake_current() ? fake_current()->device : -1; }
const fake_exports fake_table = {&fake, make_current, current_device};

int fake_push(fake_object *context) {
    if (!is_context(context)) return fake_misuse(INVALID_CONTEXT, "this is no context");
    if (top + 1 == MOST_DEPTH) return fake_misuse(INVALID_CONTEXT, "too many contexts");
    stack[++top] = context;
    fake.depth++;
    return OK;
}

int fake_pop(fake_object **context) {
    if (top < 0) return fake_misuse(INVALID_CONTEXT, "no context to pop");
    *context = stack[top--];
    fake.depth--;
    return OK;
}

/* ------------------------------------------------------------------ memory */

static fake_object *memory_at(uint64_t pointer, size_t bytes) {
    for (int n = 0; n < MOST_OBJECTS; n++) {
        fake_object *m = objects[n];
        if (!m || m->kind != FAKE_MEMORY) continue;
        const uint64_t start = (uint64_t)(uintptr_t)m->memory + far_away;
        if (pointer >= start && pointer - start <= m->bytes &&
            bytes <= m->bytes - (pointer - start))
            return m;
    }
    return NULL;
}

void *fake_host(uint64_t pointer) {
    if (!pointer) return NULL;
    if (!memory_at(pointer, 0)) {
        fake_misuse(ILLEGAL_ADDRESS, "a kernel is given an address of nothing");
        return NULL;
    }
    return (void *)(uintptr_t)(pointer - far_away);
}

/* "memory 2+64" */
static const char *place(uint64_t pointer) {
    static _Thread_local char text[2][48];
    static _Thread_local int turn;
    const fake_object *m = memory_at(pointer, 0);
    char *to = text[turn++ % 2];
    if (!m) return pointer ? "nothing" : "0";
    const uint64_t at = pointer - far_away - (uint64_t)(uintptr_t)m->memory;
    snprintf(to, sizeof text[0], at ? "%s+%llu" : "%s", fake_name(m), (unsigned long long)at);
    return to;
}

int fake_alloc(uint64_t *pointer, size_t bytes) {
    if (!fake_current()) return fake_misuse(INVALID_CONTEXT, "memory without a current context");
    if (!bytes) return fake_misuse(INVALID_VALUE, "no bytes are allocated");
    if (bytes > (1ULL << 34) || (fake.most_bytes && bytes > fake.most_bytes)) return OUT_OF_MEMORY;
    char *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes); /* NaNs */
    fake_object *m = create(FAKE_MEMORY);
    m->memory = memory;
    m->bytes = bytes;
    *pointer = (uint64_t)(uintptr_t)memory + far_away;
    fake_note(" %zu: %s", bytes, fake_name(m));
    return OK;
}

int fake_free(uint64_t pointer) {
    fake_object *m = memory_at(pointer, 0);
    fake_note(" %s", place(pointer));
    if (!m || pointer != (uint64_t)(uintptr_t)m->memory + far_away)
        return fake_misuse(INVALID_VALUE, "this is not memory to be freed");
    flush_all(); /* freeing waits */
    destroy(m);
    return OK;
}

/* ------------------------------------------------------------------ streams */

static fake_object *stream_of(void *handle) {
    return handle ? handle : &null_streams[fake_current()->device];
}

static int check_stream(void *stream) {
    fake_note(" on %s", fake_name(stream));
    if (!stream)
        return fake_current()
                   ? OK
                   : fake_misuse(INVALID_CONTEXT, "the null stream without a current context");
    return check(stream, FAKE_STREAM);
}

static void run(const work *w) {
    if (w->kind == COPY) memcpy(w->to, w->from, w->bytes);
    if (w->kind == FILL)
        for (size_t n = 0; n < w->bytes / 4; n++) memcpy((char *)w->to + 4 * n, &w->value, 4);
    if (w->kind == RECORD) w->event->stamp = ++clock_now;
    if (w->kind == LAUNCH) fake_kernel_run(w->kernel, w->groups, w->parameters);
}

static void flush(fake_object *stream) {
    if (fake.hold) return;
    for (const work *w = stream->first; w; w = w->next) run(w);
    drop_work(stream);
}

/* While every call fails, no work is done, as when a device is lost. */
static void give_up(void) {
    for (int n = 0; n < FAKE_DEVICES; n++) drop_work(&null_streams[n]);
    for (int n = 0; n < MOST_OBJECTS; n++)
        if (objects[n] && objects[n]->kind == FAKE_STREAM &&
            (fake.only_device < 0 || objects[n]->device == fake.only_device))
            drop_work(objects[n]);
}

static void flush_all(void) {
    for (int n = 0; n < FAKE_DEVICES; n++) flush(&null_streams[n]);
    for (int n = 0; n < MOST_OBJECTS; n++)
        if (objects[n] && objects[n]->kind == FAKE_STREAM) flush(objects[n]);
}

static work *enqueue(void *handle, int kind) {
    fake_object *stream = stream_of(handle);
    fake_object *to = stream->capture ? stream->capture : stream;
    work *w = calloc(1, sizeof *w);
    if (!w) abort();
    w->kind = kind;
    if (to->last)
        to->last->next = w;
    else
        to->first = w;
    to->last = w;
    return w;
}

/* Calls that a stream which is being captured does not allow. */
static int not_capturing(void *handle) {
    if (!stream_of(handle)->capture) return OK;
    return fake_misuse(CAPTURE_UNSUPPORTED, "a captured stream is waited for");
}

/* A stream or event of the current context. */
static int create_here(int kind, void **object) {
    if (!fake_current())
        return fake_misuse(INVALID_CONTEXT, "%s without a current context", kind_names[kind]);
    *object = create(kind);
    fake_note(": %s", fake_name(*object));
    return OK;
}

/* Whether an object can be destroyed, or a code. */
static int check_last(void *object, int kind) {
    fake_note(" %s", fake_name(object));
    if (exists(object, kind)) return OK;
    return fake_misuse(INVALID_HANDLE, "this is no %s to be destroyed", kind_names[kind]);
}

int fake_stream_create(void **stream) { return create_here(FAKE_STREAM, stream); }

int fake_stream_destroy(void *stream) {
    const int code = check_last(stream, FAKE_STREAM);
    if (code != OK) return code;
    flush(stream);
    destroy(stream);
    return OK;
}

int fake_stream_query(void *stream) {
    int code = check_stream(stream);
    if (code == OK) code = not_capturing(stream);
    if (code != OK) return code;
    /* The first query says that work is under way; the next one finds it done. */
    const int busy = stream_of(stream)->first != NULL || fake.hold;
    flush(stream_of(stream));
    return busy ? NOT_READY : OK;
}

int fake_stream_wait(void *stream) {
    int code = check_stream(stream);
    if (code == OK) code = not_capturing(stream);
    if (code == OK) flush(stream_of(stream));
    return code;
}

int fake_event_create(void **event) { return create_here(FAKE_EVENT, event); }

int fake_event_destroy(void *event) {
    const int code = check_last(event, FAKE_EVENT);
    if (code != OK) return code;
    flush_all();
    destroy(event);
    return OK;
}

int fake_event_record(void *event, void *stream) {
    fake_note(" %s", fake_name(event));
    int code = check(event, FAKE_EVENT);
    if (code == OK) code = check_stream(stream);
    if (code != OK) return code;
    fake_object *e = event;
    e->recorded = stream_of(stream);
    e->stamp = 0;
    enqueue(stream, RECORD)->event = e;
    return OK;
}

int fake_event_wait(void *event) {
    fake_note(" %s", fake_name(event));
    const int code = check(event, FAKE_EVENT);
    if (code != OK) return code;
    fake_object *e = event;
    if (!e->recorded)
        return fake_misuse(INVALID_VALUE, "an event that was never recorded is waited for");
    if (e->recorded->capture)
        return fake_misuse(CAPTURE_UNSUPPORTED, "an event of a captured stream is waited for");
    flush(e->recorded);
    return OK;
}

int fake_event_time(float *milliseconds, void *first, void *last) {
    int code = check(first, FAKE_EVENT);
    if (code == OK) code = check(last, FAKE_EVENT);
    if (code != OK) return code;
    const fake_object *a = first, *b = last;
    fake_note(" %s to %s", fake_name(first), fake_name(last));
    if (!a->stamp || !b->stamp) return NOT_READY;
    *milliseconds = (float)(b->stamp - a->stamp);
    return OK;
}

int fake_event_query(void *event) {
    fake_note(" %s", fake_name(event));
    const int code = check(event, FAKE_EVENT);
    if (code != OK) return code;
    const fake_object *e = event;
    if (!e->recorded)
        return fake_misuse(INVALID_VALUE, "an event that was never recorded is asked");
    if (e->stamp) return OK;
    if (e->recorded->capture)
        return fake_misuse(CAPTURE_UNSUPPORTED, "an event of a captured stream is asked");
    /* As for streams: the work is done now, and the next query finds it so. */
    flush(e->recorded);
    return NOT_READY;
}

int fake_copy(uint64_t to, int to_host, uint64_t from, int from_host, size_t bytes, void *stream) {
    fake_note(" %s from %s: %zu", to_host ? "host" : place(to), from_host ? "host" : place(from),
              bytes);
    const int code = check_stream(stream);
    if (code != OK) return code;
    if ((!to_host && !memory_at(to, bytes)) || (!from_host && !memory_at(from, bytes)))
        return fake_misuse(INVALID_VALUE, "a copy of %zu bytes leaves its memory", bytes);
    work *w = enqueue(stream, COPY);
    w->to = (void *)(uintptr_t)(to_host ? to : to - far_away);
    w->from = (const void *)(uintptr_t)(from_host ? from : from - far_away);
    w->bytes = bytes;
    return OK;
}

int fake_fill(uint64_t to, unsigned value, size_t words, void *stream) {
    fake_note(" %s: %zu", place(to), words);
    const int code = check_stream(stream);
    if (code != OK) return code;
    if (!memory_at(to, 4 * words) || to % 4)
        return fake_misuse(INVALID_VALUE, "%zu words leave their memory", words);
    work *w = enqueue(stream, FILL);
    w->to = (void *)(uintptr_t)(to - far_away);
    w->bytes = 4 * words;
    w->value = value;
    return OK;
}

/* ------------------------------------------------------------------ modules and launches */

int fake_module_load(void **module, const char *image) {
    const fake_object *current = fake_current();
    if (!current) return fake_misuse(INVALID_CONTEXT, "a module without a current context");
    static const char magic[] = "image for ";
    if (strncmp(image, magic, sizeof magic - 1) != 0) return INVALID_IMAGE;
    const char *arch = image + sizeof magic - 1;
    fake_note(" %s", arch);
    /* The driver is older than the compiler of this code. */
    const char *newer = getenv("FAKE_DRIVER_REFUSES");
    if (newer && *newer && strncmp(arch, newer, strlen(newer)) == 0) return UNSUPPORTED_PTX_VERSION;
    if (!fake_can_run(arch, fake.arch[current->device]))
        return fake_misuse(NO_BINARY_FOR_GPU, "%s is loaded on %s", arch,
                           fake.arch[current->device]);
    fake_object *m = create(FAKE_MODULE);
    snprintf(m->arch, sizeof m->arch, "%s", arch);
    *module = m;
    fake_note(": %s", fake_name(m));
    return OK;
}

int fake_module_unload(void *module) {
    const int code = check_last(module, FAKE_MODULE);
    if (code != OK) return code;
    flush_all();
    for (function **at = &functions; *at;) {
        function *f = *at;
        if (f->module != module) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        free(f);
    }
    destroy(module);
    return OK;
}

int fake_module_function(void **out, void *module, const char *name) {
    fake_note(" %s in %s", name, fake_name(module));
    const int code = check(module, FAKE_MODULE);
    if (code != OK) return code;
    const int kernel = fake_kernel_find(name);
    if (kernel < 0) return NOT_FOUND;
    for (function *f = functions; f; f = f->next)
        if (f->module == module && strcmp(f->name, name) == 0) {
            *out = f;
            return OK;
        }
    function *f = calloc(1, sizeof *f);
    if (!f) abort();
    f->module = module;
    f->kernel = kernel;
    f->next = functions;
    snprintf(f->name, sizeof f->name, "%s", name);
    functions = f;
    *out = f;
    return OK;
}

static const function *function_at(const void *handle) {
    const function *f = functions;
    while (f && f != handle) f = f->next;
    return f;
}

const char *fake_function_name(const void *handle) {
    const function *f = function_at(handle);
    return f ? f->name : "";
}

const char *fake_function_arch(const void *handle) {
    const function *f = function_at(handle);
    return f && check(f->module, FAKE_MODULE) == OK ? ((const fake_object *)f->module)->arch : "";
}

int fake_launch(void *handle, const unsigned grid[3], const unsigned block[3], unsigned shared,
                void *stream, void **parameters) {
    const function *f = function_at(handle);
    char text[256];
    if (!f) return fake_misuse(INVALID_HANDLE, "this is no function");
    fake_note(" %s grid %u,%u,%u block %u,%u,%u shared %u", f->name, grid[0], grid[1], grid[2],
              block[0], block[1], block[2], shared);
    int code = check_stream(stream);
    if (code == OK) code = check(f->module, FAKE_MODULE);
    if (code != OK) return code;
    if (!grid[0] || grid[0] > 0x7fffffffu || grid[1] != 1 || grid[2] != 1)
        return fake_misuse(INVALID_VALUE, "%s: grid %u,%u,%u", f->name, grid[0], grid[1], grid[2]);
    if (!fake_kernel_takes(f->kernel, block[0]) || block[1] != 1 || block[2] != 1)
        return fake_misuse(INVALID_VALUE, "%s: block %u,%u,%u", f->name, block[0], block[1],
                           block[2]);
    fake_kernel_describe(f->kernel, parameters, text, sizeof text);
    fake_note("%s", text);
    work *w = enqueue(stream, LAUNCH);
    w->kernel = f->kernel;
    w->groups = grid[0];
    const size_t *sizes = fake_kernel_parameters(f->kernel);
    for (int n = 0; sizes[n]; n++) {
        w->parameters[n] = malloc(sizes[n]);
        if (!w->parameters[n]) abort();
        memcpy(w->parameters[n], parameters[n], sizes[n]);
    }
    return OK;
}

/* ------------------------------------------------------------------ graphs */

int fake_capture_begin(void *stream) {
    int code = check_stream(stream);
    if (code == OK) code = not_capturing(stream);
    if (code != OK) return code;
    if (!stream) return fake_misuse(CAPTURE_UNSUPPORTED, "the null stream cannot be captured");
    stream_of(stream)->capture = create(FAKE_GRAPH);
    return OK;
}

int fake_capture_end(void *stream, void **graph) {
    const int code = check_stream(stream);
    if (code != OK) return code;
    *graph = stream_of(stream)->capture;
    stream_of(stream)->capture = NULL;
    return *graph ? OK : fake_misuse(INVALID_VALUE, "nothing was captured");
}

int fake_graph_launch(void *graph, void *stream) {
    int code = check(graph, FAKE_GRAPH);
    if (code == OK) code = check_stream(stream);
    if (code != OK) return code;
    for (const work *w = ((const fake_object *)graph)->first; w; w = w->next) {
        work *copy = enqueue(stream, w->kind), *next = copy->next;
        *copy = *w;
        copy->next = next;
        for (int n = 0; w->kind == LAUNCH && fake_kernel_parameters(w->kernel)[n]; n++) {
            const size_t size = fake_kernel_parameters(w->kernel)[n];
            copy->parameters[n] = malloc(size);
            if (!copy->parameters[n]) abort();
            memcpy(copy->parameters[n], w->parameters[n], size);
        }
    }
    return OK;
}

int fake_graph_destroy(void *graph) {
    if (!exists(graph, FAKE_GRAPH))
        return fake_misuse(INVALID_HANDLE, "this is no graph to be destroyed");
    destroy(graph);
    return OK;
}
