"""The keys of a realm's nodes, the root key, and vouchers for them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.keys.checkpoints import vouched_bytes
from rookery.actors.keys.ed25519 import (
    KEY_BYTES,
    SigningKey,
    is_valid_signature,
    read_private_key,
    read_public_key,
)
from rookery.bus.clock import entropy
from rookery.bus.credentials import Credential, is_certified
from rookery.bus.nkeys import verify_nkey
from rookery.bus.roles import Role
from rookery.ops.config import ApprovalsConfig, Config
from rookery.ops.keys.sealing_keys import write_durably
from rookery.ops.server import ConfiguredServer
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts.node import KeyVoucher, OperatorKey, Started

__all__ = [
    "NodeKey",
    "TrustRoots",
    "is_signed_voucher",
    "operator_voucher",
    "root_voucher",
]

# --- vouchers -------------------------------------------------------------------------------------

# Vouchers: signatures of a node's public key by the root key, or by an operator's credential.
#
# A voucher counts for a verifier that knows the key it goes back to: the realm's root key, or the
# public key of the issuer, which has signed the name, role and key of every credential of the
# realm.


_ROOT: Final = "the root key"


class TrustRoots(msgspec.Struct, frozen=True):
    """The keys of a realm that a verifier knows before it reads the journal."""

    realm: str
    root_key: str = ""
    """In hex; empty: none is configured."""
    issuer: str = ""
    """Public key of the issuer of credentials, an NKey; empty: no operator's voucher counts."""

    @classmethod
    def of(cls, config: Config) -> TrustRoots:
        """The keys by which the local configuration judges vouchers: the root key, and the issuer
        that the local credential names."""
        credential = ConfiguredServer(config).local_credential(Role.OPERATOR)
        issuer = "" if credential is None else credential.issuer
        return cls(config.realm, cls.root_key_of(config.approvals), issuer)

    @staticmethod
    def root_key_of(config: ApprovalsConfig) -> str:
        """The realm's root key, in hex; ``Refused`` CONFIG_INVALID if it is no key."""
        try:
            return read_public_key(config.root_key) if config.root_key else ""
        except Refused as refusal:
            raise Refused(
                "CONFIG_INVALID", f"approvals.root_key: {refusal.message}", hint=refusal.hint
            ) from None

    def voucher_of(self, fact: Started) -> str:
        """What vouches for a node's key, in words; empty: nothing that counts."""
        voucher = fact.voucher
        if voucher is UNSET or not is_signed_voucher(voucher, self.realm, fact.public_key):
            return ""
        operator = voucher.operator
        if operator is UNSET:
            return _ROOT if self.root_key and voucher.root_key == self.root_key else ""
        return f"operator {operator.name}" if self._is_operator(operator) else ""

    def _is_operator(self, key: OperatorKey) -> bool:
        try:
            return bool(self.issuer) and is_certified(
                self.issuer,
                bytes.fromhex(key.certificate),
                realm=self.realm,
                name=key.name,
                role=Role.OPERATOR.value,
                surface="",
                public_key=key.public_key,
            )
        except (ValueError, Refused):
            return False


def is_signed_voucher(voucher: KeyVoucher, realm: str, public_key: str) -> bool:
    """Whether the voucher's own key has signed this node's key, whatever node has that key."""
    signed = vouched_bytes(realm, public_key)
    if voucher.operator is UNSET:
        return is_valid_signature(signed, voucher.signature, voucher.root_key)
    try:
        signature = bytes.fromhex(voucher.signature)
        return verify_nkey(voucher.operator.public_key, signed, signature)
    except (ValueError, Refused):
        return False


def root_voucher(root: SigningKey, realm: str, public_key: str) -> KeyVoucher:
    """The root key's signature of a node's key."""
    signed = vouched_bytes(realm, public_key)
    return KeyVoucher(root_key=root.public_key, signature=root.sign_bytes(signed))


def operator_voucher(credential: Credential, public_key: str) -> KeyVoucher:
    """The signature of a node's key by an operator's credential; ``Refused`` for another role."""
    if credential.role is not Role.OPERATOR:
        raise Refused(
            "INVALID_ARGUMENT",
            f"the credential {credential.name} has the role {credential.role}, not operator",
            hint="rookery nodes vouch --as FILE, an operator's credential or the root key",
        )
    signature = credential.key.sign(vouched_bytes(credential.realm, public_key))
    key = OperatorKey(
        name=credential.name, public_key=credential.key.public, certificate=credential.certificate
    )
    return KeyVoucher(root_key="", signature=signature.hex(), operator=key)


# --- node keys ------------------------------------------------------------------------------------

# The keys of a realm as a node and the commands know them: the root key, and the node's own.
#
# The node's key is a file in the store of its server, or beside the node's credential, for its
# owner only: all nodes that use the folder share it. ``rookery nodes vouch`` signs it with the
# operator's credential, or the root key. Nothing but signatures and the public half leaves the
# file.


log = logging.getLogger(__name__)

_FOLDER: Final = "keys"
_VOUCHER: Final = ".voucher"


class NodeKey(NamedTuple):
    """The key that signs a node's checkpoints; empty where its folder cannot be written."""

    signer: SigningKey | None = None
    voucher: KeyVoucher | UnsetType = UNSET

    @staticmethod
    def path(config: Config) -> Path:
        """Where the node's key is, or will be."""
        file, name = config.server.credentials_file, f"{config.realm}.node.pem"
        if config.url and file:
            return Path(file).absolute().parent / _FOLDER / name
        store = ConfiguredServer(config).store.path
        if config.url:  # A folder of that name would be a store, where a server may start.
            return store.with_name(f"{store.name}.{_FOLDER}") / name
        return store / _FOLDER / name

    @classmethod
    def open(cls, config: Config) -> NodeKey:
        """The node's key, made at the first start. A node that cannot store one serves, and signs
        nothing."""
        try:
            path = cls.path(config)
            signer = _read_or_make(path)
        except (OSError, Refused) as error:
            log.warning("no key: checkpoints are not signed", extra={"why": str(error)})
            return cls()
        return cls(signer, _read_voucher(path, config.realm, signer.public_key))

    @classmethod
    def vouch(cls, config: Config, signer: SigningKey | Credential) -> KeyVoucher:
        """Sign the node's key with the root key, or with an operator's credential; the node shows
        it from its next start on."""
        path = cls.path(config)
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

    @property
    def public_key(self) -> str:
        return "" if self.signer is None else self.signer.public_key


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
