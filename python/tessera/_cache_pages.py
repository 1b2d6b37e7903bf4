# SPDX-License-Identifier: Apache-2.0
"""The pages of a KV cache: which sequence has which, and who shares one. All of it on the host.

To this module a page is a number. Each storage group of a layout has pools, a table and page
numbers of its own, which serve all layers of the cache.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import numpy.typing as npt

from . import _layouts, _native, patterns

Int32 = npt.NDArray[np.int32]


def _storage(layout: _layouts.Layout) -> tuple[int, list[tuple[tuple[int, ...], int]]]:
    """The block of a layout, and of each storage group its kv heads and slots of its ring."""
    of_layout = _native.new(_native.LayoutInfo)
    _native.call("tess_layout_query", layout.handle, ctypes.byref(of_layout))
    heads, found = (ctypes.c_int32 * of_layout.n_kv_heads)(), []
    for n in range(of_layout.n_storage):
        info = _native.new(_native.StorageInfo)
        _native.call(
            "tess_layout_storage", layout.handle, n, ctypes.byref(info), ctypes.byref(heads)
        )
        found.append((tuple(heads[: info.n_kv_heads]), int(info.ring_slots)))
    return int(of_layout.block), found


def groups(
    pattern: patterns.Pattern, heads: int, kv_heads: int, max_tokens: int, max_chunk: int, page: int
) -> list[Group]:
    """The storage groups of a pattern.

    Each gets a layout, and so plans, of its own. One plan could serve several groups, but only with
    pools of equally many pages, and a dense head takes many times the pages of a sparse one.
    """
    layout = _layouts.Layout(pattern, heads, kv_heads, max_tokens, max_chunk)
    block, found = _storage(layout)
    if len(found) == 1:
        return [Group(layout, found[0][0], found[0][1], heads, page, block)]
    assert isinstance(pattern, patterns.S2)  # heads of all others are alike
    ids = pattern.head_ids or tuple(range(pattern.head_first, pattern.head_first + heads))
    total = pattern.heads_total or max(ids) + 1
    kv_total = pattern.kv_heads_total or max(1, total * kv_heads // heads)
    share, made = heads // kv_heads, []
    for some, ring in found:
        own = [ids[g * share + n] for g in some for n in range(share)]
        part = pattern.on_heads(own, total, kv_total)
        layout = _layouts.Layout(part, len(own), len(some), max_tokens, max_chunk)
        made.append(Group(layout, some, ring, len(own), page, block))
    return made


class Group:
    """A storage group: kv heads that take equally many slots, and share pools and a table."""

    def __init__(
        self,
        layout: _layouts.Layout,
        kv_heads: tuple[int, ...],
        ring: int,
        heads: int,
        page: int,
        block: int,
    ) -> None:
        self.layout, self.kv_heads, self.ring, self.heads = layout, kv_heads, ring, heads
        self._page, self.block = page, block
        self._number = ctypes.c_int64()
        # Pages change only where a token begins a page or a block, if one divides the other.
        near = min(page, block)
        self._step = near if max(page, block) % near == 0 else 1

    def pages(self, tokens: int, kv_first: int) -> int:
        """The pages that so many keys of a sequence take, from position kv_first on. ANY_FIRST: the
        most that they take wherever they begin."""
        return self._ask(tokens, kv_first, self._page)

    def places(self, tokens: int, kv_first: int) -> int:
        """The token places that they take."""
        return self._ask(tokens, kv_first, 0)

    def _ask(self, tokens: int, kv_first: int, page: int) -> int:
        number = self._number
        _native.call(
            "tess_layout_part_pages",
            self.layout.handle, 0, kv_first, tokens, page, ctypes.byref(number),
        )  # fmt: skip
        return int(number.value)

    def same(self, tokens: int) -> int:
        """The most keys that surely take the pages of `tokens`, and no more."""
        return math.ceil(tokens / self._step) * self._step

    def columns(self, first: int, end: int, kv_first: int) -> list[int]:
        """The places in a sequence's row of the table of the pages that tokens first to end - 1
        are written to, where its keys begin at position kv_first."""
        found: set[int] = set()
        for block in range(first // self.block, math.ceil(end / self.block)):
            start = max(first, block * self.block) - block * self.block
            last = min(end, (block + 1) * self.block) - block * self.block - 1
            for head in range(len(self.kv_heads)):
                _native.call(
                    "tess_layout_part_slot",
                    self.layout.handle, head, kv_first, block, ctypes.byref(self._number),
                )  # fmt: skip
                place = int(self._number.value) * self.block
                found.update(
                    range((place + start) // self._page, (place + last) // self._page + 1)
                )
        return sorted(found)


class Pages:
    """The pages of one storage group."""

    def __init__(self, table: Int32, count: int) -> None:
        """table: [sequences, columns], filled here with -1, and from then on by this object."""
        self.table = table
        table.fill(-1)
        self.users = np.zeros(count, dtype=np.int32)  # rows of the table that have each page
        self.used = [0] * len(table)  # pages of each sequence
        self.free = list(range(count - 1, -1, -1))
        self.shared = 0  # pages that more than one row has
        self.changed: set[int] = set()  # rows that the device does not have yet

    def __len__(self) -> int:
        return len(self.users)

    def in_use(self) -> int:
        return len(self.users) - len(self.free)

    def add(self, count: int) -> None:
        """More pages, behind those there are."""
        before = len(self.users)
        self.users = np.concatenate([self.users, np.zeros(count, dtype=np.int32)])
        self.free[:0] = range(before + count - 1, before - 1, -1)

    def resize(self, sequence: int, wanted: int) -> None:
        """Takes or gives back pages until the sequence has `wanted`. The caller has seen to it that
        enough are free."""
        row, used = self.table[sequence], self.used[sequence]
        if used == wanted:
            return
        while used < wanted:
            row[used] = self._take()
            used += 1
        while used > wanted:
            used -= 1
            self._give_back(int(row[used]))
            row[used] = -1
        self.used[sequence] = used
        self.changed.add(sequence)

    def not_own(self, sequence: int, columns: list[int]) -> list[int]:
        """Of these places in a sequence's row, those whose page another row has as well."""
        row, used = self.table[sequence], self.used[sequence]
        return [c for c in columns if c < used and self.users[row[c]] > 1]

    def own(self, sequence: int, columns: list[int]) -> list[tuple[int, int]]:
        """Pages of its own for a sequence in these places: (page to copy from, to copy to)."""
        row, pairs = self.table[sequence], []
        for column in columns:
            before = int(row[column])
            if self.users[before] < 2:
                continue  # the other one has made its copy meanwhile
            self._give_back(before)
            row[column] = self._take()
            pairs.append((before, int(row[column])))
        if pairs:
            self.changed.add(sequence)
        return pairs

    def share(self, source: int, target: int) -> None:
        """Gives a sequence without pages all those of another one. Nothing is copied."""
        used = self.used[source]
        self.table[target, :used] = self.table[source, :used]
        for page in self.table[source, :used]:
            self.users[page] += 1
            self.shared += int(self.users[page] == 2)
        self.used[target] = used
        self.changed.add(target)

    def reseat(self, table: Int32, sources: list[int]) -> None:
        """A new table, whose row n is a copy of row sources[n] of the one before."""
        before, used = self.table.copy(), self.used
        table.fill(-1)
        for target, source in enumerate(sources):
            table[target] = before[source]
        ids, counts = np.unique(table[table >= 0], return_counts=True)
        self.users.fill(0)
        self.users[ids] = counts
        self.shared = int((self.users > 1).sum())
        self.free = [n for n in range(len(self.users) - 1, -1, -1) if not self.users[n]]
        self.table, self.used = table, [used[source] for source in sources]
        self.changed = set(range(len(sources)))

    def copy(self, table: Int32) -> Pages:
        """The same on another table, which has this one's content."""
        made = Pages.__new__(Pages)
        made.table, made.users, made.shared = table, self.users.copy(), self.shared
        made.used, made.free = list(self.used), list(self.free)
        made.changed = set(range(len(table)))
        return made

    def restore(self, kept: Pages) -> None:
        """As these pages were when they were copied. None were added since."""
        self.table[:] = kept.table
        self.users, self.shared = kept.users, kept.shared
        self.used, self.free, self.changed = kept.used, kept.free, kept.changed

    def _take(self) -> int:
        page = self.free.pop()
        self.users[page] = 1
        return page

    def _give_back(self, page: int) -> None:
        self.users[page] -= 1
        left = int(self.users[page])
        self.shared -= left == 1
        if left == 0:
            self.free.append(page)

