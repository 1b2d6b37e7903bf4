# SPDX-License-Identifier: Apache-2.0
"""The operator as PyTorch sees it: tracing, compiling, checkpoints, autocast, refusals."""

from __future__ import annotations

import collections
import copy
import gc
import pickle
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import tessera
from tessera import _calls, _layouts, _plans, patterns

S2 = tessera.S2
PATTERN = S2(16, 1, 2)


def tensors(rows: int = 33, grad: bool = True, layout: str = "bshd") -> list[torch.Tensor]:
    found = []
    for heads in (4, 2, 2):
        x = torch.randn((rows, heads, 16) if layout == "thd" else (1, rows, heads, 16))
        found.append((x.transpose(1, 2) if layout == "bhsd" else x).requires_grad_(grad))
    return found


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_opcheck(layout: str) -> None:
    cu = (torch.tensor([0, 10, 33], dtype=torch.int32),) if layout == "thd" else ()
    forward = torch.ops.tessera.forward.default
    for flags in (0, 1):
        inputs = tensors(grad=False, layout=layout)
        arguments = (*inputs, PATTERN.spec, layout, None, flags, *cu)
        torch.library.opcheck(forward, arguments)
    o, lse = forward(*arguments)
    d_o = torch.randn_like(o)
    for d_lse in (None, torch.randn_like(lse)):
        torch.library.opcheck(
            torch.ops.tessera.backward.default,
            (d_o, d_lse, *inputs, o, lse, True, False, True, PATTERN.spec, layout, 0.2, 0, *cu),
        )


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
@pytest.mark.parametrize("mode", ["fake", "meta"])
def test_fake_and_real_results_lie_alike(layout: Any, mode: str) -> None:
    options: Any = {"cu_seqlens_q": [0, 33]} if layout == "thd" else {}

    def run(device: str | None) -> list[tuple[Any, ...]]:
        inputs = tensors(layout=layout)
        if device:
            inputs = [x.detach().to(device).requires_grad_() for x in inputs]
        o, lse = tessera.attention(*inputs, PATTERN, layout=layout, return_lse=True, **options)
        grads = torch.autograd.grad(o.sum() + lse.sum(), inputs)
        return [(x.shape, x.stride(), x.dtype) for x in (o, lse, *grads)]

    real = run(None)
    if mode == "meta":
        assert run("meta") == real
    else:
        with FakeTensorMode():
            assert run(None) == real


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_compiles_once_for_all_lengths(layout: Any) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def model(q: Any, k: Any, v: Any, cu: Any) -> Any:
        o, lse = tessera.attention(
            q * 2, k, v, PATTERN, layout=layout, return_lse=True, cu_seqlens_q=cu
        )
        return o + 1, lse

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for rows in range(20, 40):
        inputs = tensors(rows, layout=layout)
        cu = torch.tensor([0, 5, rows - 3, rows]) if layout == "thd" else None
        results = []
        for function in (compiled, model):
            o, lse = function(*inputs, cu)
            grads = torch.autograd.grad(o.square().sum() + lse.sum(), inputs)
            results.append((o, lse, *grads))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert counter.frame_count == 1


def test_compiled_options_are_constants_or_tensors() -> None:
    torch._dynamo.reset()
    blocks = tessera.Blocks(np.random.default_rng(0).random((2, 3, 3)) < 0.7, 16)
    q, k, v = (x[:, :, :2] for x in tensors(grad=False))

    def model(q: Any, k: Any, v: Any, scale: float, lens: list[int]) -> Any:
        o = tessera.attention(q, k, v, blocks, scale=scale, q_lens=lens, kv_lens=lens)
        return o + tessera.attention(q, k, v, tessera.Window(7, sinks=1), q_first=lens)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for scale, lens in ((0.1, [30]), (0.2, [7]), (0.3, [33])):
        assert torch.equal(compiled(q, k, v, scale, lens), model(q, k, v, scale, lens))


