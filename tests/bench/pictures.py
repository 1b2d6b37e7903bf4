# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/compare.md anew, in Chromium, by hand.

    pictures.py COMMAND RESULTS.json [FOLDER]
"""
import os
import subprocess
import sys
import tempfile
import time

import browser


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    command, results = sys.argv[1:3]
    docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
    folder = sys.argv[3] if len(sys.argv) > 3 else docs
    window = browser.Browser(1280, 800)
    with tempfile.TemporaryDirectory(prefix="tessera-page-") as scratch:
        page = os.path.join(scratch, "page.html")
        subprocess.run([command, "compare", results, "--title", "Tessera bench", "--html", page],
                       check=True, stdout=subprocess.DEVNULL)
        for name, width, dark, fragment, place in (
                ("matrix", 1280, False, "", "header"), ("dark", 1280, True, "#op=decode", "#lengths"),
                ("narrow", 360, False, "", "header")):
            window.look(width, 800, dark)
            window.open(page, fragment)
            window.value(f"document.querySelector('{place}').scrollIntoView()")
            time.sleep(0.5)  # plots are drawn when they come near
            window.picture(os.path.join(folder, f"page-{name}.png"))
    window.close()


if __name__ == "__main__":
    main()
