# SPDX-License-Identifier: Apache-2.0
"""One rank of two: `python3 two_ranks.py RANK PORT LIBRARY BACKEND`.

test_processes.py starts both with gloo, on CPU tensors; gpu_two.py with NCCL, on a GPU each. Heads
over tensor-parallel ranks, DDP, FSDP2, and a KV cache whose keys the ranks share.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import types
import warnings
from typing import Any

import reference
import torch
import torch.distributed as dist

import tessera

HEADS, KV_HEADS, DIM, TOKENS = 8, 4, 64, 300


def near(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3, msg=lambda m: f"{what}: {m}")


def given(device: torch.device, rows: int = TOKENS) -> list[torch.Tensor]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(rows)
    return [
        torch.randn(2, rows, n, DIM, generator=generator).to(device).requires_grad_()
        for n in (HEADS, KV_HEADS, KV_HEADS)
    ]


def gathered(x: torch.Tensor, dim: int) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts, dim)


def tensor_parallel(rank: int, device: torch.device) -> float:
    """Each rank has half of the heads, among them two of the four dense ones."""
    pattern = tessera.S2(16, 2, 4, dense_heads=4, heads_total=HEADS)
    split = tessera.assign_heads(pattern, 2, kv_heads=KV_HEADS, tokens=TOKENS)
    inputs = given(device)
    o = tessera.attention(*inputs, split.pattern)
    wanted = [o.detach(), *torch.autograd.grad(o.square().sum(), inputs)]
    share, kv_share = HEADS // 2, KV_HEADS // 2
    own = [
        x.detach()[:, :, n * rank : n * (rank + 1)].requires_grad_()
        for x, n in zip(inputs, (share, kv_share, kv_share), strict=True)
    ]
    ids = split.pattern.head_ids[rank * share : (rank + 1) * share]
    assert sorted(ids) == sorted(split.head_ids[rank])
    o = tessera.attention(*own, pattern.on_heads(ids, HEADS, KV_HEADS))
    found = [o.detach(), *torch.autograd.grad(o.square().sum(), own)]
    names = ("o", "d_q", "d_k", "d_v")
    for name, mine, whole in zip(names, found, wanted, strict=True):
        near(gathered(mine, 2), whole.detach(), f"tensor parallel: {name}")
    return split.imbalance


def megatron(rank: int, device: torch.device) -> str:
    """A layer whose heads follow from its rank of a real group."""
    if importlib.util.find_spec("megatron") is None:
        return "no megatron-core"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core
        from megatron.core.transformer.enums import AttnMaskType
        from megatron.core.transformer.transformer_config import TransformerConfig

        from tessera.megatron import S2Attention

        config = TransformerConfig(
            num_layers=2, hidden_size=HEADS * DIM, num_attention_heads=HEADS,
            num_query_groups=KV_HEADS, attention_dropout=0.0, use_cpu_initialization=True,
        )  # fmt: skip
    pattern = tessera.S2(16, 2, 4, dense_heads=2)
    groups = types.SimpleNamespace(tp=dist.group.WORLD)
    layer = S2Attention.by(pattern)(config, 1, AttnMaskType.causal, "self", pg_collection=groups)
    q, k, v = (x.detach() for x in given(device))
    share, kv_share = HEADS // 2, KV_HEADS // 2
    own = [
        x[:, :, n * rank : n * (rank + 1)].transpose(0, 1)
        for x, n in ((q, share), (k, kv_share), (v, kv_share))
    ]
    o = layer(*own, None)
    whole = tessera.attention(q, k, v, pattern).transpose(0, 1).flatten(2)
    near(gathered(o, 2), whole, "megatron")
    return f"megatron-core {megatron.core.__version__}"


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).unbind(-3)
        return tessera.attention(q, k, v, tessera.S2(4, 1, 2)).flatten(-2)


def data_parallel(rank: int, device: torch.device) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model, x = Small().to(device), torch.randn(2, 20, 16).to(device)
    (alone,) = torch.autograd.grad(model(x).square().sum() / 2, [model.qkv.weight])
    for kind in ("ddp", "fsdp2"):
        model.zero_grad()
        if kind == "ddp":
            ids = [device.index] if device.type == "cuda" else None
            trained: Any = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
        else:
            trained = fully_shard(model, mesh=init_device_mesh(device.type, (2,)))
        trained(x[rank : rank + 1]).square().sum().backward()
        grad: Any = model.qkv.weight.grad
        near(grad if kind == "ddp" else grad.full_tensor(), alone, kind)


def parts_of_a_cache(rank: int, device: torch.device) -> None:
    """Each rank keeps its part of the keys; what they found is gathered and merged."""
    pattern = tessera.S2(16, 1, 4)
    cache = tessera.KVCache(
        pattern, HEADS, KV_HEADS, DIM, sequences=2, max_tokens=512, part_tokens=512,
        device=device, dtype=torch.float32,
    )  # fmt: skip
    cut = 128
    for s in range(2):
        cache.part(s, *((0, cut), (cut, 512 - cut))[rank])
    seen: list[list[torch.Tensor]] = [[], [], []]
    for rows in (100, 60, 1, 1):
        q, k, v = (x.detach() for x in given(device, rows))
        for kept, new in zip(seen, (q, k, v), strict=True):
            kept.append(new.cpu())
        o, lse = tessera.attention(q, k, v, pattern, cache=cache, return_lse=True)
        os, lses = gathered(o[None], 0), gathered(lse[None], 0)
        o, lse = tessera.merge(*zip(os, lses, strict=True))
        whole = [torch.cat(kept, 1) for kept in seen]
        wanted, wanted_lse = reference.attention(whole[0][:, -rows:], *whole[1:], pattern)
        near(o.cpu().double(), wanted, "parts of a cache: o")
        near(lse.cpu().double(), wanted_lse.double(), "parts of a cache: lse")


def main() -> None:
    rank, port, library, backend = int(sys.argv[1]), *sys.argv[2:5]
    tessera.load(library)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=sys.argv[1], WORLD_SIZE="2")
    if backend == "gloo":
        device = torch.device("cpu")
        torch.set_num_threads(1)
        dist.init_process_group(backend)
    else:
        device = torch.device("cuda", rank)
        # Multicast that goes wrong can put all GPUs of a host out of service.
        os.environ["NCCL_NVLS_ENABLE"] = "0"
        torch.cuda.set_device(device)
        dist.init_process_group(backend, device_id=device)
    imbalance = tensor_parallel(rank, device)
    core = megatron(rank, device)
    data_parallel(rank, device)
    parts_of_a_cache(rank, device)
    dist.barrier()
    dist.destroy_process_group()
    print(f"most loaded rank {imbalance:.4f}x the mean; {core}")


def both(backend: str) -> list[str]:
    """What two processes say with this backend."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-W", "ignore", __file__]
    processes = [
        subprocess.Popen(
            [*command, str(rank), port, tessera.load(), backend],
            env=words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 0, text
    return [text.strip().splitlines()[-1] for text in said]


if __name__ == "__main__":
    main()
