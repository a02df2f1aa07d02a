"""Values of the options of docker run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.request import docker_values, submitter
from tests.cases import cases

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


READ = {
    docker_values.volume: ["/a:/b", "/a:/b:ro", "/a:/b:rw,z", "data:/b", "/scratch"],
    docker_values.mount: ["type=bind,source=/a,target=/b", "type=tmpfs,dst=/t", "src=data,target=/d,readonly"],
    docker_values.ulimit: ["nofile=1024", "nofile=1024:4096", "memlock=-1", "memlock=-1:-1", "core=0:-1"],
    docker_values.user: [
        "root", "1000", "1000:1000", "alice:users", "1895401105:1895400513", "alice:domain users", "CORP\\ann lee",
    ],
}  # fmt: skip
"""Texts that mean themselves, by their readers."""
REFUSED = {
    ("--env", docker_values.pair): ["", "=1", "a b=1", "a=\0", "a=" + "x" * 200_000],
    ("--volume", docker_values.volume): [
        "", "/a:b", "a", "/a:/b:what", "/a:/b:ro:x", ":/b", "../:x", "a/b:/c", "/a\n:/b",
    ],
    ("--mount", docker_values.mount): [
        "",
        "type=bind,target=/b",
        "type=nfs,target=/b",
        "target=b",
        "type=tmpfs,what=1",
    ],
    ("--ulimit", docker_values.ulimit): ["nofile", "nofile=9:1", "what=1", "nofile=-2", "nofile=-1:5", "nofile=1:2:3"],
    ("--label", docker_values.label): ["gputui.job=1", "user=bob", "=x"],
    ("IMAGE", docker_values.image): [
        "",
        "-x",
        "Busy",
        "a b",
        "a\n",
        "team/Model",
        "a" * 10_000,
        "/a",
        "\x1b[2J",
        ":tag",
    ],
    ("--user", docker_values.user): ["", ":", "a:", " a", "a: b", "1:2:3", "a\tb"],
}  # fmt: skip


def test_values_are_read_as_docker_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for read, texts in READ.items():
        assert [read(text, "") for text in texts] == texts
    pairs = [("A", "1"), ("HOME", None), ("NOT_SET", None), ("A", "2")]
    assert submitter.merged_env(pairs, {"HOME": "/root"}, "--env") == (("A", "2"), ("HOME", "/root"))
    assert docker_values.label("team", "--label") == ("team", "")
    monkeypatch.chdir(tmp_path)
    assert docker_values.volume("./data:/data", "") == f"{tmp_path.resolve()}/data:/data"


def test_invalid_values_are_refused_by_name() -> None:
    for (option, read), texts in REFUSED.items():
        for text in texts:
            with pytest.raises(InputError, match=option):
                read(text, option)


@given(NAMES, VALUES)
def test_a_variable_is_formatted_and_read_back(name: str, value: str) -> None:
    assert docker_values.pair(f"{name}={value}", "--env") == (name, value)


def test_an_env_file_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "env"
    lines = ("\ufeff# comment", "", "  A=1 # no comment", "B='quoted'", "HOME", "C=", "D=1\r", "E=a\u2028b\x0bc\rd")
    file.write_bytes("".join(f"{line}\n" for line in lines).encode())
    pairs = {"A": "1 # no comment", "B": "'quoted'", "HOME": None, "C": "", "D": "1", "E": "a\u2028b\x0bc\rd"}
    expected = tuple(pairs.items())
    assert docker_values.env_file(str(file), "--env-file") == expected


@cases("content", [b"\xff\xfe=1", b"A B=1", b"=1", b"A=\0", b"A=1\n" * 300_000])
def test_invalid_env_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "env"
    file.write_bytes(content)
    with pytest.raises(InputError, match="--env-file"):
        docker_values.env_file(str(file), "--env-file")


@cases("path", ["missing", ".", "with\0nul"])
def test_env_files_that_cannot_be_read_are_named(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="--env-file"):
        docker_values.env_file(f"{tmp_path}/{path}", "--env-file")


@cases(
    ("image", "name"),
    [
        ("busybox", "busybox"),
        ("nvcr.io/nvidia/pytorch:24.05-py3", "pytorch"),
        ("localhost:5000/team/model@sha256:0123", "model"),
        ("Registry.Example.COM/a/b", "b"),
    ],
)
def test_images_are_read(image: str, name: str) -> None:
    assert docker_values.image(image, "IMAGE") == image
    assert docker_values.image_name(image) == name


@cases(
    ("text", "meant"),
    [
        ("no-new-privileges", "no-new-privileges"),
        ("no-new-privileges:false", "no-new-privileges:false"),
        ("label:disable", "label:disable"),
        ("apparmor=unconfined", "apparmor=unconfined"),
        ("seccomp=builtin", "seccomp=builtin"),
        ('seccomp={"names": ["kexec_load"]}', 'seccomp={"names":["kexec_load"]}'),
        ("seccomp=profile.json", 'seccomp={"defaultAction":"SCMP_ACT_ERRNO"}'),
    ],
)
def test_security_options_have_the_content_of_their_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_text('{\n  "defaultAction": "SCMP_ACT_ERRNO"\n}')
    assert docker_values.security(text, "--security-opt") == meant


@cases(
    ("text", "sentence"),
    [
        ("seccomp", "'seccomp' is not a security option"),
        ("seccomp=missing.json", "'missing.json' cannot be read: No such file or directory"),
        ("seccomp=text.json", "'text.json' is not a seccomp profile in JSON"),
        ("seccomp=large.json", "'large.json' is not a seccomp profile in JSON"),
        ("seccomp={", "'{' is not a seccomp profile in JSON"),
    ],
)
def test_invalid_security_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("defaultAction: SCMP_ACT_ERRNO")
    (tmp_path / "large.json").write_bytes(b'"' + b"x" * docker_values.MAX_PROFILE + b'"')
    with pytest.raises(InputError) as refused:
        docker_values.security(text, "--security-opt")
    assert (refused.value.what, refused.value.where) == (sentence, "--security-opt")


@cases("text", ["/dev/nvidia0", "/dev/nvidia1:/dev/nvidia0", "nvidia.com/gpu=0"])
def test_gpus_are_not_given_as_devices(text: str) -> None:
    with pytest.raises(InputError, match="is a GPU, and the scheduler assigns GPUs"):
        docker_values.device(text, "--device")


@cases("text", ["db:10.0.0.1", "db=10.0.0.1", "db=[10.0.0.1]"])
def test_a_host_and_its_address_are_read_as_newer_clients_write_them(text: str) -> None:
    assert docker_values.add_host(text, "--add-host") == "db:10.0.0.1"


def test_labels_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    file.write_text("# of this project\nproject=x\nteam\n")
    assert docker_values.label_file(str(file), "--label-file") == (("project", "x"), ("team", ""))
    file.write_text("user=bob\n")
    with pytest.raises(InputError, match=r"--label-file .*: the label 'user' is gputui's own .give --tenant"):
        docker_values.label_file(str(file), "--label-file")
