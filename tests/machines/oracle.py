"""The independent oracle: a small interpreter of ``machines.json``, used by tests and nothing else.

It shares no code with the rows it judges. Guards, updates and effects are evaluated as the Python
expressions the file holds, on plain dictionaries.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

_FILE = json.loads((Path(__file__).parent / "machines.json").read_text())
MODEL, ENUMS, CONSTANTS = _FILE["machines"], _FILE["enums"], _FILE["constants"]
_CALL = re.compile(r"(\w+)\((.*)\)\Z", re.DOTALL)

Variables = dict[str, Any]


class Step(NamedTuple):
    """What the model makes of an input: ``row`` is None if it refuses."""

    row: str | None
    effects: list[tuple[str, Variables]]
    state: Variables
    host: Variables


def copied(value: Any) -> Any:
    """The same value in containers of its own; what else a model's variable holds never changes."""
    match value:
        case dict():
            return {key: copied(found) for key, found in value.items()}
        case list():
            return [copied(found) for found in value]
        case set():
            return set(value)
    return value


@cache
def _compiled(text: str, how: str) -> CodeType:
    return compile(text, "machines.json", how)


def _narrowed(row: dict[str, Any], extensions: list[dict[str, Any]]) -> dict[str, Any]:
    """``row`` without the source phases an extension takes from it ("replaces: X (... only)")."""
    taken = {
        phase
        for extension in extensions
        if (extension.get("replaces") or "").startswith(f"{row['name']} (")
        for phase in extension["from"]
    }
    return {**row, "from": [phase for phase in row["from"] if phase not in taken]}


def _widened(row: dict[str, Any], phases: list[str]) -> dict[str, Any]:
    """``row``, also from HEAD's sixth phase if it asks for none (machines.md, section 6)."""
    return {**row, "from": [*phases, "Expired"]} if row["from"] == phases else row


class Oracle:
    """One machine of the model, in one edition."""

    def __init__(self, name: str, edition: str = "head") -> None:
        self.model = MODEL[name]
        self.hosted = "host_phases" in self.model
        self.is_host = self.model.get("phase_source") == "host"
        # HEAD's four admission rows are not ours: architecture.md, section 4.
        extensions = self.model.get("extensions", []) if edition == "head" else []
        if name == "session_admission":
            extensions = []
        replaced = {row.get("replaces") for row in extensions}
        own = [row for row in self.model["transitions"] if row["name"] not in replaced]
        self.rows = [_narrowed(row, extensions) for row in own] + extensions
        if name == "auth_lease" and edition == "head":
            self.rows = [_widened(row, self.model["phases"]) for row in self.rows]
        self.inputs = {row["on"]: tuple(row["params"]) for row in self.rows}
        self._rows_of = {on: [row for row in self.rows if row["on"] == on] for on in self.inputs}

    def step(self, state: Variables, host: Variables, on: str, params: Variables) -> Step:
        """Apply an input to copies of ``state`` and ``host`` (``phase`` among their variables)."""
        if rows := self._rows_of.get(on):
            names = self._names(state, host, params)
            for row in rows:
                if self._holds(row, names):
                    return self._apply(row, copied(state), copied(host), params)
        return Step(None, [], state, host)

    def _names(self, state: Variables, host: Variables, params: Variables) -> Variables:
        names = {**host, "host_phase": host.get("phase"), **state, **params}
        names["phase"] = self._phase(state, host, params)
        return names

    def _phase(self, state: Variables, host: Variables, params: Variables) -> str:
        if self.is_host:
            return host["phase"]
        if scope := self.model.get("scope"):
            return state[scope["store"]].get(params[scope["key"]], scope["absent"])
        return state["phase"]

    def _holds(self, row: dict[str, Any], names: Variables) -> bool:
        hosts = row.get("host_from") or self.model.get("host_phases") or [names["host_phase"]]
        return (
            names["phase"] in row["from"]
            and names["host_phase"] in hosts
            and all(eval(_compiled(text.partition(":")[2].strip(), "eval"), names)
                    for text in row["guards"])
        )  # fmt: skip

    def _apply(
        self, row: dict[str, Any], state: Variables, host: Variables, params: Variables
    ) -> Step:
        names = self._names(state, host, params)
        for text in row["updates"]:
            exec(_compiled(text, "exec"), names)
        for variables in (host, state):
            # A parameter may be called like a variable of the host and is not one for it.
            set_by_rows = variables.keys() - params.keys() - {"phase"}
            variables.update({name: names[name] for name in set_by_rows})
        self._move(row, state, host, params)
        names = self._names(state, host, params)
        effects = []
        for text in row["effects"]:
            name, arguments = _CALL.match(text).groups()
            effects.append((name, eval(_compiled(f"dict({arguments})", "eval"), names)))
        return Step(row["name"], effects, state, host)

    def _move(
        self, row: dict[str, Any], state: Variables, host: Variables, params: Variables
    ) -> None:
        if "host_to" in row:
            host["phase"] = row["host_to"]
        to, scope = row["to"], self.model.get("scope")
        if to == "same":
            return
        if self.is_host:
            host["phase"] = to
        elif scope is None:
            state["phase"] = to
        elif to == scope["absent"]:
            state[scope["store"]].pop(params[scope["key"]], None)
        else:
            state[scope["store"]][params[scope["key"]]] = to
