# SPDX-License-Identifier: Apache-2.0
"""Text generation with Hugging Face transformers from a cache that keeps what heads can still see.

A small Llama of random weights, whose layers are dense and S2 in turn, reads a long prompt in
pieces and then generates, once with transformers' DynamicCache and once with tessera.hf.S2Cache.
Both must give the same tokens. What each layer holds is told at every length, and drawn.

    python3 examples/generate_hf.py --tokens 32768 --svg cache.svg

Needs the tessera package, PyTorch and transformers 5. Exit status 1: the tokens differ.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import tessera
import tessera.hf

WORDS, HEADS, DIM = 512, 16, 8
S2 = tessera.S2(block=64, local=4, stride=16, per_kv_head=True)


def pattern(config: LlamaConfig, layer: int) -> tessera.Pattern:
    """The first layer and every other one after it are S2."""
    return tessera.Dense() if layer % 2 else S2


def make_model(tokens: int) -> LlamaForCausalLM:
    tessera.hf.register("hybrid", pattern)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=HEADS * DIM,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=tokens,
        attn_implementation="hybrid",
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    for weights in model.parameters():  # small ones would hide what attention does
        if weights.dim() == 2:
            weights.data.mul_(8)
    return model


def layer_bytes(cache: DynamicCache | tessera.hf.S2Cache) -> list[int]:
    if isinstance(cache, tessera.hf.S2Cache):
        return cache.layer_bytes()
    return [layer.keys.nbytes + layer.values.nbytes for layer in cache.layers]


def read(
    model: LlamaForCausalLM,
    cache: DynamicCache | tessera.hf.S2Cache,
    prompt: torch.Tensor,
    piece: int,
) -> list[list[int]]:
    """Reads all tokens of a prompt but the last one; the bytes of each layer after each piece."""
    told = []
    for ids in prompt[:, :-1].split(piece, dim=1):
        with torch.no_grad():
            model(ids, past_key_values=cache, logits_to_keep=1)
        told.append([cache.get_seq_length(), *layer_bytes(cache)])
    return told


def draw(rows: list[list[int]]) -> str:
    """Bytes against length: a line for a layer in each cache. rows: tokens, dense, S2."""
    width, height, left, top, bottom = 640, 360, 64, 40, 48
    right, most_y = 150, max(rows[-1][1:])
    most_x = -(-rows[-1][0] // 64) * 64
    mib = 2**20

    def x(tokens: float) -> float:
        return left + tokens / most_x * (width - left - right)

    def y(held: float) -> float:
        return height - bottom - held / most_y * (height - top - bottom)

    def text(at_x: float, at_y: float, words: str, **more: str) -> str:
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}"{extra}>{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(left, 22, "K and V that a layer holds, MiB", font_weight="bold"),
    ]
    for n in range(5):
        value, tokens = most_y * n / 4, most_x * n / 4
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="#ddd"/>'
        )
        parts.append(text(left - 8, y(value) + 4, f"{value / mib:.3g}", text_anchor="end"))
        parts.append(text(x(tokens), height - 28, f"{tokens:,.0f}", text_anchor="middle"))
    parts.append(text(x(most_x / 2), height - 8, "tokens", text_anchor="middle"))
    lines = (("DynamicCache", "#777", 1), ("S2Cache, an S2 layer", "#1f5fa8", 2))
    for name, colour, column in lines:
        points = " ".join(
            f"{x(row[0]):.1f},{y(row[column]):.1f}" for row in [[0, 0, 0], *rows]
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(text(width - right + 8, y(rows[-1][column]) + 4, name, fill=colour))
    times = rows[-1][1] / rows[-1][2]
    parts.append(text(width - right + 8, y(rows[-1][2]) + 20, f"{times:.1f} times fewer"))
    return "\n".join([*parts, "</svg>\n"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192, help="length of the prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    parser.add_argument("--svg", type=pathlib.Path, help="file for the picture")
    given = parser.parse_args()
    model = make_model(given.tokens + given.new)
    prompt = torch.randint(WORDS, (1, given.tokens))
    piece = max(64, given.tokens // 16)
    caches = [DynamicCache(), tessera.hf.S2Cache(model.config)]
    told = [read(model, cache, prompt, piece) for cache in caches]
    print("  tokens    DynamicCache    S2Cache, dense layer    S2 layer")
    for dense, sparse in zip(*told, strict=True):
        print(f"{dense[0]:8} {dense[1]:12} B {sparse[2]:20} B {sparse[1]:10} B")
    texts = [
        model.generate(prompt, past_key_values=cache, max_new_tokens=given.new, do_sample=False)
        for cache in caches
    ]
    same = bool(torch.equal(*texts))
    held = [layer_bytes(cache)[0] for cache in caches]
    print(f"the S2 layer holds {held[0] / held[1]:.1f} times fewer bytes", end="; ")
    print(f"{given.new} new tokens are {'the same' if same else 'NOT the same'}")
    if given.svg is not None:
        rows = [[a[0], a[1], b[1]] for a, b in zip(*told, strict=True)]
        given.svg.write_text(draw(rows))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
