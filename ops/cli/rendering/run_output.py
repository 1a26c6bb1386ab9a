"""A run on a terminal: its progress, its output while it goes on, and its result."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from msgspec import UNSET
from rich.cells import cell_len

from rookery.bus.client import AnswerText, Handle
from rookery.ops.cli.output import LAYOUT, clock_time, print_json, print_line, printable
from rookery.schemas.agents import DeltaKind, ModelUsage
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.run_progress import OpenCallPhase, OpenRunCall, RunProgress, RunStage
from rookery.schemas.replies import RunAnswer, RunState
from rookery.schemas.run import (
    Diagnostic,
    ErrorObject,
    OutputStream,
    ResultKind,
    RunResult,
    RunStatus,
    Severity,
    Span,
)

__all__ = [
    "AnswerPrinter",
    "LivePrinter",
    "RunProgressLine",
    "artifact_lines",
    "follow",
    "print_output",
    "print_stderr",
    "result_notes",
    "show_result",
    "usage_words",
]

# --- run progress ---------------------------------------------------------------------------------

# The progress of a running run, printed as a line whenever it changes.
#
# It is folded from the run's facts as they arrive. A run that ends soon prints nothing.


QUIET_S = 2.0
"""A run that ends within this time prints nothing."""
ABSENCE_MAX_S = 300.0
"""How long an accepted run may have no node: it continues on the next node that starts, and a
machine that restarts needs minutes."""


class RunProgressLine:
    """The progress of a run in one line."""

    def __init__(self) -> None:
        self._progress = RunProgress()
        self._run_id = ""

    def apply(self, fact: Mapping[str, Any]) -> None:
        """Fold the next fact of the run."""
        self._run_id = str(fact.get("run", ""))
        self._progress.apply_fields(fact)

    @property
    def line(self) -> str:
        words = self._progress.words or "is on its way"
        if self._progress.stage is not RunStage.PARKED:
            return words
        return "; ".join([words, *filter(None, map(self._remedy, self._progress.calls.values()))])

    def _remedy(self, call: OpenRunCall) -> str:
        """The time or the command that lets a call of a parked run continue, if there is one."""
        if call.phase is OpenCallPhase.RECOVERY_REQUIRED:
            return f"rookery runs resolve {self._run_id} {call.operation_id}"
        if call.until_ms:
            return f"until {clock_time(call.until_ms)}"
        return f"rookery approvals show {call.approval_id}" if call.approval_id else ""


async def follow(handle: Handle, show: Callable[[str], None]) -> None:
    """Show the run's progress until it ends; once accepted, the run may be without a node for
    minutes."""
    progress, shown = RunProgressLine(), ""
    folding = asyncio.create_task(_apply_facts(handle, progress))
    try:
        while not (await asyncio.wait({folding}, timeout=QUIET_S))[0]:
            line = _unanswered_line(handle) or progress.line
            if line != shown:
                shown = line
                show(f"run {handle.run_id or '(not accepted yet)'} {shown}")
        with suppress(CodedError):  # The run's reply says why it cannot be followed.
            folding.result()
    finally:
        folding.cancel()


def _unanswered_line(handle: Handle) -> str:
    """What an accepted run waits for while no node answers."""
    if not handle.run_id or handle.last_error is None:
        return ""
    return f"continues when a node replies; the last error: {handle.last_error.message}"


async def _apply_facts(handle: Handle, progress: RunProgressLine) -> None:
    await handle.accepted()
    handle.set_max_absence(ABSENCE_MAX_S)
    async with aclosing(handle.events()) as facts:
        async for fact in facts:
            progress.apply(fact)


# --- run result -----------------------------------------------------------------------------------

# The result of a run for people: its output and its value, or its error and the line in question.
#
# The program's output and its value go to stdout; everything else goes to stderr.


def print_output(result: RunResult) -> None:
    """Print the streams of a run that has ended, each to the same stream here."""
    for text, show in ((result.stdout, print_line), (result.stderr, print_stderr)):
        show(text, end="" if not text or text.endswith("\n") else "\n")


def show_result(
    answer: RunAnswer,
    code: str,
    *,
    json: bool,
    show_output: Callable[[RunAnswer], None] = print_output,
    is_shown: bool = False,
) -> int:
    """Print the result of a run of ``code``; return the exit code. ``show_output`` prints what the
    program printed. ``is_shown``: the terminal has the value already."""
    if json:
        print_json(answer)
    else:
        show_output(answer)
        if answer.result is not None and not is_shown:
            text = encode_json(answer.result).decode()
            print_line(text if answer.usage is UNSET else str(answer.result))
            for note in result_notes(answer):
                print_stderr(note)
        for line in artifact_lines(answer):
            print_stderr(line)
        if answer.snapshot_id is not None and RunState(answer.status).is_end:
            print_stderr(f"snapshot {answer.snapshot_id}")
        for diagnostic in answer.diagnostics:
            if diagnostic.severity is not Severity.ERROR:
                _show_problem(diagnostic, code, f"{diagnostic.severity} ")
        if answer.error is not None:
            _show_problem(answer.error, code)
    return 0 if answer.status is RunStatus.OK else 1


def result_notes(result: RunResult) -> list[str]:
    """Notes about a value that is cut or shown as text."""
    notes = []
    if result.result_kind is ResultKind.REPR:
        notes.append("the result, or a part of it, has no form in JSON and is given as text")
    if result.result_cut is True:
        notes.append("the result is cut: parts of a deep or huge value are left out")
    return notes


def artifact_lines(result: RunResult) -> list[str]:
    """A line for each file that the run wrote to ``/work/out``."""
    lines = [
        f"artifact {printable(one.artifact_ref)}: {one.mime}, {one.size_bytes:,} bytes"
        for one in result.artifacts or ()
    ]
    if result.artifacts_cut is True:
        lines.append("artifacts are left out: they are too many or too large")
    return lines


def usage_words(usage: ModelUsage) -> str:
    """What a run has used of models."""
    words = [
        f"{usage.turns} answers",
        f"{usage.input_tokens:,} > {usage.output_tokens:,} tokens",
    ]
    if usage.priced:
        of = "" if usage.priced == usage.turns else f" for {usage.priced} of them"
        words.append(f"${usage.cost_micro_usd / 1e6:.4f}{of}")
    if usage.maybe_paid_tokens:
        lost = f"perhaps {usage.maybe_paid_tokens:,} tokens more for answers that were lost"
        cost = usage.maybe_paid_micro_usd
        words.append(f"{lost}, up to ${cost / 1e6:.4f}" if cost else lost)
    return ", ".join(words)


def print_stderr(line: str, end: str = "\n") -> None:
    """Print a line about the run."""
    print(line, end=end, file=sys.stderr, flush=True)


def _show_problem(problem: ErrorObject | Diagnostic, code: str, kind: str = "") -> None:
    """Print ``CODE: message``, the source line with the place underlined, and the hint."""
    print_stderr(printable(f"{kind}{problem.code}: {problem.message}", LAYOUT))
    if problem.span is not None:
        for line in _underlined(problem.span, code):
            print_stderr(printable(line, "\t"))
    if problem.hint:
        print_stderr(printable(f"hint: {problem.hint}", LAYOUT))


def _underlined(span: Span, code: str) -> list[str]:
    lines = code.splitlines()
    if not 1 <= span.line <= len(lines):
        return [f"  at line {span.line}"]
    line, number = lines[span.line - 1], str(span.line)
    begin = min(span.column, len(line) + 1)
    end = len(line) + 1 if (span.end_line or span.line) > span.line else span.end_column
    length = max(1, min(end or begin, len(line) + 1) - begin)
    lead = "".join("\t" if c == "\t" else " " * cell_len(c) for c in line[: begin - 1])
    carets = "^" * (cell_len(line[begin - 1 :][:length]) or length)
    return [f"  {number} | {line}", f"  {' ' * len(number)} | {lead}{carets}"]


# --- live output ----------------------------------------------------------------------------------

# The output of a run, printed while the run goes on: stdout to stdout, stderr to stderr.
#
# Only text that continues what was printed is printed live. After a gap the rest comes from the
# result, so each stream is printed whole and once.


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


class AnswerPrinter:
    """Prints to stderr what the model of one run writes, while it writes it."""

    def __init__(self) -> None:
        self._place = (0, 0)
        self._text = ""

    async def follow(self, handle: Handle) -> None:
        """Print each piece of text as it arrives, until the run ends."""
        async with aclosing(handle.answers()) as pieces:
            async for piece in pieces:
                if piece.kind is DeltaKind.TEXT:
                    self._print(piece)

    def has_shown(self, answer: RunAnswer) -> bool:
        """Whether the terminal that gets the result has it already; ends the last line."""
        if self._text and not self._text.endswith("\n"):
            print_stderr("")
        return sys.stdout.isatty() and sys.stderr.isatty() and answer.result == self._text

    def _print(self, piece: AnswerText) -> None:
        if self._text and (piece.step, piece.attempt) != self._place:
            print_stderr("")
            self._text = ""
        self._place = (piece.step, piece.attempt)
        if piece.cut:
            print_stderr("\n[the answer was cut]")
            self._text = ""
            return
        self._text += piece.text
        print_stderr(printable(piece.text, LAYOUT), end="")
