"""Where values come from, which source wins, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.server_access import ServerAccess
from rookery.ops.config import Config, hide_secret, load
from rookery.ops.server import ConfiguredServer, RealmServer
from rookery.schemas.envelope import FactClasses
from rookery.schemas.errors import Refused
from rookery.schemas.protection.bindings import AuthorizationCodeSettings, DeviceCodeSettings
from rookery.schemas.seed.refs import PrivacyClass


def loaded(directory: Path, **sources: Any) -> Config:
    return load(directory=directory, **({"environ": {}} | sources)).config


def test_without_any_source_everything_has_its_default(tmp_path):
    config = load(environ={}, directory=tmp_path)
    assert config.config == Config()
    assert {setting.origin for setting in config.settings} == {"default"}


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path):
    (tmp_path / "rookery.toml").write_text(
        'realm = "file"\n[quotas]\nqueue_length_max = 7\n[log]\nlevel = "debug"\n'
    )
    found = load(
        environ={"ROOKERY_REALM": "environment", "ROOKERY_QUOTAS_QUEUE_LENGTH_MAX": "8"},
        directory=tmp_path,
        flags={"realm": "flag", "store": None},
    )
    assert found.config.realm == "flag"
    assert found.config.quotas.queue_length_max == 8
    assert found.config.log.level == "debug"
    origins = {setting.key: setting.origin for setting in found.settings}
    assert origins["realm"] == "flag"
    assert origins["quotas.queue_length_max"] == "environment ROOKERY_QUOTAS_QUEUE_LENGTH_MAX"
    assert origins["log.level"] == str(tmp_path / "rookery.toml")
    assert origins["store"] == "default"


def test_the_named_file_is_read_instead_of_the_one_beside_us(tmp_path):
    (tmp_path / "rookery.toml").write_text('realm = "here"')
    (tmp_path / "other.toml").write_text('realm = "named"')
    assert loaded(tmp_path, file=tmp_path / "other.toml").realm == "named"
    assert loaded(tmp_path).realm == "here"


def test_the_users_file_is_read_where_xdg_puts_it(tmp_path):
    home = tmp_path / "home" / "rookery"
    home.mkdir(parents=True)
    (home / "config.toml").write_text('realm = "user"')
    assert loaded(tmp_path, environ={"XDG_CONFIG_HOME": str(home.parent)}).realm == "user"


def test_a_named_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(Refused, match="No such file") as refusal:
        loaded(tmp_path, file=tmp_path / "absent.toml")
    assert refusal.value.code == "CONFIG_INVALID"


def test_nats_url_is_heard_and_rookery_url_is_heard_more(tmp_path):
    environ = {"NATS_URL": "nats://a:1"}
    assert loaded(tmp_path, environ=environ).url == "nats://a:1"
    assert loaded(tmp_path, environ=environ | {"ROOKERY_URL": "nats://b:2"}).url == "nats://b:2"


def test_the_variables_of_the_nats_command_line_are_those_of_the_server(tmp_path):
    environ = {"NATS_CREDS": "a.creds", "NATS_CA": "ca.pem", "NATS_CERT": "c.pem", "NATS_KEY": "k"}
    server = loaded(tmp_path, environ=environ | {"ROOKERY_SERVER_CA_FILE": "other.pem"}).server
    assert server.credentials_file == "a.creds"
    assert (server.ca_file, server.certificate_file, server.key_file) == ("other.pem", "c.pem", "k")
    users = {"NATS_USER": "u", "NATS_PASSWORD": "p", "NATS_NKEY": "n"}
    server = loaded(tmp_path, environ=users).server
    assert (server.user, server.password, server.nkey_file) == ("u", "p", "n")


def test_an_embedded_server_gets_no_credentials_of_another(tmp_path):
    environ = {"NATS_CREDS": "a.creds", "NATS_CA": "ca.pem", "ROOKERY_STORE": str(tmp_path)}
    assert ConfiguredServer(loaded(tmp_path, environ=environ)).find(Role.CLIENT) is None
    with EmbeddedServer(tmp_path) as server:
        local = ConfiguredServer(loaded(tmp_path, environ=environ)).find(Role.CLIENT)
        assert local == RealmServer.of(server.address, server.credential(Role.CLIENT))
    there = loaded(tmp_path, environ=environ | {"NATS_URL": "tls://a,b"})
    found = ConfiguredServer(there).find(Role.CLIENT)
    assert found is not None
    assert found.access == ServerAccess(credentials_file="a.creds", ca_file="ca.pem")


def test_an_empty_variable_is_not_set(tmp_path):
    assert loaded(tmp_path, environ={"NATS_URL": "", "ROOKERY_METRICS_PORT": ""}) == Config()


@pytest.mark.parametrize(
    ("text", "unknown", "nearest"),
    [
        ("[quotas]\nqueue_lenght_max = 1", "quotas.queue_lenght_max", "quotas.queue_length_max"),
        ("realms = 'x'", "realms", "realm"),
        ("[loq]\nlevel = 'info'", "loq.level", "log.level"),
        ("log = 3", "'log'", "log.level"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path, text, unknown, nearest):
    (tmp_path / "rookery.toml").write_text(text)
    with pytest.raises(Refused) as refusal:
        loaded(tmp_path)
    assert refusal.value.code == "CONFIG_UNKNOWN_KEY"
    assert unknown in refusal.value.message
    assert "rookery.toml" in refusal.value.message
    assert nearest in refusal.value.hint


def test_an_unknown_variable_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(Refused) as refusal:
        loaded(tmp_path, environ={"ROOKERY_LOG_LEVLE": "info"})
    assert refusal.value.code == "CONFIG_UNKNOWN_KEY"
    assert "ROOKERY_LOG_LEVEL" in refusal.value.hint


def test_the_failpoint_variable_is_left_to_the_kernel(tmp_path):
    assert loaded(tmp_path, environ={"ROOKERY_FAILPOINT": "decided@7"}) == Config()


@pytest.mark.parametrize(
    ("sources", "complaint", "origin"),
    [
        ({"environ": {"ROOKERY_METRICS_PORT": "http"}}, "metrics.port", "ROOKERY_METRICS_PORT"),
        ({"flags": {"metrics.port": 70_000}}, "65535", "flag"),
        ({"flags": {"realm": "a.b"}}, "realm = 'a.b'", "flag"),
        ({"environ": {"ROOKERY_LOG_LEVEL": "loud"}}, "debug, info, warning", "ROOKERY_LOG_LEVEL"),
        ({"environ": {"ROOKERY_QUOTAS_QUEUE_LENGTH_MAX": "0"}}, ">= 1", "ROOKERY_QUOTAS"),
    ],
)
def test_a_wrong_value_is_refused_with_where_it_came_from(tmp_path, sources, complaint, origin):
    with pytest.raises(Refused) as refusal:
        loaded(tmp_path, **sources)
    assert refusal.value.code == "CONFIG_INVALID"
    assert complaint in refusal.value.message
    assert origin in refusal.value.hint


def test_a_file_must_say_numbers_as_numbers(tmp_path):
    (tmp_path / "rookery.toml").write_text('[metrics]\nport = "9090"')
    with pytest.raises(Refused, match="Expected `int") as refusal:
        loaded(tmp_path)
    assert "rookery.toml" in refusal.value.hint


def test_a_file_that_is_not_toml_is_refused_with_its_name(tmp_path):
    (tmp_path / "rookery.toml").write_text("realm = ")
    with pytest.raises(Refused, match=r"rookery\.toml") as refusal:
        loaded(tmp_path)
    assert refusal.value.code == "CONFIG_INVALID"


def test_a_refused_token_is_not_repeated(tmp_path):
    (tmp_path / "rookery.toml").write_text("[server]\ntoken = 31337\n")
    with pytest.raises(Refused) as refusal:
        loaded(tmp_path)
    assert "31337" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("server.token", "s3cret", "***"),
        ("server.token", "", ""),
        ("server.user", "s3cret", "***"),
        ("server.password", "s3cret", "***"),
        ("url", "nats://s3cret@h1:1,h2:2", "nats://***@h1:1,h2:2"),
        ("url", "nats://s3cret@host:4222", "nats://***@host:4222"),
        ("url", "nats://user:p@ss@host:4222", "nats://***@host:4222"),
        ("url", "nats://host:4222", "nats://host:4222"),
        ("url", "nats://a:b@h1:1,nats://c:d@h2:2", "nats://***@h1:1,nats://***@h2:2"),
        ("url", "nats://u:p,w@h1:1, tls://h2:2", "nats://***@h1:1,tls://h2:2"),
        ("url", "nats://u:p/w?x#y@h1:1", "nats://***@h1:1"),
        ("url", "nats://h1:1?token=s3cret", "nats://h1:1?***"),
        ("url", "nats://h1:1/#s3cret", "nats://h1:1/?***"),
        ("url", "u:s3cret@h1:1", "***@h1:1"),
        ("url", "nats://[s3cret@", "nats://***@"),
        ("approvals.webhook_url", "https://u:s3cret@h/p?key=s3cret", "https://***@h/p?***"),
        ("approvals.webhook_url", "https://h/p", "https://h/p"),
        ("realm", "default", "default"),
    ],
)
def test_secrets_are_hidden_and_nothing_else(key, value, shown):
    assert hide_secret(key, value) == shown


def in_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(msgspec.to_builtins(list(value) if isinstance(value, tuple) else value))


def test_a_list_has_commas_in_the_environment_and_is_one_in_a_file(tmp_path):
    environ = {"ROOKERY_NODE_WORKERS": "shop, mill,"}
    assert loaded(tmp_path, environ=environ).node.workers == ("shop", "mill")
    (tmp_path / "rookery.toml").write_text('[node]\nworkers = ["well"]')
    assert loaded(tmp_path).node.workers == ("well",)
    assert loaded(tmp_path, flags={"node.workers": ["shop"]}).node.workers == ("shop",)
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        loaded(tmp_path, flags={"node.workers": [1]})


def test_every_key_can_be_set_in_a_file_by_the_name_it_is_shown_with(tmp_path):
    lines = [
        f"{s.key} = {in_toml(s.value)}"
        for s in load(environ={}, directory=tmp_path).settings
        if s.value is not None
    ]
    text = "\n".join(lines)
    assert tomllib.loads(text)
    (tmp_path / "rookery.toml").write_text(text)
    found = load(environ={}, directory=tmp_path)
    assert found.config == Config()
    unset = {setting.key for setting in found.settings if setting.origin == "default"}
    approvals = {"callback_port", "escalate_after_ms", "escalate_to"}
    budgets = {
        f"budgets.{whose}_{of}" for whose in ("session", "realm") for of in ("cost", "tokens")
    }
    assert unset == {"metrics.port", *budgets, *(f"approvals.{name}" for name in approvals)}


def test_the_classes_of_facts_are_words_of_the_contract(tmp_path):
    sensitive = loaded(tmp_path, flags={"facts.privacy": "sensitive"}).facts
    assert sensitive == FactClasses(PrivacyClass.SENSITIVE)
    (tmp_path / "rookery.toml").write_text('[facts]\nprivacy = "hidden"')
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        loaded(tmp_path)


# --- bindings -------------------------------------------------------------------------------------

BINDINGS = """
[bindings.machine]
provider = "client_credentials"
token_url = "https://login.example.com/token"
client_id = "rookery"
client_secret = "secret:machine"
scopes = ["read"]
parameters = {audience = "https://api.example.com"}

