# SPDX-License-Identifier: Apache-2.0
"""`tessera run op=bwd` on arrays that NumPy saved, against gradients in NumPy."""

from command import CommandTest, main
import oracle
from oracle import np

PATTERNS = [
    dict(local=2, stride=3, block=16),
    dict(local=1, stride=4, block=16, per_kv_head=1, dense_heads=1),
    dict(local=2, stride=3, block=16, causal=0),
    dict(pattern="dense"),
    dict(pattern="window", left=20, sinks=5),
    dict(pattern="window", left=13, right=6, causal=0),
]
TOLERANCE = {"f32": 2e-5, "f16": 1e-2, "bf16": 6e-2}
HEADS, KV_HEADS, DIM = 4, 2, 24


class Gradients(CommandTest):
    def save(self, name, array):
        np.save(self.path(name + ".npy"), array)
        return self.path(name + ".npy")

    def arrays(self, dtype, q_shape, kv_shape, lse_shape):
        generator = np.random.default_rng(11)
        made = {name: oracle.round_to(dtype, generator.standard_normal(shape))
                for name, shape in (("q", q_shape), ("k", kv_shape), ("v", kv_shape),
                                    ("do", q_shape))}
        made["dlse"] = generator.standard_normal(lse_shape).astype(np.float32)
        options = [word for name in made for word in (f"--{name}", self.save(name, made[name]))]
        return made, options

    def outputs(self, *names):
        return [word for name in names for word in (f"--{name}", self.path(name + ".npy"))]

    def bytes_of(self, *names):
        return [np.load(self.path(name + ".npy")).tobytes() for name in names]

    def compare(self, dtype, words, wanted):
        for name, want in zip(("dq", "dk", "dv"), wanted):
            got = np.load(self.path(name + ".npy"))
            self.assertEqual(got.shape, want.shape, words)
            error = np.abs(oracle.widen(got) - want).max() if want.size else 0
            self.assertLessEqual(error, TOLERANCE[dtype] * max(1, np.abs(want).max(initial=0)),
                                 (name, words))

    def run_padded(self, dtype, words, batch, q_len, kv_len):
        arrays, options = self.arrays(dtype, (batch, q_len, HEADS, DIM),
                                      (batch, kv_len, KV_HEADS, DIM), (batch, HEADS, q_len))
        self.succeed("run", "op=bwd", f"dtype={dtype}", *(f"{k}={v}" for k, v in words.items()),
                     *options, *self.outputs("dq", "dk", "dv"))
        rows = [oracle.gradients(words, *(arrays[n][b] for n in ("q", "k", "v", "do", "dlse")))
                for b in range(batch)]
        self.compare(dtype, words, [np.stack(g) for g in zip(*rows)])

    def test_patterns_and_types(self):
        for words in PATTERNS:
            for dtype in TOLERANCE:
                self.run_padded(dtype, words, 2, 75, 139)

    def test_lengths(self):
        for batch, q_len, kv_len in ((1, 1, 200), (1, 90, 31), (3, 5, 0), (1, 0, 9), (1, 130, 130)):
            self.run_padded("f32", PATTERNS[0], batch, q_len, kv_len)

    def test_packed(self):
        q_lens, kv_lens = (33, 1, 0, 7, 20), (100, 77, 9, 0, 20)
        arrays, options = self.arrays("f32", (sum(q_lens), HEADS, DIM),
                                      (sum(kv_lens), KV_HEADS, DIM), (HEADS, sum(q_lens)))
        words = PATTERNS[0]
        self.succeed("run", "op=bwd", *(f"{k}={v}" for k, v in words.items()),
                     "q_lens=" + ",".join(map(str, q_lens)),
                     "kv_lens=" + ",".join(map(str, kv_lens)), *options,
                     *self.outputs("dq", "dk", "dv"))
        parts, q_at, kv_at = [], 0, 0
        for q_len, kv_len in zip(q_lens, kv_lens):
            rows, keys = slice(q_at, q_at + q_len), slice(kv_at, kv_at + kv_len)
            parts.append(oracle.gradients(words, arrays["q"][rows], arrays["k"][keys],
                                          arrays["v"][keys], arrays["do"][rows],
                                          arrays["dlse"][:, rows]))
            q_at, kv_at = q_at + q_len, kv_at + kv_len
        self.compare("f32", words, [np.concatenate(g) for g in zip(*parts)])

    def test_given_results_and_parts(self):
        """O and LSE from files are those of its own forward; each gradient may be asked alone."""
        words = ("local=2", "stride=3", "block=16", "dtype=f16")
        _, options = self.arrays("f16", (1, 75, HEADS, DIM), (1, 139, KV_HEADS, DIM),
                                 (1, HEADS, 75))
        self.succeed("run", *words, *options[:6], *self.outputs("o", "lse"))
        self.succeed("run", "op=bwd", *words, *options, *self.outputs("dq", "dk", "dv"))
        own = self.bytes_of("dq", "dk", "dv")
        self.succeed("run", "op=bwd", *words, *options, *self.outputs("o", "lse"),
                     *self.outputs("dq", "dk", "dv"))
        self.assertEqual(own, self.bytes_of("dq", "dk", "dv"))
        for n, name in enumerate(("dq", "dk", "dv")):
            self.succeed("run", "op=bwd", *words, *options, *self.outputs(name))
            self.assertEqual(own[n:n + 1], self.bytes_of(name))
        self.succeed("run", "op=bwd", *words, "dq_f32=1", "dkv_f32=1", *options,
                     *self.outputs("dq", "dk", "dv"))
        for n, name in enumerate(("dq", "dk", "dv")):
            wide = np.load(self.path(name + ".npy"))
            self.assertEqual(wide.dtype, np.float32)
            self.assertEqual(wide.astype(np.float16).tobytes(), own[n])

    def test_plan(self):
        done = self.succeed("plan", "op=bwd", "heads=4", "kv_heads=2", "q_len=512", "head_dim=64",
                            "local=2", "stride=4", "block=64",
                            env={"TESSERA_VERBOSE": "dispatch", "TESSERA_BACKEND": "cpu"})
        self.assertRegex(done.out, r"columns +\d+ of the jobs, of \d+ keys")
        self.assertRegex(done.err, r"dispatch: cpu: cpu/\w+ accepts: dtype f32, head_dim 64")
        for line in done.err.splitlines():  # those for 16 bits say why, and what the CPU lacks
            self.assertRegex(line, r"cpu/\w+ (accepts: |refuses: (does not take dtype f32|"
                                   r"the processor has no ))")

    def test_mistakes(self):
        words = ("op=bwd", "local=2", "stride=3", "block=16")
        arrays, options = self.arrays("f32", (1, 20, HEADS, DIM), (1, 30, KV_HEADS, DIM),
                                      (1, HEADS, 20))
        outputs = self.outputs("dq", "dk", "dv")
        run = ("run", *words)
        self.refuse(2, "--do: missing", *run, *options[:6], *outputs)
        self.refuse(2, "--dq: missing", *run, *options)
        self.refuse(2, "--lse: missing", *run, *options, *outputs, "--o", self.path("o.npy"))
        self.refuse(2, "--dk: is the same file", *run, *options, *self.outputs("dq"),
                    "--dk", self.path("dq.npy"))
        self.refuse(2, "dq_add: ", *run, "dq_add=1", *options, *outputs)
        self.refuse(2, "kv_split: ", *run, "kv_split=2", *options, *outputs)
        self.refuse(2, "determinism: ", "run", *words[1:], "determinism=1", *options[:6],
                    *self.outputs("o"))
        self.refuse(2, "--dq: belongs to op=bwd", "run", *words[1:], *options[:6],
                    *self.outputs("o", "dq"))
        self.save("do", arrays["do"][:, :, :, :8])
        self.refuse(1, "--do: dimension 3", *run, *options, *outputs)
        self.save("do", arrays["do"].astype(np.float16))
        self.refuse(1, "--do: holds float16", *run, *options, *outputs)
        self.save("do", arrays["do"])
        self.save("dlse", arrays["dlse"][0])
        self.refuse(1, "--dlse: has 2 dimensions", *run, *options, *outputs)


if __name__ == "__main__":
    main()
