# SPDX-License-Identifier: Apache-2.0
"""The short way of calls like an earlier one: that it is taken, and that whatever is different
takes the long one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tessera
from tessera import _attention, _plans, _recent, _runs

PATTERN = tessera.S2(16, 1, 2)
X, Y, Z = torch.randn(3, 2, 16, 2, 16).unbind()  # one tensor twice takes the long way


def attend(*inputs: Any, **options: Any) -> Any:
    return tessera.attention(*(inputs or (X, Y, Z)), PATTERN, **options)


def gradients(d_o: torch.Tensor, *inputs: torch.Tensor) -> Any:
    return torch.autograd.grad(attend(*inputs), inputs, d_o)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """Calls without and with gradients, which later ones are like."""
    tessera.cache_clear()
    assert not _plans.recent
    gradients(X, *leaves())
    with torch.no_grad():
        attend(*leaves())
    attend()
    yield
    tessera.cache_clear()


def leaves() -> list[torch.Tensor]:
    return [x.clone().requires_grad_() for x in (X, Y, Z)]


class Long(Exception):
    """A call took the long way."""


@pytest.fixture
def short_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise Long

    monkeypatch.setattr(_runs, "find_forward", refuse)
    monkeypatch.setattr(_runs, "find_backward", refuse)


def test_calls_like_an_earlier_one_take_the_short_way(short_alone: None) -> None:
    attend()
    with pytest.raises(Long):
        attend(*leaves())
    with torch.no_grad():
        attend(*leaves())
        with pytest.raises(Long):
            attend()


@pytest.mark.parametrize("what", ["rows", "keys", "strides"])
def test_tensors_that_take_turns(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are, each has one guard, and the short way where queries tell them."""
    tessera.cache_clear()
    made: list[int] = []
    make, find = _recent._make, _runs.find_forward
    monkeypatch.setattr(_recent, "_make", lambda *given: made.append(0) or make(*given))

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    if what == "rows":
        given = [[x[:, : 5 + n].clone() for x in (X, Y, Z)] for n in range(3)]
    elif what == "keys":
        given = [[X, Y[:, : 5 + n], Z[:, : 5 + n]] for n in range(3)]
    else:
        given = [[X, Y, Z], [turned(X), Y, Z], [X, turned(Y), Z]]
    expected = [attend(*inputs) for inputs in given]
    long: list[int] = []
    monkeypatch.setattr(_runs, "find_forward", lambda *given: long.append(0) or find(*given))
    for _ in range(4):
        for inputs, wanted in zip(given, expected, strict=True):
            assert torch.equal(attend(*inputs), wanted)
    assert len(made) == 3
    assert len(long) == (0 if what == "rows" else 12)


def test_a_guard_that_does_not_hold_is_made_anew(request: pytest.FixtureRequest) -> None:
    """Equal shapes, strides and types, and another class of tensors."""
    inputs = [torch.nn.Parameter(x, requires_grad=False) for x in (X, Y, Z)]
    for _ in range(2):
        attend(*inputs)
        attend()
    request.getfixturevalue("short_alone")
    attend()
    with pytest.raises(Long):
        attend(*inputs)


def kinds_of(x: torch.Tensor) -> list[torch.Tensor]:
    """A tensor in every way in which a call may be given it."""
    with torch.inference_mode():
        of_inference = x.clone()
    return [
        x,
        x.clone().requires_grad_(),
        x.clone().requires_grad_() * 1,
        torch.nn.Parameter(x.clone()),
        torch.nn.Parameter(x.clone(), requires_grad=False),
        x.transpose(1, 2).contiguous().transpose(1, 2),
        x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(),
        x[:, :8],
        x.half(),
        torch.complex(x, -x).conj().imag,
        of_inference,
    ]


