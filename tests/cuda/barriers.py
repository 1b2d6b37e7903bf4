# SPDX-License-Identifier: Apache-2.0
"""Random interleavings of what mainloop_backward.cuh does at its barriers: no warpgroup writes dS^T
that the other one still reads, reads one of another step, releases a stage twice, or waits for
ever. The same without a barrier, or with one place for dS^T, has to fail.

The model is the mainloop's text without its arithmetic: each `yield` is a place where the other
warpgroup, the loader or the warp that adds may go on, with a condition to wait for.

    barriers.py [RUNS]
"""
import random
import sys

STAGES_Q, STAGES_D_O = 3, 2  # STEP_STAGES and D_O_STAGES of sm90
RUNS = 600
BOTH = (0, 1)


class Fault(Exception):
    pass


def at_once():
    return True


class Model:
    def __init__(self, seed, places=2, forgets=0.0):
        self.random = random.Random(seed)
        self.places, self.forgets = places, forgets
        self.kinds, self.chained = [], []
        for _ in range(self.random.randint(1, 5)):
            self.add_column(self.random.randint(1, 7))
        self.kinds.append("stop")
        self.chained.append(False)
        self.q_full = self.d_o_full = self.passed = 0
        self.q_left, self.d_o_left = [0, 0], [0, 0]  # steps that a warpgroup has released
        self.dq_given, self.dq_taken = [0, 0], [0, 0]
        self.arrived, self.reading, self.holds = set(), {}, {}

    def add_column(self, steps):
        some = ("full", "full", "full", "half 0", "half 1", "partial", "empty")
        kinds = [self.random.choice(some if self.random.random() < 0.5 else some[:1])
                 for _ in range(steps)]
        for kind, after in zip(kinds, kinds[1:] + [None]):
            self.kinds.append(kind)
            self.chained.append(kind == after == "full")

    # ---------------------------------------------------------------- what a warpgroup does

    def barrier(self, w):
        """named_barrier_sync(DS_BARRIER)"""
        if self.random.random() < self.forgets:
            return
        passed = self.passed
        if w in self.arrived:
            raise Fault("arrives twice")
        self.arrived.add(w)
        if len(self.arrived) == 2:
            self.arrived.clear()
            self.passed += 1
        yield lambda: self.passed > passed

    def write(self, w, step, active):
        place = (w, active % self.places)
        if self.reading.get(place):
            raise Fault("writes dS^T that is being read")
        self.holds[place] = step

    def read(self, what, step, active, parts):
        """Products with dS^T of some warpgroups' keys are issued."""
        for part in parts:
            place = (part, active % self.places)
            if self.holds.get(place) != step:
                raise Fault("reads dS^T of another step")
            self.reading.setdefault(place, set()).add((what, step))

    def ended(self, what, step, active, parts):
        for part in parts:
            self.reading[part, active % self.places].discard((what, step))

    def release(self, left, w, step):
        if left[w] != step:
            raise Fault("releases a stage out of order")
        left[w] += 1

    def give_dq(self, w, step):
        yield lambda: self.dq_taken[w] >= step
        self.dq_given[w] = step + 1

    def finish_scores(self, w, n, active, trailed):
        yield lambda: self.d_o_full > n
        if trailed:
            self.read(("dk", w), n - 1, active, (w,))
        yield at_once
        self.write(w, n, active + trailed)
        yield at_once
        if trailed:
            self.ended(("dk", w), n - 1, active, (w,))
            self.release(self.q_left, w, n - 1)

    def finish_step(self, w, n, active, parts, chained):
        yield from self.barrier(w)
        self.read(("dq", w), n, active, parts)
        yield at_once
        if chained:
            yield lambda: self.q_full > n + 1
        else:
            self.read(("dk", w), n, active, (w,))
        yield at_once
        self.release(self.d_o_left, w, n)
        yield at_once
        self.ended(("dq", w), n, active, parts)
        yield from self.give_dq(w, n)
        if chained:
            yield from self.finish_scores(w, n + 1, active, 1)
        else:
            yield at_once
            self.ended(("dk", w), n, active, (w,))
            self.release(self.q_left, w, n)

    def half(self, w, n, active, own):
        if own == w:
            yield lambda: self.d_o_full > n
            self.write(w, n, active)
            yield at_once
            yield from self.finish_step(w, n, active, (w,), False)
            return
        self.release(self.q_left, w, n)
        yield from self.barrier(w)
        self.release(self.d_o_left, w, n)
        self.read(("dq", w), n, active, (own,))
        yield at_once
        self.ended(("dq", w), n, active, (own,))
        yield from self.give_dq(w, n)

    def partial(self, w, n, active):
        yield lambda: self.d_o_full > n
        self.write(w, n, active)
        yield at_once
        yield from self.barrier(w)
        self.read(("dk", w), n, active, (w,))
        yield at_once
        self.ended(("dk", w), n, active, (w,))
        self.release(self.d_o_left, w, n)
        self.release(self.q_left, w, n)
        self.read(("dq", w), n, active, BOTH)
        yield at_once
        self.ended(("dq", w), n, active, BOTH)
        yield from self.give_dq(w, n)

    def warpgroup(self, w):
        n = active = 0
        while True:
            yield lambda: self.q_full > n
            kind = self.kinds[n]
            if kind == "stop":
                yield from self.give_dq(w, n)
                return
            if kind == "full":
                yield from self.finish_scores(w, n, active, 0)
                while self.chained[n]:
                    yield from self.finish_step(w, n, active, BOTH, True)
                    active, n = active + 1, n + 1
                yield from self.finish_step(w, n, active, BOTH, False)
            elif kind == "partial":
                yield from self.partial(w, n, active)
            elif kind == "empty":
                yield lambda: self.d_o_full > n
                self.release(self.q_left, w, n)
                self.release(self.d_o_left, w, n)
                yield from self.give_dq(w, n)
            else:
                yield from self.half(w, n, active, int(kind[-1]))
            active += kind != "empty"
            n += 1

    # ---------------------------------------------------------------- and the others

    def loader(self):
        for n in range(len(self.kinds)):
            yield lambda: min(self.q_left) > n - STAGES_Q
            self.q_full = n + 1
            yield lambda: min(self.d_o_left) > n - STAGES_D_O
            self.d_o_full = n + 1

    def adder(self):
        for n, kind in enumerate(self.kinds):
            yield lambda: min(self.dq_given) > n
            if kind != "stop":
                yield at_once
                self.dq_taken = [n + 1, n + 1]

    def run(self, holds_back):
        """In a random order, in which one of the four may be held back for long."""
        others = [self.warpgroup(0), self.warpgroup(1), self.loader(), self.adder()]
        waits = {x: at_once for x in others}
        slow, left = None, 0
        while waits:
            ready = [x for x in others if x in waits and waits[x]()]
            if not ready:
                raise Fault("waits for ever")
            if holds_back:
                if left == 0:
                    slow, left = self.random.choice(others), self.random.randint(1, 60)
                left -= 1
                ready = [x for x in ready if x is not slow] or ready
            chosen = self.random.choice(ready)
            try:
                waits[chosen] = next(chosen)
            except StopIteration:
                del waits[chosen]
        if any(self.reading.values()):
            raise Fault("ends while dS^T is read")


def faults(runs, **changes):
    found = 0
    for seed in range(runs):
        try:
            Model(seed, **changes).run(seed % 2)
        except Fault as fault:
            found += 1
            if not changes:
                print(f"run {seed}: {fault}")
    return found


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    found = faults(runs)
    one_place, no_barrier = faults(runs // 4, places=1), faults(runs // 4, forgets=0.1)
    print(f"{runs} runs, {found} faults; of {runs // 4}: {one_place} with one place for dS^T,"
          f" {no_barrier} where barriers are left out")
    sys.exit(found > 0 or min(one_place, no_barrier) < runs // 8)


if __name__ == "__main__":
    main()
