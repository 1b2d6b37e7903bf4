# SPDX-License-Identifier: Apache-2.0
"""What sm80_backward_columns.cuh does with shared memory, step by step: any two accesses of
different warps to one place, of which one writes, have a barrier between them. This holds for the
passes in which all warps are in step, with one stage of items or two, and for the one in which half
of the warps run ahead. With a barrier less, or a place less for what belongs to a step, it has to
fail.

The model is the text of columns_walk without its arithmetic. Vector clocks tell what a barrier
orders, whatever the warps' speeds are. A place is what one warp writes at a time.

    halves.py
"""
import itertools
import random
import sys

WARPS, STEP_WARPS, TILE_WARPS = 8, 2, 4  # of steps of 64 rows, and of tiles of 128 keys
EVERY = tuple(range(WARPS))


class Fault(Exception):
    pass


class Memory:
    """Places, and which accesses to them each warp knows of."""

    def __init__(self):
        self.clocks = [[0] * WARPS for _ in EVERY]
        self.accesses = {}

    def access(self, warp, place, writes):
        clock = self.clocks[warp]
        clock[warp] += 1
        last = self.accesses.setdefault(place, {})
        for (other, wrote), time in last.items():
            if other != warp and (writes or wrote) and clock[other] < time:
                raise Fault(f"{place}: warps {other} and {warp}")
        last[warp, writes] = clock[warp]

    def meet(self, warps):
        most = [max(self.clocks[w][n] for w in warps) for n in EVERY]
        for w in warps:
            self.clocks[w] = list(most)


class Walk:
    """One warp. Its methods are those of columns_walk; each `yield` is a barrier of some warps."""

    def __init__(self, memory, warp, segments, shape):
        self.memory, self.warp, self.segments = memory, warp, segments
        self.__dict__.update(shape)
        self.ahead = self.skewed and warp >= WARPS // 2
        self.half = EVERY[4:] if self.ahead else EVERY[:4]

    def read(self, name, *at):
        self.memory.access(self.warp, (name, *at), False)

    def write(self, name, *at):
        self.memory.access(self.warp, (name, *at), True)

    def segment(self, n):
        return self.segments[n] if n < len(self.segments) else None

    def find_step(self, n):
        self.read("steps", (n - 1) % self.steps)
        self.write("steps", n % self.steps)

    def find_row(self, n):
        if self.warp < STEP_WARPS:
            self.read("steps", n % self.steps)

    def keep_row(self, n):
        if self.warp < STEP_WARPS:
            for name, places in ("rows", self.rows), ("lse", self.lses), ("absent", self.lses):
                self.write(name, n % places, self.warp)

    def of_rows(self, name, n, places):
        for warp in range(STEP_WARPS):
            self.read(name, n % places, warp)

    def find_bounds(self, n):
        if self.warp < TILE_WARPS:
            self.read("steps", n % self.steps)
            self.write("bounds", self.segment(n) % self.bounds, self.warp)

    def copy_items(self, n):
        self.read("steps", n % self.steps)
        self.of_rows("rows", n, self.rows)
        self.write("items", n % self.stages, self.warp)

    def of_items(self, n):
        for warp in EVERY:
            self.read("items", n % self.stages, warp)

    def of_tile(self):
        for warp in EVERY:
            self.read("tile", warp)

    def add_rows(self, n):
        for warp in EVERY:
            self.read("dS", n % self.places, warp)
            self.read("kept", n % self.kept, warp)
        self.of_tile()
        self.read("steps", n % self.steps)
        self.of_rows("rows", n, self.rows)

    def score(self, n):
        self.of_tile()
        self.of_items(n)

    def weigh(self, n):
        self.read("steps", n % self.steps)
        self.of_rows("lse", n, self.lses)
        self.of_rows("rows", n, self.rows)
        for warp in range(TILE_WARPS):
            self.read("bounds", self.segment(n) % self.bounds, warp)
        self.write("P", self.warp)
        self.write("dS", n % self.places, self.warp)
        self.write("kept", n % self.kept, self.warp)

    def add_items(self, n):
        for warp in self.half if self.skewed else EVERY:
            self.read("P", warp)
            self.read("dS", n % self.places, warp)
        self.of_items(n)

    def prologue(self):
        if self.warp == 0:
            self.write("steps", 0)
            self.find_step(1)
            self.find_step(2)
        yield EVERY
        for n in 0, 1:
            self.find_row(n)
            self.keep_row(n)
        self.read("steps", 0)
        if self.segment(0) is None:
            return
        if self.warp < TILE_WARPS:  # copy_tile()
            self.write("bounds", 0, self.warp)
        yield EVERY
        for warp in range(TILE_WARPS):
            self.read("bounds", 0, warp)
        self.write("tile", self.warp)
        yield EVERY
        self.find_bounds(0)
        self.copy_items(0)

    def run(self):
        yield from self.prologue()
        for n in itertools.count():
            yield EVERY
            self.read("steps", n % self.steps)
            self.read("steps", (n + 1) % self.steps)
            if self.segment(n) is None:
                break
            after = self.segment(n + 1)
            self.of_rows("absent", n, self.lses)
            if self.stages == 2 and after is not None:
                self.copy_items(n + 1)
            if self.ahead and n > 0:
                self.add_rows(n - 1)
            self.score(n)
            self.weigh(n)
            if self.meets:
                yield self.half if self.skewed else EVERY
            self.find_row(n + 2)
            self.add_items(n)
            if not self.skewed:
                self.add_rows(n)
            self.keep_row(n + 2)
            if self.warp == 0:
                self.find_step(n + 3)
            if after not in (self.segment(n), None):
                self.find_bounds(n + 1)
            if self.skewed and not self.ahead and n > 0:
                self.add_rows(n - 1)
            if self.stages == 1 and after is not None:
                if self.waits:
                    yield EVERY
                self.copy_items(n + 1)
        if self.skewed and n > 0:
            self.add_rows(n - 1)
        for _ in range(2):  # epilogue()
            yield EVERY
            self.write("tile", self.warp)
            yield EVERY
            self.of_tile()


