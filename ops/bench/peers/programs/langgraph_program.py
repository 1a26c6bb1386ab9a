"""LangGraph with a durable checkpointer and ``durability="sync"``: nodes, and interrupts.

LangGraph runs in its caller's process. SQLite is synced fully, as Postgres is by default.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypedDict

from lanes import config, run_threads, serve, threads
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

__all__ = ["main"]

_CONFIG = config()
_STEPS, _WINDOW, _PATIENCE_S = 10, 16, 300


class Total(TypedDict, total=False):
    value: int


def add(state: Total) -> Total:
    return {"value": 1 + 1}


def ask(state: Total) -> Total:
    return {"value": interrupt("continue?")}


def graph(node: Any, nodes: int, saver: Any) -> Any:
    made: Any = StateGraph(Total)
    last = START
    for number in range(nodes):
        made.add_node(f"n{number}", node)
        made.add_edge(last, f"n{number}")
        last = f"n{number}"
    made.add_edge(last, END)
    return made.compile(checkpointer=saver)


@contextmanager
def checkpointer() -> Iterator[Any]:
    if _CONFIG["path"]:
        from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - one of two.

        with SqliteSaver.from_conn_string(_CONFIG["path"]) as saver:
            saver.setup()
            saver.conn.execute("PRAGMA synchronous=FULL")
            yield saver
        return
    from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - the other.
    from psycopg.rows import dict_row  # noqa: PLC0415
    from psycopg_pool import ConnectionPool  # noqa: PLC0415

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(_CONFIG["url"], min_size=4, max_size=16, kwargs=settings) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        yield saver


def invoke(compiled: Any, thread: str, value: Any) -> Any:
    options = {"configurable": {"thread_id": thread}, "recursion_limit": 50}
    return compiled.invoke(value, options, durability="sync")


def main() -> None:
    with checkpointer() as saver:
        one, ten, asking = graph(add, 1, saver), graph(add, _STEPS, saver), graph(ask, 1, saver)
        ends_s: list[float] = []
        lock = threading.Lock()

        def run_one(lane: int, number: int) -> None:
            assert invoke(one, f"a{lane}", {"value": 0})["value"] == 2

        def run_ten(lane: int, number: int) -> None:
            assert invoke(ten, f"b{lane}", {"value": 0})["value"] == 2

        def park(lane: int, number: int) -> None:
            invoke(asking, f"w{number}", {"value": 0})

        def wake(lane: int, number: int) -> None:
            assert invoke(asking, f"w{number}", Command(resume=2))["value"] == 2
            with lock:
                ends_s.append(perf_counter())

        def each(work: Any, request: Any) -> Any:
            return run_threads(work, {**request, "window": _WINDOW, "seconds_max": _PATIENCE_S})

        def resume(request: Any) -> Any:
            each(wake, request)
            return {"ends_s": ends_s}

        serve(
            {
                "A": threads(run_one),
                "B": threads(run_ten),
                "park": lambda request: each(park, request),
                "resume": resume,
            }
        )


if __name__ == "__main__":
    main()
