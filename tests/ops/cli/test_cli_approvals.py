"""Approvals on the command line: with a node, without a node, and without a server."""

from __future__ import annotations

import asyncio
import json
import selectors
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from Crypto.PublicKey import ECC

from rookery.bus.clock import wait_until
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import NodeProcess, node_on
from tests.ops.fixtures import Ended, Realm, rookery
from tests.ops.fixtures import clean_environment as environment_of
from tests.stock_client import stock

BANK = '''
from pathlib import Path
from rookery.actors import tool

BOOK = Path("paid.txt")

@tool(side_effect="write", idempotent=False, approval_policy="manual")
def pay(to: str, amount: int) -> str:
    """Pay an account."""
    with BOOK.open("a") as book:
        book.write(f"{amount} {to}\\n")
    return f"paid {amount} to {to}"

TOOLS = [pay]
'''
PATIENCE_S = 90.0


class Bank:
    """A realm whose programs want to pay, and an operator's shell."""

    def __init__(self, server: EmbeddedServer, name: str, folder: Path, **variables: str) -> None:
        self.server, self.name, self.folder = server, name, folder
        realm = Realm(server, name, folder)
        realm.environment["COLUMNS"] = "200"
        self.rookery, self.started = realm.rookery, realm.started
        self._variables = variables
        (folder / "bank.py").write_text(BANK, encoding="utf-8")

    def node(self) -> NodeProcess:
        variables = {"ROOKERY_NODE_DRIVER": "sandbox", **self._variables}
        return node_on(self.server, self.name, self.folder, "--tools", "bank:TOOLS", **variables)

    def json(self, *arguments: str) -> Any:
        ended = self.rookery(*arguments, "--json")
        assert ended.code == 0, ended
        return ended.json

    def submit(self, session: str, code: str) -> None:
        body = json.dumps({"code": code, "timeout_ms": 60_000}).encode()

        async def publish() -> None:
            async with stock(self.server, self.name) as client:
                await client.jetstream.publish(f"rookery.{self.name}.cmd.run.{session}", body)

        asyncio.run(publish())

    def newest(self, session: str, status: str) -> dict[str, Any]:
        """The newest run of a session, as soon as it has this status."""
        found: dict[str, Any] = wait_until(lambda: self._newest(session, status), PATIENCE_S)
        assert found, f"no run of {session} came to be {status}"
        return found

    def _newest(self, session: str, status: str) -> dict[str, Any] | None:
        runs = self.json("runs", "list", "--session", session, "--limit", "1")["runs"]
        return runs[0] if runs and runs[0]["status"] == status else None

    def asked(self, session: str, code: str) -> dict[str, Any]:
        """A run is parked for this; the approval it waits for."""
        self.submit(session, code)
        self.newest(session, "waiting_for_approval")
        (approval,) = self.json("approvals", "list", "--session", session)["approvals"]
        return approval

    def paid(self) -> list[str]:
        book = self.folder / "paid.txt"
        return book.read_text().splitlines() if book.exists() else []


