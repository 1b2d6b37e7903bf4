# SPDX-License-Identifier: Apache-2.0
"""The page of results in Chromium: narrow and wide, light and dark, with and without its script.

    test_page.py COMMAND [--pictures FOLDER]

Skipped without Debian's packages chromium and chromium-driver. With axe-core-python (PyPI) the page
is also checked for what keeps people from reading it. --pictures keeps screenshots."""
import glob
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import browser  # noqa: E402
import command  # noqa: E402
import made_results as made  # noqa: E402
import made_table  # noqa: E402

PICTURES = None
SAME = 0.02  # as in bench/matrix.h

# The rows that are seen, in their order, with the marks and texts of the cells that are seen.
ROWS = """JSON.stringify([...document.querySelectorAll('#matrix tbody tr[data-r]')].filter(
  tr => tr.offsetParent).map(tr => [+tr.dataset.r, [...tr.querySelectorAll('td')].filter(
  td => td.offsetParent && getComputedStyle(td).visibility === 'visible').map(
  td => [td.cellIndex - 1, td.className.match(/best|level|none/)?.[0] || '',
         td.querySelector('b')?.textContent || td.textContent.trim(),
         td.querySelector('.tag')?.textContent || ''])]))"""

# Names in the pictures of plots that lie on each other.
COLLISIONS = """JSON.stringify([...document.querySelectorAll('svg.chart')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent,
    t.getBoundingClientRect()]).filter(([, box]) => box.width);
  return texts.flatMap(([a, x], i) => texts.slice(0, i).filter(([, y]) =>
    Math.min(x.right, y.right) - Math.max(x.left, y.left) > 1 &&
    Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top) > 2.5).map(([b]) => [a, b]));
}))"""


def axe_source():
    try:
        import axe_core_python
    except ImportError:
        return None
    with open(os.path.join(os.path.dirname(axe_core_python.__file__), "axe.min.js"),
              encoding="utf-8") as file:
        return file.read()


