"""The encoding of messages, and the refusal of invalid ones."""

from __future__ import annotations

import pytest

from rookery.bus.nats.batch_client import Outgoing, encode_frames, header_value
from rookery.schemas.errors import Refused

PAYLOAD_BYTES_MAX = 1000


def test_a_list_of_messages_is_one_piece_of_protocol() -> None:
    written = encode_frames(
        [
            Outgoing("a", b"x"),
            Outgoing("b", b"", "re.ply"),
            Outgoing("c", b"xy", headers=[("Name", "värde"), ("Empty", "")]),
        ],
        PAYLOAD_BYTES_MAX,
    )
    block = "NATS/1.0\r\nName: värde\r\nEmpty: \r\n\r\n".encode()
    assert written.split(b"\r\n", 5)[:5] == [
        b"PUB a  1",
        b"x",
        b"PUB b re.ply 0",
        b"",
        b"HPUB c  %d %d" % (len(block), len(block) + 2),
    ]
    assert written.endswith(block + b"xy\r\n")


@pytest.mark.parametrize(
    "subject", ["", " ", "a b", "a\tb", "a\r\nPUB b 0", "a\n", " a", "a ", "a\u2028b"]
)
def test_a_subject_with_blanks_is_refused(subject: str) -> None:
    with pytest.raises(Refused) as refused:
        encode_frames([Outgoing(subject, b"")], PAYLOAD_BYTES_MAX)
    assert refused.value.code == "INVALID_SUBJECT"


def test_a_reply_subject_with_blanks_is_refused() -> None:
    with pytest.raises(Refused, match="INVALID_SUBJECT"):
        encode_frames([Outgoing("a", b"", "b 5\r\nPUB c")], PAYLOAD_BYTES_MAX)


def test_a_control_line_longer_than_the_servers_limit_is_refused() -> None:
    with pytest.raises(Refused, match="too long"):
        encode_frames([Outgoing("a" * 4096, b"")], PAYLOAD_BYTES_MAX)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("A", "x\r\nNats-Expected-Last-Sequence: 0"),
        ("A", "x\ny"),
        ("A", "x\r"),
        ("A:B", "x"),
        ("A B", "x"),
        ("", "x"),
        ("A\r\nB", "x"),
    ],
)
def test_a_header_value_cannot_inject_another_header(name: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        encode_frames([Outgoing("a", b"", headers=[(name, value)])], PAYLOAD_BYTES_MAX)
    assert refused.value.code == "INVALID_ARGUMENT"


def test_headers_count_towards_the_limit() -> None:
    fits = Outgoing("a", bytes(PAYLOAD_BYTES_MAX))
    assert encode_frames([fits], PAYLOAD_BYTES_MAX)
    for message in (Outgoing("a", fits.body + b"x"), fits._replace(headers=[("A", "x")])):
        with pytest.raises(Refused) as refused:
            encode_frames([message], PAYLOAD_BYTES_MAX)
        assert refused.value.code == "PAYLOAD_TOO_LARGE"
        assert str(PAYLOAD_BYTES_MAX) in refused.value.message


def test_a_header_is_found_by_its_whole_name() -> None:
    lines = [b"NATS/1.0 100 Idle", b"X-Name: no", b"Name: yes ", b"Name: second", b"Tight:t"]
    block = b"\r\n".join([*lines, b"Bad: \xff", b"", b""])
    assert header_value(block, b"Name") == "yes"
    assert header_value(block, b"Tight") == "t"
    assert header_value(block, b"Nam") == ""
    assert header_value(block, b"name") == ""
    assert header_value(block, b"Bad") == "\ufffd"
    assert header_value(b"", b"Name") == ""
