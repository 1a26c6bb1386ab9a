"""A node's key is a file of its own for its owner only; the root key or an operator vouches for
it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.keys.checkpoints import CheckpointWriter
from rookery.actors.keys.ed25519 import SigningKey
from rookery.bus.credentials import Credential, CredentialStore
from rookery.bus.roles import Role
from rookery.ops.config import Config
from rookery.ops.journal import Anchor, DefectKind
from rookery.ops.keys import NodeKey, TrustRoots
from rookery.ops.keys.node_keys import operator_voucher
from rookery.schemas.errors import Refused
from rookery.schemas.facts.node import KeyVoucher, OperatorKey, Started
from tests.approvals.test_approver_changes import EVE, ROOT
from tests.ops.fixtures import CommandLine
from tests.ops.test_signed_checkpoints import KEY, NODE, REALM, Journal


def config_of(folder: Path) -> Config:
    return Config(realm=REALM, store=str(folder / "store"))


def test_a_nodes_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path):
    config = config_of(tmp_path)
    first, second = NodeKey.open(config), NodeKey.open(config)
    assert first.public_key == second.public_key != ""
    path = NodeKey.path(config)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert NodeKey.open(replace(config, realm="other")).public_key != first.public_key


def test_beside_a_credential_the_key_is_in_its_folder(tmp_path: Path):
    server = replace(Config().server, credentials_file=str(tmp_path / "node.json"))
    config = Config(realm=REALM, url="nats://example:4222", server=server)
    assert NodeKey.path(config).parent == tmp_path / "keys"


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    config = config_of(tmp_path)
    NodeKey.open(config)
    NodeKey.path(config).chmod(0o644)
    assert NodeKey.open(config).signer is None
    assert "checkpoints are not signed" in caplog.text


def test_a_voucher_counts_for_this_key_and_realm_only(tmp_path: Path):
    config = config_of(tmp_path)
    assert NodeKey.open(config).voucher is UNSET
    voucher = NodeKey.vouch(config, ROOT)
    assert NodeKey.open(config).voucher == voucher
    path = NodeKey.path(config)
    path.unlink()
    assert NodeKey.open(config).voucher is UNSET, "a new key has no voucher"


def test_only_the_realms_root_key_vouches(tmp_path: Path):
    line = CommandLine(tmp_path)
    for name, key in (("root", ROOT), ("eve", EVE)):
        path = tmp_path / f"{name}.pem"
        path.write_text(key.private_pem)
        path.chmod(0o600)
    line.environment["ROOKERY_APPROVALS_ROOT_KEY"] = ROOT.public_key
    refused = line.rookery("nodes", "vouch", "--as", str(tmp_path / "eve.pem"))
    assert (refused.code, "is not the realm's root key" in refused.err) == (2, True)
    vouched = line.rookery("nodes", "vouch", "--as", str(tmp_path / "root.pem"))
    assert vouched.code == 0
    assert ("restart the node" in vouched.out, vouched.err) == (True, "")


def test_a_voucher_says_which_root_key_it_needs_where_none_is_configured(tmp_path: Path):
    line = CommandLine(tmp_path)
    path = tmp_path / "root.pem"
    path.write_text(ROOT.private_pem)
    path.chmod(0o600)
    vouched = line.rookery("nodes", "vouch", "--as", str(path))
    assert vouched.code == 0
    assert vouched.err == f'it counts only with approvals.root_key = "{ROOT.public_key}"\n'


def test_once_the_root_key_vouches_no_other_key_counts(tmp_path: Path):
    config = config_of(tmp_path)
    NodeKey.vouch(config, ROOT)
    key = NodeKey.open(config)
    assert isinstance(key.signer, SigningKey)
    journal = Journal(key.signer, key.voucher)
    journal.work("a")
    journal.write()
    check = journal.checked(ROOT.public_key)
    assert check.damaged == []
    assert check.checkpoints is not None
    assert [one.vouched for one in check.checkpoints.keys] == [True]
    journal.start("n2", KEY)
    journal.start(NODE, KEY)
    forged = journal.checked(ROOT.public_key).damaged
    assert [one.kind for one in forged] == [DefectKind.FORGED, DefectKind.FORGED]


def credential_of(folder: Path, role: Role = Role.OPERATOR, realm: str = REALM) -> Credential:
    store = CredentialStore(folder)
    store.ensure(realm)
    found = store.get(realm, role.value)
    assert found is not None
    return found


def started(voucher: KeyVoucher, public_key: str = KEY.public_key) -> Started:
    fields = {"node": NODE, "version": "1", "host": "h", "pid": 1, "durability": "always"}
    return Started(**fields, public_key=public_key, voucher=voucher)


def test_an_operators_voucher_counts_for_a_verifier_that_knows_the_issuer(tmp_path: Path):
    operator = credential_of(tmp_path / "realm")
    journal = Journal(KEY, operator_voucher(operator, KEY.public_key))
    journal.work("a")
    journal.write()
    shown = []
    for issuer in (operator.issuer, "", credential_of(tmp_path / "other").issuer):
        check = journal.checked(issuer=issuer)
        assert check.damaged == []
        assert check.checkpoints is not None
        shown += [(one.vouched, one.vouched_by) for one in check.checkpoints.keys]
    assert shown == [(True, "operator operator"), (False, ""), (False, "")]
    journal.start("n2", EVE)
    (forged,) = journal.checked(issuer=operator.issuer).damaged
    assert "rookery nodes vouch" in forged.message


def test_no_other_voucher_is_taken_for_an_operators(tmp_path: Path):
    operator = credential_of(tmp_path / "realm")
    roots = TrustRoots(REALM, "", operator.issuer)
    good = operator_voucher(operator, KEY.public_key)
    assert roots.voucher_of(started(good)) == "operator operator"
    assert isinstance(good.operator, OperatorKey)
    forged_roles = [
        replace(credential_of(tmp_path / "realm", role), role=Role.OPERATOR)
        for role in (Role.NODE, Role.CLIENT, Role.APPROVER)
    ]
    elsewhere = credential_of(tmp_path / "realm", realm="other")
    forgers = [*forged_roles, credential_of(tmp_path / "eve"), elsewhere]
    forged = [started(operator_voucher(one, KEY.public_key)) for one in forgers]
    forged += [
        started(good, EVE.public_key),
        started(replace(good, signature="0" * 128)),
        started(replace(good, signature="no hex")),
        started(replace(good, operator=replace(good.operator, name="other"))),
        started(replace(good, operator=replace(good.operator, certificate="no hex"))),
        started(replace(good, operator=replace(good.operator, public_key="UNONE"))),
        started(replace(good, operator=UNSET)),
    ]
    assert [roots.voucher_of(one) for one in forged] == [""] * len(forged)
    with pytest.raises(Refused, match="role client"):
        operator_voucher(credential_of(tmp_path / "realm", Role.CLIENT), KEY.public_key)


def test_the_anchor_names_the_issuer_for_an_auditor_without_credentials(tmp_path: Path):
    operator = credential_of(tmp_path / "realm")
    journal = Journal(KEY, operator_voucher(operator, KEY.public_key))
    anchor = Anchor.read(journal.checked(issuer=operator.issuer).anchor(REALM, 1).encode(), REALM)
    check = journal.checked(anchor=anchor)
    assert check.checkpoints is not None
    assert [one.vouched_by for one in check.checkpoints.keys] == ["operator operator"]


def test_a_node_that_lost_its_key_counts_again_once_an_operator_vouches(tmp_path: Path):
    operator = credential_of(tmp_path / "realm")
    journal = Journal()
    journal.work("a")
    journal.write()
    journal.writer = CheckpointWriter(NODE, REALM, EVE, journal._record)
    journal.start(NODE, EVE)
    journal.work("b")
    journal.write()
    (found,) = journal.checked(issuer=operator.issuer).damaged
    assert (found.kind, found.code) == (DefectKind.FORGED, "FACT_FORGED")
    assert f"{NODE} had the key" in found.message
    assert "`rookery nodes vouch`" in found.message
    journal.writer = CheckpointWriter(NODE, REALM, EVE, journal._record)
    journal.start(NODE, EVE, operator_voucher(operator, EVE.public_key))
    journal.work("c")
    journal.write()
    check = journal.checked(issuer=operator.issuer)
    assert check.damaged == []
    assert check.checkpoints is not None
    assert check.checkpoints.proven > 3
    assert "server.credentials_file" in journal.checked().damaged[-1].message


def test_a_refused_key_does_not_count_under_another_name(tmp_path: Path):
    journal = Journal()
    journal.start(NODE, EVE)
    journal.start("n2", EVE)
    assert [one.kind for one in journal.checked().damaged] == [DefectKind.FORGED]


def test_without_a_file_the_local_operator_vouches(tmp_path: Path):
    line = CommandLine(tmp_path)
    line.environment["ROOKERY_REALM"] = REALM
    refused = line.rookery("nodes", "vouch")
    assert (refused.code, "CREDENTIAL_NOT_FOUND" in refused.err) == (4, True)
    assert "--as FILE" in refused.err
    operator = credential_of(tmp_path / "store")
    config = config_of(tmp_path)
    assert line.rookery("nodes", "vouch").code == 0
    key = NodeKey.open(config)
    assert isinstance(key.voucher, KeyVoucher)
    assert TrustRoots.of(config).issuer == operator.issuer
    fact = started(key.voucher, key.public_key)
    assert TrustRoots.of(config).voucher_of(fact) == "operator operator"
    folder = tmp_path / "store" / "credentials"
    client = line.rookery("nodes", "vouch", "--as", str(folder / f"{REALM}.client.json"))
    assert (client.code, "role client" in client.err) == (2, True)
    file = str(folder / f"{REALM}.operator.json")
    assert line.rookery("nodes", "vouch", "--as", file).code == 0


def test_a_file_that_is_no_key_is_refused_with_a_reason(tmp_path: Path):
    config = config_of(tmp_path)
    NodeKey.open(config)
    NodeKey.path(config).write_text("nothing")
    with pytest.raises(Refused, match="no Ed25519 key"):
        NodeKey.vouch(config, ROOT)
