"""The output of a run, printed while the run goes on: stdout to stdout, stderr to stderr.

Only text that continues what was printed is printed live. After a gap the rest comes from the
result, so each stream is printed whole and once.
"""

from __future__ import annotations

from contextlib import aclosing

from rookery.bus.client import Handle
from rookery.ops.cli.output import print_line
from rookery.ops.cli.rendering.run_result import print_stderr
from rookery.schemas.run import OutputStream, RunResult

__all__ = ["LivePrinter"]

_PRINT = {OutputStream.STDOUT: print_line, OutputStream.STDERR: print_stderr}


class LivePrinter:
    """Prints the output of one run."""

    def __init__(self) -> None:
        self._printed = dict.fromkeys(OutputStream, "")
        self._pieces = 0

    async def follow(self, handle: Handle) -> None:
        """Print each piece as it arrives, until the run ends or a piece is missing."""
        async with aclosing(handle.output()) as pieces:
            async for piece in pieces:
                if piece.number != self._pieces + 1:
                    return
                self._pieces = piece.number
                self._print(piece.stream, piece.text)

    def print_rest(self, result: RunResult) -> None:
        """Print what is not printed yet, and end each stream with its line."""
        whole = {OutputStream.STDOUT: result.stdout, OutputStream.STDERR: result.stderr}
        for stream, text in whole.items():
            if text.startswith(self._printed[stream]):
                self._print(stream, text[len(self._printed[stream]) :])
            if self._printed[stream] and not self._printed[stream].endswith("\n"):
                self._print(stream, "\n")

    def _print(self, stream: OutputStream, text: str) -> None:
        if text:
            self._printed[stream] += text
            _PRINT[stream](text, end="")
