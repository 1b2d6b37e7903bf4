/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers of lockstep.h: a thread of the block runs until it has to wait for others. */
#undef _FORTIFY_SOURCE /* whose longjmp refuses to change stacks */
#include "lockstep.h"

namespace tess {
enum { SHARED_BYTES = 228 << 10 };
alignas(128) uint8_t raw[SHARED_BYTES];
} // namespace tess

namespace lockstep {

fiber *current;
unsigned block_index, blocks, threads, shared_bytes;
fiber fibers[MOST_THREADS];
meeting warps[MOST_THREADS / WARP], block, parts[16];
bool early, converts;
static jmp_buf home;
static ucontext_t start_context;
static uint8_t *stacks;
static const std::function<void()> *work;
static int step = 1;

void fail(const char *what) {
    fprintf(stderr, "lockstep: block %u thread %u: %s\n", block_index, current->index, what);
    abort();
}
uint8_t *shared(uint32_t at, unsigned bytes) {
    if (at + bytes > shared_bytes) fail("outside of shared memory");
    return tess::raw + at;
}
static void main_of() {
    (*work)();
    current->done = true;
    if (!current->open.empty()) fail("copies that nobody waits for");
    for (auto &g : current->groups)
        if (!g.empty()) fail("copies that nobody waits for");
    yield();
    abort();
}
static void resume(fiber *f) {
    current = f;
    if (f->started) _longjmp(f->at, 1);
    f->started = true;
    getcontext(&start_context);
    start_context.uc_stack.ss_sp = stacks + (size_t)f->index * STACK;
    start_context.uc_stack.ss_size = STACK;
    makecontext(&start_context, main_of, 0);
    setcontext(&start_context);
}
void yield() {
    if (!current->done && _setjmp(current->at)) return;
    unsigned n = current->index;
    for (unsigned tried = 0; tried < threads; tried++) {
        n = (n + threads + step) % threads;
        if (!fibers[n].done) resume(&fibers[n]);
    }
    _longjmp(home, 1);
}
void run(unsigned groups, unsigned block_threads, unsigned bytes, unsigned seed,
         const std::function<void()> &body) {
    if (!stacks) stacks = (uint8_t *)malloc((size_t)MOST_THREADS * STACK);
    threads = block_threads;
    blocks = groups;
    shared_bytes = bytes;
    work = &body;
    early = seed & 1;
    /* as the images of device code are made: one for Ampere and Ada */
    const char *arch = getenv("FAKE_DRIVER_ARCH");
    converts = arch && strncmp(arch, "sm_8", 4) != 0;
    step = seed & 2 ? -1 : 1;
    for (block_index = 0; block_index < groups; block_index++) {
        memset(tess::raw, 0xff, sizeof tess::raw);
        for (unsigned n = 0; n < threads; n++) {
            fibers[n].index = n;
            fibers[n].started = fibers[n].done = false;
            fibers[n].groups.clear();
            fibers[n].open.clear();
        }
        memset((void *)warps, 0, sizeof warps);
        memset((void *)parts, 0, sizeof parts);
        memset((void *)&block, 0, sizeof block);
        if (_setjmp(home) == 0) resume(&fibers[seed & 2 ? threads - 1 : 0]);
    }
}

} // namespace lockstep
