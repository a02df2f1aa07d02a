"""Login shells that print lines around each command, as many sites and users have them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.runtime.sshd import Sshd

_LINES = r"""
echo "Welcome to login1"
printf '\033_gputui:0123456789abcdef01234567:begin\033\134\n4711\n\033_gputui:0123456789abcdef01234567:0\033\134\n'
echo '{"kind": "facts", "gpus": []}'
echo '[{"id": 1, "name": "of nobody"}]'
printf 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}\r\n'
head -c 3000000 /dev/zero | tr '\0' x
echo "4711" >&2
printf 'login1$ '
"""
_FILES = {
    "bash": (".bashrc", _LINES + "trap 'echo Goodbye; echo 4712' EXIT\nPS4='+ 4713 '\nset -x\n"),
    "dash": ("dash", f'#!/usr/bin/dash\n{_LINES}set -v\neval "$2"\necho Goodbye; echo Goodbye >&2\n'),
    "tcsh": (".tcshrc", "echo Welcome to login1\necho 4711\necho '[]'\nset echo\n"),
}
"""The file in a user's home directory by which each of these shells prints them."""
SHELLS = tuple(_FILES)


@contextmanager
def talkative(shell: str, environ: Mapping[str, str] | None = None) -> Iterator[Sshd]:
    """Yield a server whose user has this login shell, which prints lines of its own around each command."""
    name, content = _FILES[shell]
    program = {"bash": "", "dash": "~/dash", "tcsh": shutil.which("tcsh") or "tcsh"}[shell]
    sshd = Sshd(environ, shell=program)
    try:
        path = sshd.directory / "home" / name
        path.write_text(content)
        path.chmod(0o755)
        yield sshd
    finally:
        sshd.close()
