# SPDX-License-Identifier: Apache-2.0
"""`tessera compare` on made-up results: golden files, every number worked out again, bad input.

    test_compare.py COMMAND [--write]     --write replaces the golden files by what is printed now
"""
import csv
import io
import json
import math
import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import command  # noqa: E402
import made_results as made  # noqa: E402
import made_table  # noqa: E402

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
WRITE = "--write" in sys.argv
SAME = 0.02  # as in bench/matrix.h
DENSE, SPARSE, DECODE, PAGES, SINGLE, GRADIENTS = [entry[2] for entry in made.LINES]


def gpu(n, name="Made-up GPU"):
    return made.device(f"cuda:{n}", "gpu", name, {"f32": 5e13, "bf16": 7e14}, 3.9e12, 4.2e12)


def one_device(factor=1.0, spread=0.02, **changes):
    """Three problems on one GPU."""
    times = ((DENSE, 2.4e-4), (SPARSE, 8.4e-5), (DECODE, 4.1e-5))
    return made.report([gpu(0)], [made.measured(0, line, "cuda/sm90", t * factor, spread)
                                  for line, t in times], **changes)


def eight_devices():
    """Gaps, ties, and the kernels of two devices beside each other."""
    devices = [gpu(n, f"Made-up GPU {n}") for n in range(8)]
    results = []
    for n in range(8):
        results.append(made.measured(n, DENSE, "cuda/sm90", 2.4e-4 * (1 + n // 2 * 0.3)))
        if n % 3:
            results.append(made.measured(n, DECODE, "cuda/few_rows", 4e-5 * (1 + n * 0.01), 0.04))
        if n == 7:
            results.append(made.missing(n, SPARSE, "cuda/sm90", "memory", "needs 90 GiB"))
    results.append(made.measured(3, DENSE, "cuda/portable", 9e-4))
    return made.report(devices, results)


def version_1(root):
    """The same as a file of schema 1 would say it."""
    old = json.loads(json.dumps(root))
    old["schema_version"] = 1
    for key in ("lines", "peers", "checksum"):
        old.pop(key, None)
    for device in old["devices"]:
        for key in ("uuid", "pci", "sensors", "energy"):
            device.pop(key)
        device["ceilings"] = [c for c in device["ceilings"] if c["what"] != "read"]
        for ceiling in device["ceilings"]:
            del ceiling["via"]
    for result in old["results"]:
        for key in ("peer", "compile_seconds", "rounds", "runs", "before", "after", "joules"):
            result.pop(key, None)
        if result["status"] not in ("ok", "failed"):
            result["status"] = "skipped"
    return old


class Compare(command.CommandTest):
    def put(self, name, root):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(made.text(root) if root.get("schema_version") == 2 else json.dumps(root))
        return name

    def compare(self, *words, code=0):
        done = self.call("compare", *words, folder=self.folder.name)
        self.assertEqual(done.code, code, done.err)
        return done

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def golden(self, name, text):
        path = os.path.join(GOLDEN, name)
        if WRITE:
            os.makedirs(GOLDEN, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(text, file.read(), f"{name}: test_compare.py COMMAND --write")

    # -------------------------------------------------------------- golden files

    def test_golden(self):
        self.put("vendors.json", made.example())
        self.put("a.json", one_device())
        # 1 % faster, within the spread; then 1.3 times slower
        self.put("b.json", one_device(0.99, created="2026-01-03T03:04:05Z"))
        self.put("c.json", one_device(1.3, created="2026-01-04T03:04:05Z"))
        self.put("eight.json", eight_devices())
        old = version_1(one_device(1.1))
        self.put("old.json", old)
        for name, words in (("vendors", ["vendors.json"]),
                            ("one", ["a.json"]),
                            ("versions", ["a.json", "b.json", "c.json"]),
                            ("base", ["vendors.json", "--base", "opencl:0"]),
                            ("eight", ["eight.json"]),
                            ("schema1", ["old.json", "a.json", "--base", "a.json"])):
            done = self.compare(*words, "--md", "out.md")
            self.golden(name + ".txt", done.out)
            self.golden(name + "-markdown.txt", self.read("out.md"))

    # -------------------------------------------------------------- every number again

    def check_cells(self, root, base=None, **words):
        """Every line of the CSV, and every cell of the JSON, from the file alone."""
        self.put("x.json", root)
        options = ["--base", base] if base else []
        self.compare("x.json", "--csv", "x.csv", "--json", "x2.json", *options)
        rows = list(csv.DictReader(io.StringIO(self.read("x.csv"))))
        self.assertEqual(len(rows), len(root["results"]))
        matrix = json.loads(self.read("x2.json"))
        names = [d["id"] for d in root["devices"]]

        def find(row):
            found = [r for r in root["results"] if r["problem"] == row["problem"] and
                     names[r["device"]] == row["device"] and r["peer"] == row["peer"] and
                     r["kernel"] == row["kernel"]]
            self.assertEqual(len(found), 1, row)
            return found[0]

        def same(x, y):
            return (x["q1_seconds"] <= y["q3_seconds"] and y["q1_seconds"] <= x["q3_seconds"] or
                    abs(x["median_seconds"] / y["median_seconds"] - 1) <= SAME)

        checked = 0
        for row in rows:
            result = find(row)
            self.assertEqual(row["status"], result["status"])
            if result["status"] != "ok":
                self.assertEqual(row["median_seconds"] + row["rate"] + row["place"], "")
                continue
            median = result["median_seconds"]
            self.assertAlmostEqual(float(row["median_seconds"]) / median, 1, places=8)
            decode = result["op"] == "decode"
            self.assertEqual(row["kind"], {"fwd": "prefill", "bwd": "backward",
                                           "decode": "decode"}[result["op"]])
            self.assertEqual(row["rate_unit"], "B/s" if decode else "FLOP/s")
            work = result["bytes_min"] if decode else result["flops"]
            self.assertAlmostEqual(float(row["rate"]) * median / work, 1, places=7)
            limits = root["devices"][result["device"]]["ceilings"]
            usable = [c["rate"] for c in limits if c["what"] != "gemm"] if decode else \
                [c["rate"] for c in limits if c.get("dtype") in (result["dtype"], "f32")]
            if usable:
                share = work / median / max(usable)
                self.assertAlmostEqual(float(row["limit_share"]) / share, 1, places=7)
            others = [r for r in root["results"] if r["problem"] == result["problem"] and
                      r["status"] == "ok"]
            best = min(others, key=lambda r: r["median_seconds"])
            doubtful = any(r["status"] == "slow" and r["problem"] == result["problem"] and
                           r["estimate_seconds"] < best["median_seconds"] for r in root["results"])
            place = "" if len(others) < 2 or doubtful else "best" if result is best else \
                "level" if same(result, best) else ""
            self.assertEqual(row["place"], place, row)
            if base:
                than = [r for r in others if names[r["device"]] == base and not r["peer"]]
                if than and result is not than[0]:
                    self.assertAlmostEqual(float(row["ratio"]),
                                           than[0]["median_seconds"] / median, places=7)
                    self.assertEqual(row["no_difference"] == "1", same(result, than[0]))
            checked += 1
        cells = [c for r in matrix["rows"] for c in r["cells"] if c]
        self.assertEqual(len(cells), len(rows))
        self.assertEqual(sorted(round(c["median"] * 1e12) for c in cells if c["status"] == "ok"),
                         sorted(round(float(r["median_seconds"]) * 1e12) for r in rows
                                if r["status"] == "ok"))
        for k, column in enumerate(matrix["columns"]):
            mine = [(r["cells"][k], r["cells"][column["base"]]) for r in matrix["rows"]] \
                if column["base"] >= 0 else []
            both = [math.log(b["median"] / c["median"]) for c, b in mine
                    if c and b and c["status"] == b["status"] == "ok"]
            self.assertEqual(column["mean"]["count"], len(both))
            if both:
                self.assertAlmostEqual(math.log(column["mean"]["ratio"]), sum(both) / len(both),
                                       places=5)
        return checked

    def test_cells(self):
        self.assertEqual(self.check_cells(made.example()), 24)
        self.assertEqual(self.check_cells(made.example(), "opencl:0"), 24)
        self.assertEqual(self.check_cells(eight_devices()), 14)

    # -------------------------------------------------------------- files of one machine

    def test_two_runs_of_one_machine(self):
        self.put("a.json", one_device(spread=0.004))
        self.put("b.json", one_device(1.015, spread=0.004))
        done = self.compare("a.json", "b.json", "--fail-below", "0.99")
        self.assertRegex(done.out, r"\nB Made-up GPU \(cuda\): .* 3 common problems, 0 of which "
                                   r"differ: no difference\n")

    def test_bases_are_of_one_kind(self):
        """Without a named base, a GPU has no ratio to an emulation of the same id or to a CPU."""
        def machine(name, kind, *times):
            limits = {"bf16": 7e14}, 3.9e12, 4.2e12
            devices = [made.device("cpu:0", "cpu", name + " CPU", *limits),
                       made.device("vulkan:0", kind, name + " thing", *limits),
                       made.device("vulkan:1", kind, "Made-up GPU", *limits)]
            return made.report(devices, [made.measured(n, DENSE, "any", t)
                                         for n, t in enumerate(times)])
        self.put("a.json", machine("One", "software", 0.1, 0.2, 0.3))
        self.put("b.json", machine("Two", "gpu", 0.05, 1e-4, 2e-4))
        self.put("c.json", machine("Three", "software", 0.1, 0.3))
        for words, bases in ((["b.json"], [-1, -1, -1, 0, -1, -1]),
                             (["c.json"], [-1, -1, -1, 0, 1]),
                             (["b.json", "--base", "A"], [-1, -1, -1, 0, 1, 2])):
            self.compare("a.json", *words, "--json", "o.json")
            self.assertEqual([c["base"] for c in json.loads(self.read("o.json"))["columns"]], bases)
        # A name weighs more than an id.
        self.put("d.json", made.report([gpu(0, "Another GPU"), gpu(1)],
                                       [made.measured(n, DENSE, "cuda/sm90", 1e-3)
                                        for n in range(2)]))
        self.put("e.json", one_device())
        self.compare("d.json", "e.json", "--json", "o.json")
        self.assertEqual([c["base"] for c in json.loads(self.read("o.json"))["columns"]],
                         [-1, -1, 1])

    def test_drift(self):
        """What differs by less than fixed loops did over either run is no difference."""
        for drift, told in ((0.02, "3 of which differ"), (0.15, "0 of which differ")):
            later = one_device(1.1)
            later["devices"][0].update(drift=drift, rounds=5)
            self.put("a.json", one_device())
            self.put("b.json", later)
            self.assertIn(told, self.compare("a.json", "b.json").out)
        # A peer ran right beside its own device alone, not beside that of another file.
        for result in list(later["results"]):
            later["results"].append(made.measured(0, result["problem"], "sdpa",
                                                  1.1 * result["median_seconds"], peer="Peer"))
        self.put("b.json", later)
        base = one_device(1.1)
        self.put("a.json", base)
        for name, told in (("A cuda:0", "0 of which differ"), ("B cuda:0", "3 of which differ")):
            done = self.compare("a.json", "b.json", "--base", name)
            self.assertRegex(done.out, rf"\nB Made-up GPU \(Peer\): .*, {told}")

    def test_above_limit(self):
        """A share above 100 % is marked in every view, one within the spread is not."""
        for factor, spread, marked in ((0.75, 0.02, True), (0.75, 0.5, False),
                                       (1, 0.02, False)):
            root = one_device(factor, spread)
            root["results"] = root["results"][:1]
            self.put("a.json", root)
            done = self.compare("a.json", "--md", "a.md", "--csv", "a.csv", "--json", "o.json",
                                "--html", "a.html")
            row, = csv.DictReader(io.StringIO(self.read("a.csv")))
            self.assertEqual(row["above_limit"], "1" if marked else "0")
            self.assertEqual(float(row["limit_share"]) > 1, factor < 1)
            cell, = [c for r in json.loads(self.read("o.json"))["rows"] for c in r["cells"]]
            self.assertEqual(cell.get("above_limit", False), marked)
            for text in done.out, self.read("a.md"):
                self.assertEqual("%?" in text, marked, text)
            self.assertEqual(">above the limit<" in self.read("a.html"), marked)

    def test_commit(self):
        """Which sources were measured, where the file tells."""
        for commit in ("4ac8b16d2f07-dirty", None):
            root = one_device()
            if commit:
                root["library"]["commit"] = commit
            self.put("a.json", root)
            done = self.compare("a.json", "--md", "a.md", "--json", "o.json", "--html", "a.html")
            for text in done.out, self.read("a.md"):
                self.assertIn(f"Tessera 0.1.0 ({commit})," if commit else "Tessera 0.1.0,", text)
            shown = f"0.1.0 ({commit})" if commit else "0.1.0,"
            self.assertIn(shown, self.read("a.html"))
            self.assertEqual(json.loads(self.read("o.json"))["files"][0].get("commit"), commit)

    def test_fail_below(self):
        self.put("a.json", one_device())
        self.put("b.json", one_device(1.2))
        self.compare("a.json", "b.json", "--fail-below", "0.8")
        done = self.compare("a.json", "b.json", "--fail-below", "0.95", code=1)
        self.assertIn("reaches 0.833 of A Made-up GPU (cuda) over 3 problems", done.err)
        self.compare("b.json", "a.json", "--fail-below", "0.95")
        # 0.833, up to 0.850 by the spreads, or up to 0.868.
        self.put("wide.json", one_device(1.2, spread=0.06))
        self.compare("a.json", "b.json", "--fail-below", "0.86", code=1)
        self.compare("a.json", "wide.json", "--fail-below", "0.86")
        self.compare("a.json", "wide.json", "--fail-below", "0.95", code=1)
        # A slow peer that the older file does not have is no loss; one that it has may be.
        peers = one_device()
        peers["results"].append(made.measured(0, DENSE, "sdpa", 1e-3, peer="Peer"))
        self.put("peers.json", peers)
        self.compare("a.json", "peers.json", "--fail-below", "0.95")
        peers["results"][-1] = made.measured(0, DENSE, "sdpa", 2e-3, peer="Peer")
        self.put("slower.json", peers)
        done = self.compare("peers.json", "slower.json", "--fail-below", "0.95", code=1)
        self.assertIn("(Peer) reaches 0.500 of A Made-up GPU (Peer) over 1 problems", done.err)
        # What is no difference is not 1.2 times as fast.
        self.put("same.json", one_device())
        self.compare("a.json", "same.json", "--fail-below", "1")
        self.compare("a.json", "same.json", "--fail-below", "1.2", code=1)
        self.compare("a.json", "b.json", "--base", "b.json", "--fail-below", "0.95")
        for bad in ("", "fast", "0", "-1", "nan", "inf", "1x"):
            self.refuse(2, "--fail-below", "compare", self.path("a.json"), self.path("b.json"),
                        "--fail-below", bad)
        self.refuse(2, ("--base", "nobody", "cuda:0"), "compare", self.path("a.json"), "--base",
                    "nobody")

    def test_files_of_different_suites(self):
        self.put("a.json", one_device())
        other = one_device(suite="quick")
        for result in other["results"]:
            result["problem"] += " scale=0.5"
            result["dense_twin"] = ""
        self.put("b.json", other)
        self.refuse(1, ("no problem in common", "a.json has 3 of suite 'vendors'",
                        "b.json has 3 of suite 'quick'"), "compare", self.path("a.json"),
                    self.path("b.json"))
        other["results"][0]["problem"] = DENSE
        self.put("b.json", other)
        done = self.compare("a.json", "b.json")
        self.assertIn("2 of the problems are in A alone and left out.", done.out)
        self.assertIn("2 of the problems are in B alone and left out.", done.out)

    def test_changed_file(self):
        self.put("a.json", made.example())
        text = self.read("a.json").replace("cuda/sm90", "cuda/sm91", 1)
        with open(self.path("a.json"), "w", encoding="utf-8") as file:
            file.write(text)
        done = self.compare("a.json", "--html", "a.html", "--md", "a.md")
        for form in (done.out, self.read("a.html"), self.read("a.md")):
            self.assertIn("its checksum is wrong", form)

    def test_foretold(self):
        """Nothing is the fastest beside what was foretold to be faster, and not run."""
        devices = [made.device(f"cpu:{n}", "cpu", f"Processor {n}", {}, 1e11, 1e11)
                   for n in range(3)]
        times = [made.measured(n, DENSE, "cpu/avx2", (n + 1) * 1e-3) for n in range(2)]
        for need, place in ((8e-3, "best"), (3e-3, "")):  # of which a run takes a quarter
            slow = made.missing(2, DENSE, "cpu/avx2", "slow", "would take too long", need)
            self.put("a.json", made.report(devices, times + [slow]))
            self.compare("a.json", "--csv", "a.csv")
            first = next(csv.DictReader(io.StringIO(self.read("a.csv"))))
            self.assertEqual(first["place"], place)

    def test_devices(self):
        """How large a device is, which one is a base, and which plans were left out and why."""
        a, b = one_device(), one_device()
        a["devices"].append(made.device("cpu:0", "cpu", "Processor", {}, 1e11, 1e11))
        a["results"].append(made.measured(1, DENSE, "cpu/avx2", 1e-2))
        a["devices"][1].update(compute_units=1, planning_note="gradients <left> out, 9 s")
        b["devices"][0]["compute_units"] = 0
        self.put("a.json", a)
        self.put("b.json", b)
        done = self.compare("a.json", "b.json", "--html", "a.html", "--json", "o.json")
        for text in ("A Made-up GPU (cuda), 8 multiprocessors, cuda/sm90\n",
                     "A Processor (cpu), 1 thread, cpu/avx2\n",
                     "B Made-up GPU (cuda), cuda/sm90\n"):
            self.assertIn(text, done.out)
        self.assertEqual([c["compute_units"] for c in json.loads(self.read("o.json"))["columns"]],
                         [8, 1, 0])
        page = self.read("a.html")
        self.assertEqual((page.count("<td data-n=speed>base"), page.count("<td data-n=speed>–")),
                         (1, 1))
        self.assertIn("cpu:0: gradients &lt;left&gt; out, 9 s", page)

    def test_order(self):
        """Rows have the order of the suite, whatever was measured first."""
        root = made.example()
        orders = []
        for results in root["results"], root["results"][::-1]:
            self.put("a.json", dict(root, results=results))
            self.compare("a.json", "--json", "o.json")
            orders.append([r["problem"] for r in json.loads(self.read("o.json"))["rows"]])
        self.assertEqual(orders[0], orders[1])
        groups = [line for _, _, line, *_ in made.LINES]
        self.assertLess(orders[0].index(groups[0]), orders[0].index(groups[1]))

    def test_nothing_measured(self):
        """A device without a kernel that ran is named without one."""
        root = one_device()
        root["results"] = [made.missing(0, DENSE, "", "memory", "needs 90 GiB")]
        self.put("a.json", root)
        self.assertIn("cuda:0: Made-up GPU (cuda), 8 multiprocessors\n", self.compare("a.json").out)

    def test_costs(self):
        """What a device tells of itself stands in the page where it told something."""
        root = one_device()
        self.put("a.json", root)
        self.compare("a.json", "--html", "a.html")
        page = self.read("a.html")
        self.assertIn("<td>1.98 GHz, 350 W, 41 → 44 °C", page)
        self.assertNotIn("tokens a joule", page)
        root["results"][0]["joules"] = 0.25
        self.put("a.json", root)
        self.compare("a.json", "--html", "a.html")
        self.assertIn("<td>0.25<td>1.64e+04", self.read("a.html"))  # 4096 / 0.25
        self.put("a.json", made.example())  # peers plan nothing
        self.compare("a.json", "--html", "a.html")
        self.assertNotIn("nan", self.read("a.html").split("<script")[0])

    def test_figures(self):
        """Each chart of a page is a picture of its own, which is XML although the page is not."""
        self.put("a.json", made_table.table())
        self.compare("a.json", "--html", "a.html")
        script = os.path.join(os.path.dirname(GOLDEN), "..", "..", "bench", "figures.py")
        done = subprocess.run([sys.executable, "-B", script, self.path("a.html"),
                               self.path("chart")], check=True, stdout=subprocess.PIPE)
        paths = [line.split(" ")[0] for line in done.stdout.decode().splitlines()]
        self.assertEqual(len(paths), self.read("a.html").count("<svg class=chart"))
        for path in paths:
            picture = xml.etree.ElementTree.parse(path).getroot()
            self.assertGreater(len(list(picture.iter("{http://www.w3.org/2000/svg}use"))), 3)

    # -------------------------------------------------------------- bad input

    def test_nothing_escapes(self):
        """What stands in a file never becomes a part of the page, the table or the terminal."""
        evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&|`*"
        root = made.example()
        for device in root["devices"]:
            device["name"] = evil
            device["ceilings"][0]["library"] = evil
        for result in root["results"]:
            result["note"] = evil
            result["kernel"] = "k" + evil[:50]
        root["machine"]["cpu"] = root["suite"] = root["created"] = evil[:39]
        self.put("a.json", root)
        self.compare("a.json", "--html", "a.html", "--md", "a.md", "--csv", "a.csv", "--json",
                     "b.json", "--title", evil)
        page = self.read("a.html")
        self.assertNotIn("<script>alert", page)
        self.assertNotIn("<img", page)
        ends = page.count("</script")
        self.assertEqual(page.count("<script"), ends)
        self.assertNotIn("<script", self.read("a.md").replace("\\<", ""))
        self.assertEqual(json.loads(self.read("b.json"))["columns"][0]["device"], evil)
        rows = list(csv.reader(io.StringIO(self.read("a.csv"))))
        self.assertEqual({len(row) for row in rows}, {len(rows[0])})

    def test_text(self):
        """Every view stays UTF-8, where names are cut inside of a character, or are in another
        encoding; so does the path of a file."""
        root = one_device()
        root["devices"][0]["name"] = "a" + 100 * "\u00e9"
        root["machine"]["cpu"] = 100 * "\u20ac"
        for n, result in enumerate(root["results"]):
            result["kernel"] = "k/" + "?\U0001d11e"[n > 0] * 40
            result["pattern"] = "dense"
        text = json.dumps(root, ensure_ascii=False).encode()
        text = text.replace(b"Made-up Linux", b"\xfc \xed\xa0\x80")
        name = os.fsdecode(b"l\xfc.json")
        with open(self.path(name), "wb") as file:
            file.write(text)
        done = self.compare(name, "--html", "a.html", "--md", "a.md", "--json", "o.json")
        for shown in done.out, self.read("a.html"), self.read("a.md"), self.read("o.json"):
            self.assertNotIn("\ufffd" * 2, shown)
        matrix = json.loads(self.read("o.json"))
        self.assertEqual(matrix["files"][0]["path"], "l\ufffd.json")
        self.assertEqual(matrix["files"][0]["os"], "? ??? 1")
        self.assertIn("a" + 44 * "\u00e9" + " (cuda", matrix["columns"][0]["name"])

    def test_times(self):
        """Times that are none are refused by name; so is a file that is no JSON, or cut off."""
        for value in (-1, 0, 1e-300, 1e12, "1", None, [], True):
            root = one_device()
            root["results"][1]["median_seconds"] = value
            self.put("bad.json", root)
            self.refuse(1, ("bad.json", "results[1].median_seconds"), "compare",
                        self.path("bad.json"))
        for change, place in (("[]", "library"), ("5", "settings"), ("[5]", "settings"),
                              ('{"a": {}}', "planning")):
            root = one_device()
            root[place] = json.loads(change)
            self.put("bad.json", root)
            self.refuse(1, ("bad.json", place), "compare", self.path("bad.json"))
        for holder, key, value in (("devices", "ceilings", "x"), ("devices", "stages_seconds", []),
                                   ("results", "heads", 2.5)):
            root = one_device()
            root[holder][0][key] = value
            self.put("bad.json", root)
            self.refuse(1, ("bad.json", f"{holder}[0].{key}"), "compare", self.path("bad.json"))
        whole = made.text(one_device())
        for text in (whole.replace("0.00024", "NaN", 1), whole.replace("0.00024", "-1e400", 1),
                     whole[:-200], whole.replace('"schema_version": 2', '"schema_version": 3')):
            with open(self.path("bad.json"), "w", encoding="utf-8") as file:
                file.write(text)
            self.refuse(1, "bad.json", "compare", self.path("bad.json"))
        for text, place in (("", "byte 0 of 0 on"),
                            (whole.replace("0.00024", "NaN", 1),
                             f"byte {whole.index('0.00024')} of {len(whole) - 4} on")):
            with open(self.path("bad.json"), "w", encoding="utf-8") as file:
                file.write(text)
            self.refuse(1, ("bad.json: not JSON from " + place,), "compare", self.path("bad.json"))

    def test_large(self):
        root = one_device()
        root["settings"] = [{"name": "x", "value": "y" * 50_000_000, "source": "file"}]
        self.put("large.json", root)
        self.compare("large.json", "--html", "a.html")
        self.assertLess(len(self.read("a.html")), 400_000)
        root = one_device()
        root["results"] *= 7000
        self.put("large.json", root)
        self.refuse(1, ("large.json", "results", "too many"), "compare", self.path("large.json"))


if __name__ == "__main__":
    if WRITE:
        sys.argv.remove("--write")
    command.main()
