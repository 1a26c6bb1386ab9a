"""The cells of a kill campaign, one after another: a line each, and how many were clean.

A cell that raises, lasts too long or never comes to its kill is not clean, and the next one runs in
any case. ``--minutes`` ends a campaign early: its sum says how many cells were not run, and
``--cells`` names those to run.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Campaign", "Verdict", "options", "places", "run_campaign", "spread"]

NOT_KILLED: Final = "the node was not killed"
CELL_S: Final = 300.0
"""Longer than any cell takes on a busy machine."""


class Verdict(NamedTuple):
    """What a cell came to."""

    faults: Sequence[str]
    counts: str = ""
    """For its line."""
    killed: bool = True
    """Whether its node has died at the cell's failpoint."""


def spread(passes: int, times: int) -> list[int]:
    """At most ``times`` of so many passes, from the first to the last."""
    return sorted({1 + (passes - 1) * number // max(1, times - 1) for number in range(times)})


def places(passes: Mapping[str, int], times: int) -> list[str]:
    """Passes of each failpoint, by how often a run passes it at least; a campaign that ends early
    has been at each failpoint."""
    numbers = {name: spread(most, times) for name, most in passes.items()}
    rounds = zip_longest(*([f"{name}@{n}" for n in found] for name, found in numbers.items()))
    return [place for found in rounds for place in found if place]


class Campaign:
    """What a campaign was asked for, and what its cells came to."""

    def __init__(self, options: argparse.Namespace, folder: Path, cell_s: float = CELL_S) -> None:
        self.options, self.folder = options, folder
        self._cell_s = cell_s
        self._end_s = time.monotonic() + 60 * options.minutes
        self._run = self._clean = self._asked = 0

    async def judge(
        self, cells: Iterable[str], verdict_of: Callable[[str, Path], Awaitable[Verdict]]
    ) -> None:
        """Run each cell that was asked for in a folder of its own, and print its line."""
        words = self.options.cells
        for cell in (one for one in cells if not words or any(word in one for word in words)):
            self._asked += 1
            if time.monotonic() >= self._end_s:
                continue
            began_s = time.monotonic()
            folder = self.folder / f"cell-{self._asked}"
            folder.mkdir()
            found = await self._verdict(verdict_of(cell, folder))
            self._run += 1
            wrong = [*found.faults, *([] if found.killed or not cell else [NOT_KILLED])]
            self._clean += not wrong
            said = "; ".join(wrong) or "as it should be"
            head = f"{cell or 'none':32} {time.monotonic() - began_s:5.1f} s"
            print(f"{head} {found.counts:24} {said}", flush=True)

    async def _verdict(self, found: Awaitable[Verdict]) -> Verdict:
        try:
            async with asyncio.timeout(self._cell_s):
                return await found
        except Exception as error:  # Whatever a cell raises, the others are to be run.
            traceback.print_exc()
            return Verdict([f"{type(error).__name__}: {error}"])

    def ended(self) -> int:
        """Print the sum; the exit code."""
        print(f"{self._asked} cells asked, {self._run} run, {self._clean} clean")
        return 0 if self._clean == self._run > 0 else 1


def options(module: str, *, times: int = 0) -> argparse.ArgumentParser:
    """Of the command line of a campaign; ``times`` each, if that can be chosen."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    if times:
        parser.add_argument("times", type=int, nargs="?", default=times, help="kills at each place")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--cells", nargs="*", default=[], help="parts of the names of cells")
    return parser


def run_campaign(
    parser: argparse.ArgumentParser, work: Callable[[Campaign], Awaitable[None]]
) -> int:
    """Run a campaign as its command line says; the exit code."""

    async def worked() -> int:
        with tempfile.TemporaryDirectory() as folder:
            campaign = Campaign(parser.parse_args(), Path(folder))
            await work(campaign)
            return campaign.ended()

    return asyncio.run(worked())
