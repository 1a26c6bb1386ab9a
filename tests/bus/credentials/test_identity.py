"""The header by which a credential proves its name."""

from __future__ import annotations

import pytest

from rookery.bus.credentials import Credential, identity_header
from rookery.bus.credentials.credential import UNPROVEN, IdentityVerifier, Issuer
from rookery.bus.nkeys import NKey, NKeyKind
from rookery.bus.roles import Role
from rookery.schemas.seed.refs import PrivacyClass

ISSUER = Issuer(NKey(NKeyKind.ACCOUNT, b"i" * 32))
ALICE = ISSUER.issue("shop", "alice", Role.CLIENT)
BOB = ISSUER.issue("shop", "bob", Role.OPERATOR)


def verifier(realm: str = "shop") -> IdentityVerifier:
    return IdentityVerifier(realm, ISSUER.key.public)


def header(credential: Credential) -> str:
    return identity_header(credential, b"n" * 16)


def test_a_header_proves_the_name_of_its_credential() -> None:
    assert verifier().sender_of(header(ALICE)).name == "alice"
    assert verifier().sender_of(identity_header(ALICE, b"m" * 16)).name == "alice"


def test_a_header_proves_the_role_whose_highest_class_its_sender_reads() -> None:
    highest = {one.name: verifier().sender_of(header(one)).privacy_max for one in (ALICE, BOB)}
    assert highest == {"alice": PrivacyClass.CONTENT_REFS_ONLY, "bob": PrivacyClass.SENSITIVE}
    promoted = header(ALICE).replace(".client.", ".operator.")
    assert verifier().sender_of(promoted) == UNPROVEN


def test_a_credential_of_another_realm_or_issuer_proves_nothing() -> None:
    assert verifier("bank").sender_of(header(ALICE)).name == ""
    other = Issuer(NKey(NKeyKind.ACCOUNT, b"o" * 32)).issue("shop", "alice", Role.CLIENT)
    assert verifier().sender_of(header(other)).name == ""


def test_a_node_without_an_issuer_accepts_no_header() -> None:
    assert IdentityVerifier("shop", "").sender_of(header(ALICE)).name == ""


@pytest.mark.parametrize("part", range(7))
def test_no_part_of_a_header_can_be_taken_from_another(part: int) -> None:
    alice, bob = header(ALICE).split("."), identity_header(BOB, b"m" * 16).split(".")
    if alice[part] == bob[part]:
        assert part == 2, "neither has a surface"
        return
    alice[part] = bob[part]
    assert verifier().sender_of(".".join(alice)).name == ""


@pytest.mark.parametrize("text", ["", "alice", "a.b.c.d.e.f.g", "." * 6, "é" * 3_000, "=" * 40])
def test_a_malformed_header_proves_nothing(text: str) -> None:
    assert verifier().sender_of(text).name == ""
