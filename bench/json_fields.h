/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that a result file holds under their own names, for the writer and the reader. What may be
 * missing is optional, and counts as empty, 0 or unknown then; what must not be is not listed. */
#ifndef TESSERA_BENCH_JSON_FIELDS_H
#define TESSERA_BENCH_JSON_FIELDS_H

// clang-format off
#define MACHINE_TEXTS(X)    X(os) X(kernel) X(arch)
#define MACHINE_COUNTS(X)   X(memory_bytes) X(l2_bytes) X(l3_bytes)
#define DEVICE_TEXTS(X)     X(backend) X(kind) X(name) X(arch) X(driver) X(uuid) X(pci) \
                            X(sensors) X(energy) X(ceiling_note) X(planning_note)
#define CEILING_TEXTS(X)    X(library) X(method) X(via)
#define SETTING_TEXTS(X)    X(value) X(source)
#define SENSOR_NUMBERS(X)   X(clock_hz) X(memory_clock_hz) X(power_watts) X(temperature_celsius)
#define DECODE_NUMBERS(X)   X(layers) X(cache_bytes) X(parts) X(host_seconds)
#define PLANNING_COUNTS(X)  X(host_bytes) X(device_bytes)
#define PEER_TEXTS(X)       X(version) X(note)
#define RESULT_SIZES(X)     X(batch) X(q_len) X(kv_len)
#define RESULT_HEADS(X)     X(heads) X(kv_heads) X(head_dim)
#define RESULT_CHECKS(X)    X(check_error) X(check_allowed)
#define RESULT_SECONDS(X)   X(layout_seconds) X(plan_seconds) X(compile_seconds) X(first_seconds)
#define RESULT_COUNTS(X)    X(workspace_bytes) X(plan_bytes) \
                            X(kv_bytes) X(kv_bytes_kept) X(kv_bytes_allocated)
#define RESULT_WORK(X)      X(bytes_min) X(kept_pairs) X(dense_pairs)
/* Only written: computed again from the others. */
#define RESULT_DERIVED(X)   X(spread) X(flop_rate) X(byte_rate) X(ideal_speedup) \
                            X(speedup) X(speedup_low) X(speedup_high) \
                            X(gemm_share) X(copy_share) X(read_share) \
                            X(gemm_ceiling) X(copy_ceiling) X(read_ceiling) \
                            X(limit_share) X(limit_ceiling)
// clang-format on

#endif
