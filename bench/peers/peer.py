# SPDX-License-Identifier: Apache-2.0
"""What the programs for `tessera bench --peers` share: requests, answers and inputs.

A peer calls `serve` with a generator that yields (kernel, compute, clock) for each way in which it
computes a problem, or (kernel, reason) for one that does not take it.
"""

import json
import os
import sys
import time

ANSWERS = os.fdopen(os.dup(1), "w")  # what a package prints must not stand among the answers
os.dup2(2, 1)


class Refused(Exception):
    """The problem is none for this peer, for the reason given."""


def tell(**fields):
    ANSWERS.write(json.dumps(fields) + "\n")
    ANSWERS.flush()


def path(request, name):
    return os.path.join(request["folder"], name)


class TooSlow(Exception):
    """Its runs would take longer than the suite has time for."""


def plain(request):
    """Refuses what takes more than dense attention of tensors in place."""
    if request["packed"]:
        raise Refused("sequences of mixed lengths")
    if request["page"] or request["compact"]:
        raise Refused("no page tables")
    if request["pattern"] != "dense":
        raise Refused(f"no pattern {request['pattern']}")


def samples(run, seconds, clock=None, most=float("inf")):
    """The first run's time, and those of 3 to 64 rounds. `clock` times a call, by default from
    outside; where a call returns before its work is done, `clock.wait` waits for it. Raises TooSlow
    with the time of a run where three rounds would take longer than `most`."""
    clock = clock or outside
    start = time.perf_counter()
    run()
    getattr(clock, "wait", lambda: None)()
    first = time.perf_counter() - start
    if first > most:
        raise TooSlow(first)
    # What is slow at first may have been loading.
    again = clock(run) if first < 1 or 3 * first > most else first
    if 3 * again > most:
        raise TooSlow(again)
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < 0.1 and again < 1:
        clock(run)
    start = time.perf_counter()
    while len(times) < 3 or (len(times) < 64 and time.perf_counter() - start < seconds):
        times.append(clock(run))
    return first, times


def outside(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def serve(name, version, backends, ways):
    """`ways(request)` yields (kernel, run, clock, store): what is timed, and what writes the output
    of a run into the file `o`, or of gradients into `d_q`, `d_k` and `d_v`."""
    tell(name=name, version=version, backends=",".join(backends))
    for line in sys.stdin:
        request = json.loads(line)
        if "problem" not in request:
            continue
        try:
            for kernel, run, clock, store in ways(request):
                try:
                    first, times = samples(run, request["seconds"], clock, request["most_seconds"])
                    store()
                    tell(kernel=kernel, first_seconds=first, samples_seconds=times)
                except TooSlow as error:
                    tell(kernel=kernel, note=f"a run takes {error.args[0]:.3g} s",
                         run_seconds=error.args[0])
                except (Refused, RuntimeError, MemoryError) as error:
                    tell(kernel=kernel, note=str(error).splitlines()[0][:200] or "refused")
                sys.stdin.readline()  # the suite has read the output
        except Refused as reason:
            tell(kernel="", note=str(reason))
            sys.stdin.readline()
        tell(done=True)
