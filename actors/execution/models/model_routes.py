"""``ModelRoutes``: which model is asked next.

It is read before each question: a model that is set for the session meanwhile takes effect at the
next one, never inside an attempt. A route advances where a model cannot answer, and stays there.
"""

from __future__ import annotations

from typing import NamedTuple

from rookery.actors.execution.agents.conversation import Conversation
from rookery.actors.execution.driver import RunInput
from rookery.actors.execution.models.model_attempt import ModelServices
from rookery.actors.messages import ActiveRunQuery, ActiveRunView
from rookery.schemas.agents import ModelEnvironment, ModelUsage
from rookery.schemas.errors import Refused

__all__ = ["ChosenModel", "ModelRoutes"]


class ChosenModel(NamedTuple):
    """A place of a route."""

    alias: str
    place: int = 0
    epoch: int = 0
    """Of the session's baseline; 0 if the model is none."""
    is_last: bool = True
    child_usage: ModelUsage = ModelUsage()
    """What the children of the run have used."""


class ModelRoutes:
    """One per execution of a run."""

    def __init__(
        self,
        services: ModelServices,
        given: RunInput,
        environment: ModelEnvironment,
        conversation: Conversation,
    ) -> None:
        self._services, self._given = services, given
        self._environment, self._conversation = environment, conversation

    async def choose(self, *, advance: bool = False) -> ChosenModel:
        """The model of the next question; ``advance``: the one after that of the last."""
        environment, run = self._environment, self._conversation.run
        baseline, epoch, of_children = await self._turn()
        if baseline:
            if not self._services.models.knows(baseline):
                raise Refused("MODEL_UNKNOWN", f"this node cannot ask the model {baseline[:80]!r}")
            return ChosenModel(baseline, 0, epoch, child_usage=of_children)
        route = (environment.model, *environment.next_models)
        place = run.route_index + advance if run.topology_epoch == 0 else 0
        place = min(place, len(route) - 1)
        is_last = place == len(route) - 1
        return ChosenModel(route[place], place, 0, is_last, of_children)

    async def _turn(self) -> tuple[str, int, ModelUsage]:
        """The model that is set for the session, if the run follows it, and what children used."""
        follows, given = self._environment.follows_baseline, self._given
        if not self._conversation.run.step:  # To ask would commit the start of the run alone.
            return (*(given.baseline if follows else ("", 0)), given.child_usage)
        query, session = ActiveRunQuery(run_id=self._given.run_id), self._given.session
        view = await self._services.ask("turn", session, query, ActiveRunView)
        of_children = view.child_usage or ModelUsage()
        return (
            (view.baseline, view.topology_epoch, of_children) if follows else ("", 0, of_children)
        )
