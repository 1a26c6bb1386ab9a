"""How a connection is let in: keys, tokens and certificates, by a real server that checks them."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rookery.bus.clock import entropy, wait_until
from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.nkeys import (
    KEY_BYTES,
    NKey,
    NKeyKind,
    account_jwt,
    credentials_text,
    operator_jwt,
    user_jwt,
)
from rookery.bus.roles import Permissions
from rookery.bus.server.server import find_server
from rookery.bus.server.store import Store
from rookery.bus.server_access import (
    ServerAccess,
    ServerTargets,
    access_from_environment,
    split_urls,
)
from rookery.schemas.errors import Failed, Refused
from tests.bus.deadlines import wait_until as wait_on_the_loop_until
from tests.bus.nats.test_connection import run

MAKE_CERTIFICATES = Path(__file__).parents[3] / "ops/deploy/cluster/certificates.sh"
ISSUED_S = 1_700_000_000

Servers = Callable[[str], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Servers]:
    """Starts a server with these lines in its configuration; returns its host and port."""
    started: list[subprocess.Popen[bytes]] = []

    def start(lines: str) -> str:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        config = folder / "server.conf"
        config.write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\nlog_file: "{folder}/log"\n'
            + lines
        )
        started.append(subprocess.Popen([find_server(), "-c", str(config)]))
        running = wait_until(Store(folder).running_server, 90)
        assert running is not None, (folder / "log").read_text()
        return urlsplit(running.address).netloc

    yield start
    for server in started:
        server.terminate()
        server.wait()


def new_key(kind: NKeyKind = NKeyKind.USER) -> NKey:
    return NKey(kind, entropy(KEY_BYTES))


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


async def is_let_in(url: str, access: ServerAccess) -> None:
    connection = Connection(url, access)
    await connection.open()
    got: list[Message] = []
    await connection.subscribe("x", got.extend)
    connection.send([Outgoing("x", b"")])
    await wait_on_the_loop_until(lambda: got)
    await connection.close()


async def is_refused(url: str, access: ServerAccess) -> None:
    with pytest.raises(Refused, match="refuses these credentials") as refused:
        await Connection(url, access).open()
    assert refused.value.code == "UNAUTHORIZED"


def test_an_nkey_file_signs_the_servers_nonce(serve: Servers, tmp_path: Path) -> None:
    user = new_key()
    address = serve(f'authorization {{ users: [{{ nkey: "{user.public}" }}] }}')
    own = ServerAccess(nkey_file=written(tmp_path / "user.nk", f"{user.seed}\n"))
    other = ServerAccess(nkey_file=written(tmp_path / "other.nk", new_key().seed))

    async def scenario() -> None:
        await is_let_in(f"nats://{address}", own)
        await is_refused(f"nats://{address}", other)

    run(scenario)


def test_a_user_and_a_password_need_no_url(serve: Servers) -> None:
    address = serve('authorization { users: [{ user: "anna", password: "geheim" }] }')

    async def scenario() -> None:
        await is_let_in(f"nats://{address}", ServerAccess(user="anna", password="geheim"))
        await is_let_in(f"anna:geheim@{address}", ServerAccess())
        await is_refused(f"nats://{address}", ServerAccess(user="anna", password="falsch"))

    run(scenario)


class Realm:
    """An operator, an account and users, as a server with ``resolver: MEMORY`` knows them."""

    def __init__(self) -> None:
        self.account, self._system = new_key(NKeyKind.ACCOUNT), new_key(NKeyKind.ACCOUNT)
        self._operator = new_key(NKeyKind.OPERATOR)

    def config(self, **revoked: int) -> str:
        signer, account, system = self._operator, self.account.public, self._system.public
        operator = operator_jwt(signer, "house", ISSUED_S, system_account=system)
        tokens = {
            account: account_jwt(signer, account, "store", ISSUED_S, revoked=revoked),
            system: account_jwt(signer, system, "SYS", ISSUED_S, jetstream=False),
        }
        preload = "\n".join(f"{name}: {token}" for name, token in tokens.items())
        return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"

    def user(self, path: Path, *allowed: str) -> tuple[NKey, ServerAccess]:
        key = new_key()
        may = Permissions(tuple(allowed), (*allowed, f"_I.{key.public}.>"))
        token = user_jwt(self.account, key.public, path.stem, may, ISSUED_S)
        access = ServerAccess(
            credentials_file=written(path, credentials_text(token, key)),
            inbox_prefix=f"_I.{key.public}",
        )
        return key, access


def test_a_credentials_file_has_the_permissions_of_its_token(
    serve: Servers, tmp_path: Path
) -> None:
    realm = Realm()
    (_, anna), (berta, gone) = (
        realm.user(tmp_path / "anna.creds", "x", "$JS.API.>"),
        realm.user(tmp_path / "berta.creds", "x"),
    )
    _, forged = Realm().user(tmp_path / "forged.creds", "x")
    address = serve(
        f'jetstream {{ store_dir: "{tmp_path}/js" }}\n' + realm.config(**{berta.public: ISSUED_S})
    )

    async def scenario() -> None:
        await is_let_in(f"nats://{address}", anna)
        await is_refused(f"nats://{address}", gone)
        await is_refused(f"nats://{address}", forged)
        connection = Connection(f"nats://{address}", anna)
        await connection.open()
        assert connection.replies.wildcard.startswith(anna.inbox_prefix + ".")
        assert (await connection.api("INFO"))["streams"] == 0  # The reply came to its inbox.
        heard: list[Message] = []
        await connection.subscribe("x", heard.extend)
        await connection.subscribe("_INBOX.>", heard.extend)
        connection.send([Outgoing("y", b"not allowed"), Outgoing("x", b"allowed")])
        await wait_on_the_loop_until(lambda: heard)
        assert [message.body for message in heard] == [b"allowed"]
        await connection.close()

    run(scenario)


def test_a_replaced_file_is_used_from_the_next_connect_on(serve: Servers, tmp_path: Path) -> None:
    first, second = new_key(), new_key()
    users = (
        f'authorization {{ users: [{{ nkey: "{first.public}" }}, {{ nkey: "{second.public}" }}] }}'
    )
    address, file = serve(users), tmp_path / "user.nk"
    access = ServerAccess(nkey_file=written(file, first.seed))

    async def scenario() -> None:
        connection = Connection(f"nats://{address}", access)
        await connection.open()
        ups: list[None] = []
        connection.on_reconnect.append(lambda: ups.append(None))
        file.write_text("half writ")
        connection.reset()
        await wait_on_the_loop_until(lambda: "NKey file" in str(connection.client.last_error))
        file.write_text(second.seed)
        await wait_on_the_loop_until(lambda: ups)
        await connection.close()

    run(scenario)


def test_a_server_that_demands_a_certificate_gets_the_clients(
    serve: Servers, tmp_path: Path
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        subprocess.run([MAKE_CERTIFICATES, folder], check=True)
    address = serve(
        f'tls {{ cert_file: "{own}/server-1.pem", key_file: "{own}/server-1-key.pem", '
        f'ca_file: "{own}/ca.pem", verify: true }}'
    )

    def access(ca: Path, client: Path) -> ServerAccess:
        return ServerAccess(
            ca_file=str(ca / "ca.pem"),
            certificate_file=str(client / "client.pem"),
            key_file=str(client / "client-key.pem"),
        )

    async def scenario() -> None:
        await is_let_in(f"nats://{address}", access(own, own))  # The files demand TLS.
        with pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED"):
            await Connection(f"tls://{address}", access(other, own)).open()
        with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
            await Connection(f"tls://{address}", access(own, other)).open()
        plain = serve("")
        with pytest.raises(Failed, match="offers no TLS"):
            await Connection(f"nats://{plain}", access(own, own)).open()

    run(scenario)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "does not exist"),
        ("", "cannot be used"),
        ("SUAM-geheim", "cannot be used"),
        ("\N{SNOWMAN}", "is not text"),
    ],
)
@pytest.mark.parametrize("setting", ["credentials_file", "nkey_file"])
def test_a_file_without_a_key_is_refused_by_its_name(
    tmp_path: Path, setting: str, text: str | None, complaint: str
) -> None:
    file = tmp_path / "the.file"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=complaint) as refused:
        Connection("nats://127.0.0.1", ServerAccess(**{setting: str(file)}))
    assert refused.value.code == "UNAUTHORIZED"
    assert str(file) in refused.value.message
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"ca_file": "absent.pem"},
        {"ca_file": "empty.pem"},
        {"certificate_file": "empty.pem"},
        {"key_file": "empty.pem"},
        {"credentials_file": "empty.pem", "nkey_file": "empty.pem"},
    ],
)
def test_files_that_make_no_tls_or_two_users_are_refused(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    (tmp_path / "empty.pem").touch()
    files = {name: str(tmp_path / file) for name, file in settings.items()}
    with pytest.raises(Refused) as refused:
        Connection("nats://127.0.0.1", ServerAccess(**files))
    assert refused.value.code == "INVALID_ARGUMENT"
    assert all(file in refused.value.message for file in files.values())


# --- several servers ------------------------------------------------------------------------------


def test_the_next_server_is_tried_and_reconnected_to(serve: Servers) -> None:
    first, second = serve('server_name: "first"'), serve('server_name: "second"')
    urls = f"nats://127.0.0.1:1,{first},{second}"

    async def scenario() -> None:
        connection = Connection(urls)
        await connection.open()
        servers = {connection.client._server_info["server_name"]}
        ups: list[None] = []
        connection.on_reconnect.append(lambda: ups.append(None))
        connection.reset()
        await wait_on_the_loop_until(lambda: ups)
        servers.add(connection.client._server_info["server_name"])
        assert servers == {"first", "second"}
        await connection.close()

    run(scenario)


def test_a_frozen_server_is_left_for_another(
    serve: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a listening socket outside the loop, whose connections the kernel accepts: nothing of
    it is left when the loop closes."""
    monkeypatch.setattr("rookery.bus.nats.connection._OPEN_TIMEOUT_S", 1.0)

    async def scenario() -> None:
        address = serve("")
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            port = frozen.getsockname()[1]
            for _ in range(3):  # Whichever comes first.
                await is_let_in(f"nats://127.0.0.1:{port},{address}", ServerAccess())

    run(scenario)


