"""What tests need of this machine, and why they are skipped where it lacks that.

`@pytest.mark.needs("root", "openssl")` marks a test, `need("openssl")` does the same in a fixture.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REQUIRED = frozenset(filter(None, os.environ.get("GPUTUI_TEST_REQUIRE", "").split(",")))
"""Needs without which a test fails instead of being skipped, such as docker, slurm or systemd."""


def need(*names: str) -> None:
    """Skip the running test, with the reason, if one of these is missing; under GPUTUI_TEST_REQUIRE let it fail.

    Any of LACKS, or else the name of a program.
    """
    for name in names:
        if why := LACKS[name]() if name in LACKS else lacks_programs(name):
            if name in REQUIRED:
                pytest.fail(f"{name} is required here, but {why}", pytrace=False)
            pytest.skip(f"{name}: {why}")


def lacks_programs(*names: str, also_in: str = "") -> str | None:
    """Return the reason why not all of these programs can be run; None if they can."""
    path = ":".join(filter(None, (os.environ.get("PATH", os.defpath), also_in)))
    missing = [name for name in names if not shutil.which(name, path=path)]
    return f"not installed: {', '.join(missing)}" if missing else None


def lacks_root() -> str | None:
    return "these tests do not run as root" if os.geteuid() != 0 else None


@cache
def lacks_mounts() -> str | None:
    """Return the reason why tests cannot mount file systems; None if they can."""
    if why := lacks_root():
        return why
    with tempfile.TemporaryDirectory() as place:
        made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False)
        if made.returncode == 0:
            subprocess.run(["umount", place], check=True)
    return f"nothing can be mounted: {made.stderr.strip()}" if made.returncode else None


@cache
def lacks_readers() -> str | None:
    """Return the reason why other users cannot run this checkout, as in /root; None if they can."""
    words = [sys.executable, "-c", "import gputui.cli.main, tests, textual"]
    nobody = 65534
    try:
        done = subprocess.run(
            words, user=nobody, group=nobody, extra_groups=[], cwd=ROOT, env={}, capture_output=True, check=False
        )
    except PermissionError:
        return lacks_root() or f"other users cannot run {sys.executable}"
    return f"other users cannot read {ROOT} or {sys.prefix}" if done.returncode else None


def lacks_docker() -> str | None:
    """Return the reason why tests cannot start their own Docker engine; None if they can."""
    return lacks_root() or lacks_programs("docker", "dockerd", "containerd", "iptables", "unshare", "busybox")


def lacks_ssh() -> str | None:
    """Return the reason why tests cannot start their own sshd; None if they can."""
    return lacks_root() or lacks_programs("ssh", "sshd", also_in="/usr/sbin")


def lacks_nvml() -> str | None:
    """Return the reason why tests cannot compile the stand-in NVML; None if they can."""
    return lacks_programs("gcc") and lacks_programs("cc")


def lacks_chromium() -> str | None:
    from tests.e2e.browser import find

    return None if find() else "not installed: chromium"


def lacks_slurm() -> str | None:
    """Return the reason why tests cannot start their own Slurm cluster; None if they can."""
    needed = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "setpriv")
    return lacks_docker() or lacks_programs(*needed, also_in="/usr/sbin")


def lacks_boot() -> str | None:
    """Return the reason why tests cannot boot a machine with systemd; None if they can."""
    if why := lacks_mounts() or lacks_programs("systemd-nspawn", "unshare", "nsenter", "useradd", also_in="/usr/sbin"):
        return why
    if Path("/tmp") in ROOT.parents:
        return f"units with PrivateTmp do not see {ROOT}"
    return None if Path("/lib/systemd/systemd").exists() else "not installed: systemd"


LACKS: dict[str, Callable[[], str | None]] = {
    "root": lacks_root,
    "mount": lacks_mounts,
    "readers": lacks_readers,
    "boot": lacks_boot,
    "docker": lacks_docker,
    "ssh": lacks_ssh,
    "nvml": lacks_nvml,
    "tmux": lambda: lacks_programs("tmux"),
    "chromium": lacks_chromium,
    "prometheus": lambda: lacks_programs("prometheus", "promtool"),
    "slurm": lacks_slurm,
    "systemd": lambda: lacks_programs("systemd-analyze"),
}
