"""The result of a run for people: its output and its value, or its error and the line in question.

The program's output and its value go to stdout; everything else goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.cells import cell_len

from rookery.ops.cli.output import LAYOUT, print_json, print_line, printable
from rookery.schemas.codec import encode_json
from rookery.schemas.lists import RunState
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import (
    Diagnostic,
    ErrorObject,
    ResultKind,
    RunResult,
    RunStatus,
    Severity,
    Span,
)

__all__ = ["artifact_lines", "print_output", "print_stderr", "result_notes", "show_result"]


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
) -> int:
    """Print the result of a run of ``code``; return the exit code. ``show_output`` prints what the
    program printed."""
    if json:
        print_json(answer)
    else:
        show_output(answer)
        if answer.result is not None:
            print_line(encode_json(answer.result).decode())
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
