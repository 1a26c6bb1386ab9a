"""NKeys and JWTs as NATS writes them; the server itself checks them in ``test_server_access``."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.bus.nkeys import (
    KEY_BYTES,
    NKey,
    NKeyKind,
    account_jwt,
    credentials_text,
    read_credentials,
    user_jwt,
    verify_nkey,
)
from rookery.bus.roles import Permissions
from rookery.schemas.errors import Refused
from tests.bus.nats.tokens import claims_of

PRIVATE = bytes(range(KEY_BYTES))
KINDS = {NKeyKind.OPERATOR: "O", NKeyKind.ACCOUNT: "A", NKeyKind.USER: "U"}


@pytest.mark.parametrize(("kind", "letter"), KINDS.items())
def test_the_first_letters_say_what_a_key_is(kind: NKeyKind, letter: str) -> None:
    key = NKey(kind, PRIVATE)
    assert key.public.startswith(letter)
    assert key.seed.startswith(f"S{letter}")
    assert (len(key.public), len(key.seed)) == (56, 58)
    again = NKey.from_seed(key.seed)
    assert (again.kind, again.public, again.seed) == (kind, key.public, key.seed)
    assert key.seed not in repr(key)


@given(st.binary(max_size=100))
def test_a_signature_is_that_of_one_key_and_one_text(data: bytes) -> None:
    key, other = NKey(NKeyKind.USER, PRIVATE), NKey(NKeyKind.USER, PRIVATE[::-1])
    assert verify_nkey(key.public, data, key.sign(data))
    assert not verify_nkey(key.public, data + b"x", key.sign(data))
    assert not verify_nkey(other.public, data, key.sign(data))


@given(st.text(max_size=80) | st.from_regex(r"S?[UAO][A-Z2-7]{54,57}", fullmatch=True))
def test_what_is_no_nkey_is_refused_and_not_repeated(text: str) -> None:
    for read in (NKey.from_seed,):
        with pytest.raises(Refused) as refused:
            read(text)
        assert refused.value.code == "INVALID_ARGUMENT"
        assert len(text) < 8 or text not in str(refused.value)


def test_every_changed_letter_of_a_seed_is_noticed() -> None:
    seed = NKey(NKeyKind.USER, PRIVATE).seed
    for at in range(len(seed)):
        changed = seed[:at] + ("A" if seed[at] != "A" else "B") + seed[at + 1 :]
        with pytest.raises(Refused):
            NKey.from_seed(changed)


def test_a_public_key_is_no_seed_and_a_seed_no_public_key() -> None:
    key = NKey(NKeyKind.USER, PRIVATE)
    with pytest.raises(Refused):
        NKey.from_seed(key.public)
    with pytest.raises(Refused):
        verify_nkey(key.seed, b"", b"")


def test_a_token_is_signed_by_its_issuer_and_says_what_its_user_may_do() -> None:
    account, user = NKey(NKeyKind.ACCOUNT, PRIVATE), NKey(NKeyKind.USER, PRIVATE)
    allowed = Permissions(("a.>",), ("_I.>",))
    token = user_jwt(account, user.public, "worker", allowed, 1_000)
    claims = claims_of(token)
    assert claims["iss"] == account.public
    assert (claims["sub"], claims["name"]) == (user.public, "worker")
    assert claims["iat"] == 1_000
    assert claims["nats"]["pub"] == {"allow": ["a.>"]}
    assert claims["nats"]["sub"] == {"allow": ["_I.>"]}
    signed, _, signature = token.rpartition(".")
    raw = urlsafe_b64decode(signature + "==")
    assert verify_nkey(account.public, signed.encode(), raw)


def test_an_account_lists_its_revoked_users() -> None:
    operator, account = NKey(NKeyKind.OPERATOR, PRIVATE), NKey(NKeyKind.ACCOUNT, PRIVATE)
    token = account_jwt(operator, account.public, "store", 1, revoked={"U1": 5})
    assert claims_of(token)["nats"]["revocations"] == {"U1": 5}


def test_a_credentials_file_is_read_as_it_was_written() -> None:
    user = NKey(NKeyKind.USER, PRIVATE)
    token, key = read_credentials(credentials_text("a.b.c", user))
    assert (token, key.public) == ("a.b.c", user.public)


@pytest.mark.parametrize("kind", [NKeyKind.OPERATOR, NKeyKind.ACCOUNT])
def test_credentials_with_the_seed_of_another_kind_are_refused(kind: NKeyKind) -> None:
    text = credentials_text("a.b.c", NKey(kind, PRIVATE))
    with pytest.raises(Refused, match="seed of a credentials file"):
        read_credentials(text)
