"""The header by which a credential proves its name."""

from __future__ import annotations

import pytest

from rookery.bus.credentials import Credential, identity_header
from rookery.bus.credentials.credential import IdentityVerifier, Issuer
from rookery.bus.nkeys import NKey, NKeyKind
from rookery.bus.roles import Role

ISSUER = Issuer(NKey(NKeyKind.ACCOUNT, b"i" * 32))
ALICE = ISSUER.issue("shop", "alice", Role.CLIENT)
BOB = ISSUER.issue("shop", "bob", Role.OPERATOR)


def verifier(realm: str = "shop") -> IdentityVerifier:
    return IdentityVerifier(realm, ISSUER.key.public)


def header(credential: Credential) -> str:
    return identity_header(credential, b"n" * 16)


def test_a_header_proves_the_name_of_its_credential() -> None:
    assert verifier().name_of(header(ALICE)) == "alice"
    assert verifier().name_of(identity_header(ALICE, b"m" * 16)) == "alice"


def test_a_credential_of_another_realm_or_issuer_proves_nothing() -> None:
    assert verifier("bank").name_of(header(ALICE)) == ""
    other = Issuer(NKey(NKeyKind.ACCOUNT, b"o" * 32)).issue("shop", "alice", Role.CLIENT)
    assert verifier().name_of(header(other)) == ""


def test_a_node_without_an_issuer_accepts_no_header() -> None:
    assert IdentityVerifier("shop", "").name_of(header(ALICE)) == ""


@pytest.mark.parametrize("part", range(7))
def test_no_part_of_a_header_can_be_taken_from_another(part: int) -> None:
    alice, bob = header(ALICE).split("."), identity_header(BOB, b"m" * 16).split(".")
    if alice[part] == bob[part]:
        assert part == 2, "neither has a surface"
        return
    alice[part] = bob[part]
    assert verifier().name_of(".".join(alice)) == ""


@pytest.mark.parametrize("text", ["", "alice", "a.b.c.d.e.f.g", "." * 6, "é" * 3_000, "=" * 40])
def test_a_malformed_header_proves_nothing(text: str) -> None:
    assert verifier().name_of(text) == ""
