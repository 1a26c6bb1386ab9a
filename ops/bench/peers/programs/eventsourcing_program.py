"""The library ``eventsourcing`` on SQLite: one event saved, and ten saves.

An anchor, not a runtime: nothing is dispatched, parked or resumed.
"""

from __future__ import annotations

from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from lanes import config, serve, threads

_SAVES = 10

__all__ = ["main"]


class Counting(Aggregate):
    @event("Created")
    def __init__(self) -> None:
        self.value = 0

    @event("Stepped")
    def step(self, value: int) -> None:
        self.value = value


def main() -> None:
    settings = {
        "PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "SQLITE_DBNAME": config()["path"],
        "SQLITE_LOCK_TIMEOUT": "30",
    }
    application: Any = Application(env=settings)
    aggregates: dict[int, Counting] = {}

    def save(lane: int, number: int) -> None:
        if lane not in aggregates:
            aggregates[lane] = Counting()
        aggregates[lane].step(number)
        application.save(aggregates[lane])

    def save_ten(lane: int, number: int) -> None:
        for value in range(_SAVES):
            save(lane, value)

    serve({"A": threads(save), "B": threads(save_ten)})


if __name__ == "__main__":
    main()
