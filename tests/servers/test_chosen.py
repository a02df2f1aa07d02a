"""Servers of a console: which ones `--on` names, and the commands that reach them."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from gputui.bootstrap.servers import chosen_servers, command_on, open_servers
from gputui.domain.errors import InputError
from gputui.domain.frames import CommandMarks
from gputui.domain.job_spec import MOST_SERVERS
from gputui.domain.settings import ServerSettings, Settings
from tests.cases import cases

LAB = ServerSettings("lab", "ssh://ann@lab.example.org:2222")
BIG = ServerSettings("big", "ssh://big", "/opt/gputui --state /srv/queue")
SETTINGS = Settings(servers=(LAB, BIG))


@cases(
    ("wanted", "expected"),
    [
        ((), (LAB, BIG)),
        (("all",), (LAB, BIG)),
        (("big",), (BIG,)),
        (("ssh://big",), (BIG,)),
        (("big", "local"), (BIG, ServerSettings("local"))),
        (("ssh://ann@new.example.org",), (ServerSettings("new", "ssh://ann@new.example.org"),)),
        (("ssh://10.0.0.7:22",), (ServerSettings("10.0.0.7", "ssh://10.0.0.7:22"),)),
        (("ssh://[::1]:22",), (ServerSettings("1", "ssh://[::1]:22"),)),
        (("ssh://[fe80::1%eth0]",), (ServerSettings("fe80-1-eth0", "ssh://[fe80::1%eth0]"),)),
        (("ssh://[::]",), (ServerSettings("server", "ssh://[::]"),)),
        (("ssh://lab.other.org",), (ServerSettings("lab.other.org", "ssh://lab.other.org"),)),
    ],
)
def test_on_names_servers_by_name_or_address(wanted: tuple[str, ...], expected: tuple[ServerSettings, ...]) -> None:
    assert chosen_servers(wanted, SETTINGS) == expected


def test_names_of_servers_are_read_as_written() -> None:
    settings = Settings(servers=(ServerSettings("all", "ssh://one"), BIG))
    assert chosen_servers(("all",), settings) == settings.servers[:1]
    with pytest.raises(InputError) as caught:
        chosen_servers(("nowhere",), SETTINGS)
    assert (caught.value.hint or "").endswith("names in [[servers]]: lab, big")


@cases(
    ("wanted", "settings", "words"),
    [
        (("all",), Settings(), "there are none in the settings"),
        (("nowhere",), SETTINGS, "'nowhere' is neither an address nor the name of a server"),
        (("big", "big"), SETTINGS, "two servers would be called big"),
        (("ssh://a.one", "ssh://a.two"), SETTINGS, "two servers would be called a"),
        (("ssh://big:0",), SETTINGS, "is not an ssh address"),
        (
            tuple(f"ssh://gpu{number}" for number in range(MOST_SERVERS + 1)),
            SETTINGS,
            f"at most {MOST_SERVERS} servers",
        ),
    ],
)
def test_wrong_servers_are_refused(wanted: tuple[str, ...], settings: Settings, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        chosen_servers(wanted, settings)
    assert (caught.value.where or "").startswith("--on")


@cases(
    ("variables", "end"),
    [
        ({}, "/opt/gputui --state /srv/queue show 'a b'"),
        ({"TERM": "x y"}, "env 'TERM=x y' /opt/gputui --state /srv/queue show 'a b'"),
    ],
)
def test_a_command_on_a_server_is_quoted_for_its_shell(variables: dict[str, str], end: str) -> None:
    argv = command_on(BIG, ("show", "a b"), variables, CommandMarks(), is_tty=False)
    shell, option, _, _, coded = shlex.split(argv[-1])
    assert (argv[0], "big" in argv, shell, option) == ("ssh", True, "sh", "-c")
    script = subprocess.run(["printf", "%b", coded], check=True, capture_output=True, text=True).stdout
    assert "\ntrap : INT QUIT\n" in script
    assert end in [line.strip() for line in script.splitlines()]


def test_a_command_goes_to_the_user_and_port_of_its_server() -> None:
    argv = command_on(LAB, ("queue",), {}, CommandMarks(), is_tty=True)
    assert {"ann@lab.example.org", "2222"} <= set(argv)
    argv = command_on(ServerSettings("local"), ("queue",), {}, CommandMarks(), is_tty=False)
    assert argv[:2] == ["env", "--unset=GPUTUI_CLUSTER"]
    assert argv[-3:] == ["-m", "gputui", "queue"]


def test_a_server_that_has_not_answered_has_neither_images_nor_a_user() -> None:
    there = open_servers((BIG,))
    assert there.images("big") == ()
    about = there.about("big")
    assert (about.host, about.user, about.home) == ("big", there.about().user, "")
