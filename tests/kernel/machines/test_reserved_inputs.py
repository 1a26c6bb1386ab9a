"""Machine by input by role: who may send an input while a node drives a run of the session.

The table is ``schemas/machines/inputs.py``. Which verbs a role may publish at all, the server says:
``tests/bus/test_roles.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, Final

import pytest

from rookery.actors.admission.commands import AdmissionQuotas, accept, handle_input
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.state import Admission
from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.approvals.state import ApprovalSettings
from rookery.actors.kernel.machines.decider import MachineDecider, SessionMachineDecider
from rookery.actors.leases.decider import LeasesDecider
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE
from rookery.actors.peers.decider import PeersDecider
from rookery.actors.surfaces.decider import SurfacesDecider
from rookery.actors.turns.decider import TurnsDecider
from rookery.bus.roles import Role, verbs_of
from rookery.schemas.commands import COMMANDS, HandleInput
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.machines.inputs import MACHINE_INPUTS, InputSender, inputs_of_verb, sender_of
from rookery.schemas.run import RunRequest, SessionMeta
from tests.kernel.machines.machine_world import MACHINES

SESSION, LEASE = "s", "default:mail:default"
CLIENT = InputSender.CLIENT
MACHINE_VERBS = {verb for verb, kind in COMMANDS.items() if kind is HandleInput}
INPUTS = [
    (each.verb, on, sender)
    for each in MACHINE_INPUTS.values()
    for on, sender in each.senders.items()
    if each.verb
]


def no_environment(*_: Any) -> Any:
    """A node executes runs if it has a provisioner; here no run is started."""
    raise AssertionError("no run is started")


EXECUTING: dict[str, Callable[[], SessionMachineDecider]] = {
    "turns": lambda: TurnsDecider(no_environment),
    "surfaces": lambda: SurfacesDecider(executes_runs=True),
    "peers": lambda: PeersDecider(executes_runs=True),
}
"""Of a node that executes runs."""
WITHOUT_RUNS: dict[str, Callable[[], SessionMachineDecider]] = {
    "turns": TurnsDecider,
    "surfaces": SurfacesDecider,
    "peers": PeersDecider,
}
"""Of a node whose sessions have drivers outside."""


def input_of(verb: str, on: str, **params: Any) -> Command[HandleInput]:
    body = HandleInput(input=on, params=params)
    return Command(verb=verb, key=SESSION, id="any", body=body)


def requested_run() -> tuple[Admission, str]:
    """Admission of a session whose current run a client requested."""
    command = Command(verb="run", key=SESSION, id="c1", body=RunRequest(code="1"))
    state = Admission(meta=SessionMeta(id=SESSION))
    for fact in accept(state, command, now_ms=0, quotas=AdmissionQuotas(9, 9, 0)):
        state = evolve(state, fact)
    assert state.current is not None
    return state, state.current.run_id


def observed(decider: SessionMachineDecider, facts: Sequence[Any]) -> Any:
    """The state of a machine that has seen these facts of admission."""
    state = decider.initial(SESSION)
    for fact in facts:
        state = decider.observe(state, fact)
    return state


def prepared_by_hand() -> Sequence[Any]:
    """Facts of admission about a run that a driver outside has prepared."""
    state, facts = Admission(meta=SessionMeta(id=SESSION)), []
    for on, params in (
        ("Initialize", {}),
        ("RegisterSession", {}),
        ("EnsureSessionWithExecutor", {}),
        ("prepare", {"run_id": "by-hand"}),
    ):
        for fact in handle_input(state, input_of("admission", on, **params), now_ms=0, driven=True):
            state = evolve(state, fact)
            facts.append(fact)
    assert state.host.current_run_id == "by-hand"
    return facts


def facts_of_request() -> Sequence[Any]:
    command = Command(verb="run", key=SESSION, id="c1", body=RunRequest(code="1"))
    state = Admission(meta=SessionMeta(id=SESSION))
    return accept(state, command, now_ms=0, quotas=AdmissionQuotas(9, 9, 0))


def reservation(decider: MachineDecider, state: Any, command: Command[HandleInput]) -> str | None:
    """The hint of the refusal, if it says that a node drives the session's run."""
    try:
        decider.decide(state, command, now_ms=0)
    except Refused as refusal:
        is_reserved = refusal.code == "GUARD_REJECTED" and "a node drives run" in refusal.message
        return refusal.hint if is_reserved else None
    return None


def test_every_input_of_every_machine_has_one_sender():
    assert MACHINE_INPUTS.keys() == MACHINE_CATALOGUE.keys()
    for name, entry in MACHINE_CATALOGUE.items():
        assert entry.machine.inputs.keys() <= MACHINE_INPUTS[name].senders.keys(), name
    assert {verb for verb, _, _ in INPUTS} == MACHINE_VERBS
    assert len({(verb, on) for verb, on, _ in INPUTS}) == len(INPUTS)


@pytest.mark.parametrize("kind", MACHINES, ids=lambda kind: kind.family)
def test_the_table_has_every_input_that_a_decider_accepts(kind: type[MachineDecider]):
    decider = kind(ApprovalSettings()) if kind is ApprovalsDecider else kind()
    [verb] = MACHINE_VERBS & decider.verbs.keys()
    listed = {on for inputs in inputs_of_verb(verb).values() for on in inputs}
    assert listed == decider._inputs.keys()