[bindings."people.web"]
provider = "authorization_code"
authorize_url = "http://127.0.0.1:8080/auth"
token_url = "http://localhost:8080/token"
client_id = "rookery"

[bindings.phone]
provider = "device_code"
device_url = "https://login.example.com/device"
token_url = "https://login.example.com/token"
client_id = "rookery"
rotates = false

[bindings.fixed]
provider = "static"
value = "command:vault read -field=token kv/api"
lasts_s = 600
"""


def test_each_table_of_bindings_is_one_value_with_its_defaults(tmp_path):
    (tmp_path / "rookery.toml").write_text(BINDINGS)
    found = load(environ={}, directory=tmp_path)
    bindings = found.config.bindings
    assert sorted(bindings) == ["fixed", "machine", "people.web", "phone"]
    assert isinstance(bindings["phone"], DeviceCodeSettings)
    assert not bindings["phone"].rotates
    assert isinstance(bindings["people.web"], AuthorizationCodeSettings)
    assert bindings["people.web"].client_secret == ""
    shown = {one.key: one for one in found.settings if one.key.startswith("bindings.")}
    assert shown["bindings.machine"].value["client_secret"] == "secret:machine"
    assert shown["bindings.people.web"].origin == str(tmp_path / "rookery.toml")
    assert loaded(tmp_path, environ={}, file=tmp_path / "rookery.toml") == found.config


@pytest.mark.parametrize(
    ("was", "is_", "complaint"),
    [
        ('"secret:machine"', '"canary-hunter2"', "named by env:NAME"),
        ('client_secret = "secret:machine"', "", "client_secret is missing"),
        ('"https://login.example.com/token"', '"http://login.example.com/"', "not encrypted"),
        ('"https://login.example.com/token"', '"https://me:canary@a/"', "token_url is no URL"),
        ('provider = "static"', 'provider = "canary"', "provider"),
        ("lasts_s = 600", "last_s = 600", "unknown field `last_s`"),
        ("lasts_s = 600", "lasts_s = 60", ">= 120"),
        ('audience = "', 'client_secret = "canary', "client_secret is set by the provider"),
        ("[bindings.phone]", '[bindings."a:b"]', "matching regex"),
    ],
)
def test_a_wrong_binding_is_refused_and_no_value_is_shown(tmp_path, was, is_, complaint):
    assert was in BINDINGS
    (tmp_path / "rookery.toml").write_text(BINDINGS.replace(was, is_))
    with pytest.raises(Refused) as refusal:
        loaded(tmp_path)
    assert refusal.value.code == "CONFIG_INVALID"
    assert complaint in refusal.value.message
    assert "hunter2" not in str(refusal.value)
    assert "me:canary" not in str(refusal.value)


@pytest.mark.parametrize("text", ["bindings = 3", "[bindings]", "[binding.a]\nprovider = 'static'"])
def test_what_is_no_table_of_a_binding_is_an_unknown_key(tmp_path, text):
    (tmp_path / "rookery.toml").write_text(text)
    with pytest.raises(Refused) as refusal:
        loaded(tmp_path)
    assert refusal.value.code == "CONFIG_UNKNOWN_KEY"
