# SPDX-License-Identifier: Apache-2.0
"""`tessera run` on arrays that NumPy saved, against attention in NumPy; and .npy files that lie."""
import os
import struct

from command import CommandTest, main
import oracle
from oracle import np

# Patterns with every word of docs/problems.md.
PATTERNS = [
    dict(local=2, stride=3, block=16),
    dict(local=1, stride=4, block=16, offset=1),
    dict(local=2, stride=5, block=32, offset=7, dense_heads=1),
    dict(local=1, stride=4, block=16, per_kv_head=1),
    dict(local=1, stride=4, block=16, homo=1, offset=2),
    dict(local=2, stride=8, block=16, head_first=4, heads_total=8),
    dict(local=1, stride=8, block=16, head_first=4, heads_total=12, dense_heads=5, per_kv_head=1),
    dict(local=2, stride=1, block=16),
    dict(local=2, stride=3, block=16, causal=0),
    dict(local=2, stride=4, block=16, causal=0, local_right=1, dense_heads=1),
    dict(pattern="dense"),
    dict(pattern="dense", causal=0),
    dict(pattern="window", left=20),
    dict(pattern="window", left=20, sinks=5),
    dict(pattern="window", left=-1, right=0),
    dict(pattern="window", left=13, right=6, causal=0),
    dict(pattern="window", left=0, right=-1, sinks=9, causal=0),
    dict(pattern="blocks", block=16, mask="one"),
    dict(pattern="blocks", block=16, mask="each"),
    dict(pattern="blocks", block=32, mask="each", causal=0),
    dict(local=2, stride=8, block=16, head_ids="6,7,1,0", heads_total=8),
    dict(local=1, stride=8, block=16, head_ids="11,9,2,0", heads_total=12, kv_heads_total=4,
         dense_heads=1, per_kv_head=1),
]
TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}


