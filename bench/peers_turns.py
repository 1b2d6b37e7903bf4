# SPDX-License-Identifier: Apache-2.0
"""What all peers_*.py share: turns, medians and spreads, bars, and the rows of --json.

Contestants take turns, so that what the machine does at some moment meets all of them. A ratio
compares times of one round; the median over the rounds counts.
"""

import json
import random
import statistics
import time


def turns(work, rounds, sample, shuffled=True):
    """Seconds by name. `work` maps names to what `sample` times, which gives a list of seconds.

    Each round has an order of its own unless `shuffled` is false: what ran before decides how warm
    a GPU is, and so how fast its clock runs.
    """
    seconds = {name: [] for name in work}
    order, shuffler = list(work), random.Random(1)
    for _ in range(rounds):
        if shuffled:
            shuffler.shuffle(order)
        for name in order:
            seconds[name] += sample(work[name])
    return seconds


def all_of(calls):
    """Some calls, one after the other, as one."""

    def run():
        for call in calls:
            call()

    return run


def on_host(function, rest, runs, clock=time.perf_counter):
    """Seconds of some runs of a function after one that does not count. `rest` is how long the
    threads of the contestant before need until they sleep; `runs(seconds of the first)` how many
    count."""
    time.sleep(rest)
    start = clock()
    function()
    seconds = []
    for _ in range(runs(clock() - start)):
        start = clock()
        function()
        seconds.append(clock() - start)
    return seconds


def spread(seconds):
    """The largest less the smallest, over the median."""
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


def ratios(seconds, other):
    """The ratio of each round."""
    return [a / b for a, b in zip(seconds, other)]


def ratio(seconds, other):
    return statistics.median(ratios(seconds, other))


def cpu_facts():
    """The model of the CPU, and the names of what it can do."""
    facts = {"model name": "?", "flags": ""}
    with open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            if facts.get(name.strip()) in ("?", ""):
                facts[name.strip()] = value.strip()
    return facts["model name"], facts["flags"].split()


def write_json(path, rows):
    """Writes what --json asked for, if it did."""
    if path:
        with open(path, "w") as file:
            json.dump(rows, file, indent=1, default=str)


class Bars:
    """Prints each bar as reached or not. `rows` is what --json writes; `missed` counts bars."""

    def __init__(self):
        self.rows, self.missed = [], 0

    def report(self, title, value, bar, unit="x", at_most=False, spread_of=()):
        good = value <= bar if at_most else value >= bar
        self.missed += not good
        row = {"bar": title, "value": value, "to_reach": bar, "unit": unit, "at_most": at_most}
        self.rows.append(row | {"reached": bool(good)})
        print(
            f"  {'reached' if good else 'MISSED '}  {title:66} {value:9.3f} {unit}"
            f"   {'at most' if at_most else 'at least'} {bar:.3f}"
            + (f"   spread {max(map(spread, spread_of)) * 100:.1f} %" if spread_of else ""),
            flush=True,
        )

    def within(self, title, seconds, other, most):
        """The time is at most so often the other's."""
        self.report(title, ratio(seconds, other), most, at_most=True, spread_of=[seconds, other])

    def over(self, title, other, seconds, bar):
        """The other's time is at least so often the own one."""
        self.report(title, ratio(other, seconds), bar, spread_of=[other, seconds])

    def refused(self, title, why):
        """A bar that is missed since the library does not do the work, or not right."""
        self.missed += 1
        self.rows.append({"bar": title, "refused": str(why), "reached": False})
        print(f"  MISSED   {title}: {why}", flush=True)

    def not_yet(self, title, why):
        """A bar whose work this machine or these options cannot show."""
        self.rows.append({"bar": title, "not_yet": str(why)})
        print(f"  not yet  {title}: {why}", flush=True)

    def count(self):
        bars = [row for row in self.rows if "reached" in row]
        print(f"{sum(row['reached'] for row in bars)} of {len(bars)} reached")