def test_credentials_that_every_server_refuses_are_refused(serve: Servers) -> None:
    lines = 'authorization { token: "geheim" }'
    urls = f"nats://{serve(lines)},nats://{serve(lines)}"

    async def scenario() -> None:
        await is_refused(urls, ServerAccess(token="falsch"))
        await is_let_in(urls, ServerAccess(token="geheim"))

    run(scenario)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("nats://a:1", ["nats://a:1"]),
        ("nats://a:1,b:2, tls://c", ["nats://a:1", "b:2", "tls://c"]),
        ("a,b,", ["a", "b"]),
        ("nats://u:p,w@a:1,nats://b", ["nats://u:p,w@a:1", "nats://b"]),
        (" , ", []),
    ],
)
def test_urls_are_separated_by_commas(text: str, urls: list[str]) -> None:
    assert split_urls(text) == urls


def test_the_urls_of_a_cluster_share_one_credential() -> None:
    found = ServerTargets.of("nats://geheim@a:1,b:2,nats://geheim@a:1", ServerAccess())
    assert found == (("nats://a:1", "nats://b:2"), "geheim", None, None)
    assert "geheim" not in found.all


@pytest.mark.parametrize(
    "url",
    ["", ",", "nats://u:geheim@a,nats://v:geheim@b", "nats://u:ge/heim@a", "nats://a:geheim"],
)
def test_urls_that_mean_no_server_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Refused) as refused:
        Connection(url)
    assert refused.value.code == "INVALID_ARGUMENT"
    assert "heim" not in str(refused.value)


def test_the_variables_are_those_of_the_nats_command_line() -> None:
    environ = {"NATS_USER": "u", "NATS_PASSWORD": "p", "NATS_CREDS": "c", "NATS_NKEY": "n"}
    tls = {"NATS_CA": "ca", "NATS_CERT": "ce", "NATS_KEY": "k", "NATS_URL": "nats://a"}
    assert access_from_environment(environ | tls) == ServerAccess(
        user="u",
        password="p",
        credentials_file="c",
        nkey_file="n",
        ca_file="ca",
        certificate_file="ce",
        key_file="k",
    )
