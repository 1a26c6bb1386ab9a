"""The keys of a realm as a node and the commands know them: the root key, and the node's own.

The node's key is a file in the store of its server, or beside the node's credential, for its owner
only: all nodes that use the folder share it. ``rookery nodes vouch`` signs it with the operator's
credential, or the root key. Nothing but signatures and the public half leaves the file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.keys import (
    KEY_BYTES,
    SigningKey,
    read_private_key,
    read_public_key,
)
from rookery.bus.clock import entropy
from rookery.bus.credentials import Credential
from rookery.bus.roles import Role
from rookery.ops.config import ApprovalsConfig, Config
from rookery.ops.keys.sealing_keys import write_durably
from rookery.ops.keys.vouchers import (
    TrustRoots,
    is_signed_voucher,
    operator_voucher,
    root_voucher,
)
from rookery.ops.server import local_credential, store_of
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts.node import KeyVoucher

__all__ = ["NodeKey", "node_key_path", "open_node_key", "root_key_of", "trust_roots", "vouch"]

log = logging.getLogger(__name__)

_FOLDER: Final = "keys"
_VOUCHER: Final = ".voucher"


class NodeKey(NamedTuple):
    """The key that signs a node's checkpoints; empty where its folder cannot be written."""

    signer: SigningKey | None = None
    voucher: KeyVoucher | UnsetType = UNSET

    @property
    def public_key(self) -> str:
        return "" if self.signer is None else self.signer.public_key


def root_key_of(config: ApprovalsConfig) -> str:
    """The realm's root key, in hex; ``Refused`` CONFIG_INVALID if it is no key."""
    try:
        return read_public_key(config.root_key) if config.root_key else ""
    except Refused as refusal:
        raise Refused(
            "CONFIG_INVALID", f"approvals.root_key: {refusal.message}", hint=refusal.hint
        ) from None


def trust_roots(config: Config) -> TrustRoots:
    """The keys by which the local configuration judges vouchers: the root key, and the issuer that
    the local credential names."""
    credential = local_credential(config, Role.OPERATOR)
    issuer = "" if credential is None else credential.issuer
    return TrustRoots(config.realm, root_key_of(config.approvals), issuer)


def node_key_path(config: Config) -> Path:
    """Where the node's key is, or will be."""
    file, name = config.server.credentials_file, f"{config.realm}.node.pem"
    if config.url and file:
        return Path(file).absolute().parent / _FOLDER / name
    store = store_of(config).path
    if config.url:  # A folder of that name would be a store, where a server may start.
        return store.with_name(f"{store.name}.{_FOLDER}") / name
    return store / _FOLDER / name


def open_node_key(config: Config) -> NodeKey:
    """The node's key, made at the first start. A node that cannot store one serves, and signs
    nothing."""
    try:
        path = node_key_path(config)
        signer = _read_or_make(path)
    except (OSError, Refused) as error:
        log.warning("no key: checkpoints are not signed", extra={"why": str(error)})
        return NodeKey()
    return NodeKey(signer, _read_voucher(path, config.realm, signer.public_key))


def vouch(config: Config, signer: SigningKey | Credential) -> KeyVoucher:
    """Sign the node's key with the root key, or with an operator's credential; the node shows it
    from its next start on."""
    path = node_key_path(config)
    try:
        public_key = _read_or_make(path).public_key
        if isinstance(signer, SigningKey):
            voucher = root_voucher(signer, config.realm, public_key)
        else:
            voucher = operator_voucher(signer, public_key)
        _write(_voucher_path(path), encode_json(voucher))
    except OSError as error:
        raise Refused("INVALID_ARGUMENT", f"the key file {path}: {error.strerror}") from None
    return voucher


def _read_or_make(path: Path) -> SigningKey:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        made = SigningKey(entropy(KEY_BYTES))
        draft = path.with_name(f".{path.name}.{entropy(6).hex()}")
        _write(draft, made.private_pem.encode())
        try:
            os.link(draft, path)
        except FileExistsError:
            """Another process of the node was first."""
        finally:
            draft.unlink()
    if path.stat().st_mode & 0o077:
        raise Refused("INVALID_ARGUMENT", f"{path} can be read by others", hint=f"chmod 600 {path}")
    return read_private_key(path.read_text(encoding="ascii"))


def _read_voucher(path: Path, realm: str, public_key: str) -> KeyVoucher | UnsetType:
    try:
        voucher = msgspec.json.decode(_voucher_path(path).read_bytes(), type=KeyVoucher)
    except FileNotFoundError:
        return UNSET
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("the voucher of the node's key is not readable", extra={"why": str(error)})
        return UNSET
    if is_signed_voucher(voucher, realm, public_key):
        return voucher
    log.warning("the voucher is for another key: rookery nodes vouch")
    return UNSET


def _voucher_path(path: Path) -> Path:
    return path.with_suffix(_VOUCHER)


def _write(path: Path, body: bytes) -> None:
    """Write a file that only its owner may read."""
    path.unlink(missing_ok=True)
    write_durably(path, body)
