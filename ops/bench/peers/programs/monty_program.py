"""pydantic-monty, an interpreter of a subset of Python in a worker process: 1,000 host calls."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from lanes import config, serve, timed
from pydantic_monty import Monty

__all__ = ["main"]


def main() -> None:
    code = config()["code"]
    functions = {"add": lambda *numbers: sum(numbers)}
    with (
        Monty(min_processes=2) as pool,
        pool.checkout(limits={"max_suspensions": 10**7}) as session,
    ):

        def call(request: Any) -> Any:
            taken_s = []
            for _ in range(request["count"] + 1):
                begun_s = perf_counter()
                session.feed_run(code, external_lookup=functions)
                taken_s.append(perf_counter() - begun_s)
            return timed(taken_s[1:], sum(taken_s))

        serve({"E": call})


if __name__ == "__main__":
    main()
