"""A realm with every decider made of machines, used by a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rookery.actors import DECIDERS
from rookery.actors.admission.decider import AdmissionDecider
from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.approvals.state import ApprovalSettings
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.machines.decider import MachineDecider
from rookery.schemas.codec import FactCodec
from tests.kernel.world import SentRequest, World

Body = dict[str, Any]
MACHINES: tuple[type[MachineDecider], ...] = tuple(
    kind for entry in DECIDERS.values() if issubclass(kind := entry.load(), MachineDecider)
)
CODECS: dict[str, FactCodec[Any]] = {c.family: c.codec for c in (AdmissionDecider, *MACHINES)}
START = {
    "primitive_kind_in": "ConversationTurn",
    "shape": "conversation",
    "vision": False,
    "image_results": False,
    "max_retries": 1,
}
TAKEN_OVER_S = 10.0
"""After this time another node holds the claims of a dead one."""


def concerns() -> Sequence[Decider]:
    admission = AdmissionDecider(queued_max=100, in_flight_max=100, realm_load=InFlightCounter())
    return [admission, *map(made, MACHINES)]


def made(kind: Callable[..., Any]) -> Any:
    """Without calls."""
    return kind(ApprovalSettings(), calls=False) if kind is ApprovalsDecider else kind()


class MachineWorld(World):
    """One node at a time; ``s`` is a session."""

    def __enter__(self) -> MachineWorld:
        self.start(concerns())
        return self

    @property
    def serving(self) -> Any:
        return self.nodes[-1]

    # --- asking -----------------------------------------------------------------------------------

    def put(
        self, verb: str, on: str, /, *, key: str = "s", id_: str = "", **params: Any
    ) -> SentRequest:
        """Send an input to a machine; its reply."""
        return self.request(verb, key, id=id_, input=on, params=params)

    def state(self, verb: str, on: str, /, *, key: str = "s", id_: str = "", **params: Any) -> Body:
        """A machine's view after an input or a read."""
        asked = self.put(verb, on, key=key, id_=id_, **params)
        assert not asked.code, asked.answers[-1].body
        return body(asked)

    def refused(self, verb: str, on: str, /, *, key: str = "s", **params: Any) -> Body:
        """The rejection of an input."""
        asked = self.put(verb, on, key=key, **params)
        assert asked.code, asked.answers[-1].body
        error: Body = body(asked)["error"]
        assert error["code"] == asked.code
        return error

    # --- the session ------------------------------------------------------------------------------

    def open(self, key: str = "s") -> None:
        """A session that accepts inputs."""
        for on in ("Initialize", "RegisterSession", "EnsureSessionWithExecutor"):
            self.state("admission", on, key=key)

    def facts_of(self, family: str, key: str = "s") -> list[Any]:
        return [f for one in self.stored(family, key) for f in CODECS[family].decode(one.body)]

    # --- coming back ------------------------------------------------------------------------------

    def forget(self) -> None:
        """Evict all entities, as after a long idle time."""
        self.serving.passivate()
        self.settle()

    def replace_node(self) -> None:
        """The node dies and another replaces it."""
        self.serving.crash()
        self.start(concerns())
        self.pass_s(TAKEN_OVER_S)


def body(asked: SentRequest) -> Body:
    return msgspec.json.decode(asked.answers[-1].body, type=dict[str, Any])
