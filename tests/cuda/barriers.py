# SPDX-License-Identifier: Apache-2.0
"""Random interleavings of what mainloop_backward.cuh does at its barriers: no warpgroup writes dS^T
that the other one still reads, reads one of another step, releases a stage twice or too early,
takes a phase of an mbarrier for another one, or waits for ever. This holds for the kernels of all
gradients, of dQ alone, and of dK and dV alone, whether dK takes dS^T out of registers (head_dim
above 64) or out of shared memory. The same without a barrier, or with one place for dS^T, has to
fail.

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
    def __init__(self, seed, places=2, forgets=0.0, queries=True, keys=True, registers=True):
        self.random = random.Random(seed)
        self.queries, self.keys = queries, keys  # what is wanted
        self.registers = registers  # where dK finds dS^T
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
        """wait_ds(), where the two warpgroups meet, but for dK and dV alone"""
        if self.random.random() < self.forgets or not self.queries:
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
        if self.registers and not self.queries:
            return
        place = (w, active % self.places)
        if self.reading.get(place):
            raise Fault("writes dS^T that is being read")
        self.holds[place] = step

    def read(self, what, step, active, parts):
        """Products with dS^T in shared memory, of some warpgroups' keys, are issued, if they are
        wanted."""
        if not (self.queries if what[0] == "dq" else self.keys and not self.registers):
            return
        for part in parts:
            place = (part, active % self.places)
            if self.holds.get(place) != step:
                raise Fault("reads dS^T of another step")
            self.reading.setdefault(place, set()).add((what, step))

    def ended(self, what, step, active, parts):
        for part in parts:
            self.reading.get((part, active % self.places), set()).discard((what, step))

    def release(self, left, w, step):
        if left[w] != step:
            raise Fault("releases a stage out of order")
        if min(left) <= step - (STAGES_Q if left is self.q_left else STAGES_D_O):
            raise Fault("releases a stage that the other one has not released before")
        left[w] += 1

    def release_rows(self, w, step, where):
        """Those of a stage that scores read last, or dK and dV."""
        if where == ("dk" if self.keys else "scores"):
            self.release(self.q_left, w, step)
        if where == ("dv" if self.keys else "scores"):
            self.release(self.d_o_left, w, step)

    def give_dq(self, w, step):
        if not self.queries:
            return
        # An mbarrier tells a phase from the one before, and not from the one before that.
        yield lambda: self.dq_taken[w] % 2 == step % 2
        if self.dq_taken[w] != step:
            raise Fault("takes a phase of dQ for another one")
        self.dq_given[w] = step + 1

    def finish_scores(self, w, n, active, trailed):
        yield lambda: self.d_o_full > n
        if trailed:
            self.read(("dk", w), n - 1, active, (w,))
        yield at_once
        if trailed and self.registers:
            self.release_rows(w, n - 1, "dk")
        self.write(w, n, active + trailed)
        self.release_rows(w, n, "scores")
        yield at_once
        if trailed and not self.registers:
            self.ended(("dk", w), n - 1, active, (w,))
            self.release_rows(w, n - 1, "dk")

    def finish_step(self, w, n, active, parts, chained):
        yield from self.barrier(w)
        self.read(("dq", w), n, active, parts)
        yield at_once
        if self.registers:
            self.release_rows(w, n, "dv")
        if chained:
            yield lambda: self.q_full > n + 1
        else:
            self.read(("dk", w), n, active, (w,))
        yield at_once
        if not self.registers:
            self.release_rows(w, n, "dv")
        yield at_once
        self.ended(("dq", w), n, active, parts)
        yield from self.give_dq(w, n)
        if chained:
            yield from self.finish_scores(w, n + 1, active, 1)
        else:
            yield at_once
            self.ended(("dk", w), n, active, (w,))
            self.release_rows(w, n, "dk")

    def half(self, w, n, active, own):
        if own == w:
            yield lambda: self.d_o_full > n
            self.write(w, n, active)
            self.release_rows(w, n, "scores")
            yield at_once
            yield from self.finish_step(w, n, active, (w,), False)
            return
        if not self.queries:
            yield from self.idle(w, n)
            return
        self.release(self.q_left, w, n)
        yield from self.barrier(w)
        self.release(self.d_o_left, w, n)
        self.read(("dq", w), n, active, (own,))
        yield at_once
        self.ended(("dq", w), n, active, (own,))
        yield from self.give_dq(w, n)

    def idle(self, w, n):
        yield lambda: self.d_o_full > n
        self.release(self.q_left, w, n)
        self.release(self.d_o_left, w, n)

    def partial(self, w, n, active):
        yield lambda: self.d_o_full > n
        self.write(w, n, active)
        self.release_rows(w, n, "scores")
        yield at_once
        yield from self.barrier(w)
        self.read(("dk", w), n, active, (w,))
        yield at_once
        self.ended(("dk", w), n, active, (w,))
        self.release_rows(w, n, "dv")
        self.release_rows(w, n, "dk")
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
                yield from self.idle(w, n)
                yield from self.give_dq(w, n)
            else:
                yield from self.half(w, n, active, int(kind[-1]))
            active += kind != "empty" and (self.queries or kind != f"half {1 - w}")
            n += 1

    # ---------------------------------------------------------------- and the others

    def loader(self):
        for n in range(len(self.kinds)):
            yield lambda: min(self.q_left) > n - STAGES_Q
            self.q_full = n + 1
            yield lambda: min(self.d_o_left) > n - STAGES_D_O
            self.d_o_full = n + 1

    def adder(self):
        for n, kind in enumerate(self.kinds if self.queries else []):
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
    broken = "places" in changes or "forgets" in changes
    found = 0
    for seed in range(runs):
        try:
            Model(seed, **changes).run(seed % 2)
        except Fault as fault:
            found += 1
            if not broken:
                print(f"run {seed}, {changes}: {fault}")
    return found


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    failed = False
    for queries, keys, registers in (
        (True, True, True),
        (True, True, False),
        (True, False, True),
        (False, True, True),
        (False, True, False),
    ):
        wanted = {"queries": queries, "keys": keys, "registers": registers}
        share = runs if queries and keys else runs // 2
        found = faults(share, **wanted)
        print(f"{wanted}: {share} runs, {found} faults", end="")
        # Without dQ a warpgroup reads and writes dS^T of its own keys alone, in its own order.
        if queries:
            few = share // 4
            one, none = faults(few, places=1, **wanted), faults(few, forgets=0.1, **wanted)
            print(f"; of {few}: {one} with one place, {none} with barriers left out", end="")
            failed |= min(one, none) < few // 2
        print()
        failed |= found > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
