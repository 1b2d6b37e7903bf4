// SPDX-License-Identifier: Apache-2.0
// The same library from C++11: handles in smart pointers, errors as exceptions. Prints the state of
// the machine and checks a dense run.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <tessera/tessera.h>

namespace {

void check(tess_status status) {
    if (status != TESS_OK)
        throw std::runtime_error(std::string(tess_status_name(status)) + ": " + tess_last_error());
}

template <class T, void (*Release)(T *)> struct Releaser {
    void operator()(T *handle) const { Release(handle); }
};
using Runtime = std::unique_ptr<tess_runtime, Releaser<tess_runtime, tess_runtime_release>>;
using Device = std::unique_ptr<tess_device, Releaser<tess_device, tess_device_release>>;
using Layout = std::unique_ptr<tess_layout, Releaser<tess_layout, tess_layout_release>>;
using Plan = std::unique_ptr<tess_plan, Releaser<tess_plan, tess_plan_release>>;

// A descriptor of this header's version, every field zero.
template <class Descriptor> Descriptor zeroed() {
    Descriptor descriptor = Descriptor();
    descriptor.struct_size = sizeof descriptor;
    return descriptor;
}

int run() {
    const int tokens = 100, heads = 2, dim = 16;

    tess_runtime *raw_runtime = nullptr;
    check(tess_runtime_create(nullptr, &raw_runtime));
    const Runtime runtime(raw_runtime);
    tess_device *raw_device = nullptr;
    tess_device_desc device_desc = {};
    device_desc.struct_size = sizeof device_desc;
    device_desc.id = "cpu"; // whose buffers are the program's own memory
    check(tess_device_open(runtime.get(), &device_desc, &raw_device));
    const Device device(raw_device);
    tess_device_info device_info = zeroed<tess_device_info>();
    check(tess_device_query(device.get(), &device_info));

    const tess_pattern pattern = zeroed<tess_pattern>(); // dense, causal
    tess_layout_desc layout_desc = zeroed<tess_layout_desc>();
    layout_desc.pattern = &pattern;
    layout_desc.n_heads = layout_desc.n_kv_heads = heads;
    layout_desc.max_tokens = tokens;
    tess_layout *raw_layout = nullptr;
    check(tess_layout_create(runtime.get(), &layout_desc, &raw_layout));
    const Layout layout(raw_layout);

    tess_plan_desc plan_desc = zeroed<tess_plan_desc>();
    plan_desc.dtype = TESS_F32;
    plan_desc.head_dim = dim;
    plan_desc.batch = 1;
    plan_desc.q_len = plan_desc.kv_len = tokens;
    tess_plan *raw_plan = nullptr;
    check(tess_plan_create(device.get(), layout.get(), &plan_desc, &raw_plan));
    const Plan plan(raw_plan);
    tess_plan_info info = zeroed<tess_plan_info>();
    check(tess_plan_query(plan.get(), &info));

    // Queries of zero weigh all keys equally: row p of the output is the mean of the first p + 1
    // values.
    std::vector<float> q(tokens * heads * dim, 0.0f), k(q.size(), 1.0f), v(q.size()), o(q.size());
    for (std::size_t n = 0; n < v.size(); n++) v[n] = static_cast<float>(n / (heads * dim));
    tess_run_desc desc = zeroed<tess_run_desc>();
    const std::uint64_t bytes = q.size() * sizeof(float);
    check(tess_plan_tensor(plan.get(), TESS_ROLE_Q, tess_host_buffer(q.data(), bytes), &desc.q,
                           nullptr));
    check(tess_plan_tensor(plan.get(), TESS_ROLE_K, tess_host_buffer(k.data(), bytes), &desc.k,
                           nullptr));
    check(tess_plan_tensor(plan.get(), TESS_ROLE_V, tess_host_buffer(v.data(), bytes), &desc.v,
                           nullptr));
    check(tess_plan_tensor(plan.get(), TESS_ROLE_O, tess_host_buffer(o.data(), bytes), &desc.o,
                           nullptr));
    check(tess_alloc(device.get(), info.workspace_bytes, &desc.workspace));
    const tess_status status = tess_run(plan.get(), &desc);
    check(tess_free(device.get(), &desc.workspace));
    check(status);

    double worst = 0;
    for (int p = 0; p < tokens; p++)
        for (int n = 0; n < heads * dim; n++)
            worst = std::fmax(worst, std::fabs(o[p * heads * dim + n] - 0.5 * p));
    std::printf("%s on %s: largest error %.1e\n", info.kernel, device_info.name, worst);
    return worst < 1e-3 ? 0 : 1;
}

} // namespace

int main() {
    try {
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
