#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one-line faults, one by one, and sees whether the test that must catch each of them does.

    mutate.py [--shard K/N] [--only REGEX] [--list FILE] [--build FOLDER] [--jobs N]
    mutate.py --check

The list (faults.txt) has a line for each fault:

    FILE :: OLD => NEW :: TEST

OLD stands in FILE exactly once, however its lines are broken, and is replaced by NEW, or removed if
NEW is `(nothing)`. TEST is the name of a test (cmake/Tests.cmake) without the prefix of a build,
which further arguments may follow, or `$ PROGRAM ARGUMENTS` with a program of the build folder.
Everything happens in a copy of the tree with a build of its own: apply, build what TEST needs, run
it up to its first failure, put the line back. A test that fails, waits for ever or does not end in
time has caught the fault.

--check only looks whether every entry still applies exactly once. --shard takes the K-th of N
parts, counted from 1, and --only the entries whose line matches. The exit status is 0 if every
fault was caught.
"""
import argparse
import collections
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FEWEST = 100
SKIPPED = 77
IDLE = 60  # seconds without any work after which a test counts as one that waits for ever
SKIPPED_HERE = ("skipped", "its test does not run here")
# Tests that are left out where a compiler is missing.
OPTIONAL = {"cuda_waits"}
# Libraries that a test finds by its environment, or in a folder that it is given, are no
# dependencies of its program.
STAND_INS = {"tests/drivers": ["tessera_pretended"],
             "tests/drivers/drivers_lockstep": ["tessera_pretended_cuda_lockstep"],
             "tests/opencl/loader": ["tessera_failing_opencl"],
             "tests/opencl/nvidia": ["tessera_nvidia_opencl"],
             "tests/unit/fixtures": ["tessera_fixtures"],
             "tests/vulkan/shim": ["vulkan_shim"]}

Fault = collections.namedtuple("Fault", "number line file old new test")


def read_faults(path):
    """The entries, and what is wrong with lines that are none."""
    faults, wrong = [], []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\n")
            if not line.strip() or line.startswith("#"):
                continue
            parts = line.split(" :: ")
            change = parts[1].split(" => ") if len(parts) == 3 else []
            if len(change) != 2:
                wrong.append(f"line {number}: not of the form FILE :: OLD => NEW :: TEST")
                continue
            new = "" if change[1] == "(nothing)" else change[1]
            faults.append(Fault(number, line, parts[0].strip(), change[0], new, parts[2].strip()))
    return faults, wrong


def pattern_of(old):
    """What finds `old` however its lines are broken.

    A space stands for any blanks, and behind a bracket there may be some."""
    return r"\s+".join(re.escape(word) for word in old.split()).replace(r"\(", r"\(\s*")


def apply(text, fault):
    """The text with the fault, or None and why it does not apply."""
    found = re.findall(pattern_of(fault.old), text)
    count = len(found)
    if count != 1:
        return None, f"OLD stands {count} times in {fault.file}"
    if fault.old == fault.new:
        return None, "OLD and NEW are the same"
    return text.replace(found[0], fault.new), None


def check(faults, wrong, root):
    """Complains about entries that do not apply to the sources in `root`."""
    for fault in faults:
        path = os.path.join(root, fault.file)
        if not os.path.isfile(path):
            wrong.append(f"line {fault.number}: there is no {fault.file}")
            continue
        with open(path, encoding="utf-8") as source:
            why = apply(source.read(), fault)[1]
        if why:
            wrong.append(f"line {fault.number}: {why}: {fault.old}")
    return wrong


def cpu_ticks(group):
    """What the processes of a group have used of the CPUs."""
    total = 0
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                words = file.read().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if name.isdigit() and int(words[2]) == group:
            total += sum(int(w) for w in words[11:15])
    return total


class Copy:
    """A copy of the tree and its build."""

    def __init__(self, folder, jobs):
        self.tree = os.path.join(folder, "tree")
        self.build = os.path.join(folder, "build")
        self.log = os.path.join(folder, "log")
        # A short name, since messages with the names of files in it have a longest length.
        self.temporary = os.path.join(tempfile.gettempdir(), f"mutate-{os.getpid()}")
        self.jobs = str(jobs)
        self.tests = {}

    def update(self):
        """Brings the copy up to date.

        Files that are the same keep their time, and so what was built from them."""
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                               check=True, capture_output=True, text=True).stdout.split("\n")
        names = {n for n in names if n and os.path.isfile(os.path.join(ROOT, n))}
        for name in names:
            source, target = os.path.join(ROOT, name), os.path.join(self.tree, name)
            with open(source, "rb") as file:
                wanted = file.read()
            if os.path.isfile(target):
                with open(target, "rb") as file:
                    if file.read() == wanted:
                        continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(source, target)
        for folder, _, files in os.walk(self.tree):
            for file in files:
                path = os.path.join(folder, file)
                if os.path.relpath(path, self.tree) not in names:
                    os.remove(path)

    def call(self, command, timeout=None, env=None):
        """The exit status; None if it did not end. What it says is appended to the log."""
        with open(self.log, "ab") as log:
            log.write(("\n$ " + shlex.join(command) + "\n").encode())
            log.flush()
            child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                     env=env, cwd=self.build, start_new_session=True)
            if timeout is None:
                return child.wait()
            begin, used, since = time.monotonic(), -1, time.monotonic()
            while time.monotonic() - begin < timeout and time.monotonic() - since < IDLE:
                try:
                    return child.wait(min(5, timeout))
                except subprocess.TimeoutExpired:
                    now = cpu_ticks(child.pid)
                    if now != used:
                        used, since = now, time.monotonic()
            os.killpg(child.pid, 9)
            child.wait()
            return None

    def configure(self):
        os.makedirs(self.build, exist_ok=True)
        # Warnings that a fault causes are no errors here. Without much optimisation the builds take
        # half the time.
        command = ["cmake", "-G", "Ninja", "-S", self.tree, "-B", self.build,
                   "-DCMAKE_BUILD_TYPE=Release", "-DTESSERA_WERROR=OFF",
                   "-DTESSERA_DEVICE_CODE=none", "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG"]
        if shutil.which("ccache"):
            os.environ.setdefault("CCACHE_BASEDIR", self.tree)
            command.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
        if self.call(command) != 0:
            sys.exit(f"mutate: the copy cannot be configured; see {self.log}")
        self.read_tests()

    def read_tests(self):
        """The tests as CMake wrote them down.

        ctest itself does not tell the command of a test that is not built yet."""
        for folder, _, files in os.walk(self.build):
            if "CTestTestfile.cmake" not in files:
                continue
            with open(os.path.join(folder, "CTestTestfile.cmake"), encoding="utf-8") as file:
                text = file.read()
            for name, command in re.findall(r"^add_test\(\[=*\[(.*?)\]=*\] (.*)\)$", text, re.M):
                self.tests[name] = (shlex.split(command), [])
            properties = r"^set_tests_properties\(\[=*\[(.*?)\]=*\] PROPERTIES (.*)\)$"
            for name, words in re.findall(properties, text, re.M):
                words = shlex.split(words)
                if name in self.tests and "ENVIRONMENT" in words:
                    self.tests[name] = (self.tests[name][0],
                                        words[words.index("ENVIRONMENT") + 1].split(";"))

    def command(self, name):
        """What runs a test, in which environment, and what has to be built for it."""
        words = shlex.split(name)
        if words[0] == "$":
            command, environment = [os.path.join(self.build, words[1])] + words[2:], []
        elif words[0] in self.tests:
            command, environment = self.tests[words[0]]
            command = command + words[1:]
        else:
            return None
        targets = {os.path.relpath(word, self.build) for word in command
                   if word.startswith(self.build + os.sep)}
        for part in targets & set(STAND_INS):
            targets.update(STAND_INS[part])
        targets = {t for t in targets
                   if t not in STAND_INS and not os.path.isdir(os.path.join(self.build, t))}
        # cmocka ends a program at its first failure, and does not go on in one that a fault has
        # crashed.
        env = dict(os.environ, TESSERA_CACHE_DIR=os.path.join(self.build, "kernels"),
                   CMOCKA_TEST_ABORT="1", TMPDIR=self.temporary)
        env.setdefault("TESSERA_REQUIRE", "cpu")
        for entry in environment:
            key, value = entry.split("=", 1)
            env[key] = value
            for part, names in STAND_INS.items():
                if (key in ("LD_LIBRARY_PATH", "TESSERA_TEST_PLUGINS")
                        and os.path.join(self.build, part) in value):
                    targets.update(names)
                elif (key in ("TESSERA_BACKEND_PATH", "LD_PRELOAD")
                      and value.startswith(self.build)):
                    targets.add(os.path.relpath(value, self.build))
        return command, env, sorted(targets)

    def make(self, targets):
        if not targets:  # of a test that compiles by itself
            return True
        command = ["cmake", "--build", self.build, "-j", self.jobs, "--target"]
        return self.call(command + targets) == 0

    def test(self, command, env, timeout):
        """The exit status as call() gives it. Removes what a test that was cut short leaves."""
        os.makedirs(self.temporary, exist_ok=True)
        status = self.call(command, timeout, env)
        shutil.rmtree(self.temporary, ignore_errors=True)
        return status

    def write(self, name, text):
        with open(os.path.join(self.tree, name), "w", encoding="utf-8") as file:
            file.write(text)


def baseline(copy, faults):
    """Builds and runs every test of the list without a fault.

    Returns how long each takes, or the reason why it cannot catch anything."""
    times, unknown = {}, []
    names = list(dict.fromkeys(f.test for f in faults))
    known = {name: copy.command(name) for name in names}
    for name in [n for n in names if known[n] is None]:
        if name in OPTIONAL:
            times[name] = SKIPPED_HERE
        else:
            unknown.append(f"there is no test {name}")
    known = {name: known[name] for name in names if known[name]}
    if unknown:
        sys.exit("mutate: " + "\nmutate: ".join(unknown))
    if not copy.make(sorted({t for k in known.values() for t in k[2]})):
        sys.exit(f"mutate: the copy does not build; see {copy.log}")
    for name, (command, env, _) in known.items():
        begin = time.monotonic()
        status = copy.test(command, env, 900)
        times[name] = time.monotonic() - begin
        if status == SKIPPED:
            times[name] = SKIPPED_HERE
        elif status != 0:
            times[name] = ("test fails", "without any fault")
            print(f"mutate: {name} fails without any fault; see {copy.log}", flush=True)
    return times


def plant(copy, fault, seconds):
    """What became of one fault."""
    path = os.path.join(copy.tree, fault.file)
    with open(path, encoding="utf-8") as file:
        original = file.read()
    text, why = apply(original, fault)
    if not text:
        return "does not apply", why
    command, env, targets = copy.command(fault.test)
    try:
        copy.write(fault.file, text)
        if not copy.make(targets):
            return "does not build", f"see {copy.log}"
        # A fault may make a program hang; ten times its usual time tells that from a busy machine.
        status = copy.test(command, env, 60 + 10 * seconds)
    finally:
        copy.write(fault.file, original)
    if status == 0:
        return "SURVIVED", f"{fault.test} passes"
    return "caught", "by its time limit" if status is None else ""


def report(faults, results):
    """A table by folder, and every fault that was not caught."""
    table = collections.OrderedDict()
    for fault in faults:
        key = "/".join(fault.file.split("/")[: 2 if fault.file.startswith("backends/") else 1])
        table.setdefault(key, collections.Counter())[results[fault][0]] += 1
    kinds = ["caught", "SURVIVED", "does not apply", "does not build", "test fails",
             "skipped"]
    print(f"\n{'':20}" + "".join(f"{k:>16}" for k in kinds))
    for key, row in list(table.items()) + [("all", sum(table.values(), collections.Counter()))]:
        print(f"{key:20}" + "".join(f"{row[k]:16}" for k in kinds))
    bad = [f for f in faults if results[f][0] not in ("caught", "skipped")]
    for fault in bad:
        print(f"\n{results[fault][0]}: {results[fault][1]}\n  line {fault.number}: {fault.line}")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", default=os.path.join(ROOT, "tests/mutation/faults.txt"))
    parser.add_argument("--build", default=os.path.join(ROOT, "build/mutation"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    faults, wrong = read_faults(options.list)
    wrong = check(faults, wrong, ROOT)
    if len(faults) < FEWEST:
        wrong.append(f"only {len(faults)} faults; at least {FEWEST} are wanted")
    for text in wrong:
        print(f"{os.path.relpath(options.list, ROOT)}: {text}")
    if options.check or wrong:
        print(f"{len(faults)} faults, {len(wrong)} complaints")
        return 1 if wrong else 0
    part, parts = (int(n) for n in options.shard.split("/"))
    # Neighbours in a file share what is rebuilt for the one before; so shards are made of runs of
    # neighbours.
    faults = [f for f in faults if re.search(options.only, f.line)]
    faults = faults[len(faults) * (part - 1) // parts: len(faults) * part // parts]
    copy = Copy(os.path.abspath(options.build), options.jobs)
    os.makedirs(options.build, exist_ok=True)
    open(copy.log, "wb").close()
    begin = time.monotonic()
    copy.update()
    copy.configure()
    times = baseline(copy, faults)
    print(f"{len(faults)} faults, {len(times)} tests; ready after {time.monotonic() - begin:.0f} s",
          flush=True)
    results = {}
    for n, fault in enumerate(faults, 1):
        start = time.monotonic()
        usual = times[fault.test]
        results[fault] = usual if isinstance(usual, tuple) else plant(copy, fault, usual)
        print(f"[{n}/{len(faults)}] {results[fault][0]:10} {time.monotonic() - start:5.1f} s  "
              f"{fault.file}: {fault.new.strip() or 'without ' + fault.old}", flush=True)
    bad = report(faults, results)
    print(f"\n{len(faults) - len(bad)} of {len(faults)} caught or skipped, "
          f"in {(time.monotonic() - begin) / 60:.1f} minutes")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
