# SPDX-License-Identifier: Apache-2.0
"""tessera.numpy, and the package without PyTorch. `./dev test` runs this file with NumPy alone."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tessera
import tessera.numpy

Array = npt.NDArray[Any]
PATTERN = tessera.S2(8, 2, 3)
RANDOM = np.random.default_rng(0)


def one(
    q: Array, k: Array, v: Array, d_o: Array, d_lse: Array, pattern: Any, scale: float | None
) -> tuple[Array, ...]:
    """(o, lse, dq, dk, dv) of a sequence [rows, heads, dim] in float64, head by head."""
    rows, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    mask = pattern.mask(range(keys - rows, keys), keys, heads=heads, kv_heads=kv_heads)
    q, k, v, d_o = (x.astype(np.float64) for x in (q, k, v, d_o))
    scale = scale or dim**-0.5
    o, lse = np.zeros_like(q), np.full((heads, rows), -np.inf)
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for h in range(heads):
        g = h // (heads // kv_heads)
        scores = np.where(mask[h], q[:, h] @ k[:, g].T * scale, -np.inf)
        some = mask[h].any(-1)
        top = np.where(some, scores.max(-1, initial=-np.inf), 0)
        weights = np.exp(scores - top[:, None])
        total = weights.sum(-1)
        lse[h, some] = (np.log(np.where(some, total, 1)) + top)[some]
        p = weights / np.where(some, total, 1)[:, None]
        o[:, h] = p @ v[:, g]
        delta = (d_o[:, h] * o[:, h]).sum(-1) - d_lse[h]
        d_s = p * (d_o[:, h] @ v[:, g].T - delta[:, None])
        d_v[:, g] += p.T @ d_o[:, h]
        d_k[:, g] += d_s.T @ q[:, h] * scale
        d_q[:, h] = d_s @ k[:, g] * scale
    return o, lse, d_q, d_k, d_v


def compare(shape: tuple[int, int, int, int, int, int], dtype: Any, layout: str) -> None:
    batch, rows, keys, heads, kv_heads, dim = shape
    q, k, v, d_o = (
        RANDOM.standard_normal((batch, n, h, dim)).astype(dtype)
        for n, h in ((rows, heads), (keys, kv_heads), (keys, kv_heads), (rows, heads))
    )
    d_lse = RANDOM.standard_normal((batch, heads, rows)).astype(np.float32)
    turn = (lambda x: x.transpose(0, 2, 1, 3)) if layout == "bhsd" else (lambda x: x)
    inputs = [turn(x) for x in (q, k, v)]
    options: dict[str, Any] = {"layout": layout, "scale": 0.2}
    o, lse = tessera.numpy.attention(*inputs, PATTERN, **options)
    made = tessera.numpy.gradients(turn(d_o), *inputs, o, lse, PATTERN, d_lse=d_lse, **options)
    bound = 1e-5 if dtype == np.float32 else 5e-3
    for n in range(batch):
        expected = one(q[n], k[n], v[n], d_o[n], d_lse[n], PATTERN, 0.2)
        found = (turn(o)[n], lse[n], *(turn(x)[n] for x in made))
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=bound, rtol=bound)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_padded_layouts(layout: str, dtype: Any) -> None:
    compare((2, 20, 25, 4, 2, 16), dtype, layout)
    compare((1, 30, 9, 2, 1, 8), dtype, layout)


def test_packed_equals_each_sequence() -> None:
    q, k, v = (RANDOM.standard_normal((30, n, 8)).astype(np.float32) for n in (4, 2, 2))
    cu = np.array([0, 7, 7, 30], dtype=np.int32)
    o, lse = tessera.numpy.attention(q, k, v, PATTERN, layout="thd", cu_seqlens_q=cu)
    for a, b in zip(cu, cu[1:], strict=False):
        part, part_lse = tessera.numpy.attention(
            q[None, a:b], k[None, a:b], v[None, a:b], PATTERN
        )
        np.testing.assert_allclose(part[0], o[a:b], atol=1e-6)
        np.testing.assert_allclose(part_lse[0], lse[:, a:b], atol=1e-6)


def test_bfloat16_as_bits() -> None:
    q = RANDOM.standard_normal((1, 20, 2, 16)).astype(np.float32)
    bits = (q.view(np.uint32) >> 16).astype(np.uint16)
    rounded = (bits.astype(np.uint32) << 16).view(np.float32)
    o, _ = tessera.numpy.attention(bits, bits, bits, PATTERN)
    expected, _ = tessera.numpy.attention(rounded, rounded, rounded, PATTERN)
    assert o.dtype == np.uint16
    found = (o.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(found, expected, atol=2e-2)


@pytest.mark.parametrize("device", [1, 2, None])
def test_arrays_whose_type_dlpack_cannot_tell_numpy(device: int | None) -> None:
    """As bfloat16 ones of JAX; on the CPU alone, since NumPy would copy those of other devices.
    Some devices, such as PyTorch's meta, are none of DLPack's."""
    bits = (RANDOM.standard_normal((1, 20, 2, 16)).astype("f4").view("u4") >> 16).astype("u2")

    class Foreign:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("Unsupported dtype in DLTensor.")

        def __dlpack_device__(self) -> tuple[int, int]:
            if device is None:
                raise ValueError("Unknown device type meta for Dlpack")
            return device, 0

        def __array__(self, *_: Any, **__: Any) -> Any:
            return bits

    if device != 1:
        with pytest.raises(tessera.InvalidArgument, match="k: an array on the CPU is needed"):
            tessera.numpy.attention(bits, Foreign(), bits, PATTERN)
        return
    expected, _ = tessera.numpy.attention(bits, bits, bits, PATTERN)
    found, _ = tessera.numpy.attention(*[Foreign()] * 3, PATTERN)
    np.testing.assert_array_equal(found, expected)


def test_strides_byte_orders_and_other_arrays() -> None:
    q = RANDOM.standard_normal((1, 20, 2, 16)).astype(np.float32)
    expected, _ = tessera.numpy.attention(q, q, q, PATTERN)

    class Foreign:
        def __dlpack__(self, **options: Any) -> Any:
            return q.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return q.__dlpack_device__()

    wide = np.repeat(q, 2, axis=-1)
    for other in (
        wide[..., ::2],
        q[:, ::-1][:, ::-1],
        np.asfortranarray(q),
        q.astype(">f4"),
        Foreign(),
        np.frombuffer(b"\0" + q.tobytes(), np.uint8)[1:].view(np.float32).reshape(q.shape),
    ):
        found, _ = tessera.numpy.attention(other, other, q, PATTERN)
        np.testing.assert_array_equal(found, expected)
    backwards = q[:, ::-1]
    found, _ = tessera.numpy.attention(backwards, q, q, tessera.Dense(causal=False))
    turned, _ = tessera.numpy.attention(q, q, q, tessera.Dense(causal=False))
    np.testing.assert_allclose(found, turned[:, ::-1], atol=1e-6)


def test_wrong_arrays_are_named() -> None:
    q = np.zeros((1, 5, 2, 8), np.float32)
    run = tessera.numpy.attention
    for kind, text, call in (
        (TypeError, "k: an array", lambda: run(q, "k", q, PATTERN)),
        (TypeError, "pattern", lambda: run(q, q, q, None)),
        (tessera.InvalidArgument, "q: float32", lambda: run(q.astype(int), q, q, PATTERN)),
        (tessera.InvalidArgument, "v: the dtype", lambda: run(q, q, q.astype("f2"), PATTERN)),
        (tessera.InvalidArgument, "q: .batch", lambda: run(q[0], q, q, PATTERN)),
        (tessera.InvalidArgument, "q_lens", lambda: run(q, q, q, PATTERN, q_lens=[6])),
        (tessera.InvalidArgument, "q_lens", lambda: run(q, q, q, PATTERN, q_lens=[1.5])),
        (tessera.InvalidArgument, "layout", lambda: run(q, q, q, PATTERN, layout="x")),
    ):
        with pytest.raises(kind, match=text):
            call()
    o, lse = run(q, q, q, PATTERN)
    with pytest.raises(tessera.InvalidArgument, match="lse: the shape"):
        tessera.numpy.gradients(q, q, q, q, o, lse[..., :2], PATTERN)
    with pytest.raises(tessera.InvalidArgument, match="d_o"):
        tessera.numpy.gradients(q[:, :2], q, q, q, o, lse, PATTERN)


def test_load() -> None:
    assert tessera.load() == tessera.load(tessera.load())
    with pytest.raises(RuntimeError, match="is open already"):
        tessera.load("/nowhere/libtessera.so")
    code = "import sys; sys.modules['torch'] = None\nimport tessera\n"
    code += f"sys.path[:] = {sys.path!r}\n"
    for path, text in (("/nowhere/lib.so", "nowhere"), ("libc.so.6", "libc.so.6")):
        program = f"import sys\nsys.path[:] = {sys.path!r}\n{code}"
        program += f"try: tessera.load({path!r})\nexcept tessera.Unavailable as e: print(e)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert text in done.stdout, done.stderr


def test_without_pytorch() -> None:
    program = f"""
import sys
sys.path[:] = {sys.path!r}
sys.modules["torch"] = None
import numpy, tessera, tessera.numpy
tessera.load({tessera.load()!r})
x = numpy.ones((1, 4, 1, 8), "float32")
assert numpy.allclose(tessera.numpy.attention(x, x, x)[0], 1)
try:
    tessera.attention(x, x, x)
except tessera.Unavailable as error:
    print(error)
tessera.info()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PyTorch is needed" in done.stdout
    assert "cpu:0" in done.stdout and "TESSERA_CPU_THREADS" in done.stdout
