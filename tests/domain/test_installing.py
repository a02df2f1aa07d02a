"""Advice to install a package fits the tool that made the environment."""

from __future__ import annotations

from gputui.domain.errors import install_line
from tests.cases import cases


@cases(
    ("prefix", "has_pip", "line"),
    [
        ("/usr", True, "pip install 'aiohttp>=3' bcrypt"),
        ("/home/a/.venv", True, "pip install 'aiohttp>=3' bcrypt"),
        ("/home/a/my env", False, "uv pip install --python '/home/a/my env' 'aiohttp>=3' bcrypt"),
        ("/home/a/.local/share/pipx/venvs/gputui", True, "pipx inject gputui 'aiohttp>=3' bcrypt"),
        ("/opt/pipx/venvs/gputui-next", False, "pipx inject gputui-next 'aiohttp>=3' bcrypt"),
        (
            "/home/a/.local/share/uv/tools/gputui",
            False,
            "uv tool install --with 'aiohttp>=3' --with bcrypt gputui",
        ),
    ],
)
def test_the_command_fits_the_environment(prefix: str, has_pip: bool, line: str) -> None:
    assert install_line(["aiohttp>=3", "bcrypt"], prefix, has_pip=has_pip) == line
