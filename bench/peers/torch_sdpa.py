# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention: its three backends on CUDA, and what it takes on a CPU.

Of gradients the backward pass alone is timed, from what one forward pass has kept. Decode goes
through as many copies of K and V as no cache holds, as the suite's own layers do.
"""

import itertools
import sys

from peer import Refused, path, plain, serve, tell

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
except ImportError as error:
    tell(name="PyTorch SDPA", note=f"PyTorch is not installed: {error}"[:200])
    sys.exit()

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CUDA = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION}
CACHE_BYTES = {"cuda": 512 << 20, "cpu": 128 << 20}


def load(request, name, tokens, heads, device):
    with open(path(request, name), "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=DTYPES[request["dtype"]])
    shape = (request["batch"], tokens, heads, request["head_dim"])
    return data.reshape(shape).to(device).transpose(1, 2)


def event_clock(least):
    """Seconds of a call between two events, the mean of so many that the host is ahead of the GPU:
    what a call costs the host must not show where kernels are short."""
    calls = 0

    def time(run, count):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / count

    def clock(run):
        nonlocal calls
        if not calls:
            run()
            calls = max(least, min(200, int(2e-3 / time(run, least))))
        return time(run, calls)
    clock.wait = torch.cuda.synchronize
    return clock


def refusing(error):
    def run():
        raise error
    return run


def ways(request):
    plain(request)
    cuda = request["backend"] == "cuda"
    device = request["device"] if cuda else "cpu"
    if not cuda:
        torch.set_num_threads(max(1, request["threads"]))
    rows, keys = request["q_len"], request["kv_len"]
    grouped = request["heads"] != request["kv_heads"]
    q = load(request, "q", rows, request["heads"], device)
    kv = [(load(request, "k", keys, request["kv_heads"], device),
           load(request, "v", keys, request["kv_heads"], device))]
    decode = request["op"] == "decode"
    if decode:
        size = 2 * kv[0][0].numel() * kv[0][0].element_size()
        kv += [(kv[0][0].clone(), kv[0][1].clone())
               for _ in range(min(CACHE_BYTES[request["backend"]] // size, 63))]
    backward = request["op"] == "bwd"
    if backward:
        d_o = load(request, "d_o", rows, request["heads"], device)
        leaves = [x.detach().requires_grad_() for x in (q, *kv[0])]
        q, kv = leaves[0], [tuple(leaves[1:])]
    layers = itertools.cycle(kv)
    mask = dict(is_causal=request["causal"] and rows == keys)
    if request["causal"] and rows < keys and rows > 1:
        mask = dict(attn_mask=causal_lower_right(rows, keys))
    out = gradients = None

    def attend():
        nonlocal out
        k, v = next(layers)
        out = F.scaled_dot_product_attention(q, k, v, scale=request["scale"], enable_gqa=grouped,
                                             **mask)

    def differentiate():
        nonlocal gradients
        gradients = torch.autograd.grad(out, leaves, d_o, retain_graph=True)

    def store():
        results = {"o": out}
        if backward:
            results = dict(zip(("d_q", "d_k", "d_v"), gradients))
        for name, result in results.items():
            result = result.detach().transpose(1, 2).contiguous().cpu()
            with open(path(request, name), "wb") as file:
                file.write(result.view(torch.uint8).numpy().tobytes())

    if not cuda:
        if backward:
            attend()
        yield "sdpa", differentiate if backward else attend, None, store
        return
    torch.cuda.set_device(device)
    least = len(kv) if decode else 1
    for name, backend in CUDA.items():
        def run(backend=backend):
            with sdpa_kernel(backend):
                attend()
        if backward:
            try:
                run()
            except RuntimeError as error:
                yield f"sdpa/{name}", refusing(error), None, store
                continue
            run = differentiate
        yield f"sdpa/{name}", run, event_clock(least), store


serve("PyTorch SDPA", torch.__version__, ["cuda", "cpu"], ways)
