"""The parser, fed in pieces of every size, and the private names of nats-py that it uses."""

from __future__ import annotations

import asyncio
import inspect
import logging
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from rookery.bus.nats.batch_client import BatchClient, BatchParser, Message
from rookery.bus.server_access import NO_ACCESS

PROOF = ("_auth_configured", "_signature_cb", "_public_nkey", "_user_jwt_cb", "_inbox_prefix")
HEADER = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
NASTY = b"\r\nMSG x 1 3\r\nabc\r\nPING\r\n"
STREAM = b"".join(
    [
        b"MSG a.b 1 3\r\none\r\n",
        b"MSG plain 2 5\r\nother\r\n",
        b"PING\r\n",
        b"MSG a.c 1 re.ply 3\r\ntwo\r\n",
        b"+OK\r\n",
        b"HMSG a.d 1 %d %d\r\n%b%b\r\n" % (len(HEADER), len(HEADER) + len(NASTY), HEADER, NASTY),
        b'INFO {"ldm":true}\r\n',
        b"HMSG a.e 1 re.ply %d %d\r\n%b\r\n" % (len(HEADER), len(HEADER), HEADER),
        b"HMSG plain 2 %d %d\r\n%bx\r\n" % (len(HEADER), len(HEADER) + 1, HEADER),
        b"MSG a.f 33 0\r\n\r\n",
        b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n",
        b"PONG\r\n",
        b"MSG a.g 1 3\r\nend\r\n",
    ]
)
BATCHED = [
    Message("a.b", "", b"", b"one"),
    Message("a.c", "re.ply", b"", b"two"),
    Message("a.d", "", HEADER, NASTY),
    Message("a.e", "re.ply", HEADER, b""),
    Message("a.g", "", b"", b"end"),
]
OTHERS = [
    ("msg", 2, b"plain", b"", b"other", None),
    ("ping",),
    ("info", {"ldm": True}),
    ("msg", 2, b"plain", b"", b"x", HEADER),
    ("err", "'permissions violation for publish to \"x\"'"),
    ("pong",),
]


