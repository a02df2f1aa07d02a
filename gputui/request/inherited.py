"""Environment, umask and limits that a host job takes over from the process that submits it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from gputui.domain.job_spec import Inherited

HOST_ENV = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_*",
    "CUDA_HOME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
)
"""Patterns of the variables that a host job takes over from its submitter, to find the same programs."""
LIMITS = ("as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "rss", "stack")
"""Limits that a host job takes over from its submitter: those of sbatch."""
_NEVER = ("GPUTUI_*", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HOME", "USER", "LOGNAME")
_SESSION = (
    *("SHELL", "PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "WINDOW", "STY"),
    *("TERM*", "TMUX*", "SSH_*", "XDG_*", "SUDO_*"),
)
"""Parts of the submitter's own session, which has ended when the job runs."""


def is_taken_over(name: str, *, everything: bool = False) -> bool:
    """Return whether a host job takes the variable over; `everything` stands for --env-all."""
    if any(fnmatchcase(name, pattern) for pattern in (*_NEVER, *_SESSION)):
        return False
    return everything or any(fnmatchcase(name, pattern) for pattern in HOST_ENV)


def not_utf8(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the variables that no job can get, because they are not UTF-8 text."""
    pairs = ((name, f"{name}={value}") for name, value in environ.items())
    return frozenset(name for name, text in pairs if text.encode(errors="ignore").decode() != text)


def inherited() -> Inherited:
    """Return the umask and the soft limits of this process."""
    import resource  # few commands submit

    limits = ((name, resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0]) for name in LIMITS)
    found = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return Inherited(int(found[1], 8) if found else 0o022, tuple(limits))