@pytest.mark.parametrize("seed", range(12))
def test_calls_in_any_order_are_those_of_the_long_way(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, types, strides, and gradients: whose results have some, and which they are."""
    choose = random.Random(seed)
    given = [kinds_of(x) for x in (X, Y, Z)]
    words: list[dict[str, Any]] = [
        {}, {"return_lse": True}, {"return_lse": True, "scale": 0.5}, {"layout": "bhsd"},
        {"deterministic": False},
    ]  # fmt: skip
    modes: list[Any] = [
        contextlib.nullcontext, contextlib.nullcontext, contextlib.nullcontext, torch.no_grad,
        torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    ]  # fmt: skip

    def told(call: Any) -> Any:
        try:
            return call()
        except (tessera.Error, RuntimeError) as error:
            return type(error), str(error)

    def run(inputs: list[torch.Tensor], options: dict[str, Any], mode: Any, turned: bool) -> Any:
        with mode():
            made = attend(*inputs, **options)
        results = made if isinstance(made, tuple) else (made,)
        found = [
            (x.requires_grad, x.is_inference(), x.dtype, x.stride(), x.detach().clone())
            for x in results
        ]
        if results[0].requires_grad:
            d_o = torch.ones_like(results[0])
            if turned:
                d_o = d_o.transpose(1, 2).contiguous().transpose(1, 2)
            wanted = [x for x in inputs if x.requires_grad]
            grads = torch.autograd.grad(results[0], wanted, d_o, retain_graph=True)
            found += [(x.stride(), x) for x in grads]
        return found

    def some() -> list[torch.Tensor]:
        """All of one kind, and sometimes one of another."""
        kind = choose.randrange(len(given[0]))
        inputs = [x[kind] for x in given]
        if choose.random() < 0.3:
            place = choose.randrange(3)
            inputs[place] = choose.choice(given[place])
        return inputs

    few, options = [some() for _ in range(6)], choose.choice(words)  # so that calls come again
    for _ in range(600):
        if choose.random() < 0.05:
            few[choose.randrange(len(few))] = some()
        if choose.random() < 0.1:
            options = choose.choice(words)
        call = functools.partial(
            run, choose.choice(few), options, choose.choice(modes), choose.random() < 0.3
        )
        found = told(call)
        with monkeypatch.context() as without:
            without.setattr(_attention, "_known", lambda _: None)
            without.setattr(_recent, "keep", lambda *_: None)
            expected = told(call)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            if isinstance(one, tuple):
                assert one[:-1] == other[:-1]
                assert torch.equal(one[-1], other[-1])
            else:
                assert one == other


@pytest.mark.parametrize("others", [0, 1, 2])
def test_gradients_are_not_lost_among_calls_in_turns(others: int) -> None:
    """With LSE one prepared call serves tensors that need gradients and those that do not."""
    turned = Y.transpose(1, 2).contiguous().transpose(1, 2)
    kinds = [leaves(), [X, Y, Z], *[[X, turned, Z], [X, Y, turned]][:others]]
    for order in itertools.permutations(range(len(kinds))):
        for n in order * 3:
            o, lse = attend(*kinds[n], return_lse=True)
            assert o.requires_grad == lse.requires_grad == (n == 0), order


def test_guards_of_two_threads_are_not_mixed_up() -> None:
    """Wherever one is about to keep a call, another keeps it with gradients."""
    inputs, lines = leaves(), 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code is not _recent.keep.__code__:
            return None
        if event == "line":
            lines += 1
            _plans.recent.clear()
            other = threading.Thread(target=lambda: attend(*inputs, return_lse=True))
            other.start()
            other.join()
        return trace

    attend(return_lse=True)  # the plan is there
    _plans.recent.clear()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        attend(return_lse=True)
    finally:
        sys.settrace(before)
    assert lines > 3
    for _ in range(2):
        assert attend(*inputs, return_lse=True)[0].requires_grad
        assert not attend(return_lse=True)[0].requires_grad


def test_training_steps_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients(X, *leaves())
    for name in ("find_forward", "find_backward"):
        monkeypatch.delattr(_runs, name)
    gradients(torch.randn_like(X), *leaves())


@pytest.mark.parametrize("name", ["strides", "type", "rows", "kind", "options"])
def test_other_tensors_and_words_take_the_long_way(name: str, short_alone: None) -> None:
    inputs: list[Any] = [X, Y, Z]
    options: Any = {}
    for place in range(3):
        x = inputs[place]
        if name == "strides":
            inputs[place] = x.transpose(1, 2).contiguous().transpose(1, 2)
        elif name == "type":
            inputs[place] = x.half()
        elif name == "rows":
            inputs[place] = x[:, :8]
        elif name == "kind":
            inputs[place] = x.clone().requires_grad_()
        else:
            options = ({"return_lse": True}, {"scale": 0.5}, {"layout": "bhsd"})[place]
        with pytest.raises(Long):
            attend(*inputs, **options)
        inputs[place] = x


def test_backward_of_other_tensors_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves()
    o, without_v = attend(*inputs), attend(*inputs[:2], Z)

    def refuse(*_: Any) -> Any:
        raise Long

    monkeypatch.setattr(_runs, "find_backward", refuse)
    for d_o in (X.transpose(1, 2).contiguous().transpose(1, 2), X[:1].expand(X.shape)):
        with pytest.raises(Long):
            torch.autograd.grad(o, inputs, d_o, retain_graph=True)
    with pytest.raises(Long):
        torch.autograd.grad(without_v, inputs[:2], X, retain_graph=True)
    torch.autograd.grad(o, inputs, X)


def test_a_dropped_plan_takes_its_short_way_along(request: pytest.FixtureRequest) -> None:
    inputs = leaves()
    o = attend(*inputs)
    tessera.cache_clear()
    assert not _plans.recent
    request.getfixturevalue("short_alone")
    with pytest.raises(Long):
        attend()
    with pytest.raises(Long):
        torch.autograd.grad(o, inputs, X)


def test_a_plan_that_was_dropped_meanwhile_is_not_kept() -> None:
    call = next(iter(_plans.calls.values()))
    tessera.cache_clear()
    _plans.remember_recent("key", (None, call), call.plan)
    assert "key" not in _plans.recent


def test_what_stands_between_is_seen() -> None:
    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    for mode in (Functions, Operators):
        inputs = leaves()
        gradients(X, *inputs)
        seen.clear()
        with mode():
            gradients(X, *inputs)
        text = " ".join(seen)
        assert "tessera.forward" in text, mode
        attend()
        seen.clear()
        with mode():
            attend()
        assert "tessera.forward" in " ".join(seen), mode
    assert "tessera.backward" in text
    o = attend(*inputs)
    attend()
    with torch.profiler.profile() as found:
        attend()
        torch.autograd.grad(o, inputs, X)
    names = {event.key for event in found.key_averages()}
    assert {"tessera::forward", "tessera::backward"} <= names
    attend()
    traced = torch.jit.trace(lambda a, b, c: attend(a, b, c), (X, Y, Z))
    assert "tessera::forward" in str(traced.graph)


def test_a_mode_that_no_guard_sees() -> None:
    inputs = leaves()
    o = attend(*inputs)
    attend()
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = attend(), attend(*inputs), *torch.autograd.grad(o, inputs, X)
    assert {type(x) for x in found} == {FakeTensor}


@pytest.mark.parametrize("name", ["return_lse", "deterministic"])
def test_words_that_are_no_flags_are_refused_again(name: str) -> None:
    for flag in (True, False):
        attend(**{name: flag})
        with pytest.raises(TypeError, match=name):
            attend(**{name: float(flag)})


def test_autocast_casts_and_grad_modes_count() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend().dtype == torch.bfloat16
    inputs = leaves()
    assert attend(*inputs).requires_grad
    with torch.no_grad():
        assert not attend(*inputs).requires_grad
        assert not attend(*inputs).requires_grad
    assert attend(*inputs).requires_grad
    with torch.inference_mode():
        assert attend().is_inference()
    assert not attend().is_inference()


def test_refusals_stay() -> None:
    with pytest.raises(tessera.Unsupported, match=r"torch\.func"):
        torch.vmap(lambda x: attend(x, Y, Z))(X[None])
    with pytest.raises(tessera.Unsupported, match=r"torch\.func"):
        torch.func.grad(lambda x: attend(x, Y, Z).sum())(X)
    with forward_ad.dual_level(), pytest.raises(tessera.Unsupported, match="k: forward-mode"):
        attend(X, forward_ad.make_dual(Y, Y), Z)
    inputs = leaves()
    (grad,) = torch.autograd.grad(attend(*inputs), inputs[:1], X, create_graph=True)
    with pytest.raises(tessera.Unsupported, match="double backward"):
        grad.sum().backward()
    attend(deterministic=False)
    attend(deterministic=False)
    with pytest.raises(tessera.InvalidArgument, match="deterministic"):
        torch.use_deterministic_algorithms(True)
        try:
            attend(deterministic=False)
        finally:
            torch.use_deterministic_algorithms(False)
    for words in ({"layout": ["bshd"]}, {"scale": [1]}, {"return_lse": []}):
        with contextlib.suppress(tessera.InvalidArgument, TypeError):
            attend(**words)


def test_views_that_are_negated_when_read() -> None:
    negated = torch.complex(X, X).conj().imag
    assert negated.is_neg() and negated.shape == X.shape
    inputs = leaves()
    torch.testing.assert_close(attend(negated, Y, Z), attend(-X, Y, Z))
    found = torch.autograd.grad(attend(*inputs), inputs, negated)
    for a, b in zip(found, gradients(-X, *inputs), strict=True):
        torch.testing.assert_close(a, b)


NESTED = torch.nested.nested_tensor([X[0], X[1]])


@pytest.mark.parametrize("place", range(3))
def test_saved_tensors_may_come_back_as_others(place: int) -> None:
    """Hooks give backward what they like: other strides are right, all else an error."""
    expected = gradients(X, *leaves())

    def run(change: Any) -> Any:
        number = iter(range(5))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: (next(number), x),
            lambda pair: change(pair[1]) if pair[0] == place else pair[1],
        ):
            inputs = leaves()
            o = attend(*inputs)
        return torch.autograd.grad(o, inputs, X)

    turned = run(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    for a, b in zip(turned, expected, strict=True):
        torch.testing.assert_close(a, b)
    for change in (lambda x: NESTED, lambda x: x.to_sparse(), lambda x: x[:1], lambda x: x.half()):
        with pytest.raises((tessera.Error, RuntimeError)):
            run(change)


def test_no_guard_is_asked_about_tensors_without_strides() -> None:
    """What PyTorch raises in a guard ends the process, or unwinds the interpreter."""
    asked: list[tuple[Any, ...]] = []

    def spy() -> None:
        for key, entry in list(_plans.recent.items()):
            _plans.recent[key] = (lambda *given: asked.append(given), *entry[1:])

    def saved(place: int, other: Any) -> Any:
        number = iter(range(5))
        return torch.autograd.graph.saved_tensors_hooks(
            lambda x: (next(number), x), lambda pair: other if pair[0] == place else pair[1]
        )

    for odd in (NESTED, X.to_sparse()):
        inputs: list[Any] = [X, Y, Z]
        for place in range(3):
            spy()
            wrong = list(inputs)
            wrong[place] = odd
            with pytest.raises(tessera.InvalidArgument, match="attention: [qkv]: an ordinary"):
                attend(*wrong)
        for place in range(6):
            gradients(X, *leaves())
            inputs = leaves()
            with saved(place, odd):
                o = attend(*inputs)
            spy()
            with pytest.raises((tessera.Error, RuntimeError)):
                torch.autograd.grad(o, inputs, odd if place == 5 else X)
            inputs = [X, Y, Z]
    assert not any(x.is_nested or x.is_sparse for given in asked for x in given)
    spy()
    attend()
    assert len(asked[-1]) == 3


def test_without_guards_every_call_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = attend(), *gradients(X, *leaves())
    tessera.cache_clear()
    monkeypatch.setattr(_recent, "_trusted", lambda: False)
    for _ in range(2):
        found = attend(), *gradients(X, *leaves())
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not _plans.recent


@pytest.mark.parametrize("wrong", ["holds always", "holds never", "raises", "is gone"])
def test_guards_are_tried_before_they_are_believed(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*_: Any) -> Any:
        if wrong == "is gone":
            raise AttributeError
        if wrong == "raises":
            raise TypeError
        return lambda *_: wrong == "holds always"

    monkeypatch.setattr(_recent, "_make", make)
    assert not _recent._trusted.__wrapped__()


def test_guards_are_tried_as_if_nothing_were_set() -> None:
    assert _recent._trusted.__wrapped__()
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.bfloat16, torch.float16):
            torch.set_default_dtype(dtype)
            assert _recent._trusted.__wrapped__()
    finally:
        torch.set_default_dtype(before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _recent._trusted.__wrapped__()


def test_one_tensor_three_times_makes_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_recent, "keep")
    x = X.clone().requires_grad_()
    torch.autograd.grad(attend(x, x, x), x, Y)