@pytest.fixture(scope="module")
def bank(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """One with a node."""
    found = Bank(server, "bank", tmp_path_factory.mktemp("bank"))
    with found.node():
        yield found


# --- with a node ----------------------------------------------------------------------------------


def test_what_waits_is_listed_shown_and_approved(bank: Bank):
    approval = bank.asked("plain", "pay('Ann', 30)")
    approval_id, run_id = approval["approval_id"], approval["run_id"]
    listed = bank.rookery("approvals", "list", "--session", "plain").out.splitlines()
    assert listed[0].split()[:3] == ["APPROVAL", "STATE", "TOOL"]
    assert listed[1].startswith(f"{approval_id}  pending  pay")
    assert "Ann" not in listed[1], "a list shows no values"
    shown = bank.rookery("approvals", "show", approval_id).out
    assert f"rookery approvals approve {approval_id}" in shown
    assert "until      " in shown
    assert "Ann" not in shown
    exact = bank.json("approvals", "show", approval_id, "--arguments")
    assert exact["arguments"] == {"args": ["Ann", 30], "kwargs": {}}
    assert "30 Ann" not in bank.paid()
    answered = bank.rookery("approvals", "approve", approval_id, "--as", "ann", "--reason", "due")
    assert (answered.code, answered.out) == (0, f"{approval_id} is approved (unverified)\n")
    bank.newest("plain", "ok")
    assert bank.paid().count("30 Ann") == 1
    story = bank.rookery("runs", "show", run_id).out
    for said in (
        "pay #1 needs approval",
        "has the request for pay #1",
        "pay #1 approved by ann, unverified: due",
        "used its",
    ):
        assert said in " ".join(story.split())
    ended = bank.json("approvals", "show", approval_id)["approval"]
    assert (ended["state"], ended["actor"], ended["verified"]) == ("approved", "ann", False)


def test_a_waiting_client_sees_what_its_run_waits_for_and_gets_its_result(bank: Bank):
    with bank.started("run", "--session", "watched", "-e", "pay('Ann', 31)") as waits:
        assert waits.stderr is not None
        said = ""
        while "approvals show" not in said:
            said = waits.stderr.readline()
            assert said, "it ended before its approval was given"
        answered = bank.rookery("approvals", "approve", said.split()[-1])
        assert answered.code == 0, answered
        out, _ = waits.communicate(timeout=PATIENCE_S)
    assert (waits.returncode, out) == (0, '"paid 31 to Ann"\n')


def test_a_denial_reaches_the_program_which_may_catch_it(bank: Bank):
    code = "try:\n    pay('Eve', 1)\nexcept Exception as e:\n    said = str(e)\nsaid"
    approval = bank.asked("denied", code)
    paid = bank.paid()
    denied = bank.json("approvals", "deny", approval["approval_id"], "--reason", "not her")
    assert denied["status"] == "denied"
    bank.newest("denied", "ok")
    assert bank.paid() == paid
    again = bank.rookery("approvals", "approve", approval["approval_id"])
    assert (again.code, again.err.split(":")[0]) == (3, "APPROVAL_CLOSED")
    listed = bank.json("approvals", "list", "--session", "denied", "--all")["approvals"]
    assert [(one["state"], one["reason"]) for one in listed] == [("denied", "not her")]


def test_a_session_grant_is_valid_until_it_is_revoked(bank: Bank):
    approval = bank.asked("often", "pay('Bob', 1)")
    bank.json("approvals", "approve", approval["approval_id"], "--for-session")
    bank.newest("often", "ok")
    bank.submit("often", "pay('Bob', 1)")
    wait_until(lambda: bank.paid().count("1 Bob") == 2, PATIENCE_S)
    assert [line for line in bank.paid() if "Bob" in line] == ["1 Bob", "1 Bob"]
    (grant,) = [
        one
        for one in bank.json("approvals", "grants", "list", "--session", "often")["grants"]
        if one["operation_id"] is None
    ]
    assert (grant["tool"], grant["state"]) == ("pay", "issued")
    revoked = bank.rookery("approvals", "grants", "revoke", grant["grant_id"])
    assert revoked.out == f"grant {grant['grant_id']} is revoked\n"
    assert bank.asked("often", "pay('Bob', 1)")["attempt"] == 1


def test_an_approver_signs_with_a_key_that_only_its_owner_can_read(bank: Bank):
    key = bank.folder / "ann.pem"
    added = bank.rookery("approvers", "add", "ann", "--generate", str(key))
    assert (added.code, added.out.split()[:3]) == (0, ["ann", "has", "the"])
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    approval = bank.asked("signed", "pay('Cy', 1)")
    assert (
        "who        ann, with their keys"
        in bank.rookery("approvals", "show", approval["approval_id"]).out
    )
    key.chmod(0o640)
    refused = bank.rookery("approvals", "approve", approval["approval_id"], "--key", str(key))
    assert (refused.code, "mode 0640" in refused.err) == (2, True)
    stranger = bank.folder / "stranger.pem"
    stranger.write_text(ECC.generate(curve="Ed25519").export_key(format="PEM"))
    stranger.chmod(0o600)
    unknown = bank.rookery("approvals", "approve", approval["approval_id"], "--key", str(stranger))
    assert (unknown.code, unknown.err.split(":")[0]) == (3, "APPROVER_UNKNOWN")
    assert f"approvers add NAME --key {stranger}" in unknown.err
    key.chmod(0o600)
    receipt = bank.json("approvals", "approve", approval["approval_id"], "--key", str(key))
    assert (receipt["status"], receipt["verified"]) == ("approved", True)
    bank.newest("signed", "ok")
    assert bank.json("approvals", "show", approval["approval_id"])["approval"]["actor"] == "ann"

    listed = bank.json("approvers", "list")
    assert [(one["name"], one["revoked_at_ms"]) for one in listed] == [("ann", None)]
    other = str(bank.folder / "bob.pem")
    alone = bank.rookery("approvers", "add", "bob", "--generate", other)
    assert (alone.code, "--as KEYFILE" in alone.err) == (3, True)
    signed = bank.rookery("approvers", "add", "bob", "--generate", other, "--as", str(key))
    assert signed.code == 0, "a refused change leaves no key file"
    revoked = bank.rookery("approvers", "revoke", "ann", "--as", other)
    assert revoked.out == "ann has no valid key\n"
    assert bank.rookery("approvers", "revoke", "bob", "--as", str(key)).code == 3
    last = bank.rookery("approvers", "revoke", "bob", "--as", other)
    assert "add another one first" in last.err
    assert [one["name"] for one in bank.json("approvers", "list")] == ["bob"]
    assert {one["name"] for one in bank.json("approvers", "list", "--all")} == {"ann", "bob"}
    again = bank.rookery("approvers", "add", "ann", "--generate", str(key))
    assert (again.code, "exists" in again.err) == (2, True)


def test_the_live_feed_shows_new_and_ended_approvals(bank: Bank):
    realm = Realm(bank.server, bank.name, bank.folder)
    waiting = bank.asked("feed", "pay('Di', 1)")
    with realm.started("approvals", "list", "--follow", "--json", "--session", "feed") as process:
        assert _next(process)["approval_id"] == waiting["approval_id"]
        bank.json("approvals", "deny", waiting["approval_id"])
        ended = _next(process)
        assert (ended["approval_id"], ended["state"]) == (waiting["approval_id"], "denied")
        bank.submit("feed", "pay('Di', 2)")
        assert _next(process)["state"] == "pending"


def _next(process: Any) -> dict[str, Any]:
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(PATIENCE_S), "nothing was printed"
        printed: dict[str, Any] = json.loads(process.stdout.readline())
        return printed


def test_what_is_not_there_is_4_and_what_cannot_be_meant_is_2(bank: Bank):
    for arguments in (
        ("approvals", "show", "unknown.1"),
        ("approvals", "approve", "unknown.1"),
        ("approvals", "grants", "revoke", "nothing"),
    ):
        assert bank.rookery(*arguments).code == 4, arguments
    for arguments in (
        ("approvals", "show", "a/b.1"),
        ("approvals", "list", "--limit", "0"),
        ("approvers", "add", "eve"),
        ("approvers", "add", "eve", "--key", "a", "--generate", "b"),
        ("approvers", "add", "eve", "--key", str(bank.folder / "missing.pem")),
        ("approvers", "add", "eve", "--key", str(bank.folder / "bank.py")),
    ):
        assert bank.rookery(*arguments).code == 2, arguments


# --- without --------------------------------------------------------------------------------------


def test_an_answer_given_while_no_node_is_there_counts_when_one_is(
    server: EmbeddedServer, tmp_path: Path
):
    bank = Bank(server, "night", tmp_path)
    with bank.node() as node:
        approval = bank.asked("s", "pay('Ann', 5) + '!'")
        node.kill()
        listed = bank.json("approvals", "list")["approvals"]
        assert [one["approval_id"] for one in listed] == [approval["approval_id"]]
        stored = bank.rookery("approvals", "approve", approval["approval_id"])
        assert stored.out.startswith("the decision is stored")
        assert bank.rookery("approvals", "grants", "revoke", "nothing").code == 4
    assert bank.paid() == []
    with bank.node():
        bank.newest("s", "ok")
        assert bank.paid() == ["5 Ann"]
        closed = bank.rookery("approvals", "deny", approval["approval_id"])
        assert closed.err.startswith("APPROVAL_CLOSED")


def test_the_example_of_the_readme_goes_as_it_says(tmp_path: Path):
    store = tmp_path / "store"
    tools = ("--tools", "rookery.ops.examples.approval.tools:registry")
    variables = {"ROOKERY_STORE": str(store), "ROOKERY_NODE_DRIVER": "sandbox"}
    shell = environment_of(tmp_path) | {"ROOKERY_STORE": str(store)}

    def typed(*arguments: str) -> Ended:
        return rookery(*arguments, environment=shell, directory=tmp_path)

    with NodeProcess(tmp_path, *tools, **variables) as node:
        run = typed("run", "--session", "shop", "-e", 'pay("Ann", 30)', "--no-wait", "--json")
        assert run.json["status"] == "waiting_for_approval"
        (call,) = run.json["external_calls"]
        assert (call["name"], call["side_effect"]) == ("pay", "write")
        assert run.json["metrics"]["external_calls_count"] == 1
        assert node.stop() == 0
    early = typed("runs", "result", run.json["run_id"])
    assert (early.code, early.out) == (3, "")
    assert early.err.startswith("GUARD_REJECTED: ")
    assert "has no result yet: it waits for approval of pay" in early.err
    (approval,) = typed("approvals", "list", "--json").json["approvals"]
    shown = typed("approvals", "show", approval["approval_id"], "--arguments")
    assert '"Ann"' in shown.out
    stored = typed("approvals", "approve", approval["approval_id"], "--reason", "earned")
    assert stored.out.startswith("the decision is stored"), stored
    assert not (tmp_path / "payments.txt").exists()
    with NodeProcess(tmp_path, *tools, **variables):
        book = tmp_path / "payments.txt"
        wait_until(book.exists, PATIENCE_S)
        wait_until(
            lambda: typed("runs", "list", "--json").json["runs"][0]["status"] == "ok", PATIENCE_S
        )
        assert book.read_text() == "30 Ann\n"
        story = typed("runs", "show", run.json["run_id"]).out
        assert "earned" in story
    later = typed("runs", "result", run.json["run_id"], "--json")
    assert (later.code, later.json["run_id"]) == (0, run.json["run_id"])
    assert [call["status"] for call in later.json["external_calls"]] == ["ok"]
    assert typed("runs", "show", run.json["run_id"]).out == story
