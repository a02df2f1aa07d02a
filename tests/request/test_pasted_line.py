"""Pasted command lines as drafts: read as submit reads them, with unsupported options named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.domain.errors import InputError
from gputui.request import draft, submitter
from tests.cases import cases

HERE = Path("/here")
ENV = {"HOME": "/home/alice", "USER": "alice"}


def read(text: str) -> draft.PastedLine:
    assert draft.is_line(text)
    return draft.read_line(text, HERE, ENV)


def test_a_long_realistic_line_is_read() -> None:
    found = read(
        "$ sudo docker run --rm -it -d --gpus '\"device=0,1\"' \\\n"
        "   -v $(pwd):/work -v ~/d:/d:ro -v '/with $HOME:/x' -e A=1 -e TOKEN --shm-size=16g \\\r\n"
        '   --ipc=host -u $(id -u):$(id -g) -w /work nvcr.io/nvidia/pytorch:24.10 bash -c "a && b"\n'
    )
    assert found.draft == {
        "image": "nvcr.io/nvidia/pytorch:24.10",
        "command": "bash -c 'a && b'",
        "gpus": "device=0,1",
        "volume": "/here:/work /home/alice/d:/d:ro '/with $HOME:/x'",
        "env": "A=1 TOKEN",
        "shm_size": "16g",
        "ipc": "host",
        "user": f"{os.getuid()}:{os.getgid()}",
        "workdir": "/work",
    }
    assert [option for option, _ in found.dropped] == ["-i", "-t"]


@cases("end", ["\n", "\r\n", "\r"])
def test_a_folded_line_is_joined_at_any_line_ending(end: str) -> None:
    """Terminals paste only a carriage return, as if Enter was pressed."""
    found = read(f"docker run --gpus 2 \\{end}  -v /a:/b \\ {end} busybox \\{end} sleep 3{end}")
    assert found.draft == {"image": "busybox", "command": "sleep 3", "gpus": "2", "volume": "/a:/b"}


def test_the_next_line_is_another_command_unless_a_quotation_holds_it() -> None:
    found = read("docker run busybox sh -c 'a\rb' \"c\r\nd\"\recho done")
    assert found.draft["command"] == "sh -c 'a\nb' 'c\nd'"
    assert [word for word, _ in found.dropped] == [";"]


def test_unsupported_options_are_named_and_the_others_used() -> None:
    found = read(
        "docker run --cap-add SYS_ADMIN --privileged -p 80:80 --restart=always --cidfile c --sysctl a=b -e A=1 "
        "--entrypoint '' -h node1 --init=false --read-only=false busybox sleep 3 | tee x"
    )
    assert found.draft == {
        "image": "busybox", "command": "sleep 3", "gpus": "0", "env": "A=1", "cap_add": "SYS_ADMIN",
        "privileged": "yes", "publish": "80:80", "sysctl": "a=b", "entrypoint": "''", "hostname": "node1",
        "no_init": "yes",
    }  # fmt: skip
    assert {option for option, _ in found.dropped} == {"--restart", "--cidfile", "|"}
    assert all(hint for _, hint in found.dropped)


@cases("option", [*submitter.TAKEN, *submitter.REFUSED])
def test_every_unsupported_option_of_docker_is_known(option: str) -> None:
    value = "" if option in submitter.WITHOUT_VALUE else " value"
    found = read(f"docker run {option}{value} busybox true")
    assert (found.draft["image"], found.draft["command"]) == ("busybox", "true")
    is_silent = option in submitter.ANYHOW or submitter.TAKEN.get(option) == submitter.SILENT
    assert [name for name, _ in found.dropped] == ([] if is_silent else [option])


def test_a_gputui_line_is_read() -> None:
    found = read("gputui --state /x submit --host --gpus 2-4 --hold --array 0-3 -- python x.py --gpus 3")
    assert found.draft == {"image": "", "command": "python x.py --gpus 3", "gpus": "2-4", "hold": "yes", "array": "0-3"}


@cases(
    ("text", "words"),
    [
        ("docker run", "no image"),
        (r"docker run\x busybox", "is not a docker run line"),
        ("docker run --frobnicate x busybox", "--frobnicate: is not an option"),
        ("docker run 'busybox", "quotation"),
        ("docker run --gpus", "--gpus: needs a value"),
        ("gputui submit -t 10m busybox", "-t: takes no time (write --time-limit 10m"),
        ("gputui submit -t 1:30:00 busybox", "-t: takes no time (write --time-limit 1:30:00"),
    ],
)
def test_unreadable_lines_are_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError) as told:
        read(text)
    assert words in str(told.value)


@cases("text", ["", "docker", "dockerx run x", "python run.py", "docker ps", "train docker run x"])
def test_other_text_is_no_command_line(text: str) -> None:
    assert not draft.is_line(text)


@cases(
    "text", ["docker run x", "/usr/bin/docker container run x", "A=1 docker run x", "gputui submit x", "podman run x"]
)
def test_docker_and_gputui_lines_are_recognised(text: str) -> None:
    assert draft.is_line(text)
    assert draft.read_line(text, HERE, ENV).draft["image"] == "x"


def test_an_id_without_an_account_stands_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many containers run as such an id."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654_321)
    found = draft.read_line("docker run -l by=$USER busybox echo $(whoami)", HERE, {})
    assert (found.draft["label"], found.draft["command"]) == ("by=987654321", "echo 987654321")
