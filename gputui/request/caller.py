"""Input from the caller of a request: environment, umask and limits of a host job, and the files that its words name.

Files are read with the rights of whoever typed the words. The process that owns a queue runs commands for others, and
may be root: it reads none of their files, and does not even look where their links lead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from pathlib import Path

from gputui.domain.errors import ParseLocallyError
from gputui.domain.job_spec import Inherited

HOST_ENV = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_*", "CUDA_HOME"),
    *("LANG", "LANGUAGE", "LC_*", "TZ"),
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


_IS_ELSEWHERE: ContextVar[bool] = ContextVar("is_elsewhere", default=False)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Let this thread read words of a user whose files are not for it."""
    token = _IS_ELSEWHERE.set(True)
    try:
        yield
    finally:
        _IS_ELSEWHERE.reset(token)


def is_elsewhere() -> bool:
    """Return whether the user's files are not for this thread."""
    return _IS_ELSEWHERE.get()


def check_here(what: str = "the command reads files") -> None:
    """Raise ParseLocallyError if the user of the words has to read them himself."""
    if _IS_ELSEWHERE.get():
        raise ParseLocallyError(what)
