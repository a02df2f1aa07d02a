"""A private queue of root that plain users of the machine ask at its socket, as the service for users is installed."""

from __future__ import annotations

import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gputui.domain.settings import StoreSettings
from gputui.engine.leadership import current_leader
from gputui.store import TinyJobStore
from tests import leftovers
from tests.accounts import accounts
from tests.e2e.members import PATIENCE, ROOT, Site
from tests.needs import need

_PASS_SOCKET = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, "-m", "gputui", "serve"])
"""


@contextmanager
def plain_users(*names: str, config: str = "", environ: Mapping[str, str] | None = None) -> Iterator[Site]:
    """Yield a state directory that only root may open, with a new user for each name, who ask its owner at a socket.

    The owner is started with `served_to_users`. Everything is removed afterwards.
    """
    need("root", "readers")
    mark = secrets.token_hex(3)
    by_name = {name: f"gpt{mark}{name}" for name in names}
    directory = Path(tempfile.mkdtemp(prefix="gputui-users-"))
    directory.chmod(0o755)
    with accounts():
        for name, account in by_name.items():
            subprocess.run(["useradd", "-m", "-d", str(directory / name), "-s", "/bin/sh", account], check=True)
    users = {name: pwd.getpwnam(account) for name, account in by_name.items()}
    (directory / "config.toml").write_text(f'[access]\nusers = ["*"]\n[scheduler]\nfast_failing_jobs = 0\n{config}')
    store = TinyJobStore(directory / "state", StoreSettings())
    more = {"GPUTUI_SOCKET": str(directory / "api.sock"), **(environ or {})}
    site = Site(directory, {**users, "root": pwd.getpwuid(0)}, store, more)
    try:
        yield site
    finally:
        leftovers.end(site.state)
        store.close()
        with accounts():
            for account in by_name.values():
                subprocess.run(["userdel", "-f", account], check=True)
        shutil.rmtree(directory)


@contextmanager
def served_to_users(site: Site, listener: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """Run root's scheduler, with a socket passed as systemd passes one, for the time of a block."""
    serve = subprocess.Popen(
        [sys.executable, "-c", _PASS_SOCKET, str(listener.fileno())],
        env={name: value for name, value in site.environ().items() if name != "GPUTUI_SOCKET"},
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        pass_fds=(listener.fileno(),),
    )
    try:
        site.until(lambda: (found := current_leader(site.state)) is not None and found.pid == serve.pid, "it leads")
        yield serve
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(PATIENCE)


@contextmanager
def socket_of(site: Site) -> Iterator[socket.socket]:
    """Yield the socket of the service, to which everybody may connect."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(site.more["GPUTUI_SOCKET"])
        Path(site.more["GPUTUI_SOCKET"]).chmod(0o666)
        listener.listen(512)
        yield listener
