#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the stripped library weighs, beside 0.1.0 and beside any older revision.

    library_size.py [--before REVISION] [--code none,all] [--jobs N] [--folder FOLDER]
    library_size.py --library none=FILE [--library all=FILE]

Builds the library of this tree twice, without device code (CPU, OpenCL, Vulkan) and with device
code for all GPUs whose compilers are here, strips it, and prints its bytes, how much of that is of
gradients alone, and its growth, of which 80 % are allowed. With --before the older revision is
built as well. With --library nothing is built. The exit status is 1 if a library has grown more.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Bytes of 0.1.0, and what was in that library.
FIRST = {"none": (1_080_000, "CPU, OpenCL, Vulkan"), "all": (13_300_000, "all device code")}
MOST_GROWTH = 0.80
# Names in the library that only gradients need. Machine code for GPUs is counted by its images.
OF_GRADIENTS = re.compile(r"backward|gradient|column|strip|turn_|delta|d_[qkv]", re.I)


def growth(before, now):
    """By how much a library grew, and whether that is allowed."""
    grown = now / before - 1
    return grown, grown <= MOST_GROWTH


def of_gradients(listing):
    """Bytes of symbols that `nm -S` lists under names of gradients."""
    total = 0
    for line in listing.splitlines():
        words = line.split()
        if len(words) == 4 and OF_GRADIENTS.search(words[3]):
            total += int(words[1], 16)
    return total


def run(command, log):
    with open(log, "ab") as file:
        if subprocess.call(command, stdout=file, stderr=file) != 0:
            sys.exit(f"library_size: {' '.join(command)} failed; see {log}")


def build(tree, folder, code, jobs):
    """The library of a tree, not stripped. Prints what its build leaves out."""
    os.makedirs(folder, exist_ok=True)
    log = os.path.join(folder, "log")
    open(log, "wb").close()
    run(["cmake", "-G", "Ninja", "-S", tree, "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
         "-DTESSERA_TESTS=OFF", "-DTESSERA_CLI=OFF", f"-DTESSERA_DEVICE_CODE={code}"], log)
    if code != "none":
        with open(log, encoding="utf-8") as lines:
            for line in lines:
                if "Left out: " in line:
                    print("without " + line.split("Left out: ")[1].strip())
    run(["cmake", "--build", folder, "-j", str(jobs)], log)
    return os.path.join(folder, "libtessera.so")


def stripped(library):
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "stripped")
        subprocess.run(["strip", "-o", to, library], check=True)
        return os.path.getsize(to)


def older(revision, folder):
    """The tree of a revision."""
    tree = os.path.join(folder, "tree")
    shutil.rmtree(tree, ignore_errors=True)
    os.makedirs(tree)
    archive = subprocess.run(["git", "-C", ROOT, "archive", revision], check=True,
                             capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", tree], check=True, input=archive)
    return tree


def line(name, before, now):
    grown, allowed = growth(before, now)
    verdict = "reached" if allowed else "MISSED"
    print(f"  over {name:24} {before:12,} {grown:+8.1%}  bar {MOST_GROWTH:+.0%}  {verdict}")
    return allowed


def report(code, library, before):
    """Prints the lines of a library; `before` is None or a revision and its library."""
    first, what = FIRST[code]
    now = stripped(library)
    listing = subprocess.run(["nm", "-S", library], check=True, capture_output=True, text=True)
    print(f"{what}: {now:,} bytes")
    print(f"  {of_gradients(listing.stdout):,} of them have names of gradients")
    allowed = line("0.1.0", first, now)
    if before:
        allowed = line(before[0], stripped(before[1]), now) and allowed
    return allowed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--before", default="")
    parser.add_argument("--code", default="none,all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/size"))
    parser.add_argument("--library", action="append", default=[], metavar="CODE=FILE")
    options = parser.parse_args()
    libraries = dict(item.split("=", 1) for item in options.library)
    codes = list(libraries) or options.code.split(",")
    if any(code not in FIRST for code in codes):
        parser.error(f"device code is one of {', '.join(FIRST)}")
    tree = older(options.before, options.folder) if options.before else None
    allowed = True
    for code in codes:
        own = os.path.join(options.folder, code)
        library = libraries.get(code) or build(ROOT, own, code, options.jobs)
        before = None
        if tree:
            before = (options.before, build(tree, own + "_before", code, options.jobs))
        allowed = report(code, library, before) and allowed
    return 0 if allowed else 1


if __name__ == "__main__":
    sys.exit(main())