def test_export_holds_the_pattern_as_text() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return tessera.attention(q, k, v, PATTERN)

    inputs = tensors(grad=False)
    program = torch.export.export(Model(), tuple(inputs))
    assert PATTERN.spec in program.graph_module.code
    assert torch.equal(program.module()(*inputs), Model()(*inputs))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_have_equal_bits(reentrant: bool) -> None:
    inputs = tensors()

    def model(q: Any, k: Any, v: Any) -> Any:
        return tessera.attention(q, k, v, PATTERN).square()

    found = [x.detach().requires_grad_() for x in inputs]
    checkpoint(model, *found, use_reentrant=reentrant).sum().backward()
    model(*inputs).sum().backward()
    for x, y in zip(found, inputs, strict=True):
        assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)


def test_backward_twice_and_in_another_thread() -> None:
    inputs = tensors()
    o = tessera.attention(*inputs, PATTERN)
    first = torch.autograd.grad(o.sum(), inputs, retain_graph=True)
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.extend(torch.autograd.grad(o.sum(), inputs, retain_graph=True))
    )
    thread.start()
    thread.join()
    assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))
    torch.autograd.grad(o.sum(), inputs)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(o.sum(), inputs)


def test_inputs_changed_in_place_are_noticed() -> None:
    inputs = tensors()
    o = tessera.attention(*inputs, PATTERN)
    with torch.no_grad():
        inputs[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_scaled_dot_product_attention_does(dtype: torch.dtype) -> None:
    q, k, v = tensors()
    with torch.autocast("cpu", dtype):
        o = tessera.attention(q, k.double().float(), v.to(torch.bfloat16), PATTERN)
        same = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1)))
        )
        assert o.dtype == same.dtype == dtype
        with pytest.raises(tessera.InvalidArgument, match="q: float32"):
            tessera.attention(q.double(), k.double(), v.double(), PATTERN)
    o.sum().backward()
    assert q.grad is not None and q.grad.dtype == torch.float32


