"""A process that counts the questions to a model, whatever becomes of the nodes that ask.

    python -m tests.agents.question_counter

It prints its port. A line it gets is one question; the answer to ``?`` is the JSON list of all.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["CountingProcess", "QuestionCounter", "count_question"]

HOST = "127.0.0.1"


class CountingProcess:
    """A process that prints its port and counts questions, from the test's side."""

    module = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", self.module]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class QuestionCounter(CountingProcess):
    """Counts the questions of a script."""

    module = "tests.agents.question_counter"

    async def questions(self) -> list[str]:
        """All that were asked, in order."""
        found: list[str] = json.loads(await _exchange(self.port, "?"))
        return found


async def count_question(port: int, question: str) -> None:
    """Count one; returns once it is counted."""
    await _exchange(port, question)


async def _exchange(port: int, line: str) -> str:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"{line}\n".encode())
        return (await reader.readline()).decode()
    finally:
        writer.close()
        await writer.wait_closed()


async def main() -> None:
    questions: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().strip()
        if line == "?":
            writer.write(f"{json.dumps(questions)}\n".encode())
        elif line:
            questions.append(line)
            writer.write(b"counted\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