OPEN: Final = {
    "session_lifecycle": "Initialize RegisterSession PrepareBindings EnsureSessionWithExecutor "
    "SetSilentIntents Recover InterruptCurrentRun CancelAfterBoundary",
    "session_admission": "ingest accept_with_completion accept_without_wake",
    "turn_execution": "cancel_now request_cancel_after_boundary",
    "realtime_product_turn": "turn_in_flight turn_committed output_started turn_interrupted "
    "turn_terminal projection_advance_observed projection_refreshed projection_reset "
    "classify_client_input_submitted classify_mid_turn_activity classify_turn_terminated",
    "model_routing": "set_baseline",
    "external_tool_surface": "register stage_add stage_remove stage_reload",
    "mcp_server_lifecycle": "apply_reload",
    "auth_lease": "release clear_credential_lifecycle release_lease release_credential_lifecycle "
    "restore_auth_lifecycle_snapshot request_credential",
    "peer_ingress": "set_peer_ingress_context",
    "interaction_stream": "attached closed_early",
    "comms_drain": "ensure_drain_running stop_drain",
}
"""By machine, in words of this test: the inputs that are open while a node drives a run of the
session, executes the machine's effects and decides the approval; no other input is."""
SENDERS: Final = {Role.OPERATOR, Role.DRIVER}
"""The roles that may send them; no other role may send any input."""
RESERVED: Final = (
    "a node drives run",
    "the node renews the credential",
    "only answers decide the approval of a call",
)


def is_reserved(verb: str, on: str) -> bool:
    """Whether a node refuses the input of a session whose run it drives, whatever its sender."""
    try:
        if verb == "admission":
            state, _ = requested_run()
            handle_input(state, input_of(verb, on), now_ms=0, driven=True)
        elif verb == "leases":
            leases = LeasesDecider("epoch")
            command = Command(verb=verb, key=LEASE, id="any", body=HandleInput(input=on))
            leases.decide(leases.initial(LEASE), command, now_ms=0)
        elif verb == "approvals":
            approvals = ApprovalsDecider(ApprovalSettings(), calls=False)
            of_call = input_of(verb, on, approval_id=f"{SESSION}.call-1")
            approvals.decide(approvals.initial(SESSION), of_call, now_ms=0)
        else:
            decider = EXECUTING[verb]()
            decider.decide(observed(decider, facts_of_request()), input_of(verb, on), now_ms=0)
    except Refused as refusal:
        return refusal.code == "GUARD_REJECTED" and any(
            text in refusal.message for text in RESERVED
        )
    return False


@pytest.mark.parametrize("machine", MACHINE_INPUTS)
def test_while_a_node_drives_a_role_sends_the_open_inputs_of_a_machine_and_no_other(machine: str):
    """Machine by input by role."""
    verb, senders = MACHINE_INPUTS[machine]
    reaching = {
        (on, role)
        for on, role in product(senders, Role)
        if verb in verbs_of(role) and not is_reserved(verb, on)
    }
    assert reaching == set(product(OPEN.get(machine, "").split(), SENDERS))


@pytest.mark.parametrize("verb", EXECUTING)
def test_the_refusal_names_the_command_that_ends_the_run(verb: str):
    decider = EXECUTING[verb]()
    state = observed(decider, facts_of_request())
    for on in [on for each, on, sender in INPUTS if each == verb and sender is not CLIENT]:
        hint = reservation(decider, state, input_of(verb, on))
        assert hint == f"rookery runs cancel {state.host.current_run_id}", on


@pytest.mark.parametrize(
    ("kinds", "facts"),
    [(EXECUTING, prepared_by_hand), (EXECUTING, list), (WITHOUT_RUNS, facts_of_request)],
    ids=["a run by hand", "no run", "a node without runs"],
)
@pytest.mark.parametrize("verb", EXECUTING)
def test_no_input_is_reserved_where_no_node_drives(
    verb: str,
    kinds: dict[str, Callable[[], SessionMachineDecider]],
    facts: Callable[[], Sequence[Any]],
):
    decider = kinds[verb]()
    state = observed(decider, facts())
    for on in [on for each, on, _ in INPUTS if each == verb]:
        assert reservation(decider, state, input_of(verb, on)) is None, on


def parameters(machine: str, on: str) -> Iterator[dict[str, Any]]:
    """All parameters of an input in the machine's small world."""
    entry = MACHINE_CATALOGUE[machine]
    names = entry.machine.inputs[on].params
    pools = [entry.pools.get(f"{on}.{name}", entry.pools.get(name, ())) for name in names]
    for values in product(*pools):
        yield dict(zip(names, values, strict=True)) | (
            {"session_id_in": SESSION} if "session_id_in" in names else {}
        )


@pytest.mark.parametrize("machine", ["session_lifecycle", "session_admission"])
def test_no_input_of_admission_ends_a_run_that_a_node_drives(machine: str):
    """Those of clients leave the run as it is, and all others are refused; but for a retired
    session, all phases in which a run is current are ``Running``."""
    state, run_id = requested_run()
    for on, sender in MACHINE_INPUTS[machine].senders.items():
        for params in parameters(machine, on):
            command = input_of("admission", on, **params)
            after, hint = state, ""
            try:
                for fact in handle_input(state, command, now_ms=0, driven=True):
                    after = evolve(after, fact)
            except Refused as refusal:
                hint = refusal.hint
            assert sender is CLIENT or hint == f"rookery runs cancel {run_id}", on
            assert after.current == state.current, on


def test_reads_are_open_and_an_unknown_input_is_named():
    decider = EXECUTING["surfaces"]()
    state = observed(decider, facts_of_request())
    assert decider.decide(state, input_of("surfaces", "visible_surfaces"), now_ms=0) == ()
    assert sender_of("surfaces", "no such input") is CLIENT
    with pytest.raises(Refused, match="no machine of surface has an input 'no such input'"):
        decider.decide(state, input_of("surfaces", "no such input"), now_ms=0)
