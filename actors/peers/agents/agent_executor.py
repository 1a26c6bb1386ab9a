"""The executor of what sessions send to agents elsewhere, by the protocol A2A.

The id of a message is that of its envelope. What is not known to have failed is looked for by that
id before it is sent again, so a killed node leaves one task. A task is followed to its end by any
node, for it is on record; its last state is the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from rookery.actors.credentials import (
    CredentialSource,
    LeaseGate,
    lease_wait_timer,
    read_credential,
    report_rejected,
)
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints
from rookery.actors.peers.agents.agent_cards import AgentCards, RemoteCard
from rookery.actors.peers.agents.agent_client import AgentClient, AgentRefusal, AgentUnreachable
from rookery.actors.peers.agents.agent_messages import (
    RemoteMessage,
    RemoteTask,
    failed_response,
    message_of,
    read_answer,
    read_task,
    response_of,
    response_of_message,
)
from rookery.actors.peers.agents.agent_rules import (
    AgentCallBegun,
    AgentHasTask,
    AgentReported,
    AgentResponded,
    CallAgent,
)
from rookery.actors.peers.effects import (
    CancelAgentTask,
    DeliverEnvelope,
    DeliveryReported,
    EnvelopeDelivered,
    EnvelopeFailed,
    FollowAgentTask,
)
from rookery.actors.tools import ToolCredential
from rookery.bus.ports import Backoff, Timers, at_once_ms
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.machines.peer import ResponseStatus
from rookery.schemas.peers.envelope import Envelope, EnvelopeKind, read_envelope
from rookery.schemas.peers.exchanges import AgentTask, PeerResponse
from rookery.schemas.peers.roster import Pairing

__all__ = ["AgentExecutor"]

log = logging.getLogger(__name__)

FAMILY: Final = "peer"
BACKOFF_S: Final = (0.5, 30.0)
POLL_S: Final = (0.1, 30.0)
POLL_GROWTH: Final = 1.5
CANCEL_ATTEMPTS: Final = 5
IN_FLIGHT_MAX: Final = 32
HISTORY_MAX: Final = 50
PAGE: Final = 50
_PASSING: Final = ("PERMISSION_DENIED", "PEER_CARD_CHANGED")
"""What an operator may mend while a task goes on."""
_NOT_FOUND: Final = -32001
_NOT_CANCELABLE: Final = -32002


class _Agent(NamedTuple):
    """An agent that is trusted now, and what its requests need."""

    alias: str
    url: str
    card: RemoteCard
    headers: Mapping[str, str]
    lease: str = ""
    credential: ToolCredential | None = None

    @property
    def address(self) -> str:
        return f"{self.alias}@{self.alias}"


class _Attempts:
    """Whether a message may have left, in this process or in one before it."""

    def __init__(self) -> None:
        self.has_left = self._is_later = False

    def may_have_left(self, begun: AgentCallBegun) -> bool:
        if not self._is_later:
            self.has_left, self._is_later = begun.is_repeat, True
        return self.has_left


@dataclass(kw_only=True)
class AgentExecutor:
    """One per node."""

    ask: AskActor
    client: AgentClient
    cards: AgentCards
    pairing: Callable[[str], Pairing]
    """Of the agent with this alias; ``PEER_REVOKED``, or ``Failed`` while the roster is not
    known."""
    credentials: CredentialSource
    lease_gate: LeaseGate
    timers: Timers
    now_ms: Callable[[], int]
    failpoints: Failpoints = field(default_factory=Failpoints)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_MAX))
    _followed: dict[str, asyncio.Event] = field(default_factory=dict)
    """Set once its session does not wait for the task any more."""

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {FollowAgentTask: self.follow, CancelAgentTask: self.cancel}

    # --- messages ---------------------------------------------------------------------------------

    async def deliver(self, effect: DeliverEnvelope) -> None:
        """Send a message until the agent has answered, or its time is over; then report which."""
        sent = effect.sent
        envelope, pause = read_envelope(sent.text.encode()), Backoff(*BACKOFF_S)
        attempts = _Attempts()
        while True:
            try:
                await self._deliver_once(effect.session, sent.alias, envelope, attempts)
                return
            except (AgentUnreachable, Failed) as error:
                failure: CodedError = error
            except Refused as error:
                if error.code == "PARTITION_UNOWNED":
                    raise
                await self._report_refused(effect.session, envelope, error)
                return
            if self.now_ms() >= sent.expires_at_ms:
                await self._report_failed(effect.session, envelope, failure.code)
                return
            log.info("agent not reached yet", extra={"code": failure.code, "to": sent.alias})
            await asyncio.sleep(pause.next_s())

    async def _deliver_once(
        self, session: str, alias: str, envelope: Envelope, attempts: _Attempts
    ) -> None:
        async with self._places:
            agent = await self._find(alias, session, envelope.id)
            continues = "" if envelope.in_reply_to is UNSET else envelope.in_reply_to
            call = CallAgent(item_id=envelope.id, continues=continues)
            begun = await self.ask(FAMILY, session, call, AgentCallBegun)
            if begun.is_over:
                return
            self.failpoints.hit("agent_called")
            answer: RemoteTask | RemoteMessage | None = None
            if attempts.may_have_left(begun) and not agent.card.is_repeatable:
                answer = await self._find_task(agent, envelope)
            if answer is None:
                task = None if begun.task is UNSET else begun.task
                answer = await self._send(agent, message_of(envelope, task), attempts)
            self.failpoints.hit("agent_answered")
            await self._report_answer(session, agent, envelope, answer)
            self.failpoints.hit("agent_answer_recorded")

    async def _send(
        self, agent: _Agent, message: dict[str, Any], attempts: _Attempts
    ) -> RemoteTask | RemoteMessage:
        params = {"message": message, "configuration": {"returnImmediately": True}}
        before, attempts.has_left = attempts.has_left, True
        try:
            result = await self._call(agent, "SendMessage", params)
        except AgentUnreachable as failure:
            attempts.has_left = before or failure.is_sent
            raise
        try:
            return read_answer(result, agent.address, agent.card.name)
        except Refused as refusal:  # The agent has the message, so this ends its request.
            raise AgentRefusal(0, refusal.message) from None

    async def _find_task(self, agent: _Agent, envelope: Envelope) -> RemoteTask | None:
        """The task of a message that may have left before; ``PEER_OUTCOME_UNKNOWN`` if the agent
        does not list its tasks."""
        message = message_of(envelope, None)
        context_id, page = message["contextId"], ""
        while True:
            params = {"contextId": context_id, "historyLength": HISTORY_MAX, "pageSize": PAGE}
            if page:
                params["pageToken"] = page
            try:
                found = await self._call(agent, "ListTasks", params)
            except AgentRefusal as refusal:
                text = f"{agent.alias} may have the message, and does not say: {refusal.message}"
                raise Refused("PEER_OUTCOME_UNKNOWN", text) from None
            tasks = found.get("tasks", []) if isinstance(found, dict) else []
            for one in tasks if isinstance(tasks, list) else ():
                task = read_task(one, agent.address, agent.card.name)
                if any(said.message_id == envelope.id for said in task.history) or (
                    context_id == envelope.id and not task.history
                ):
                    return task
            page = found.get("nextPageToken", "") if isinstance(found, dict) else ""
            if not page:
                return None

    async def _report_answer(
        self, session: str, agent: _Agent, envelope: Envelope, answer: RemoteTask | RemoteMessage
    ) -> None:
        if envelope.kind is not EnvelopeKind.REQUEST:
            delivered = EnvelopeDelivered(item_id=envelope.id)
            await self.ask(FAMILY, session, delivered, DeliveryReported)
        elif isinstance(answer, RemoteMessage):
            await self._respond(session, envelope.id, response_of_message(answer))
        else:
            task = AgentTask(alias=agent.alias, task_id=answer.id, context_id=answer.context_id)
            has_task = AgentHasTask(item_id=envelope.id, task=task)
            await self.ask(FAMILY, session, has_task, AgentReported)

    async def _report_refused(self, session: str, envelope: Envelope, refusal: Refused) -> None:
        """An error of the agent is its response; any other is why the message never arrives."""
        is_request = envelope.kind is EnvelopeKind.REQUEST
        if is_request and isinstance(refusal, AgentRefusal):
            code = refusal.code if refusal.number else "INVALID_ARGUMENT"
            response = failed_response(code, refusal.message)
            await self._respond(session, envelope.id, response)
            return
        await self._report_failed(session, envelope, refusal.code)

    async def _report_failed(self, session: str, envelope: Envelope, code: str) -> None:
        failed = EnvelopeFailed(item_id=envelope.id, code=code)
        await self.ask(FAMILY, session, failed, DeliveryReported)

    async def _respond(self, session: str, corr_id: str, response: PeerResponse) -> bool:
        """Whether the request still waits for its last response."""
        responded = AgentResponded(request_id=corr_id, response=response)
        return (await self.ask(FAMILY, session, responded, AgentReported)).is_open

    # --- tasks ------------------------------------------------------------------------------------

    async def follow(self, effect: FollowAgentTask) -> None:
        """Report each state of the task until it has ended, or its request has."""
        ended = self._followed[effect.corr_id] = asyncio.Event()
        pause = Backoff(*POLL_S, growth=POLL_GROWTH)
        last: PeerResponse | None = None
        try:
            while not ended.is_set():
                response = await self._read_state(effect)
                if response is not None and response != last:
                    self.failpoints.hit("agent_task_read")
                    if not await self._respond(effect.session, effect.corr_id, response):
                        self.failpoints.hit("agent_response_recorded")
                        return
                    last = response
                    pause.reset()
                await _wait(ended, pause.next_s())
        finally:
            if self._followed.get(effect.corr_id) is ended:
                del self._followed[effect.corr_id]

    async def _read_state(self, of: FollowAgentTask | CancelAgentTask) -> PeerResponse | None:
        """The response that the task is now; ``None`` if the agent does not say at the moment."""
        task = of.task
        try:
            async with self._places:
                agent = await self._find(task.alias, of.session, of.corr_id)
                found = await self._get(agent, task)
        except AgentRefusal as refusal:
            code = "TASK_NOT_FOUND" if refusal.number == _NOT_FOUND else refusal.code
            return failed_response(code, refusal.message)
        except Failed as failure:
            log.info("task not read yet", extra={"code": failure.code, "to": task.alias})
            return None
        except Refused as refusal:
            if refusal.code in _PASSING:
                log.warning("task not read", extra={"code": refusal.code, "to": task.alias})
                return None
            return failed_response(refusal.code, refusal.message)
        return response_of(found)

    async def _get(self, agent: _Agent, task: AgentTask) -> RemoteTask:
        result = await self._call(agent, "GetTask", {"id": task.task_id, "historyLength": 0})
        return read_task(result, agent.address, agent.card.name)

    async def cancel(self, effect: CancelAgentTask) -> None:
        """Cancel the task, and report what it has become if it was over: as a late response."""
        if (followed := self._followed.get(effect.corr_id)) is not None:
            followed.set()
        pause, task = Backoff(*BACKOFF_S), effect.task
        for _ in range(CANCEL_ATTEMPTS):
            try:
                agent = await self._find(task.alias, effect.session, effect.corr_id)
                await self._call(agent, "CancelTask", {"id": task.task_id})
                return
            except AgentRefusal as refusal:
                if refusal.number == _NOT_CANCELABLE:
                    response = await self._read_state(effect)
                    if response is not None and response.status is not ResponseStatus.ACCEPTED:
                        await self._respond(effect.session, effect.corr_id, response)
                return
            except Refused as refusal:
                log.info("task not cancelled", extra={"code": refusal.code, "to": task.alias})
                return
            except Failed as failure:
                log.info("task not cancelled yet", extra={"code": failure.code, "to": task.alias})
            await asyncio.sleep(pause.next_s())

    # --- requests ---------------------------------------------------------------------------------

    async def _find(self, alias: str, session: str, item_id: str) -> _Agent:
        """The agent if it is trusted and its card is the one that was accepted. If the credential
        that it gets is not fresh, the lease is asked for one, in the name of the envelope."""
        pairing = self.pairing(alias)
        card, agent = await self.cards.read(pairing), pairing.agent
        assert agent is not UNSET
        found = _Agent(alias, agent.url, card, {}, agent.lease)
        if not agent.lease:
            return found
        if (wait := self.lease_gate(agent.lease)) is not None:
            due_ms = at_once_ms(self.now_ms())
            await self.timers.arm(lease_wait_timer(wait.lease, session, item_id, due_ms))
            raise Failed("LEASE_UNAVAILABLE", f"the credential of {wait.lease} is not fresh")
        credential = await read_credential(self.credentials, agent.lease)
        header = credential.header(card.key_header or "Authorization")
        return found._replace(headers=header, credential=credential)

    async def _call(self, agent: _Agent, method: str, params: Any) -> Any:
        try:
            return await self.client.call(agent.url, method, params, agent.headers)
        except AgentRefusal as refusal:
            if refusal.is_unauthorized and agent.credential is not None:
                await report_rejected(self.credentials, agent.lease, agent.credential)
                text = f"{agent.alias} refuses the credential of {agent.lease}"
                raise AgentUnreachable(text, is_sent=False) from None
            raise


async def _wait(ended: asyncio.Event, pause_s: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), pause_s)
    except TimeoutError:
        return