class Arrays(CommandTest):
    def save(self, name, array):
        np.save(self.path(name), array)
        return self.path(name)

    def words_of(self, words, kv_len, generator):
        """The words of the command, and those of the oracle.

        A mask is a file for the one and an array for the other."""
        theirs, own = dict(words), dict(words)
        if "mask" in words:
            blocks = -(-kv_len // words["block"])
            # neither square nor exact
            shape = (1 if words["mask"] == "one" else 4, blocks + 1, max(blocks - 1, 1))
            own["_mask"] = generator.random(shape) < 0.5
            theirs["mask"] = self.save("mask.npy", own["_mask"])
        return [f"{key}={value}" for key, value in theirs.items()], own

    def compare(self, dtype, words, got_o, got_lse, o, lse):
        o_type = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[dtype]
        self.assertEqual((got_o.dtype, got_o.shape), (o_type, o.shape), words)
        self.assertEqual((got_lse.dtype, got_lse.shape), (np.float32, lse.shape), words)
        empty = np.isneginf(lse)
        np.testing.assert_array_equal(np.isneginf(got_lse), empty, str(words))
        np.testing.assert_allclose(got_lse[~empty], lse[~empty], rtol=2e-5, atol=2e-5,
                                   err_msg=str(words))
        got = oracle.widen(got_o)
        error = np.abs(got - o).max() if o.size else 0
        self.assertLessEqual(error, TOLERANCE[dtype] * max(1, np.abs(o).max() if o.size else 1),
                             words)

    def run_padded(self, dtype, words, batch, q_len, kv_len, heads, kv_heads, head_dim):
        generator = np.random.default_rng(hash(str(sorted(words.items()))) & 0xFFFF)
        arrays = [oracle.round_to(dtype, generator.standard_normal((batch, n, h, head_dim)))
                  for n, h in ((q_len, heads), (kv_len, kv_heads), (kv_len, kv_heads))]
        theirs, own = self.words_of(words, kv_len, generator)
        done = self.succeed("run", *theirs, f"dtype={dtype}", "--q", self.save("q.npy", arrays[0]),
                            "--k", self.save("k.npy", arrays[1]),
                            "--v", self.save("v.npy", arrays[2]),
                            "--o", self.path("o.npy"), "--lse", self.path("lse.npy"))
        problem, told, *wrote = done.out.splitlines()
        self.assertIn(f"heads={heads}", problem)
        self.assertRegex(told, r"^\w+/\w+ on \w+:\d+ \(.+\): [\d.]+ [mnµ]?s, [\d.]+ [kMGT]?FLOP/s, "
                               r"with the first run's overhead$")
        self.assertEqual(wrote, ["wrote " + self.path("o.npy"), "wrote " + self.path("lse.npy")])
        rows = [oracle.attention(own, *(a[b] for a in arrays)) for b in range(batch)]
        o = np.stack([r[0] for r in rows]) if rows else np.zeros((0, q_len, heads, head_dim))
        lse = np.stack([r[1] for r in rows]) if rows else np.zeros((0, heads, q_len))
        self.compare(dtype, theirs, np.load(self.path("o.npy")), np.load(self.path("lse.npy")), o,
                     lse)

    def test_every_pattern_and_type(self):
        for words in PATTERNS:
            for dtype in TOLERANCE:
                self.run_padded(dtype, words, 2, 75, 139, 4, 2, 24)

    def test_lengths(self):
        for batch, q_len, kv_len in ((1, 1, 200), (1, 64, 64), (1, 90, 31), (3, 5, 0), (0, 5, 9),
                                     (1, 0, 9), (1, 300, 300)):
            for words in (PATTERNS[0], PATTERNS[9], PATTERNS[10], PATTERNS[13]):
                self.run_padded("f32", words, batch, q_len, kv_len, 4, 2, 16)

    def test_cache(self):
        """Pages and slots change where keys lie, and no bit of the result."""
        generator = np.random.default_rng(5)
        words = dict(local=2, stride=4, block=16, dense_heads=1, per_kv_head=1)
        for lengths in (((3, 3), (139, 139)), ((2, 0, 1), (139, 5, 60))):
            q, k, v = (generator.standard_normal((sum(n), h, 24)).astype(np.float32)
                       for n, h in ((lengths[0], 4), (lengths[1], 2), (lengths[1], 2)))
            shape = ["q_lens=" + ",".join(map(str, lengths[0])),
                     "kv_lens=" + ",".join(map(str, lengths[1]))]
            if len(lengths[0]) == 2:
                q, k, v, shape = q.reshape(2, 3, 4, 24), k.reshape(2, 139, 2, 24), \
                    v.reshape(2, 139, 2, 24), []
            arrays = ("--q", self.save("q.npy", q), "--k", self.save("k.npy", k),
                      "--v", self.save("v.npy", v), "--o", self.path("o.npy"),
                      "--lse", self.path("lse.npy"))
            plain = None
            for op in ((), ("op=decode",), ("op=decode", "page=16"), ("op=decode", "compact=1"),
                       ("op=decode", "page=32", "compact=1"), ("op=decode", "page=256", "seed=9")):
                self.succeed("run", *(f"{k}={v}" for k, v in words.items()), *shape, *op, *arrays)
                got = [np.load(self.path(name)).tobytes() for name in ("o.npy", "lse.npy")]
                plain = plain or got
                self.assertEqual(got, plain, op)
        self.refuse(2, "page: ", "run", *shape, "local=1", "stride=2", "page=16", *arrays)

    def test_head_sizes_and_groups(self):
        for heads, kv_heads, head_dim in ((1, 1, 8), (8, 1, 48), (4, 4, 80), (6, 2, 128),
                                          (4, 2, 256)):
            self.run_padded("f32", dict(local=2, stride=3, block=16, scale=0.0078125), 1, 40, 120,
                            heads, kv_heads, head_dim)

    def test_packed(self):
        q_lens, kv_lens = (33, 1, 0, 7, 20), (100, 77, 9, 0, 20)
        for words in (PATTERNS[0], PATTERNS[13], PATTERNS[18]):
            for dtype in TOLERANCE:
                generator = np.random.default_rng(7)
                q, k, v = (oracle.round_to(dtype, generator.standard_normal((sum(n), h, 32)))
                           for n, h in ((q_lens, 4), (kv_lens, 2), (kv_lens, 2)))
                theirs, own = self.words_of(words, max(kv_lens), generator)
                self.succeed("run", *theirs, f"dtype={dtype}",
                             "q_lens=" + ",".join(map(str, q_lens)),
                             "kv_lens=" + ",".join(map(str, kv_lens)), "--q", self.save("q.npy", q),
                             "--k", self.save("k.npy", k), "--v", self.save("v.npy", v),
                             "--o", self.path("o.npy"), "--lse", self.path("lse.npy"))
                o, lse, at_q, at_kv = [], [], 0, 0
                for n, m in zip(q_lens, kv_lens):
                    row = oracle.attention(own, q[at_q:at_q + n], k[at_kv:at_kv + m],
                                           v[at_kv:at_kv + m])
                    o.append(row[0])
                    lse.append(row[1])
                    at_q, at_kv = at_q + n, at_kv + m
                self.compare(dtype, theirs, np.load(self.path("o.npy")),
                             np.load(self.path("lse.npy")), np.concatenate(o),
                             np.concatenate(lse, axis=1))

    def test_empty_masks(self):
        """Zero blocks are legal, and what lies outside of the mask is not kept."""
        self.good()
        for shape in ((1, 0, 0), (4, 0, 3), (1, 3, 0)):
            mask = "mask=" + self.save("mask.npy", np.zeros(shape, bool))
            self.succeed("pattern", "pattern=blocks", mask, "block=16", "heads=4", "kv_len=0")
            self.succeed("run", "pattern=blocks", mask, "block=16", "--q", self.path("q.npy"),
                         "--k", self.path("k.npy"), "--v", self.path("v.npy"),
                         "--o", self.path("o.npy"), "--lse", self.path("lse.npy"))
            self.assertTrue((np.load(self.path("o.npy")) == 0).all(), shape)
            self.assertTrue(np.isneginf(np.load(self.path("lse.npy"))).all(), shape)

    def test_plan_counts_pairs(self):
        import json
        for words in PATTERNS:
            generator = np.random.default_rng(3)
            theirs, own = self.words_of(words, 139, generator)
            plan = json.loads(self.succeed("plan", *theirs, "heads=4", "kv_heads=2", "q_len=75",
                                           "kv_len=139", "batch=2", "head_dim=24", "--json").out)
            pairs = 2 * int(oracle.kept(own, 4, 2, 75, 139).sum())
            self.assertEqual(plan["kept_pairs"], pairs, theirs)
            self.assertEqual(plan["flops"], 4 * 24 * pairs, theirs)
            dense = dict(pattern="dense", causal=own.get("causal", 1))
            pairs = 2 * 4 * int(oracle.kept(dense, 1, 1, 75, 139).sum())
            self.assertEqual(plan["dense_pairs"], pairs, theirs)

    def test_pattern_rows(self):
        for words in PATTERNS:
            generator = np.random.default_rng(4)
            theirs, own = self.words_of(words, 139, generator)
            block = words.get("block", 64)
            n = -(-139 // block)
            keep = np.zeros((4, n * block, n * block), bool)
            keep[:, :139, :139] = oracle.kept(own, 4, 2, 139, 139)
            blocks = keep.reshape(4, n, block, n, block).any(axis=(2, 4))
            lines = []
            for h in range(4):
                lines += [f"# head {h}"] + ["".join("01"[int(x)] for x in row) for row in blocks[h]]
            done = self.succeed("pattern", *theirs, "heads=4", "kv_heads=2", "kv_len=139")
            self.assertEqual(done.out.splitlines(), lines, theirs)
            self.assertIn("overage", done.err)
            one = self.succeed("pattern", *theirs, "heads=4", "kv_heads=2", "kv_len=139",
                               "--head", 2)
            self.assertEqual(one.out.splitlines(), lines[2 * n + 3:3 * n + 3], theirs)

    # -------------------------------------------------------------- bad arrays

    def good(self):
        generator = np.random.default_rng(1)
        for name, heads in (("q", 4), ("k", 2), ("v", 2)):
            self.save(name + ".npy",
                      generator.standard_normal((1, 20, heads, 16)).astype(np.float32))

    def refuse_run(self, code, names, *words, **replaced):
        """Runs on the good arrays, but for those that are replaced by a path."""
        options = []
        for name in ("q", "k", "v"):
            options += ["--" + name, replaced.get(name, self.path(name + ".npy"))]
        return self.refuse(code, names, "run", "local=1", "stride=2", "block=16", *words, *options,
                           "--o", replaced.get("o", self.path("o.npy")),
                           "--lse", replaced.get("lse", self.path("lse.npy")))

    def test_arrays_that_do_not_fit(self):
        self.good()
        single = np.zeros((1, 20, 4, 16), np.float32)
        pair = single[:, :, :2]
        cases = [("q", np.asfortranarray(single)), ("q", single.astype(">f4")),
                 ("q", single.astype(np.float64)), ("q", single.astype(np.int32)),
                 ("q", single.astype(np.complex64)), ("q", single.astype(bool)),
                 ("k", pair.astype(np.float16)), ("q", single[0, 0]), ("q", single[None]),
                 ("k", pair[0]), ("k", single[:, :, :3]), ("k", pair[..., :8]),
                 ("k", np.concatenate([pair, pair])), ("v", np.zeros((1, 21, 2, 16), np.float32))]
        for which, array in cases:
            self.refuse_run(1, "--" + which, **{which: self.save("bad.npy", array)})
        twelve = {n: self.save(n + "12.npy", np.zeros((1, 20, 2, 12), np.float32))
                  for n in ("q", "k", "v")}
        self.refuse_run(1, "head_dim", **twelve)  # legal, but no kernel takes it
        refused = self.refuse_run(1, "--q", q=self.save("f.npy", np.asfortranarray(single)))
        self.assertIn("ortran", refused.err)

    def test_bfloat16_needs_its_word(self):
        for name, heads in (("q", 4), ("k", 2), ("v", 2)):
            self.save(name + ".npy", np.full((1, 20, heads, 16), 0x3F80, np.uint16))
        self.refuse_run(2, "dtype")
        self.refuse_run(2, "dtype", "dtype=f16")
        self.succeed("run", "local=1", "stride=2", "dtype=bf16", "--q", self.path("q.npy"),
                     "--k", self.path("k.npy"), "--v", self.path("v.npy"),
                     "--o", self.path("o.npy"))
        self.assertTrue((np.load(self.path("o.npy")) == 0x3F80).all())

    def test_words_that_contradict(self):
        self.good()
        for word in ("heads=5", "kv_heads=1", "q_len=21", "kv_len=19", "head_dim=8", "batch=2",
                     "dtype=f16", "q_lens=20", "q_lens=1,2"):
            self.refuse_run(2, word.split("=")[0], word)
        self.succeed("run", "local=1", "stride=2", "heads=4", "kv_heads=2", "q_len=20", "kv_len=20",
                     "head_dim=16", "batch=1", "dtype=f32", "--q", self.path("q.npy"),
                     "--k", self.path("k.npy"), "--v", self.path("v.npy"),
                     "--o", self.path("o.npy"))

    def test_outputs_that_cannot_be_written(self):
        self.good()
        self.refuse_run(1, "--o", o=self.path("none/o.npy"))
        self.refuse_run(1, "--lse", lse=self.path("none/lse.npy"))
        self.refuse_run(1, "--o", o=self.folder.name)
        self.refuse_run(2, "--lse", lse=self.path("o.npy"))
        self.refuse_run(1, "--q", q=self.path("none.npy"))
        self.refuse_run(1, "--q", q=self.folder.name)
        self.refuse_run(1, "", o="/dev/full")
        self.refuse_run(1, "open stream", o="/dev/stdout")

    def test_two_names_of_one_output(self):
        """Found out before the file exists: neither result may replace the other."""
        self.good()
        os.mkdir(self.path("d1"))
        os.symlink("d1", self.path("d2"))
        for o, lse in ((self.path("o.npy"), self.path("./o.npy")),
                       (self.path("d1/x.npy"), self.path("d2/x.npy")),
                       (self.path("d1/../x.npy"), self.path("x.npy"))):
            self.refuse_run(2, "--lse", o=o, lse=lse)
            with open(lse, "w"):
                pass
            self.refuse_run(2, "--lse", o=o, lse=lse)
            os.remove(lse)
        self.succeed("run", "local=1", "stride=2", "--q", self.path("q.npy"),
                     "--k", self.path("k.npy"), "--v", self.path("v.npy"),
                     "--o", self.path("d1/o.npy"), "--lse", self.path("o.npy"))

    def test_failures_name_the_option(self):
        import resource
        generator = np.random.default_rng(1)
        for name in ("q", "k", "v"):
            self.save(name + ".npy", generator.standard_normal((1, 64, 4, 16)).astype(np.float32))

        def limit(size):
            return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        run = ("run", "local=1", "stride=2", "--q", self.path("q.npy"), "--k", self.path("k.npy"),
               "--v", self.path("v.npy"), "--o", self.path("o.npy"))
        self.refuse(1, ("run: --o: ", "File too large"), *run, prepare=limit(4096))
        self.refuse(2, "run: --o: given twice", *run, "--o", "x")
        self.refuse(2, "run: q_lens: the sum exceeds", *run[:3], "q_lens=9223372036854775807,1",
                    "--q", self.save("p.npy", np.zeros((1, 1, 8), np.float32)),
                    "--k", self.path("p.npy"), "--v", self.path("p.npy"), "--o", self.path("o.npy"))
        self.refuse(2, "--l:", *run, "--l", self.path("l.npy"))
        for backend in ("", ",", "cpu:", "nonsense"):
            self.refuse(2, "run: --backend: ", *run, "--backend", backend)

    def test_output_may_replace_an_input(self):
        self.good()
        before = np.load(self.path("q.npy"))
        self.succeed("run", "local=1", "stride=2", "--q", self.path("q.npy"),
                     "--k", self.path("k.npy"), "--v", self.path("v.npy"),
                     "--o", self.path("q.npy"))
        after = np.load(self.path("q.npy"))
        self.assertEqual(after.shape, before.shape)
        self.assertFalse((after == before).all())
        self.assertEqual(self.files(), ["k.npy", "q.npy", "v.npy"])

    def test_damaged_files(self):
        """Headers that lie, and files cut anywhere: refused by name, nothing written."""
        self.good()
        with open(self.path("q.npy"), "rb") as file:
            good = file.read()

        def header(text, version=(1, 0), length=None, data=good[128:]):
            body = text.encode("latin1")
            body += b" " * (-(len(body) + 11) % 64) + b"\n"
            size = len(body) if length is None else length
            packed = struct.pack("<H" if version[0] == 1 else "<I", size)
            return b"\x93NUMPY" + bytes(version) + packed + body + data

        fine = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 20, 4, 16), }"
        ends = list(range(0, 140, 3)) + [len(good) - 1, len(good) - 4, len(good) // 2]
        damaged = [good[:n] for n in ends]
        damaged += [good + b"x", good + bytes(64), b"\x93NUMPX" + good[6:], b"PK\x03\x04" + good,
                    good[:6] + b"\x09\x00" + good[8:]]
        shapes = ["(1, 20, 4, 17)", "(1, 20, 4, 15)", "(1, 20, -4, 16)", "(1, 20, 4, 16",
                  "(1, 20, 4, 4611686018427387904)", "(2, 4611686018427387904, 4, 16)",
                  "(18446744073709551616, 20, 4, 16)", "(1, 20, 0, 16)", "()", "(1280,)",
                  "(1, 20.0, 4, 16)", "(1, 0x14, 4, 16)", "(1,,20,4,16)", "'x'",
                  "(1, 1, 1, 1, 1, 1, 1, 20, 4, 16)", "[1, 20, 4, 16]"]
        damaged += [header(fine.replace("(1, 20, 4, 16)", shape)) for shape in shapes]
        damaged += [header(fine.replace("'<f4'", descr))
                    for descr in ("'<f8'", "'|O'", "'>f4'", "'<i4'", "'f4x'", "''",
                                  "[('a', '<f4')]", "None", "'<f4")]
        damaged += [header(fine.replace("False", x)) for x in ("True", "0", "None", "'False'", "")]
        damaged += [header(fine, length=n) for n in (0, 1, 10, 60000)]
        damaged += [header(fine, version=(2, 0), length=n) for n in (2**31, 2**32 - 1, 10)]
        damaged += [header("{}"), header(""), header("{'descr': '<f4'}"), header(fine + "x"),
                    header(fine[:-1]), header(fine.replace("shape", "shap")),
                    header(fine.replace("}", "'more': 1}")),
                    header(fine.replace("descr", "de\\x73cr"))]
        for n, content in enumerate(damaged):
            with open(self.path("bad.npy"), "wb") as file:
                file.write(content)
            try:
                self.refuse_run(1, "--q", q=self.path("bad.npy"))
            except AssertionError as error:
                raise AssertionError(f"damaged file {n} ({content[:150]!r}): {error}") from None
        for version in ((1, 0), (2, 0), (3, 0)):  # what NumPy itself would read is read
            with open(self.path("fine.npy"), "wb") as file:
                file.write(header(fine, version))
            self.assertEqual(np.load(self.path("fine.npy")).shape, (1, 20, 4, 16))
            self.succeed("run", "local=1", "stride=2", "--q", self.path("fine.npy"),
                         "--k", self.path("k.npy"), "--v", self.path("v.npy"),
                         "--o", self.path("o.npy"))

    def test_masks_that_do_not_fit(self):
        self.good()
        cases = [np.zeros((3, 2, 2), bool), np.zeros((2, 2), bool), np.zeros((0, 2, 2), bool),
                 np.zeros((1, 2, 2), np.float32), np.zeros((1, 2, 2, 2), bool),
                 np.asfortranarray(np.zeros((4, 3, 2), bool))]
        for array in cases:
            mask = self.save("mask.npy", array)
            # A mask for three heads contradicts the arrays; the others cannot be masks.
            code = 2 if array.shape in ((3, 2, 2), (0, 2, 2)) else 1
            self.refuse(code, "mask", "run", "pattern=blocks", "block=16", "mask=" + mask,
                        "--q", self.path("q.npy"), "--k", self.path("k.npy"),
                        "--v", self.path("v.npy"), "--o", self.path("o.npy"))
        self.refuse(1, "mask", "run", "pattern=blocks", "block=16", "mask=" + self.path("none.npy"),
                    "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--v", self.path("v.npy"),
                    "--o", self.path("o.npy"))


if __name__ == "__main__":
    main()
