"""A node's key is a file of its own for its owner only; the root key vouches for it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.keys import SigningKey
from rookery.ops.config import Config
from rookery.ops.journal import DefectKind
from rookery.ops.realm_keys import node_key_path, open_node_key, vouch
from rookery.schemas.errors import Refused
from tests.approvals.test_approver_changes import EVE, ROOT
from tests.ops.fixtures import CommandLine
from tests.ops.test_signed_checkpoints import KEY, NODE, REALM, Journal


def config_of(folder: Path) -> Config:
    return Config(realm=REALM, store=str(folder / "store"))


def test_a_nodes_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path):
    config = config_of(tmp_path)
    first, second = open_node_key(config), open_node_key(config)
    assert first.public_key == second.public_key != ""
    path = node_key_path(config)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert open_node_key(replace(config, realm="other")).public_key != first.public_key


def test_beside_a_credential_the_key_is_in_its_folder(tmp_path: Path):
    server = replace(Config().server, credentials_file=str(tmp_path / "node.json"))
    config = Config(realm=REALM, url="nats://example:4222", server=server)
    assert node_key_path(config).parent == tmp_path / "keys"


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    config = config_of(tmp_path)
    open_node_key(config)
    node_key_path(config).chmod(0o644)
    assert open_node_key(config).signer is None
    assert "checkpoints are not signed" in caplog.text


def test_a_voucher_counts_for_this_key_and_realm_only(tmp_path: Path):
    config = config_of(tmp_path)
    assert open_node_key(config).voucher is UNSET
    voucher = vouch(config, ROOT)
    assert open_node_key(config).voucher == voucher
    path = node_key_path(config)
    path.unlink()
    assert open_node_key(config).voucher is UNSET, "a new key has no voucher"


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
    vouch(config, ROOT)
    key = open_node_key(config)
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


def test_a_file_that_is_no_key_is_refused_with_a_reason(tmp_path: Path):
    config = config_of(tmp_path)
    open_node_key(config)
    node_key_path(config).write_text("nothing")
    with pytest.raises(Refused, match="no Ed25519 key"):
        vouch(config, ROOT)
