# SPDX-License-Identifier: Apache-2.0
"""The command's contract (docs/cli.md) apart from arrays.

Exit status, streams, golden rows, JSON keys, bench and compare."""
import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zlib
import unittest
import xml.etree.ElementTree

from command import CommandTest, main, write_array

SHAPE = ("heads=4", "q_len=64", "head_dim=16")
S2 = ("local=1", "stride=2", "block=16")

# Further measurements are left to builds that are not slowed down; test_bench is in all of them.
measures = unittest.skipIf(os.environ.get("TESSERA_TEST_MEASURE") == "few", "one problem is enough")


class Contract(CommandTest):
    def test_help_and_version(self):
        self.assertEqual(self.call().code, 2)
        self.refuse(2, "nonsense", "nonsense")
        for words in ((), ("info",), ("pattern",), ("plan",), ("run",), ("bench",), ("compare",),
                      ("tune",)):
            done = self.succeed(*words, "--help")
            self.assertTrue(done.out.startswith("usage: tessera") and done.err == "", words)
            # An installed copy has neither the documents nor the examples of the sources.
            self.assertNotRegex(done.out, r"\.md\b|docs/|examples/|bench/|\./dev", words)
            done = self.succeed(*words, "--version")
            self.assertRegex(done.out, r"^tessera \d+\.\d+\.\d+\n$")
            if words:
                self.refuse(2, "--nonsense", *words, "--nonsense")
                self.refuse(2, "elp", *words, "--help=1")

    def test_words_that_are_wrong(self):
        """Each names its word and has exit status 2."""
        values = {
            "hedas": ("4",), "": ("4",), "dtype": ("f64", ""), "op": ("sideways",),
            "heads": ("", "four", "4x", "0", "-1", "65536", "99999999999999999999", "1e3", "+4"),
            "q_len": ("-1", "9223372036854775808"), "kv_len": ("1.5",), "head_dim": ("0",),
            "batch": ("-1",), "kv_heads": ("3", "8"), "causal": ("2",),
            "scale": ("nan", "inf", "", "0", "1e999", "0x1p3", "1e-999"),
            "seed": ("-1", "18446744073709551616"), "pattern": ("stripes",),
            "block": ("0", "-16"), "local": ("0",), "stride": ("0", "-1"), "offset": ("-1",),
            "dense_heads": ("5", "-1"), "per_kv_head": ("2",), "homo": ("yes",),
            "local_right": ("1",), "head_first": ("-1",), "heads_total": ("3",), "left": ("5",),
            "sinks": ("5",), "mask": ("x.npy",), "kv_split": ("-1",), "batch_invariant": ("2",),
            "head_ids": ("", "0,1,2", "0,x", "0,1,2,3,4", "0,1,2,4", "0,1,2,-1",
                         "0,1,2,2147483648"),
            "tile_rows": ("-1",)}
        cases = [(name or "=4", f"{name}={value}") for name in values for value in values[name]]
        cases += [("heads", "heads"), ("q_len", "q_lens=5"), ("kv_len", "kv_lens=5")]
        for name, word in cases:
            others = [w for w in (*SHAPE, *S2) if w.split("=")[0] != word.split("=")[0]]
            self.refuse(2, name, "plan", *others, word)
        for missing in ("heads", "q_len", "head_dim", "local", "stride"):
            self.refuse(2, missing, "plan",
                        *[w for w in (*SHAPE, *S2) if not w.startswith(missing)])
        self.refuse(2, "heads", "plan", *SHAPE, *S2, "heads=4")
        self.refuse(2, "head_first", "plan", *SHAPE, *S2, "head_first=0", "head_ids=0,1,2,3")
        self.refuse(2, "kv_heads_total", "plan", *SHAPE, *S2, "kv_heads=2", "heads_total=9",
                    "head_ids=0,1,2,3")
        self.refuse(2, "left", "plan", *SHAPE, "pattern=window")
        self.refuse(2, "mask", "plan", *SHAPE, "pattern=blocks", "block=16")
        self.refuse(2, "block", "plan", *SHAPE, "pattern=blocks", "mask=x.npy")
        for word in ("offset=1", "homo=1", "per_kv_head=1"):
            self.refuse(2, word.split("=")[0], "plan", *SHAPE, *S2, "causal=0", word)
        self.refuse(2, "--head", "pattern", "heads=4", "kv_len=64", *S2, "--head", "4")
        self.refuse(2, "--head", "pattern", "heads=4", "kv_len=64", *S2, "--head", "x")
        self.refuse(2, "--head", "pattern", "heads=4", "kv_len=64", *S2, "--head")
        self.refuse(2, "--q", "run", *S2)
        self.refuse(2, "", "compare")

    CACHE = ("op=decode", "heads=8", "kv_heads=4", "head_dim=16", "block=16", "local=2", "stride=8",
             "per_kv_head=1")

    def test_decode_words(self):
        """kv_len is required, q_len is 1 unless given; page and compact belong to decode."""
        for name, *words in (("kv_len: missing",), ("kv_len: missing", "q_len=1"),
                             ("kv_lens: missing", "q_lens=1,2"), ("page: 17 ", "page=17"),
                             ("page: 8 ", "page=8"), ("page: 512 ", "page=512"),
                             ("page: -16 ", "page=-16"), ("page: ", "page="),
                             ("compact: 2 ", "compact=2")):
            words += ["kv_len=99"] * ("missing" not in name)
            self.refuse(2, "tessera plan: " + name, "plan", *self.CACHE, *words)
            self.refuse(2, "tessera bench: " + name, "bench", *self.CACHE, *words)
        dense = ("op=decode", "heads=8", "head_dim=16", "kv_len=90", "pattern=dense", "compact=1")
        self.refuse(2, "compact: must be 0 with causal=0", "plan", *dense, "causal=0")
        for word in ("page=16", "compact=1", "page=0"):
            self.refuse(2, word.split("=")[0] + ": belongs to op=decode", "plan", *SHAPE, *S2, word)
        write_array(self.path("mask.npy"), "|b1", (1, 2, 2), b"\1\0\0\1")
        write_array(self.path("worse.npy"), "|b1", (1, 3, 3), b"\1\0\0\0\1\0\1\0\1")
        cached = ("plan", *self.CACHE[:4], "pattern=blocks", "block=16", "compact=1")
        self.succeed(*cached, "mask=" + self.path("mask.npy"), "kv_len=32")
        self.refuse(1, "tessera plan: compact: ", *cached, "mask=" + self.path("worse.npy"),
                    "kv_len=48")

        def problem(*words):
            return json.loads(self.succeed("plan", *self.CACHE, *words, "--json").out)["problem"]
        pattern = "block=16 local=2 stride=8 per_kv_head=1"
        shape = "heads=8 kv_heads=4 head_dim=16"
        for words, line in (("kv_len=99 q_len=1 page=0 compact=0", "kv_len=99 op=decode"),
                            ("kv_len=5 q_len=5", "q_len=5 kv_len=5 op=decode"),
                            ("kv_lens=7,99 page=32", "kv_lens=7,99 op=decode page=32"),
                            ("q_lens=1,2 kv_lens=7,99 compact=1",
                             "q_lens=1,2 kv_lens=7,99 op=decode compact=1"),
                            ("kv_lens=", "kv_lens= op=decode")):
            self.assertEqual(problem(*words.split()), f"{shape} {line} {pattern}")

    def test_decode_plan(self):
        """A compact cache by hand: a ring, a fixed slot every 8 blocks, pages of two blocks."""
        words = ("plan", *self.CACHE, "page=32", "compact=1")
        plan = json.loads(self.succeed(*words, "kv_lens=500,0,200", "q_lens=1,0,17", "--json").out)
        cache, [group] = plan["cache"], plan["cache"]["groups"]
        # local 2 and ceil(17 / 16) blocks of a chunk, at least none of them fixed
        self.assertEqual([group[key] for key in ("kv_heads", "ring_slots", "stride",
                                                 "slots_per_stride")], [[0, 1, 2, 3], 4, 8, 1])
        # 32 blocks, of which 4 are fixed, and 13 blocks with at most 2
        self.assertEqual((group["slots"], group["tokens"]), (8, 128))
        self.assertEqual(group["pages_longest"], 4)
        self.assertIn(group["pages"], (7, 8))
        self.assertEqual(group["bytes"], 2 * 4 * 16 * 4 * 32 * group["pages"])
        self.assertEqual((cache["page"], cache["compact"], cache["bytes"]),
                         (32, True, group["bytes"]))
        self.assertEqual(cache["bytes_in_place"], 2 * 4 * 16 * 4 * 700)
        self.assertEqual(cache["block_table_bytes"], 4 * 3 * 4)
        text = self.succeed(*words, "kv_len=500").out
        self.assertRegex(text, r"KV cache of 1 sequence, compact, pages of 32 tokens: ")
        self.assertRegex(text, r"\n  0 +4 +3 +1 of 8 blocks +7 +112 +4 +4 ")
        self.assertIn("KV-efficient       yes", text)
        # Dense heads among the others make a group of their own.
        mixed = json.loads(self.succeed(*words, "kv_len=500", "dense_heads=1", "--json").out)
        self.assertEqual([g["kv_heads"] for g in mixed["cache"]["groups"]], [[0, 1, 2], [3]])
        self.assertEqual([g["pages"] for g in mixed["cache"]["groups"]], [4, 16])
        plain = json.loads(self.succeed("plan", *self.CACHE, "kv_len=500", "--json").out)["cache"]
        self.assertEqual((plain["page"], plain["compact"], plain["block_table_bytes"]),
                         (0, False, 0))
        self.assertEqual(plain["bytes"], plain["bytes_in_place"])
        forward = json.loads(self.succeed("plan", *SHAPE, *S2, "--json").out)
        self.assertNotIn("cache", forward)

    def test_legal_but_impossible(self):
        """Exit status 1: the words are fine, the library or the machine refuses."""
        self.refuse(1, "head_dim", "plan", "heads=4", "q_len=64", "head_dim=12", *S2)
        self.refuse(1, "head_dim", "plan", "heads=4", "q_len=64", "head_dim=264", *S2)
        self.refuse(1, "q_len", "plan", "heads=4", "q_len=4294967296", "kv_len=10", "head_dim=16",
                    *S2)
        self.refuse(1, "", "plan", "heads=4", "q_len=10", "kv_len=9000000000000000000",
                    "head_dim=16", *S2)
        self.refuse(1, "", "plan", "heads=4", "q_len=1000000000000", "batch=1000000", "kv_len=1",
                    "head_dim=16", *S2)
        for ids in ("0,1,1,0", "0,2,4,5", "4,5,5,4"):
            self.refuse(1, "tessera plan: head_ids: ", "plan", *SHAPE, *S2, "kv_heads=2",
                        "heads_total=8", "head_ids=" + ids)
        self.refuse(1, "mask", "plan", *SHAPE, "pattern=blocks", "block=16",
                    "mask=" + self.path("none.npy"))
        self.refuse(1, "kernel", "plan", *SHAPE, *S2, env={"TESSERA_KERNEL": "cpu/nonsense"})

    def test_backends(self):
        for backend in ("nonsense", "cpu:", "cpu,,cpu", "nonsense:0", "", ",", "cpu,", "cpu:x",
                        "cpu:7,nonsense"):
            done = self.refuse(2, "tessera plan: --backend: ", "plan", *SHAPE, *S2,
                               "--backend", backend)
            self.assertNotIn("tess_", done.err)
            if backend:
                self.refuse(1, "tessera plan: TESSERA_BACKEND: ", "plan", *SHAPE, *S2,
                            env={"TESSERA_BACKEND": backend})
        self.refuse(1, ("tessera plan: --backend: ", "cpu:7"), "plan", *SHAPE, *S2,
                    "--backend", "cpu:7")
        self.succeed("plan", *SHAPE, *S2, "--backend", "cpu:7,cpu")
        self.succeed("plan", *SHAPE, *S2, "--backend", "cpu:0", env={"TESSERA_CPU_THREADS": "1"})
        self.refuse(1, "TESSERA_CPU_THREADS", "plan", *SHAPE, *S2,
                    env={"TESSERA_CPU_THREADS": "many"})

    def test_errors_begin_with_the_field(self):
        """The user's word, not a function or a field of the library."""
        most = "9223372036854775807"
        for field, *words in (("head_dim", "head_dim=12", "q_len=64"),
                              ("q_len", "head_dim=16", "q_len=" + most),
                              ("kv_len", "head_dim=16", "q_len=1", "kv_len=" + most),
                              ("q_lens", "head_dim=16", "q_lens=" + most),
                              ("kv_lens", "head_dim=16", "q_lens=1", "kv_lens=" + most)):
            self.refuse(1, f"tessera plan: {field}: ", "plan", "heads=4", *words, *S2)
        self.refuse(1, "tessera pattern: kv_len: ", "pattern", "heads=1", "kv_len=" + most, *S2)

    def test_options_have_full_names(self):
        self.refuse(2, "--j:", "plan", *SHAPE, *S2, "--j")
        self.refuse(2, "--back=cpu:", "plan", *SHAPE, *S2, "--back=cpu")
        self.refuse(2, "--ver:", "plan", "--ver")
        self.refuse(2, "--he:", "pattern", "heads=1", "kv_len=64", *S2, "--he", "0")
        self.refuse(2, "--json: given twice", "plan", *SHAPE, *S2, "--json", "--json")

    def test_control_characters(self):
        """Nothing that a terminal would obey comes back from a word.

        That is: no escape sequence in 7 or in 8 bits, no second line."""
        done = self.refuse(2, "a?b", "plan", "a\nb\x1b[31m\x9b31m=1")
        self.assertFalse(any(ord(c) < 32 or 127 <= ord(c) < 160 for c in done.err.strip("\n")),
                         ascii(done.err))

    def test_pattern_of_packed_batches(self):
        packed, single = (self.succeed("pattern", "heads=1", lens, *S2[:2], "--head", 0).out
                          for lens in ("kv_lens=5,200", "kv_len=200"))
        self.assertEqual(packed, single)
        self.refuse(2, "pattern: kv_len: not allowed", "pattern", "heads=1", "q_lens=5,200",
                    "kv_len=4", *S2)

    def test_kv_efficiency_is_of_causal_order(self):
        for words in (("pattern=window", "left=161", "right=0", "sinks=106"),
                      ("local=4", "stride=7"), ("pattern=dense",)):
            plan = json.loads(self.succeed("plan", "heads=1", "head_dim=8", "q_len=524", "causal=0",
                                           *words, "--json").out)
            self.assertEqual((plan["kv_efficient"], plan["kv_blocks_kept"]),
                             (False, [plan["kv_blocks"]]), words)

    def test_golden_rows(self):
        """PATTERN rows that were checked against the original's own mask code."""
        first = "10000000 11000000 01100000 00110000 00011000 00011100 00010110 00010011".split()
        last = "10000000 11000000 11100000 10110000 10011000 10001100 10001110 10001011".split()
        base = ("pattern", "heads=4", "local=2", "stride=4")
        for block in (16, 64, 1):
            shape = (f"block={block}", f"kv_len={8 * block}")
            self.assertEqual(self.succeed(*base, *shape, "--head", 1).out.split(), first)
            self.assertEqual(self.succeed(*base, *shape, "offset=1", "--head", 0).out.split(),
                             first)
            self.assertEqual(self.succeed(*base, *shape, "offset=1", "--head", 3).out.split(), last)
            for head, twin in ((0, 1), (2, 3)):
                grouped = (*base, *shape, "kv_heads=2", "per_kv_head=1")
                rows = [self.succeed(*grouped, "--head", h).out.split() for h in (head, twin)]
                self.assertEqual(rows[0], rows[1])
            self.assertEqual(rows[0], first)
        # The last block is a partial one.
        rows = self.succeed("pattern", "heads=1", "pattern=dense", "kv_len=129", "--head", 0).out
        self.assertEqual(rows.split(), ["100", "110", "111"])
        done = self.succeed("pattern", "heads=2", "local=1", "stride=8", "kv_len=1024")
        self.assertIn("overage", done.err)
        self.assertIn("efficient", done.err)

    def test_svg(self):
        self.succeed("pattern", "heads=3", "local=2", "stride=3", "dense_heads=1", "kv_len=640",
                     "--svg", self.path("p.svg"))
        root = xml.etree.ElementTree.parse(self.path("p.svg")).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        self.assertGreater(len(list(root.iter())), 20)
        self.assertEqual(self.files(), ["p.svg"])
        self.refuse(1, "svg", "pattern", "heads=3", "local=2", "stride=3", "kv_len=640",
                    "--svg", self.path("none/p.svg"))
        self.succeed("pattern", "heads=32", "local=16", "stride=8", "kv_len=131072", "--head", 0,
                     "--svg", self.path("p.svg"), stdout=subprocess.DEVNULL)
        self.assertLess(os.path.getsize(self.path("p.svg")), 3 << 20)
        done = self.succeed("pattern", "heads=65535", "local=2", "stride=65535", "block=1",
                            "kv_len=20", "--head", 0, "--svg", self.path("p.svg"))
        self.assertIn("--svg: shows the first 512 of 65535 heads", done.err)
        self.assertLess(os.path.getsize(self.path("p.svg")), 2 << 20)
        self.succeed("pattern", "heads=2", "local=2", "stride=2", "kv_len=0",
                     "--svg", self.path("p.svg"))
        with open(self.path("p.svg")) as file:
            self.assertIn("Nothing to draw", file.read())

    def test_output_names(self):
        draw = ("pattern", "heads=1", "local=1", "stride=2", "kv_len=64", "--svg")
        self.succeed(*draw, self.path("n" * 249))
        self.assertEqual(self.files(), ["n" * 249])
        done = self.refuse(1, "--svg: cannot write ", *draw,
                           self.path("x" * 200 + "/") * 12 + "o.svg")
        self.assertRegex(done.err, r": (File name too long|No such file or directory)\n\Z")
        os.symlink("/dev/stdout", self.path("link"))
        for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", self.path("link")):
            with open(self.path("out"), "w") as out:
                done = self.call(*draw, name, stdout=out)
            self.assertEqual((done.code, os.path.getsize(self.path("out"))), (1, 0), done.err)
            self.assertIn("open stream", done.err)

    def test_limit_on_file_sizes(self):
        """The signal of the limit must not end the command before its temporary file is removed."""
        import resource
        self.refuse(1, ("--svg: ", "File too large"), "pattern", "heads=64", "local=2", "stride=64",
                    "kv_len=8192", "--head", 0, "--svg", self.path("p.svg"),
                    prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))

    def test_plan_json(self):
        keys = {"problem", "device", "kernel", "jobs", "merge_jobs", "ranges", "tile_rows",
                "few_kernel", "few_tile_rows",
                "kept_pairs", "dense_pairs", "flops", "bytes_min", "workspace_bytes",
                "workspace_align", "host_bytes", "device_bytes", "plan_seconds", "layout_seconds",
                "coverage", "kept_share", "kv_efficient", "classes", "kv_blocks", "kv_block_bytes",
                "kv_blocks_kept", "kv_blocks_allocated", "kv_storage"}
        done = self.succeed("plan", "heads=32", "kv_heads=8", "local=16", "stride=8", "offset=1",
                            "head_dim=128", "q_len=8192", "--json")
        plan = json.loads(done.out)
        self.assertEqual(done.err, "")
        self.assertEqual(keys - plan.keys(), set())
        # Phi-3-small at 8k: an ideal saving of 3.04 in blocks, 56 % of the KV blocks kept and 57 %
        # allocated.
        rows = self.succeed("pattern", "heads=32", "kv_heads=8", "local=16", "stride=8", "offset=1",
                            "kv_len=8192").out
        ones = sum(row.count("1") for row in rows.splitlines() if row[0] != "#")
        self.assertAlmostEqual(32 * (128 * 129 // 2) / ones, 3.04, delta=0.005)
        self.assertEqual(plan["kv_blocks"], 128)
        self.assertEqual(len(plan["kv_blocks_kept"]), 8)
        for kept, allocated in zip(plan["kv_blocks_kept"], plan["kv_blocks_allocated"]):
            self.assertAlmostEqual(kept / 128, 0.56, delta=0.02)
            self.assertAlmostEqual(allocated / 128, 0.57, delta=0.02)
        self.assertEqual(plan["kv_storage"], [{
            "kv_heads": list(range(8)), "ring_slots": 9, "stride": 8, "slots_per_stride": 4,
            "tokens": 64 * plan["kv_blocks_allocated"][0]}])
        self.assertEqual(plan["flops"], 4 * 128 * plan["kept_pairs"])
        self.assertEqual((plan["coverage"], plan["kv_efficient"]), (1, True))
        # The problem of the output is a problem again, and the same.
        again = json.loads(self.succeed("plan", *plan["problem"].split(), "--json").out)
        for key in keys - {"plan_seconds", "layout_seconds"}:
            self.assertEqual(again[key], plan[key], key)
        text = self.succeed("plan", *SHAPE, *S2)
        self.assertGreater(len(text.out.splitlines()), 5)

    def test_info(self):
        self.assertIn("cpu", self.succeed("info").out)
        info = json.loads(self.succeed("info", "--json", env={"TESSERA_CPU_THREADS": "1"}).out)
        self.assertTrue({"version", "backends", "devices", "settings"} <= info.keys())
        cpu = [d for d in info["devices"] if d["backend"] == "cpu"][0]
        self.assertEqual((cpu["id"], cpu["kind"], cpu["compute_units"]), ("cpu:0", "cpu", 1))
        kernels = {k["name"]: k for k in cpu["kernels"]}
        self.assertEqual(kernels["cpu/portable"]["status"], "TESS_OK")
        for kernel in kernels.values():
            self.assertTrue(kernel["status"] == "TESS_OK" or kernel["reason"], kernel)
        settings = {s["name"]: s for s in info["settings"]}
        self.assertEqual((settings["TESSERA_CPU_THREADS"]["value"],
                          settings["TESSERA_CPU_THREADS"]["source"]), ("1", "environment"))
        self.assertEqual(settings["TESSERA_BACKEND"]["source"], "default")
        self.assertEqual(settings["TESSERA_KERNEL"]["remark"], "")
        for kernel, remark in (("cpu/xx", "no device here has this kernel"), ("cpu/portable", "")):
            info = json.loads(self.succeed("info", "--json", env={"TESSERA_KERNEL": kernel}).out)
            settings = {s["name"]: s for s in info["settings"]}
            self.assertIn(remark, settings["TESSERA_KERNEL"]["remark"] or " ", kernel)
        self.assertIn("Remark: no device",
                      self.succeed("info", env={"TESSERA_KERNEL": "cpu/xx"}).out)
        self.assertEqual(self.succeed("info", env={"TESSERA_VERBOSE": "errors"}).err, "")
        path = "/nonexistent/backend.so"
        done = self.succeed("info", "--json", env={"TESSERA_BACKEND_PATH": path})
        backends = json.loads(done.out)["backends"]
        self.assertTrue(any(b["status"] == "TESS_ERROR_UNAVAILABLE" and path in b["reason"]
                            for b in backends), backends)

    @unittest.skipUnless("TESSERA_TEST_PLUGINS" in os.environ,
                         "needs the backend libraries of the build")
    def test_info_of_failing_lists(self):
        """A backend whose devices cannot be listed is shown with the reason, and hides no other."""
        plugins = os.environ["TESSERA_TEST_PLUGINS"]
        usual = json.loads(self.succeed("info", "--json").out)
        for names in (["broken"], ["hungry"], ["hungry", "outside"],
                      ["broken", "hungry", "outside"]):
            libraries = {"broken": "no_list", "hungry": "no_memory", "outside": "good"}
            paths = [f"{plugins}/plugin_{libraries[n]}.so" for n in names]
            env = {"TESSERA_BACKEND_PATH": ":".join(paths)}
            info = json.loads(self.succeed("info", "--json", env=env).out)
            shown = {b["name"]: b for b in info["backends"]}
            self.assertEqual(list(shown), [b["name"] for b in usual["backends"]] + names)
            ids = [d["id"] for d in usual["devices"]] + ["outside:0"] * ("outside" in names)
            self.assertEqual(sorted(d["id"] for d in info["devices"]), sorted(ids))
            for device in usual["devices"]:
                self.assertIn(device, info["devices"])
            self.assertEqual(len(info["settings"]), len(usual["settings"]))
            text = self.succeed("info", env=env).out
            for name, status in (("broken", "TESS_ERROR_NATIVE"),
                                 ("hungry", "TESS_ERROR_OUT_OF_MEMORY")):
                if name not in names:
                    continue
                self.assertEqual((shown[name]["status"], shown[name]["devices"]), (status, 0))
                self.assertIn("list: refused", shown[name]["reason"])
                self.assertRegex(text, rf"  {name} +{status}: .*list: refused")
            self.assertIn("\n  cpu:0 ", text)

    def test_full_disk(self):
        """Output that does not arrive is a failure."""
        for words in (("info",), ("info", "--json"), ("plan", *SHAPE, *S2),
                      ("pattern", "heads=4", "kv_len=64", *S2), ("--help",)):
            with open("/dev/full", "w") as full:
                done = self.call(*words, stdout=full)
            self.assertEqual(done.code, 1, words)
            self.assertTrue(done.err, words)

    # -------------------------------------------------------------- tune

    def put(self, text, name="tune"):
        with open(self.path(name), "w") as file:
            file.write(text)
        return {"TESSERA_TUNE_FILE": self.path(name)}

    @unittest.skipUnless("TESSERA_TEST_PLUGINS" in os.environ,
                         "needs the backend libraries of the build")
    def test_tune_without_kernels(self):
        """A file without rules says of every shape why there is none. test_tune.py measures."""
        library = os.path.join(os.environ["TESSERA_TEST_PLUGINS"], "plugin_good.so")
        env = {"TESSERA_BACKEND_PATH": library}
        done = self.succeed("tune", "--quick", "--backends", "outside", "--out", self.path("t"),
                            env=env)
        self.assertEqual(done.out.count("outside has no kernel"), 36)
        with open(self.path("t")) as file:
            lines = file.read().split("\n")
        self.assertEqual((lines[0], lines[-1]), ("tessera-tune 1", ""))
        self.assertEqual([line for line in lines[1:] if line and line[0] != "#"], [])
        self.assertEqual(sum(line.startswith("#   no rule: ") for line in lines), 36)
        env["TESSERA_TUNE_FILE"] = self.path("t")
        info = json.loads(self.succeed("info", "--json", env=env).out)
        self.assertEqual(info["tune_file_rules"], 0)

    def test_tune_interrupted(self):
        environment = {n: v for n, v in os.environ.items() if not n.startswith("TESSERA_")}
        process = subprocess.Popen([sys.modules["command"].COMMAND, "tune", "--backends", "cpu",
                                    "--out", self.path("t")], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=environment)
        process.stderr.readline()  # a first shape is done
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out, self.files()), (1, b"", []), err)
        self.assertIn(b"tessera tune: interrupted; no file was written", err)

    def test_tune_refuses(self):
        self.refuse(2, "'heads=4': this command takes no words", "tune", "heads=4")
        self.refuse(2, "--kernels: ", "tune", "--kernels", "some")
        self.refuse(2, "--out: ", "tune", "--out", "")
        self.refuse(2, "--out: given twice", "tune", "--out", self.path("a"),
                    "--out", self.path("b"))
        self.refuse(1, "tessera tune: --out: cannot write ", "tune", "--out", self.path("none/t"))
        self.refuse(1, "open stream", "tune", "--out", "/dev/stdout")
        for backends in ("", ",", "cpu:", "cpu,,cpu", "nonsense", "cpu:7,nonsense"):
            self.refuse(2, "tessera tune: --backends: ", "tune", "--backends", backends)
        self.refuse(1, "cpu has 1 device", "tune", "--backends", "cpu:7")

    def test_tune_file(self):
        """The first rule that fits decides, and a kernel that is named beats it.

        Only a file that can be read as a whole is taken."""
        def kernel(*words, env):
            done = self.succeed("plan", *SHAPE, *S2, "--backend", "cpu", "--json", *words, env=env)
            return json.loads(done.out)["kernel"]

        env = self.put("tessera-tune 1\ndtype=f16 kernel=cpu/none\n"
                       "# portable is never the first by itself\n"
                       "pattern=s2 kernel=cpu/none,cpu/amx_bf16_soft,cpu/portable\n")
        usual = {dtype: kernel("dtype=" + dtype, env={}) for dtype in ("f32", "f16", "bf16")}
        self.assertEqual(kernel(env=env), "cpu/portable")
        self.assertEqual(kernel("dtype=f16", env=env), usual["f16"])
        # A rule cannot prefer a kernel that is taken only when named.
        self.assertEqual(kernel("dtype=bf16", env=env), "cpu/portable")
        self.assertEqual(kernel("dtype=bf16", env={**env, "TESSERA_KERNEL": "cpu/amx_bf16_soft"}),
                         "cpu/amx_bf16_soft")
        info = self.succeed("info", env=env).out
        self.assertIn(f"\nTune file\n  {self.path('tune')}, 2 rules\n", info)
        self.assertIn("    tune file, lines 2, 4\n", info)
        info = self.succeed("info", env=self.put("tessera-tune 1\nkernel=elsewhere/x\n")).out
        self.assertIn("Remark: no rule of it is for a device here", info)
        for text, words in (("", "line 1: "), ("tessera-tune 2\n", "line 1: has format 2"),
                            ("tessera-tune 1\nkernel=cpu/avx2", "line 2: "),
                            ("tessera-tune 1\n\nkernel=cpu\n", "line 3: kernel: "),
                            ("tessera-tune 1\ntile=64 kernel=cpu/avx2\n", "line 2: 'tile=64'")):
            self.refuse(1, ("tessera plan: TESSERA_TUNE_FILE: ", words), "plan", *SHAPE, *S2,
                        env=self.put(text))
        self.refuse(1, ("tessera info: TESSERA_TUNE_FILE: ", "cannot be opened"), "info",
                    env={"TESSERA_TUNE_FILE": self.path("none")})

    # -------------------------------------------------------------- bench and compare

    def interrupt_bench(self, *words):
        """Sends SIGINT once a first point is done.

        The results of all points but the one under way are then complete. It comes twice, as from
        `timeout`, which sends it to the process and to its group; the pause lets the first one
        arrive."""
        environment = {n: v for n, v in os.environ.items() if not n.startswith("TESSERA_")}
        process = subprocess.Popen([sys.modules["command"].COMMAND, "bench", "--backends", "cpu",
                                    "--no-ceilings", *words], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=environment)
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        return out.decode(), err.decode()

    def test_bench_interrupted(self):
        outputs = [word for suffix in ("json", "csv", "md", "html")
                   for word in ("--" + suffix, self.path("a." + suffix))]
        out, err = self.interrupt_bench("full", "--no-planning", *outputs)
        self.assertIn("INTERRUPTED", out)
        self.assertIn("tessera bench: interrupted; what was complete by then is reported", err)
        self.assertEqual(self.files(), ["a.csv", "a.html", "a.json", "a.md"])
        with open(self.path("a.json")) as file:
            report = json.load(file)
        self.assertIs(report["complete"], False)
        done = [result for result in report["results"] if result["status"] == "ok"]
        self.assertTrue(done)
        self.assertTrue(all(result["median_seconds"] > 0 for result in done))
        self.assertTrue(all(result["note"] == "interrupted" for result in report["results"]
                            if result["status"] not in ("ok", "slow")))
        for name, mark in (("a.md", "INTERRUPTED"), ("a.html", "The run was interrupted")):
            with open(self.path(name)) as file:
                self.assertIn(mark, file.read())
        self.assertIn("interrupted",
                      self.succeed("compare", self.path("a.json"), self.path("a.json")).out)

    BENCH = ("bench", "heads=2", "q_len=128", "head_dim=32", *S2, "--no-ceilings", "--no-planning",
             "--backends", "cpu")

    def test_bench(self):
        outputs = []
        for suffix in ("json", "csv", "md", "html"):
            outputs += [f"--{suffix}", self.path("a." + suffix)]
        done = self.succeed(*self.BENCH, *outputs)
        self.assertIn("cpu", done.out)
        self.assertEqual(self.files(), ["a.csv", "a.html", "a.json", "a.md"])
        with open(self.path("a.json")) as file:
            report = json.load(file)
        self.assertEqual((report["schema"], report["schema_version"], report["complete"]),
                         ("tessera-bench", 2, True))
        keys = {"machine", "library", "settings", "devices", "planning", "results"}
        self.assertTrue(keys <= report.keys())
        sparse, dense = report["results"]  # the problem and its dense twin, in turns
        self.assertEqual(sparse["rounds"], dense["rounds"])
        self.assertEqual(len(sparse["samples_seconds"]), sparse["rounds"])
        self.assertGreaterEqual(sparse["runs"], sparse["rounds"])
        self.assertEqual(sparse["noisy"], sparse["spread"] > 0.1)
        self.assertEqual([line["problem"] for line in report["lines"]], [sparse["problem"]])
        with open(self.path("a.csv"), newline="") as file:
            rows = list(csv.reader(file))
        self.assertEqual(len(rows), 1 + len(report["results"]))
        self.assertEqual({len(row) for row in rows}, {len(rows[0])})
        with open(self.path("a.html")) as file:
            page = file.read()
        self.assertIn("</html>", page)
        self.assertNotRegex(page, r"(src|href)=[\"']?https?:")  # self-contained
        with open(self.path("a.md")) as file:
            self.assertIn("|", file.read())

        self.succeed(*self.BENCH, "--json", self.path("b.json"))
        both = self.succeed("compare", self.path("a.json"), self.path("b.json"),
                            "--md", self.path("c.md"), "--html", self.path("c.html"))
        self.assertRegex(both.out, r"\nS2 128 +f32, 2 heads, D 32, B=.*x\n")
        self.assertEqual(self.files(),
                         ["a.csv", "a.html", "a.json", "a.md", "b.json", "c.html", "c.md"])

    @measures
    def test_bench_decode(self):
        """The fields of decode, and what files without them are taken for."""
        outputs = [word for suffix in ("json", "csv", "md", "html")
                   for word in ("--" + suffix, self.path("a." + suffix))]
        done = self.succeed("bench", *self.CACHE, "batch=2", "kv_len=600", "page=64", "compact=1",
                            *self.BENCH[-4:], *outputs)
        self.assertRegex(done.out, r"s2 +f32 +600 +2 x 1 +8/4 +16 slots 64 ")
        self.assertRegex(done.out, r"dense +f32 +600 +2 x 1 +8/4 +16 pages 64 ")
        with open(self.path("a.json")) as file:
            report = json.load(file)
        sparse, dense = report["results"]
        self.assertEqual([sparse[key] for key in ("status", "op", "page", "compact", "q_len")],
                         ["ok", "decode", 64, True, 1])
        self.assertEqual((dense["op"], dense["page"], dense["compact"]), ("decode", 64, False))
        self.assertLess(sparse["cache_bytes"], dense["cache_bytes"])
        self.assertEqual(dense["cache_bytes"], 2 * 2 * 640 * 4 * 16 * 4)
        self.assertGreaterEqual(sparse["layers"], 2)
        self.assertGreaterEqual(sparse["parts"], 1)
        self.assertIsNone(sparse["host_seconds"])  # on a CPU the call does the work
        rate = sparse["bytes_min"] / sparse["median_seconds"]
        self.assertAlmostEqual(sparse["byte_rate"] / rate, 1, places=12)
        with open(self.path("a.csv"), newline="") as file:
            head, row, _ = list(csv.reader(file))
        row = dict(zip(head, row))
        self.assertEqual((row["op"], row["page"], row["compact"], row["host_seconds"]),
                         ("decode", "64", "1", ""))
        self.assertEqual(int(row["cache_bytes"]), sparse["cache_bytes"])
        with open(self.path("a.html")) as file:
            self.assertEqual(file.read().count('<tbody data-kind=decode>'), 1)
        self.succeed("compare", self.path("a.json"), self.path("a.json"))
        for result in report["results"]:
            for key in ("op", "page", "compact", "layers", "cache_bytes", "parts", "host_seconds"):
                del result[key]
        with open(self.path("old.json"), "w") as file:
            json.dump(report, file)
        self.succeed("compare", self.path("a.json"), self.path("old.json"))
        sparse["op"] = "sideways"
        with open(self.path("old.json"), "w") as file:
            json.dump(report, file)
        self.refuse(1, "results[0].op: ", "compare", self.path("a.json"), self.path("old.json"))

    def bench_vendors(self, *words, **options):
        """The vendors suite in 2 s, or in more where a slow CPU measures nothing then."""
        for budget in (2, 8, 32, 128):
            done = self.call("bench", "--budget", budget, *self.BENCH[-4:], *words, **options)
            if "nothing could be measured" not in done.err:
                break
            self.assertEqual(done.code, 1, done.err)
        self.assertEqual(done.code, 0, f"{words}: {done.err}")
        return done

    @measures
    def test_bench_fixed(self):
        """Every line of the suite is a result, if only one that says how long it would take."""
        done = self.bench_vendors("--dtype", "bf16,f32", "--json", self.path("a.json"),
                                  env={"TESSERA_CPU_THREADS": "1"})
        with open(self.path("a.json")) as file:
            report = json.load(file)
        self.assertEqual(report["suite"], "vendors")
        self.assertEqual(sorted(line["problem"] for line in report["lines"]),
                         sorted(result["problem"] for result in report["results"]))
        slow = [result for result in report["results"] if result["status"] == "slow"]
        # What has run tells of the others.
        self.assertTrue(any(result["estimate_seconds"] for result in slow))
        for result in slow:
            # null: nothing like it has run
            self.assertGreater(result["need_seconds"], result["estimate_seconds"] or 0)
            self.assertIn("would take about ", result["note"])
            self.assertTrue(result["kernel"].startswith("cpu/"))
            self.assertNotIn("median_seconds", result)
        self.assertRegex(done.out, r"no time for: (.*, )?(dense|s2|window) \d+k \(")
        for result in report["results"]:
            self.assertIn(result["status"], ("ok", "slow", "memory"))
            self.assertEqual(result["heads"], result["heads_total"])  # never cut

    @measures
    def test_bench_submit(self):
        """One file, named after the device, that tells nothing of the machine's folders."""
        self.refuse(2, "--submit", "bench", "quick", "--submit")
        self.refuse(2, "--submit", "bench", "--dtype", "f32", "--submit")
        self.refuse(2, "--submit", *self.BENCH, "--submit")
        os.mkdir(self.path("gone"))
        gone = self.call("bench", "--budget", "4", *self.BENCH[-4:], "--submit",
                         folder=self.path("gone"), prepare=lambda: os.rmdir(self.path("gone")))
        self.assertEqual(gone.code, 1)  # before anything is measured
        self.assertIn("--submit: cannot write tessera.json: ", gone.err)
        self.assertEqual(gone.out, "")
        peer = os.path.join(self.folder.name, "peers", "secret.py")
        os.mkdir(os.path.dirname(peer))
        with open(peer, "w") as file:
            file.write("import json; print(json.dumps({'name': 'P', 'note': "
                       "'no \"/home/secret/x.so\": gone'}))")
        os.mkdir(self.path("here"))
        done = self.bench_vendors("--submit", "--peers", peer, folder=self.path("here"),
                                  env={"TESSERA_CACHE_DIR": "/nowhere/secret"})
        name, = os.listdir(self.path("here"))
        self.assertRegex(name, r"^[a-z0-9-]+-\d{8}T\d{6}Z\.json$")
        self.assertIn(f"written: {name}. Nothing was sent.", done.out)
        with open(os.path.join(self.path("here"), name)) as file:
            text = file.read()
        self.assertNotIn("secret", text)
        report = json.loads(text)
        self.assertEqual(report["peers"], [{"name": "P", "version": "", "note": 'no "...": gone'}])
        self.assertEqual(report["command"], "tessera bench vendors")
        body = text[:text.rindex('"checksum"')]
        self.assertEqual(report["checksum"], f"crc32:{zlib.crc32(body.encode()):08x}")

    def test_bench_refuses(self):
        self.refuse(2, "nonsense", "bench", "nonsense")
        self.refuse(2, "hedas", "bench", "hedas=4", "q_len=16", "head_dim=8", "pattern=dense")
        self.refuse(2, "--budget", "bench", "quick", "--budget", "soon")
        self.refuse(2, "--dtype", "bench", "quick", "--dtype", "f64")
        done = self.call(*self.BENCH[:-1], "nonsense")
        self.assertIn(done.code, (1, 2))
        self.assertIn("nonsense", done.err)
        for suffix in ("json", "csv", "md", "html"):
            self.refuse(1, "none", *self.BENCH, f"--{suffix}", self.path("none/a"))

    def test_bench_words(self):
        """A word of the command line is one word of the problem, whatever it holds."""
        options = ("--no-ceilings", "--no-planning", "--json", self.path("a.json"))
        small = ("heads=1", "q_len=64", "head_dim=16", "local=1", "stride=2")
        self.refuse(2, "heads: ", "bench", "heads=1 q_len=64", *small[2:])
        self.refuse(2, "#x: ", "bench", *small, "#x=1", "bogus=3")
        write_array(self.path("my #1 mask.npy"), "|b1", (1, 4, 4), b"\1" * 16)
        self.succeed("bench", "heads=1", "q_len=64", "head_dim=16", "pattern=blocks", "block=16",
                     "mask=" + self.path("my #1 mask.npy"), *options)
        with open(self.path("a.json")) as file:
            results = json.load(file)["results"]
        self.assertEqual([r["status"] for r in results], ["ok", "ok"])
        self.assertIn("mask=" + self.path("my #1 mask.npy"), shlex.split(results[0]["problem"]))
        self.assertEqual(results[1]["problem"], "heads=1 head_dim=16 q_len=64 pattern=dense")

    def test_bench_options(self):
        for words in (("quick", "--dtype", ""), ("quick", "--dtype", "f16,f16"),
                      ("quick", "--dtype", "f16,"), ("quick", "--budget", "0x10"),
                      ("quick", "--budget", "0"), ("quick", "--budget", "1.2.3"),
                      ("quick", "--budget", "1e3"), ("quick", "--kernels", "some")):
            self.refuse(2, words[1] + ": ", "bench", *words)
        self.refuse(2, "--list", "bench", "--list", "extra")
        self.refuse(2, "--js", "bench", "quick", "--js", self.path("a"))
        self.refuse(2, "--json: given twice", "bench", "quick", "--json", self.path("a"),
                    "--json", self.path("b"))
        self.refuse(2, "given twice", "bench", "quick", "quick")
        self.refuse(2, "--dtype", *self.BENCH, "--dtype", "f32")
        self.succeed("bench", *self.BENCH[-4:], *self.BENCH[1:-4], env={"POSIXLY_CORRECT": "1"})
        for backends in ("", ",", "cpu:", "cpu:x", "cpu,", "cpu,,cpu", "nonsense",
                         "cpu:7,nonsense"):
            self.refuse(2, "tessera bench: --backends: ", *self.BENCH[:-1], backends)
        self.refuse(1, "cpu has 1 device", *self.BENCH[:-1], "cpu:7")
        self.refuse(1, "tessera bench: TESSERA_BACKEND: ", *self.BENCH[:-2],
                    env={"TESSERA_BACKEND": "cpu:"})

    def test_outputs_that_are_one_file(self):
        os.mkdir(self.path("d1"))
        os.symlink("d1", self.path("d2"))
        self.refuse(2, ("--json", "--csv"), *self.BENCH, "--json", self.path("same"),
                    "--csv", self.path("./same"))
        self.refuse(2, ("--md", "--html"), *self.BENCH, "--md", self.path("d1/x"),
                    "--html", self.path("d2/x"))
        self.succeed(*self.BENCH, "--json", self.path("a.json"))
        both = ("compare", self.path("a.json"), self.path("a.json"))
        self.refuse(2, ("--md", "--html"), *both, "--md", self.path("d1/x"),
                    "--html", self.path("d2/x"))
        self.refuse(2, "--md", *both, "--md", self.path("a.json"))
        self.refuse(1, "--md: cannot write ", *both, "--md", self.path("none/x"))

    def test_messages_are_one_line(self):
        """The terminal must not be spoken to by what stands in a word."""
        for words in (("bench", "a\nb\x1b[31m"), ("bench", "quick", "--\x1bx\ny"),
                      ("compare", "a\nb\x1b[31m", "a.json"), ("compare", "a", "b", "--\x1bx\ny"),
                      ("bench", "heads=1", "x\n=1")):
            done = self.call(*words)
            self.assertIn(done.code, (1, 2), words)
            self.assertEqual((done.err.count("\n"), done.err.count("\x1b")), (1, 0), words)

    def test_bench_lists(self):
        out = self.succeed("bench", "--list").out
        for family in ("phi3-small", "llama3-8b", "s2-16", "s2-32", "s2-64", "neox-64"):
            self.assertIn(family, out)

    def test_compare_refuses(self):
        self.succeed(*self.BENCH, "--json", self.path("a.json"))
        with open(self.path("a.json")) as file:
            text = file.read()
        damaged = ["", "{}", "[]", "null", text[: len(text) // 2], text + "x",
                   text.replace("tessera-bench", "other"),
                   text.replace('"schema_version":', '"schema_version": 9, "x":'),
                   text.replace('"results"', '"result"'),
                   text.replace('"device":', '"device": 77, "y":'), "[" * 100000,
                   text.replace('"problem":', '"problem": 3, "z":')]
        for n, content in enumerate(damaged):
            with open(self.path("bad.json"), "w") as file:
                file.write(content)
            try:
                self.refuse(1, "bad.json", "compare", self.path("a.json"), self.path("bad.json"))
            except AssertionError as error:
                raise AssertionError(f"damaged file {n}: {error}") from None
        self.refuse(1, "none.json", "compare", self.path("a.json"), self.path("none.json"))
        os.mkfifo(self.path("pipe"))
        self.refuse(1, "pipe: not a regular file", "compare", self.path("a.json"),
                    self.path("pipe"))
        self.refuse(1, "not a regular file", "compare", self.path("a.json"), self.folder.name)

        def refuse_change(names, **fields):
            report = json.loads(text)
            for key, value in fields.items():
                if value is None:
                    del report["results"][0][key]
                else:
                    report["results"][0][key] = value
            with open(self.path("bad.json"), "w") as file:
                json.dump(report, file)
            self.refuse(1, ("bad.json: results[0].", *names), "compare", self.path("a.json"),
                        self.path("bad.json"))

        for key in ("family", "kernel", "pattern", "dtype", "batch", "q_len", "kv_len", "heads",
                    "heads_total", "kv_heads", "head_dim", "median_seconds", "q1_seconds",
                    "q3_seconds", "min_seconds", "max_seconds", "flops", "bytes_min", "kept_pairs",
                    "dense_pairs"):
            refuse_change((key, "missing"), **{key: None})
        refuse_change(("q1_seconds", "above the median"), q1_seconds=999)
        refuse_change(("q3_seconds", "below the median"), q3_seconds=0)
        refuse_change(("heads", "out of range"), heads=0)
        refuse_change(("pattern",), pattern="stripes")


if __name__ == "__main__":
    main()
