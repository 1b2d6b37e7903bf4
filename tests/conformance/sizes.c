/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets on both sides of 2^31 elements and 2^32 bytes, by strides through sparse mappings; more
 * than 65,535 heads and sequences. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "properties.h"
#include "rig.h"

static const char *const role_names[] = {"q", "k", "v", "o", "lse"};

/* Runs with tensor `role` stretched to `view` in a sparse mapping, the others contiguous, and
 * compares with the contiguous run. */
static void run_stretched(const rig *r, int role, const rig_view *view, const rig_outputs *out) {
    const uint64_t bytes = rig_extent(r, (tess_role)role, view);
    char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        fail_msg("%llu bytes of address space cannot be mapped", (unsigned long long)bytes);
    rig_outputs got = rig_outputs_of(r);
    void *work = aligned_alloc(4096, (r->info.workspace_bytes + 4095) / 4096 * 4096 + 4096);
    assert_non_null(work);
    tess_run_desc run = {.struct_size = sizeof run};
    tess_tensor *tensors[5] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    void *host[5] = {r->data[0], r->data[1], r->data[2], got.o, got.lse};
    for (int n = 0; n < 5; n++) {
        const rig_view v = n == role ? *view : rig_contiguous(r, (tess_role)n);
        tensors[n]->buffer =
            n == role ? tess_host_buffer(map, bytes) : tess_host_buffer(host[n], r->bytes[n]);
        tensors[n]->buffer.offset = (uint64_t)v.offset * r->size[n];
        tensors[n]->stride_batch = v.batch;
        tensors[n]->stride_token = v.token;
        tensors[n]->stride_head = v.head;
    }
    if (role < TESS_ROLE_O) rig_scatter(r, (tess_role)role, view, r->data[role], map);
    run.workspace = tess_host_buffer(work, r->info.workspace_bytes);
    assert_ok(tess_run(r->plan, &run));
    if (role >= TESS_ROLE_O)
        rig_gather(r, (tess_role)role, view, role == TESS_ROLE_O ? got.o : (void *)got.lse, map);
    char what[64];
    snprintf(what, sizeof what, "stretched %s", role_names[role]);
    rig_same_outputs(what, r, out, &got);
    munmap(map, bytes);
    rig_outputs_free(&got);
    free(work);
}

void test_stretched(void **state) {
    static const char *const lines[] = {
        "pattern=s2 block=16 local=1 stride=2 heads=2 kv_heads=2 head_dim=16 batch=2 q_len=3 "
        "kv_len=70",
        "pattern=s2 block=16 local=1 stride=2 heads=2 kv_heads=2 head_dim=16 batch=2 q_len=3 "
        "kv_len=70 dtype=f16",
    };
    /* Elements: around 2^30 (2^32 bytes of float32), 2^31 (2^32 bytes of 16-bit types, and the sign
     * of a 32-bit index), and 2^32. */
    static const int64_t strides[] = {(1LL << 30) - 16, (1LL << 30) + 16, (1LL << 31) - 16,
                                      (1LL << 31),      (1LL << 31) + 16, (1LL << 32) + 16};
    const test_target *target = *state;
    if (!target->host_memory) return;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        rig r;
        rig_create(&r, target, lines[n], NULL, NULL);
        if (r.refused) continue;
        rig_outputs out = rig_outputs_of(&r);
        rig_run(&r, NULL, out.o, out.lse);
        for (int role = 0; role < 5; role++)
            for (size_t s = 0; s < sizeof strides / sizeof strides[0]; s++) {
                rig_view v = rig_contiguous(&r, (tess_role)role);
                v.batch = strides[s];
                run_stretched(&r, role, &v, &out);
                v = rig_contiguous(&r, (tess_role)role);
                v.batch = v.head;
                v.head = strides[s];
                v.token = 2 * v.batch;
                if (role == TESS_ROLE_LSE) v = (rig_view){3, 1, strides[s], 0};
                run_stretched(&r, role, &v, &out);
                /* The last of 70 keys, or of 3 queries, lands at the stride. */
                v = rig_contiguous(&r, (tess_role)role);
                const int64_t last = r.dims[role].tokens - 1;
                v = (rig_view){2 * 16, strides[s] / last / 16 * 16 + 64, 16, 5};
                run_stretched(&r, role, &v, &out);
            }
        rig_outputs_free(&out);
        rig_release(&r);
    }
}

void test_many_heads_and_sequences(void **state) {
    static const char *const lines[] = {
        "pattern=dense heads=2 head_dim=8 batch=33000 q_len=1 kv_len=2",
        /* Heads of one pattern share jobs; in the next line each has its own. */
        ("pattern=s2 block=2 local=1 stride=3 heads=65535 kv_heads=1 per_kv_head=1 head_dim=8 "
         "batch=2 q_len=1 kv_len=7 dtype=f16"),
        "pattern=dense heads=1 head_dim=8 batch=70000 q_len=2 kv_len=1 dtype=f16",
        /* Vulkan's software takes seconds for a grid of so many jobs, and has the one of the first
         * line. */
        "pattern=s2 block=2 local=1 stride=3 heads=65535 head_dim=8 q_len=1 kv_len=11",
    };
    const test_target *target = *state;
    const int slow = target->software && strcmp(target->backend, "vulkan") == 0 && !test_full();
    const int count = (int)(sizeof lines / sizeof lines[0]) - slow;
    for (int n = 0; n < count; n++) {
        rig r;
        rig_create(&r, target, lines[n], NULL, NULL);
        if (r.refused) continue;
        rig_outputs out = rig_outputs_of(&r);
        rig_run(&r, NULL, out.o, out.lse);
        rig_check(&r, out.o, out.lse, r.p.dtype == TESS_F32 ? 1e-5 : 4e-3);
        rig_outputs_free(&out);
        rig_release(&r);
    }
}
