"""The client for programs at a server behind a real sshd."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui import Client, GputuiError
from gputui import config as options
from gputui.domain.errors import InputError
from tests.servers.conftest import PATIENCE, Site

pytestmark = [pytest.mark.ssh, pytest.mark.xdist_group("servers")]


@pytest.fixture
def settings(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the two servers in the settings of this user, and one without gputui."""
    tables = [f'[[servers]]\nname = "{each.name}"\naddress = "{each.address}"\n' for each in site.settings]
    commands = [f'command = "{each.command}"\n' for each in site.settings]
    (tmp_path / "config.toml").write_text(
        "".join(map("".join, zip(tables, commands, strict=True)))
        + '[[servers]]\nname = "bare"\naddress = "ssh://lab"\ncommand = "/nowhere/gputui"\n'
    )
    monkeypatch.setenv("GPUTUI_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(options, "SITE_CONFIG", tmp_path / "site.toml")


def test_a_job_is_submitted_followed_and_waited_for_on_a_server(settings: None) -> None:
    with Client("gpu1", timeout=PATIENCE) as one, Client("gpu2", timeout=PATIENCE) as other:
        number = one.submit(["sh", "-c", "echo here; sleep 0.5; pwd"], workdir="/")
        assert list(one.logs(number, follow=True)) == ["here", "/"]
        assert one.wait(number, timeout=PATIENCE).is_completed
        assert "sleep 0.5" not in str(other.jobs(ended=True))
        assert {gpu.uuid for gpu in one.gpus()}.isdisjoint(gpu.uuid for gpu in other.gpus())


def test_a_server_that_cannot_be_asked_says_why(settings: None) -> None:
    with Client("bare") as client, pytest.raises(GputuiError, match=r"/nowhere/gputui is not found there"):
        client.jobs()
    with pytest.raises(InputError, match="neither an address nor the name"):
        Client("gpu9")
    with pytest.raises(InputError, match="one server"):
        Client("all")
