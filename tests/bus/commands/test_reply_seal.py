"""Reply subjects as facts hold them."""

from __future__ import annotations

import pytest

from rookery.bus.commands.command_messages import ReplySeal, is_reply_subject

INBOX = "_INBOX.default.alice.kH2xQ"


def test_a_sealed_subject_shows_its_last_token_only_and_opens_again() -> None:
    seal = ReplySeal("secret")
    sealed = seal.seal(f"{INBOX}.7")
    assert sealed.startswith("~")
    assert sealed.endswith(".7")
    assert "alice" not in sealed
    assert seal.open(sealed) == ReplySeal("secret").open(sealed) == f"{INBOX}.7"


def test_one_subject_is_always_sealed_to_the_same_text() -> None:
    assert ReplySeal("secret").seal(f"{INBOX}.7") == ReplySeal("secret").seal(f"{INBOX}.7")


def test_another_key_and_a_changed_text_open_nothing() -> None:
    sealed = ReplySeal("secret").seal(f"{INBOX}.7")
    assert ReplySeal("other").open(sealed) == ""
    for at in range(1, len(sealed) - 2):
        changed = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        assert not ReplySeal("secret").open(changed).startswith(INBOX)


def test_facts_of_older_nodes_have_plain_subjects() -> None:
    assert ReplySeal("secret").open(f"{INBOX}.7") == f"{INBOX}.7"


def test_no_client_can_name_a_sealed_subject() -> None:
    assert not is_reply_subject(ReplySeal("secret").seal(f"{INBOX}.7"))


@pytest.mark.parametrize("subject", ["reply", f"{INBOX}.7", f"{INBOX}.x-7", f"{INBOX}.{'7' * 99}"])
def test_a_client_may_name_any_inbox_however_long_its_last_token_is(subject: str) -> None:
    assert is_reply_subject(subject)
    assert is_reply_subject(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        ".7",
        f"{INBOX}.",
        f"{INBOX}..7",
        f"{INBOX}.*",
        f"{INBOX}.>.7",
        f"{INBOX} 7.7",
        f"{INBOX}.7\r\nPUB x 0",
        "$JS.API.STREAM.DELETE.x",
        "$JS.7",
        "rookery.7",
        "rookery.default.ev.session.7",
        "service.7",
        f"{INBOX}.{'x' * 1024}",
        f"{'x' * 1024}.7",
    ],
)
def test_no_client_can_name_a_wildcard_or_what_the_server_and_realms_use(subject: str) -> None:
    assert not is_reply_subject(subject)
    assert not is_reply_subject(subject)