class NatsPyRecorder:
    """Records the calls of nats-py's parser to its client."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    async def _process_msg(self, *parts: object) -> None:
        self.calls.append(("msg", *parts))

    async def _process_info(self, info: object) -> None:
        self.calls.append(("info", info))

    async def _process_err(self, text: str) -> None:
        self.calls.append(("err", text))

    async def _process_ping(self) -> None:
        self.calls.append(("ping",))

    async def _process_pong(self) -> None:
        self.calls.append(("pong",))


def parsed(*pieces: bytes) -> tuple[list[Message], list[Message], list[tuple[object, ...]]]:
    """Parse pieces: messages of the batched subscriptions 1 and 33, and calls of nats-py."""
    first: list[Message] = []
    second: list[Message] = []
    client = NatsPyRecorder()
    parser = BatchParser(client, {b"1": first.extend, b"33": second.extend})

    async def feed() -> None:
        for piece in pieces:
            await parser.parse(piece)

    asyncio.run(feed())
    return first, second, client.calls


WHOLE = (BATCHED, [Message("a.f", "", b"", b"")], OTHERS)


def test_one_read_is_one_batch_a_subscription() -> None:
    batches: list[list[Message]] = []
    parser = BatchParser(NatsPyRecorder(), {b"1": batches.append})
    asyncio.run(parser.parse(STREAM))
    assert batches == [BATCHED]


def test_frames_may_be_split_anywhere() -> None:
    assert parsed(STREAM) == WHOLE
    for at in range(len(STREAM) + 1):
        assert parsed(STREAM[:at], STREAM[at:]) == WHOLE, at


def test_bytes_may_arrive_one_by_one() -> None:
    assert parsed(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == WHOLE


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_any_split_of_the_bytes_yields_the_same_messages(cuts: list[int]) -> None:
    ends = [*cuts, len(STREAM)]
    assert parsed(*(STREAM[a:b] for a, b in zip([0, *cuts], ends, strict=True))) == WHOLE


def test_a_failing_handler_is_logged_and_the_others_get_their_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[Message] = []

    def fail(batch: list[Message]) -> None:
        raise ValueError("no good")

    parser = BatchParser(NatsPyRecorder(), {b"1": fail, b"33": got.extend})
    with caplog.at_level(logging.ERROR):
        asyncio.run(parser.parse(STREAM))
    assert got == WHOLE[1]
    assert "a handler failed: messages=5 subject=a.b" in caplog.text
    assert "no good" in caplog.text


def test_a_handler_may_end_another_subscription_of_the_same_read() -> None:
    got: list[Message] = []
    batched = {b"33": got.extend}
    batched[b"1"] = lambda batch: batched.pop(b"33", None)
    parser = BatchParser(NatsPyRecorder(), batched)
    asyncio.run(parser.parse(b"MSG a 1 0\r\n\r\nMSG b 33 0\r\n\r\n"))
    assert got == []


def test_a_subject_that_is_not_utf8_does_not_stop_the_parser() -> None:
    first, _, _ = parsed(b"MSG \xff\xfe 1 1\r\nx\r\nMSG a 1 1\r\ny\r\n")
    assert [message.body for message in first] == [b"x", b"y"]


@pytest.mark.parametrize(
    "nonsense",
    [b"MSG a 1 x\r\n", b"MSG\r\n", b"HMSG a 1 x 5\r\nabcde\r\n", b"HELLO\r\n", b"?" * 1_100_000],
    ids=["no size", "no words", "no header size", "unknown", "endless"],
)
def test_invalid_bytes_end_the_connection_and_not_the_parser(nonsense: bytes) -> None:
    parser = BatchParser(NatsPyRecorder(), {b"1": lambda batch: None})
    with pytest.raises(ProtocolError):
        asyncio.run(parser.parse(nonsense))


def test_a_reset_discards_the_bytes_of_the_old_connection() -> None:
    client = NatsPyRecorder()
    got: list[Message] = []
    parser = BatchParser(client, {b"1": got.extend})
    asyncio.run(parser.parse(b"MSG a 1 100\r\nhalf of"))
    parser.reset()
    asyncio.run(parser.parse(b"MSG b 1 1\r\ny\r\n"))
    assert got == [Message("b", "", b"", b"y")]


def test_nats_py_has_the_pinned_version() -> None:
    assert version("nats-py").startswith("2.16."), (
        "bus/nats/batch_client.py uses private names of nats-py 2.16: read them in the new version"
    )


def test_the_private_names_used_of_nats_py_exist() -> None:
    plain = Client()
    for name in ("_ps", "_pending", "_pending_data_size", "_transport", "_current_server", *PROOF):
        assert hasattr(plain, name), f"nats-py's client has no {name} any more"
    assert hasattr(plain, "_server_info")
    assert hasattr(plain, "_pings_outstanding")
    assert isinstance(plain._ps, Parser)
    overridden = {
        "_connect_to_server": ["s"],
        "_connect_command": [],
        "_process_op_err": ["e"],
        "_process_err": ["err_msg"],
        "_process_pong": [],
    }
    for name, parameters in overridden.items():
        ours, theirs = getattr(BatchClient, name), getattr(Client, name, None)
        assert theirs is not None, f"nats-py's client has no {name} any more"
        assert list(inspect.signature(theirs).parameters) == ["self", *parameters]
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    assert hasattr(TcpTransport(), "_io_writer")
    assert hasattr(Subscription(plain, 1), "_id")


def test_a_pong_after_its_flush_timed_out_is_accepted() -> None:
    async def scenario() -> None:
        client = BatchClient(lambda: None, NO_ACCESS)
        late: asyncio.Future[bool] = asyncio.Future()
        late.cancel()
        waited: asyncio.Future[bool] = asyncio.Future()
        client._pongs = [late, waited]
        await client._process_pong()
        assert not waited.done()
        await client._process_pong()
        assert waited.result() is True
        await client._process_pong()

    asyncio.run(scenario())
