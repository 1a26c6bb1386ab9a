"""Which cuts a sweep makes, what is kept of each, and what may be called clean.

A cell is a kind of cut. It is clean if it was cut often enough and no cut of it broke a rule; a
cell that was not reached is not clean. Pure but for the file of results, which only grows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from rookery.schemas.digest import digest_bytes

__all__ = ["CELLS", "Cell", "Cut", "Results", "tree_digest"]

MODES = ("hole", "reset", "up", "down")
MOMENTS = ("blind", "aimed")
WORK = ("local", "worker", "large", "waiting")
LIMITS = ("default", "long")
PAUSES_S = (5, 9, 20, 60)
PRODUCT = ("schemas", "bus", "actors", "ops")


class Cell(NamedTuple):
    """A kind of cut."""

    mode: str
    """``hole``: both ways, then what was held goes on; ``reset``: it is lost; ``up``, ``down``: one
    way; ``stop``: the process is stopped."""
    moment: str
    """``blind``: for about as long as a claim lives; ``aimed``: until a while after another node
    has taken over; else so many seconds."""
    work: str
    """What the programs do: calls in the node, of a worker, with large arguments, or calls that
    wait for timers and approvals."""
    limits: str
    """Of the runs' time."""
    nodes: int

    @property
    def name(self) -> str:
        return f"{self.mode} {self.moment} {self.work} {self.limits} {self.nodes}-nodes"

    def seconds(self, number: int, claim_s: int) -> float:
        """How long its ``number``-th cut is; after the takeover, if it is aimed. Neighbours differ,
        and so do the cuts of one cell."""
        share = (CELLS.index(self) * 0.618 + number * 0.414) % 1.0
        if self.moment == "blind":
            return claim_s * (1.0 + share * 7.0 / 6.0)
        if self.moment == "aimed":
            return 0.05 + 2.95 * share**2
        return float(self.moment.removesuffix("s"))


CELLS = (
    *(
        Cell(mode, moment, work, limits, nodes)
        for nodes, work, limits, moment, mode in product((2, 3), WORK, LIMITS, MOMENTS, MODES)
    ),
    *(Cell("stop", f"{s}s", work, "default", 2) for s, work in product(PAUSES_S, WORK)),
)


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one cut; a line of the results."""

    tree: str
    """Digest of the product that was cut."""
    claim_s: int
    cell: str
    gone_s: float
    """How long the node was cut off."""
    taken_over_s: tuple[float, ...] = ()
    """When the other nodes took over, from the cut: the first and the last time."""
    runs: int = 0
    calls: int = 0
    recoveries: int = 0
    late_facts: int = 0
    late_acts: int = 0
    faults: tuple[tuple[str, str], ...] = ()
    """Kind and text of each."""
    stories: dict[str, list[str]] = {}
    """Of the sessions with a fault or a late act, in lines."""

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.faults}


class Results:
    """The cuts of one tree that a file lists, and those that are added."""

    def __init__(self, path: Path, tree: str, claim_s: int) -> None:
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        cuts = [msgspec.json.decode(line, type=Cut) for line in lines]
        self.cuts = [cut for cut in cuts if (cut.tree, cut.claim_s) == (tree, claim_s)]

    def add(self, cut: Cut) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(cut) + b"\n")
        self.cuts.append(cut)

    def to_do(self, cells: Sequence[Cell], times: int) -> Iterator[Cell]:
        """Cells in turn, until each was cut so often."""
        for turn in range(times):
            for cell in cells:
                if self._counts()[cell.name] <= turn:
                    yield cell

    def number(self, cell: Cell) -> int:
        """How often a cell was cut."""
        return self._counts()[cell.name]

    def _counts(self) -> Counter[str]:
        return Counter(cut.cell for cut in self.cuts)

    def not_clean(self, cells: Sequence[Cell], times: int) -> list[str]:
        """The cells that may not be called clean, each with the reason."""
        faulty: dict[str, Counter[str]] = defaultdict(Counter)
        for cut in self.cuts:
            faulty[cut.cell].update(cut.kinds)
        return [
            f"{cell.name}: {_reason(faulty[cell.name], self.number(cell), times)}"
            for cell in cells
            if faulty[cell.name] or self.number(cell) < times
        ]

    def table(self) -> list[str]:
        """A line for each mode and moment."""
        groups: dict[str, list[Cut]] = defaultdict(list)
        for cut in self.cuts:
            groups[" ".join(cut.cell.split()[:2])].append(cut)
        head = f"{'cuts':14}{''.join(f'{name:>12}' for name in COLUMNS)}"
        return [head, *(f"{name:14}{_row(cuts)}" for name, cuts in groups.items())]


COLUMNS = (
    *("number", "taken over", "runs", "calls", "recoveries", "late facts", "late acts"),
    *("double", "stuck", "unanswered"),
)


def _row(cuts: list[Cut]) -> str:
    sums = (
        len(cuts),
        sum(bool(cut.taken_over_s) for cut in cuts),
        *(sum(getattr(cut, name) for cut in cuts) for name in ("runs", "calls", "recoveries")),
        *(sum(getattr(cut, name) for cut in cuts) for name in ("late_facts", "late_acts")),
        *(sum(kind in cut.kinds for cut in cuts) for kind in COLUMNS[-3:]),
    )
    return "".join(f"{number:>12}" for number in sums)


def _reason(kinds: Counter[str], cuts: int, times: int) -> str:
    said = [f"{kind} in {number} of {cuts} cuts" for kind, number in kinds.items()]
    return ", ".join(said or [f"not reached: {cuts} of {times} cuts"])


def tree_digest(root: Path) -> str:
    """Names the product's sources, so that results of other sources do not count."""
    files = sorted(path for folder in PRODUCT for path in (root / folder).rglob("*.py"))
    return digest_bytes(b"".join(path.read_bytes() for path in files))[:12]
