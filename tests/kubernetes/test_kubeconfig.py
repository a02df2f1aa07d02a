"""Kubeconfigs: several files, contexts, relative paths, and what is wrong in them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.bootstrap.clusters import directory_of
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, connect
from gputui.cluster.kubernetes.kubeconfig import context_in
from gputui.config import Options
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.settings import ClusterSettings, Settings
from tests.cases import cases
from tests.kubernetes.fake.access import ADMIN
from tests.kubernetes.harness import KubernetesHarness

FULL = """
apiVersion: v1
kind: Config
preferences: {{}}
current-context: lab   # a comment
clusters:
- name: fake
  cluster:
    server: {address}
    certificate-authority-data: null
    extensions:
users:
- name: ann
  user: {{token: {token}}}
contexts:
- name: lab
  context:
    cluster: fake
    user: ann
    namespace: research
"""


def opened(context: str | None, *files: Path) -> ApiServer:
    return connect(context, {"KUBECONFIG": ":".join(map(str, files))}, 10.0)


def test_a_file_as_people_write_it(harness: KubernetesHarness, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(FULL.format(address=harness.fake.address, token=ADMIN))
    server = opened(None, file)
    assert (server.place, server.namespace) == ("lab", "research")
    assert b"gitVersion" in server.get("/version")
    server.close()


def test_an_earlier_file_wins_by_name_and_the_others_add_to_it(harness: KubernetesHarness, tmp_path: Path) -> None:
    first, second, missing = tmp_path / "first", tmp_path / "second", tmp_path / "missing"
    first.write_text("current-context: both\nusers: [{name: ann, user: {}}]\n")
    second.write_text(
        FULL.format(address=harness.fake.address, token=ADMIN)
        + "- {name: both, context: {cluster: fake, user: ann}}\n- {name: other, context: {cluster: fake, user: bob}}\n"
    )
    server = opened(None, missing, first, second)
    assert (server.place, server.namespace) == ("both", "default")
    with pytest.raises(ApiRefusedError, match="does not know this user"):  # not even in part
        server.get("/version")
    server.close()
    with pytest.raises(ClusterUnavailableError, match="context 'other' has a user that the kubeconfig lacks: 'bob'"):
        opened("other", first, second)
    server = opened("lab", second, first)
    assert server.get("/version")
    server.close()


def test_paths_are_relative_to_their_file(harness: KubernetesHarness, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "token").write_text(f"{ADMIN}\n")
    text = FULL.format(address=harness.fake.address, token=ADMIN)
    (there / "config").write_text(text.replace(f"token: {ADMIN}", "tokenFile: token"))
    server = opened(None, there / "config")
    assert server.get("/version")
    (there / "token").unlink()
    with pytest.raises(ClusterUnavailableError, match="the token cannot be read") as gone:  # and not anonymously
        server.get("/version")
    assert gone.value.where == str(there / "token")
    server.close()


@cases(
    ("text", "words", "line"),
    [
        ("clusters:\n- name: a\n cluster: {}\n", "is not YAML: ", ":3"),
        ("clusters:\n\t- name: a\n", "is not YAML: found character", ":2"),
        ("a: b: c\n", "is not YAML: mapping values are not allowed", ":1"),
        ("a: 1\nb: \x07\n", "is not YAML: ", ":2"),
        ("when: 2026-13-45\n", "is not YAML: month must be in", ""),
        ("[" * 5000, "is not YAML: ", ""),
        ("just words\n", "is wrong: Expected `object`, got `str`", ""),
        ("clusters: [5]\n", r"is wrong: Expected `object`, got `int` - at `\$.clusters\[0\]`", ""),
        ("users: [{name: a, user: {token: 5}}]\n", r"is wrong: .*users\[0\].user.token", ""),
        ("", "no kubeconfig has a context", ""),
        ("contexts: [{name: a}]\n", "the kubeconfig has no current context", ""),
        ("contexts: [{name: a}]\ncurrent-context: a\n", "context 'a' has no cluster with a server", ""),
        ("contexts: [{name: a}]\ncurrent-context: b\n", "no context 'b'", ""),
    ],
)
def test_what_is_wrong_names_the_file_and_the_line(tmp_path: Path, text: str, words: str, line: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ClusterUnavailableError, match=words) as refused:
        opened(None, file)
    assert str(refused.value.where).startswith(f"{file}{line}")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"name: \xe9\n")
    with pytest.raises(ClusterUnavailableError, match="it is not UTF-8"):
        opened(None, tmp_path / "latin")
    with pytest.raises(ClusterUnavailableError, match="Is a directory"):
        opened(None, tmp_path)


@cases(
    ("user", "words"),
    [
        ({"client-certificate-data": "%%", "client-key-data": "aGk="}, "client-certificate-data .* is not base64"),
        ({"client-certificate": "nowhere.pem", "client-key-data": "aGk="}, "client-certificate cannot be read"),
        ({"client-certificate-data": "aGk="}, "needs both"),
        ({"client-certificate-data": "aGk=", "client-key-data": "aGk="}, "certificate and key do not serve"),
        ({"token": "two\nlines"}, "characters that no request can carry"),
        ({"auth-provider": {"name": "oidc"}}, "by the auth-provider 'oidc'"),
    ],
)
def test_logins_that_cannot_serve(tmp_path: Path, user: dict[str, Any], words: str) -> None:
    file = tmp_path / "config"
    value = {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "a", "user": user}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    file.write_text(json.dumps(value))
    server = opened(None, file)
    with pytest.raises(ClusterUnavailableError, match=words):
        server.get("/version")
    server.close()


def test_the_default_file_has_one_directory_of_records_whether_it_is_named_or_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = replace(Settings(), cluster=ClusterSettings(engine="kubernetes:lab"))

    def directory(named: str) -> Path:
        monkeypatch.setenv("KUBECONFIG", named)
        return directory_of(Options(tmp_path, settings=settings))

    assert directory("") == directory(f"{tmp_path}/.kube/config") != directory("/etc/other")


def test_the_current_context_is_no_comment(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("# current-context: old\nkind: Config # current-context: older\ncurrent-context: 'new'\n")
    assert context_in({"KUBECONFIG": f"{tmp_path / 'missing'}:{file}"}) == "new"


@pytest.mark.skipif(find_spec("socks") is not None, reason="PySocks is installed")
def test_a_socks_proxy_needs_a_package(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(FULL.format(address="https://kube.test\n    proxy-url: socks5://127.0.0.1:9", token="t"))
    server = opened(None, file)
    with pytest.raises(ClusterUnavailableError, match="PySocks is not installed") as refused:
        server.get("/version")
    assert str(refused.value.hint).endswith("PySocks")
    server.close()


@cases("address", ["ftp://a", "https://", "https://[::1"])
def test_addresses_that_are_none(tmp_path: Path, address: str) -> None:
    file = tmp_path / "config"
    file.write_text(FULL.format(address=address, token="t"))
    with pytest.raises(ClusterUnavailableError, match="a server without an address"):
        opened(None, file)
