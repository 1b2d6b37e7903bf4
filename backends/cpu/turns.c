/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/turns.h"

#include "pause.h"

static const uint64_t none = UINT64_MAX, taking = UINT64_MAX - 1;

static cpu_turn *turn_of(const cpu_turn *turn, uint32_t worker) {
    return (cpu_turn *)(void *)(turn->first + worker * turn->apart);
}

void tess_cpu_turns_begin(char *first, size_t apart, uint32_t workers) {
    for (uint32_t n = 0; n < workers; n++) {
        cpu_turn *turn = (cpu_turn *)(void *)(first + n * apart);
        turn->first = first;
        turn->apart = apart;
        turn->workers = workers;
        turn->n_before = 0;
        atomic_init(&turn->job, none);
        atomic_init(&turn->done, 0);
    }
}

int tess_cpu_turn_take(cpu_turn *turn, const tess_launch *launch, atomic_uint_fast64_t *next,
                       uint64_t end, uint64_t *job) {
    const tess_column *columns = launch->tables->columns;
    /* Whoever takes a later job sees that this worker has one, or is about to. */
    atomic_store(&turn->job, taking);
    const uint64_t n = *job = atomic_fetch_add(next, 1);
    turn->n_before = 0;
    atomic_store_explicit(&turn->done, 0, memory_order_relaxed);
    atomic_store(&turn->job, n < end ? n : none);
    for (uint32_t w = 0; w < turn->workers && n < end; w++) {
        cpu_turn *other = turn_of(turn, w);
        uint64_t at;
        uint32_t spins = 0;
        while ((at = atomic_load(&other->job)) == taking) tess_pause_briefly(&spins);
        if (at < n && columns[at].sequence == columns[n].sequence &&
            columns[at].kv_head == columns[n].kv_head)
            turn->before[turn->n_before++] = (uint16_t)w;
    }
    return n < end;
}

void tess_cpu_turn_wait(cpu_turn *turn, uint64_t row) {
    const uint64_t own = atomic_load_explicit(&turn->job, memory_order_relaxed);
    for (uint32_t n = 0; n < turn->n_before;) {
        cpu_turn *other = turn_of(turn, turn->before[n]);
        uint32_t spins = 0;
        for (;;) {
            /* Once it has taken another job, that is a later one, and this one is done. */
            const uint64_t job = atomic_load_explicit(&other->job, memory_order_acquire);
            if (job > own) {
                turn->before[n] = turn->before[--turn->n_before];
                break;
            }
            if (atomic_load_explicit(&other->done, memory_order_acquire) >= row) {
                n++;
                break;
            }
            tess_pause_briefly(&spins);
        }
    }
}