def test_deterministic_algorithms() -> None:
    inputs = tensors()
    torch.use_deterministic_algorithms(True)
    try:
        tessera.attention(*inputs, PATTERN).sum().backward()
        with pytest.raises(tessera.InvalidArgument, match="deterministic"):
            tessera.attention(*inputs, PATTERN, deterministic=False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="deterministic"):
            tessera.attention(*inputs, PATTERN, deterministic=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_of_gradients_are_refused() -> None:
    q, k, v = tensors()
    (d_q,) = torch.autograd.grad(
        tessera.attention(q, k, v, PATTERN).square().sum(), q, create_graph=True
    )
    plain = torch.autograd.grad(tessera.attention(q, k, v, PATTERN).square().sum(), q)[0]
    assert torch.equal(d_q, plain)
    with pytest.raises(tessera.Unsupported, match="gradients of gradients"):
        d_q.sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_batches_of_gradients() -> None:
    inputs = tensors()
    o, lse = tessera.attention(*inputs, PATTERN, return_lse=True)
    for result in (o, lse):
        given = torch.randn(3, *result.shape)
        got = torch.autograd.grad(
            result, inputs, given, is_grads_batched=True, retain_graph=True
        )
        each = [torch.autograd.grad(result, inputs, x, retain_graph=True) for x in given]
        for found, wanted in zip(got, zip(*each, strict=True), strict=True):
            assert torch.equal(found, torch.stack(wanted))


def test_transforms_are_refused() -> None:
    q, k, v = tensors(grad=False)

    def function(q: Any) -> Any:
        return tessera.attention(q, k, v, PATTERN)

    for transformed in (
        lambda: torch.vmap(function)(q[None]),
        lambda: torch.func.grad(lambda q: function(q).sum())(q),
        lambda: torch.func.jvp(function, (q,), (q,)),
    ):
        with pytest.raises(tessera.Unsupported, match="transforms"):
            transformed()
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        function(q)
        for grad in (False, True):
            with pytest.raises(tessera.Unsupported, match="q: forward-mode"):
                function(forward_ad.make_dual(q.requires_grad_(grad), torch.ones_like(q)))


def test_a_tensor_subclass_keeps_its_own_rule() -> None:
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise NotImplementedError(f"no rule for {function}")

    q, k, v = tensors(grad=False)
    odd = torch.Tensor._make_subclass(Refusing, q)
    with pytest.raises(NotImplementedError, match="tessera"):
        tessera.attention(odd, k, v, PATTERN)
    with pytest.raises(tessera.InvalidArgument, match="q: an ordinary"):
        tessera.attention(q.to_sparse(), k, v, PATTERN)


def _grads(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    o, lse = tessera.attention(*inputs, PATTERN, return_lse=True)
    return [o.detach(), *torch.autograd.grad(o.square().sum() + lse.sum(), inputs)]


def test_whoever_looks_at_operators_sees_them() -> None:
    """Other eager calls go past the dispatcher, and have the same bits."""
    inputs = tensors()
    expected = _grads(inputs)
    seen: list[str] = []

    class Operators(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    for mode in (Operators, Functions):
        seen.clear()
        with mode():
            found = _grads(inputs)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert any("tessera.forward" in name for name in seen), mode
    # A mode that begins between forward and backward; lengths are tensors again for it.
    x = torch.randn(33, 2, 16, requires_grad=True)
    for cu in ([0, 10, 33], torch.tensor([0, 10, 33], dtype=torch.int32)):
        o = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        plain = torch.autograd.grad(o.sum(), x, retain_graph=True)[0]
        seen.clear()
        with Operators():
            assert torch.equal(torch.autograd.grad(o.sum(), x)[0], plain)
        assert any("tessera.backward" in name for name in seen)
    with torch.profiler.profile() as profile:
        _grads(inputs)
    names = {event.key for event in profile.key_averages()}
    assert {"tessera::forward", "tessera::backward"} <= names


def test_jit_traces_the_operator() -> None:
    inputs = tensors(grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda *x: tessera.attention(*x, PATTERN), tuple(inputs))
    assert "tessera::forward" in str(traced.graph)
    others = tensors(grad=False)
    assert torch.equal(traced(*others), tessera.attention(*others, PATTERN))


def test_lengths_changed_between_forward_and_backward() -> None:
    x = torch.randn(33, 2, 16, requires_grad=True)
    cu = torch.tensor([0, 10, 33])
    plain = torch.autograd.grad(
        tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu).sum(), x
    )[0]
    o = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
    cu[1] = 20  # a buffer that the next step fills: backward knows what forward read
    assert torch.equal(torch.autograd.grad(o.sum(), x)[0], plain)


def test_saved_tensors_that_a_hook_changed_are_noticed() -> None:
    inputs = tensors()
    plain = torch.autograd.grad(tessera.attention(*inputs, PATTERN).sum(), inputs)

    def strided(x: torch.Tensor) -> torch.Tensor:
        wide = torch.randn(*x.shape[:-1], x.shape[-1] * 2, dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]

    for unpack, fits in (
        (strided, True),
        (lambda x: x.half() if x.dim() == 4 else x, False),
        (lambda x: x.double() if x.dim() == 3 else x, False),
        (lambda x: x[:0], False),
    ):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            o = tessera.attention(*inputs, PATTERN)
        if fits:
            found = torch.autograd.grad(o.sum(), inputs)
            assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
        else:
            with pytest.raises(tessera.InvalidArgument):
                torch.autograd.grad(o.sum(), inputs)


def test_numbers_of_other_types_as_scale() -> None:
    inputs = tensors(grad=False)
    expected = tessera.attention(*inputs, PATTERN, scale=2.0)
    for scale in (2, np.float32(2), np.int64(2), torch.tensor(2.0)):
        assert torch.equal(tessera.attention(*inputs, PATTERN, scale=scale), expected)
    with pytest.raises(TypeError, match="scale: a number"):
        tessera.attention(*inputs, PATTERN, scale=torch.tensor(2.0, requires_grad=True))


def test_a_default_device_changes_nothing() -> None:
    x, cu = torch.randn(33, 2, 16), [0, 10, 33]
    expected = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
    with torch.device("meta"):
        found = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
    assert torch.equal(found, expected)


def test_compiled_autograd() -> None:
    torch._dynamo.reset()
    inputs = tensors()
    for scale in (None, 0.3, 0.5):
        o = tessera.attention(*inputs, PATTERN, scale=scale)
        plain = torch.autograd.grad(o.sum(), inputs, retain_graph=True)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            found = torch.autograd.grad(o.sum(), inputs)
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def test_saved_tensor_hooks_see_what_is_kept() -> None:
    inputs, packed = tensors(), []

    def pack(x: torch.Tensor) -> torch.Tensor:
        packed.append(x.numel() * x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        o, lse = tessera.attention(*inputs, PATTERN, return_lse=True)
    sizes = [x.numel() * x.element_size() for x in (*inputs, o, lse)]
    assert sorted(packed) == sorted(sizes)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.pattern = PATTERN

    def forward(self, x: Any) -> Any:
        return tessera.attention(
            *self.qkv(x).unflatten(-1, (3, 2, 8)).unbind(-3), self.pattern
        ).flatten(-2)


def test_modules_with_patterns_are_copied_and_saved(tmp_path: Any) -> None:
    model, x = Layer(), torch.randn(1, 40, 16)
    optimiser = torch.optim.AdamW(model.parameters())
    model(x).square().sum().backward()
    optimiser.step()
    other = copy.deepcopy(model)
    torch.save((model, optimiser.state_dict()), tmp_path / "model.pt")
    loaded, state = torch.load(tmp_path / "model.pt", weights_only=False)
    torch.optim.AdamW(loaded.parameters()).load_state_dict(state)
    assert torch.equal(model(x), other(x)) and torch.equal(model(x), loaded(x))
    assert loaded.pattern == PATTERN
    # A model and its optimiser together: both go on alike.
    pairs = [(model, optimiser), copy.deepcopy((model, optimiser))]
    pairs.append(pickle.loads(pickle.dumps((model, optimiser))))
    for one, its in pairs:
        its.zero_grad()
        one(x).square().sum().backward()
        its.step()
    for one, _ in pairs[1:]:
        for a, b in zip(one.parameters(), model.parameters(), strict=True):
            assert a is not b and torch.equal(a, b)


def test_a_graph_keeps_its_large_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program has no other reference to the pattern, and made many since."""
    monkeypatch.setattr(patterns, "_recent", collections.deque(maxlen=1))
    masks = torch.rand(2, 200, 200) < 0.5
    inputs = [torch.randn(1, 40, 2, 16).requires_grad_() for _ in range(3)]
    for _ in range(2):  # the long way, and the short one
        o = tessera.attention(*inputs, tessera.Blocks(masks[0], 4))
        tessera.Blocks(masks[1], 4)
        tessera.cache_clear()
        _layouts._layouts.clear()
        gc.collect()
        found = torch.autograd.grad(o.sum(), inputs)
        again = tessera.attention(*inputs, tessera.Blocks(masks[0], 4)).sum()
        for one, other in zip(found, torch.autograd.grad(again, inputs), strict=True):
            assert torch.equal(one, other)


def test_an_exception_within_backward_leaves_everything_usable() -> None:
    """Before our part of it, between two layers, and within ours."""
    inputs = tensors()
    q, k, v = inputs

    def fail(*_: Any) -> Any:
        raise KeyError("on purpose")

    def layers() -> list[torch.Tensor]:
        first = tessera.attention(q, k, v, PATTERN)
        return [first, tessera.attention(first, k, v, PATTERN)]

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(layers()[1].sum(), inputs)

    expected = gradients()
    for place in (0, 1):
        found = layers()
        found[place].register_hook(fail)
        with pytest.raises(KeyError):
            torch.autograd.grad(found[1].sum(), inputs)
        assert all(torch.equal(a, b) for a, b in zip(gradients(), expected, strict=True))
    found = layers()
    calls = list(_plans.calls.values())
    real = [call.run_c for call in calls]
    for call in calls:
        call.run_c = fail
    with pytest.raises(KeyError):
        torch.autograd.grad(found[1].sum(), inputs)
    for call, function in zip(calls, real, strict=True):
        call.run_c = function
    assert not _calls._under_way
    assert all(torch.equal(a, b) for a, b in zip(gradients(), expected, strict=True))


def test_block_masks_of_flex_attention() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    i = torch.arange(100)

    def s2(b: Any, h: Any, q: Any, k: Any) -> Any:
        near = q // 16 - k // 16 < 2
        return (q >= k) & (near | ((k // 16 + h) % 3 == 0))

    def convert(rule: Any, heads: int | None = 3) -> tessera.Blocks:
        mask = flex.create_block_mask(rule, None, heads, 100, 100, "cpu", BLOCK_SIZE=16)
        return tessera.Blocks.from_block_mask(mask)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (convert(s2).mask(100, 100) == S2(16, 2, 3).mask(100, 100, heads=3)).all()
        whole = convert(lambda b, h, q, k: (q // 16 + k // 16) % 2 == 0, None)
        assert not whole.causal
        expected = (i[:, None] // 16 + i // 16) % 2 == 0
        assert (whole.mask(100, 100)[0] == expected.numpy()).all()
        with pytest.raises(tessera.InvalidArgument, match=r"block \[1, 0\] of head 0"):
            convert(lambda b, h, q, k: (q >= k) & (q - k < 20), None)
        with pytest.raises(tessera.InvalidArgument, match="block"):
            convert(lambda b, h, q, k: (q >= k) & (k != 5), None)
    with pytest.raises(TypeError, match="BlockMask"):
        tessera.Blocks.from_block_mask(torch.ones(3, 3))


@pytest.mark.parametrize("rows, keys", [(64, 64), (32, 64), (64, 32), (40, 72)])
def test_queries_of_pytorch_begin_at_the_first_key(rows: int, keys: int) -> None:
    """Those of FlexAttention and of scaled_dot_product_attention, as the page says."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = torch.randn(2, 3, rows, 16), *torch.randn(2, 2, 3, keys, 16)
    first = None if rows == keys else [0, 0]

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (((j // 16 + h) % 2 == 0) | (i // 16 == j // 16))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mask = flex.create_block_mask(rule, None, 3, rows, keys, "cpu", BLOCK_SIZE=16)
        expected = flex.flex_attention(q, k, v, block_mask=mask)
        told.clear()
        pattern = tessera.Blocks.from_block_mask(mask)
    assert len(told) == (rows != keys)
    assert all("q_first=[0]" in str(warning.message) for warning in told)
    found = tessera.attention(q, k, v, pattern, layout="bhsd", q_first=first)
    torch.testing.assert_close(found, expected)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    found = tessera.attention(q, k, v, tessera.Dense(), layout="bhsd", q_first=first)
    torch.testing.assert_close(found, expected)


def test_a_plan_that_was_dropped_as_a_capture_began_is_kept_for_its_graph():
    """Another thread may drop it between the look-up and the launch that pins it."""
    import gc
    import weakref

    from tessera import _plans

    tessera.attention(*tensors(37, grad=False), PATTERN)
    plan = max(_plans._plans.values(), key=lambda found: found.used)
    tessera.cache_clear()
    alive = weakref.ref(plan)
    _plans.pin(plan)
    del plan
    gc.collect()
    assert alive() is not None
    _plans._pinned.discard(alive())
    gc.collect()
    assert alive() is None
