# SPDX-License-Identifier: Apache-2.0
"""The bars of peers_decode.py and of peers_backward.py: each is printed as reached or not."""

import statistics


def spread(seconds):
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


class Bars:
    """`rows` is what --json writes; `missed` counts bars."""

    def __init__(self):
        self.rows, self.missed = [], 0

    def report(self, title, value, bar, unit="x", at_most=False, spread_of=()):
        good = value <= bar if at_most else value >= bar
        self.missed += not good
        self.rows.append(
            {"bar": title, "value": value, "to_reach": bar, "unit": unit, "reached": bool(good)}
        )
        print(
            f"  {'reached' if good else 'MISSED '}  {title:66} {value:9.3f} {unit}"
            f"   {'at most' if at_most else 'at least'} {bar:.3f}"
            + (f"   spread {max(map(spread, spread_of)) * 100:.1f} %" if spread_of else ""),
            flush=True,
        )

    def refused(self, title, why):
        """A bar that is missed since the library does not do the work, or not right."""
        self.missed += 1
        self.rows.append({"bar": title, "refused": str(why), "reached": False})
        print(f"  MISSED   {title}: {why}", flush=True)

    def count(self):
        bars = [row for row in self.rows if "reached" in row]
        print(f"{sum(row['reached'] for row in bars)} of {len(bars)} reached")