class Page(command.CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.root = made.example()
        self.page = self.write("a", self.root)
        self.matrix = self.json("a")

    def write(self, name, root, *options):
        with open(self.path(name + ".json"), "w", encoding="utf-8") as file:
            file.write(made.text(root))
        self.succeed("compare", self.path(name + ".json"), "--html", self.path(name + ".html"),
                     "--json", self.path(name + ".matrix"), *options)
        return self.path(name + ".html")

    def json(self, name):
        with open(self.path(name + ".matrix"), encoding="utf-8") as file:
            return json.load(file)

    def open(self, page=None, fragment="", **look):
        look = {"width": 1280, "dark": False, "script": True, **look}
        self.browser.look(**look)
        self.browser.open(page or self.page, fragment)

    def rows(self):
        return json.loads(self.browser.value(ROWS))

    def keep(self, name, whole=False):
        if PICTURES:
            self.browser.picture(os.path.join(PICTURES, name + ".png"), whole)

    def choose(self, label, value):
        self.browser.value(f"""(() => {{
            const control = [...document.querySelectorAll('.controls label, .chart-controls label')]
                .find(l => l.firstChild.textContent.trim() === {json.dumps(label)})
                .querySelector('select, input');
            control.value = {json.dumps(value)};
            control.dispatchEvent(new Event(control.type === 'search' ? 'input' : 'change'));
        }})()""")

    def press(self, text):
        self.browser.value(f"""[...document.querySelectorAll('button')].find(
            b => b.textContent.trim() === {json.dumps(text)}).click()""")

    def wanted(self, off=(), kernel=None):
        """For each row, what the cells that are shown have to be marked with."""
        found = {}
        for r, row in enumerate(self.matrix["rows"]):
            times = {k: c for k, c in enumerate(row["cells"]) if c and c["status"] == "ok" and
                     k not in off and kernel in (None, c["kernel"])}
            marks = dict.fromkeys(times, "")
            if len(times) > 1:
                best = min(times, key=lambda k: times[k]["median"])
                b = times[best]
                for k, c in times.items():
                    level = (c["q1"] <= b["q3"] and b["q1"] <= c["q3"] or
                             abs(b["median"] / c["median"] - 1) <= SAME)
                    marks[k] = "best" if k == best else "level" if level else ""
            found[r] = marks
        return found

    def check_marks(self, rows, **shown):
        wanted = self.wanted(**shown)
        for r, cells in rows:
            self.assertEqual({k: mark for k, mark, *_ in cells if mark != "none"}, wanted[r],
                             self.matrix["rows"][r]["name"])

    # -------------------------------------------------------------- how it looks

    def test_looks(self):
        plain = None
        for width in (1280, 360):
            for dark in (False, True):
                for script in (False, True):
                    self.open(width=width, dark=dark, script=script)
                    which = f"{width} {'dark' if dark else 'light'} {'script' if script else ''}"
                    value = self.browser.value
                    self.assertLessEqual(value("document.documentElement.scrollWidth"), width,
                                         which)
                    rows = self.rows()
                    plain = plain or rows
                    self.assertEqual(rows, plain, which)  # the script marks what C marked
                    shade = [int(v) for v in re.findall(
                        r"\d+", value("getComputedStyle(document.body).backgroundColor"))]
                    self.assertEqual(sum(shade) < 200, dark, which)
                    self.assertEqual(value("!!document.querySelector('.controls')"), script, which)
                    self.assertEqual(self.browser.errors(), [], which)
                    self.keep(which.strip().replace(" ", "-"))
        self.check_marks(plain)
        self.assertEqual(len(plain), len(self.matrix["rows"]))
        # A name without a blank does not widen the page.
        self.root["machine"]["cpu"] = self.root["devices"][1]["name"] = "x" * 127
        self.root["results"][0]["kernel"] = "k" * 63
        self.open(self.write("long", self.root), width=360)
        self.assertLessEqual(value("document.documentElement.scrollWidth"), 360)

    def test_results(self):
        """The page of what was measured so far, as it stands in docs/."""
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        page = os.path.join(root, "docs", "results.html")
        for width in (1280, 360):
            self.open(page, width=width)
            self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), width)
            self.assertGreater(len(self.rows()), 30)
        self.assertLessEqual(self.browser.paper(), 4)
        self.browser.tools("Emulation.setEmulatedMedia", media="print")
        self.assertEqual(self.browser.value(
            "[...document.querySelectorAll('.fold, #more')].map(e => e.checkVisibility())"),
            [False, False])
        # One more machine has room on paper.
        files = sorted(glob.glob(os.path.join(root, "bench", "results", "*.json")))
        self.succeed("compare", *files, max(files, key=os.path.getsize), "--html",
                     self.path("more.html"))
        self.open(self.path("more.html"))
        self.assertLessEqual(self.browser.paper(), 4)
        self.assertEqual(self.browser.errors(), [])

    # -------------------------------------------------------------- filters

    def test_filters(self):
        self.open()
        rows = self.matrix["rows"]
        everything = self.rows()
        self.choose("Operation", "decode")
        self.assertEqual([r for r, _ in self.rows()],
                         [r for r, row in enumerate(rows) if row["kind"] == "decode"])
        self.choose("Find", "pages")
        shown = self.rows()
        self.assertEqual([rows[r]["detail"] for r, _ in shown],
                         ["bf16, 32/8 heads, D 128, pages 64"])
        fragment = self.browser.value("location.hash")
        self.assertEqual(fragment, "#op=decode&find=pages")
        self.press("Reset")
        self.assertEqual((self.rows(), self.browser.value("location.hash")), (everything, ""))
        self.open(fragment=fragment)
        self.assertEqual(self.rows(), shown)
        self.assertEqual(self.browser.value("document.querySelector('[type=search]').value"),
                         "pages")
        # The fastest of what is left is the fastest.
        self.open()
        column = next(k for k, c in enumerate(self.matrix["columns"]) if c["id"] == "cuda:0")
        self.browser.value(f"document.querySelector('.controls input[value=\"{column}\"]').click()")
        left = self.rows()
        self.assertTrue(all(k != column for _, cells in left for k, *_ in cells))
        self.check_marks(left, off=(column,))
        self.assertNotEqual(left, everything)
        self.press("Reset")
        self.choose("Kernel", "cuda/few_rows")
        self.check_marks(self.rows(), kernel="cuda/few_rows")
        self.assertEqual(len(self.rows()), 2)
        # A fragment of somebody else's page breaks nothing.
        self.open(fragment="#op=nothing&hide=99,x&sort=77&by=__proto__&base=q&bars=9&y=t")
        self.assertEqual(self.rows(), everything)
        self.assertEqual(self.browser.value("document.getElementById('count').textContent"),
                         f"{len(rows)} of {len(rows)} shapes, 7 of 7 devices")
        self.press("Reset")
        self.assertEqual(self.rows(), everything)
        self.assertEqual(self.browser.errors(), [])

    def test_sorting(self):
        self.open()
        column = next(k for k, c in enumerate(self.matrix["columns"]) if c["id"] == "opencl:0")

        def order():
            cells = [self.matrix["rows"][r]["cells"][column] for r, _ in self.rows()
                     if self.matrix["rows"][r]["kind"] == "prefill"]
            return [c["median"] for c in cells if c and c["status"] == "ok"]

        button = f"document.querySelector('#matrix thead [data-c=\"{column}\"] button')"
        self.browser.value(button + ".focus()")
        self.browser.key("Enter", 13)
        self.assertEqual(order(), sorted(order()))
        head = f"document.querySelector('#matrix thead [data-c=\"{column}\"]')"
        self.assertEqual(self.browser.value(head + ".getAttribute('aria-sort')"), "ascending")
        self.browser.key("Enter", 13)
        self.assertEqual(order(), sorted(order(), reverse=True))
        self.assertGreater(len(order()), 1)
        self.assertEqual(self.browser.value("location.hash"), f"#sort={column}&dir=down")

    def test_markdown(self):
        self.open()
        self.choose("Operation", "decode")
        self.press("Copy as Markdown")
        self.browser.value("new Promise(done => setTimeout(done, 50))")
        text = self.browser.value("document.querySelector('textarea.copied').value")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        self.assertEqual(len(lines), 4)
        self.assertEqual({line.count("|") for line in lines}, {2 + len(self.matrix["columns"])})
        self.assertIn("| 3.40 ms, 39.5 GB/s, 79%, IQR 14% |", lines[2])
        self.assertIn("| **41.0 µs**, 3.27 TB/s, 78%, IQR 2.0% |", lines[2])
        self.assertIn("| not supported |", lines[3])

    def test_ratios(self):
        self.open()
        base = next(k for k, c in enumerate(self.matrix["columns"]) if c["id"] == "opencl:0")
        self.choose("Ratios to", str(base))
        texts = json.loads(self.browser.value(
            "JSON.stringify([...document.querySelectorAll('#matrix tr[data-r=\"0\"] .ratio')]"
            ".map(e => e.textContent))"))
        cells = self.matrix["rows"][0]["cells"]
        ratios = [cells[base]["median"] / c["median"] for c in cells if c and c["status"] == "ok"]
        self.assertEqual(len(texts), len(ratios))
        for text, ratio in zip(texts, ratios):
            if ratio == 1:
                self.assertEqual(text, "base")
            else:
                self.assertAlmostEqual(float(text.split("x")[0]), ratio,
                                       delta=0.006 * max(ratio, 1))
        # The page of the same base says the same without its script.
        ratios = """JSON.stringify([...document.querySelectorAll('#matrix .ratio')].map(
            e => e.textContent).filter(text => text && text !== 'base'))"""
        base = next(k for k, c in enumerate(self.matrix["columns"]) if c["id"] == "cuda:0")
        self.choose("Ratios to", str(base))
        told = json.loads(self.browser.value(ratios))
        self.assertIn("0.0020x base", told)
        self.open(self.write("base", self.root, "--base", "cuda:0"), script=False)
        self.assertEqual(json.loads(self.browser.value(ratios)), told)

    def test_drift(self):
        """What fixed loops drifted by is no difference with the script either, nor against a base;
        a peer ran right beside."""
        devices = [made.device(f"cpu:{n}", "cpu", f"Processor {n}", {}, 1e11, 1e11)
                   for n in range(3)]
        devices[1].update(drift=0.15, rounds=4)
        line = made.LINES[0][2]
        root = made.report(devices, [made.measured(n, line, "cpu/avx2", t) for n, t in
                                     enumerate((1e-3, 1.1e-3, 1.2e-3))] +
                           [made.measured(1, line, "sdpa", 1.2e-3, peer="PyTorch SDPA")])
        page = self.write("drift", root)
        marks = {}
        for script in (False, True):
            self.open(page, script=script)
            (_, cells), = self.rows()
            marks[script] = [mark for _, mark, *_ in cells]
        self.assertEqual(marks[False], ["best", "level", "", ""])
        self.assertEqual(marks[True], marks[False])
        for base, told in (("0", ["base", "no difference", "0.83x base", "0.83x base"]),
                           ("1", ["no difference", "base", "0.92x base", "no difference"])):
            self.choose("Ratios to", base)
            self.assertEqual(json.loads(self.browser.value(
                "JSON.stringify([...document.querySelectorAll('#matrix .ratio')].map("
                "e => e.textContent))")), told)

    # -------------------------------------------------------------- plots

    def test_plots(self):
        page = self.write("table", made_table.table())
        # Four columns, and the eight of two machines.
        self.write("other", made_table.table(1.1))
        self.succeed("compare", self.path("table.json"), self.path("other.json"), "--html",
                     self.path("both.html"))
        for size, name in ((300_000, "table"), (400_000, "both")):
            self.assertLess(os.path.getsize(self.path(name + ".html")), size)
        for name in ("table", "both"):
            for width in (1280, 360):
                self.open(self.path(name + ".html"), script=False, width=width)
                self.assertEqual(json.loads(self.browser.value(COLLISIONS)), [], name)
        self.open(page, script=False)
        pictures = ("[...document.querySelectorAll('svg.chart')].filter("
                    "s => s.getBoundingClientRect().height).length")
        count = self.browser.value(pictures)
        self.assertGreaterEqual(count, 6)
        self.open(page)
        value = self.browser.value
        drawn = value("performance.now()")
        self.keep("table")
        if value("!!document.getElementById('library')"):
            wait = "new Promise(done => setTimeout(done, 80))"
            for section in ("lengths", "speedups", "roofline"):
                value(f"document.getElementById('{section}').scrollIntoView()")
                value(wait)
            self.assertEqual(value("document.querySelectorAll('canvas').length"), count)
            self.assertEqual(value(pictures), 0)
            value("document.querySelector('#roofline canvas').focus()")
            self.browser.key("ArrowRight", 39)
            self.assertIn("Made-up GPU 200 (cuda)",
                          value("document.querySelector('#roofline [aria-live]').textContent"))
        else:
            self.assertEqual(value(pictures), count)
        # Without the library the pictures stay, and everything else works.
        self.open(self.write("plain", made_table.table(), "--plain"), "#op=decode")
        self.assertEqual(value("document.querySelectorAll('canvas').length"), 0)
        self.assertLess(value(pictures), count)
        self.assertTrue(all(self.json("plain")["rows"][r]["kind"] == "decode"
                            for r, _ in self.rows()))
        self.press("Reset")
        self.assertEqual(value(pictures), count)
        self.open(page)
        # Bars are as long as their rates, and a log axis keeps their order.
        bars = """JSON.stringify([...document.querySelectorAll('.bars')].map(b =>
            [...b.querySelectorAll('p')].map(r => [+r.parentNode.dataset.r, +r.dataset.c,
             parseFloat(r.querySelector('i').style.getPropertyValue('--w'))])))"""
        rows = self.json("table")["rows"]

        def groups():
            return [[(rows[r]["cells"][c]["rate"], width) for r, c, width in group]
                    for group in json.loads(value(bars))]

        self.assertEqual(len(groups()), 2)
        for group in groups():
            most = max(v for v, _ in group)
            for v, width in group:
                self.assertAlmostEqual(width, 100 * v / most, delta=0.1)
        self.choose("Axis", "log")
        for group in groups():
            self.assertEqual([w for _, w in sorted(group)], sorted(w for _, w in group))
        self.assertEqual(self.browser.errors(), [])
        self.assertLessEqual(self.browser.paper(), 4)
        self.open(self.path("both.html"))
        self.assertLessEqual(self.browser.paper(), 4)
        print(f"page of {os.path.getsize(page) / 1000:.0f} KB, drawn after {drawn:.0f} ms",
              file=sys.stderr)

    def test_access(self):
        source = axe_source()
        if not source:
            self.skipTest("axe-core-python is not installed")
        for width, dark in ((1280, False), (360, True)):
            self.open(width=width, dark=dark)
            self.browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
            self.browser.tools("Runtime.evaluate", expression=source)
            found = self.browser.value("""axe.run().then(r => JSON.stringify(r.violations.map(
                v => [v.impact, v.id, v.help, v.nodes[0].html])))""")
            serious = [v for v in json.loads(found) if v[0] in ("serious", "critical")]
            self.assertEqual(serious, [], f"{width} {dark}")


if __name__ == "__main__":
    if browser.missing():
        print(f"skipped: {browser.missing()} not found; Debian: chromium, chromium-driver")
        sys.exit(77)
    if "--pictures" in sys.argv:
        at = sys.argv.index("--pictures")
        PICTURES = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    command.main()