def check(segments, shape):
    memory = Memory()
    waiting = {warp: Walk(memory, warp, segments, shape).run() for warp in EVERY}
    at = {warp: next(walk) for warp, walk in waiting.items()}
    while at:
        warps = next(who for who in at.values() if all(at.get(w) == who for w in who))
        memory.meet(warps)
        for warp in warps:
            try:
                at[warp] = next(waiting[warp])
            except StopIteration:
                del at[warp]


IN_STEP = {"skewed": False, "steps": 4, "rows": 3, "lses": 2, "bounds": 1, "kept": 1, "places": 1,
           "meets": True, "waits": True}
SHAPES = {
    "two stages": IN_STEP | {"stages": 2},
    "one stage": IN_STEP | {"stages": 1},
    "half ahead": {"skewed": True, "steps": 8, "rows": 4, "lses": 4, "bounds": 2, "kept": 2,
                   "places": 2, "meets": True, "waits": True, "stages": 2},
}
BROKEN = {
    "two stages": ({"meets": False}, {"rows": 2}, {"steps": 3}),
    "one stage": ({"meets": False}, {"waits": False}),
    "half ahead": ({"meets": False}, {"rows": 3}, {"lses": 1}, {"bounds": 1}, {"kept": 1},
                   {"places": 1}, {"steps": 3}),
}


def faults(shape):
    source, found = random.Random(1), 0
    for _ in range(60):
        segments = sorted(source.randint(0, 3) for _ in range(source.randint(0, 9)))
        ranks = {s: n for n, s in enumerate(sorted(set(segments)))}
        try:
            check([ranks[s] for s in segments], shape)
        except Fault as fault:
            found += 1
            last = fault
    return found, last if found else None


def main():
    wrong = []
    for name, shape in SHAPES.items():
        found, fault = faults(shape)
        if found:
            wrong.append(f"{name}: {fault}")
        for change in BROKEN[name]:
            if not faults(shape | change)[0]:
                wrong.append(f"{name} with {change}: no fault was found")
    print("\n".join(wrong) or "every access is ordered by barriers")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
