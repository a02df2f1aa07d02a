"""What /proc tells of a process on a GPU: whose it is, its command, container, session and attempt.

Part of the probe process. Only a process seen for the first time is looked at whole: afterwards its start time alone.
Paths are strings, because pathlib takes milliseconds to import.
"""

from __future__ import annotations

import os
import pwd
import re

_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Docker, containerd, podman, CRI-O and kubelet all end in the container's full id: `/docker/<id>`,
`docker-<id>.scope`, `libpod-<id>.scope`, `cri-containerd-<id>.scope`, `/kubepods/…/<id>`."""
_OF_HOST = 4026531836
"""Inode of the kernel's first PID namespace: PROC_PID_INIT_INO."""
_LONGEST = 200


class Processes:
    """Facts about processes by pid, remembered while they live."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._known: dict[int, tuple[str, dict[str, object]]] = {}
        self._asked: set[int] = set()
        self._users: dict[int, str] = {}
        self._own = frozenset(container_ids(self._text("self", "cgroup")))

    def facts(self, pid: int) -> dict[str, object]:
        """All that can be read about it; `visible` is False when there is no such pid here."""
        self._asked.add(pid)
        fields = stat_fields(self._text(pid, "stat"))
        if fields is None:
            self._known.pop(pid, None)
            return {"visible": False}
        session, started = fields
        known = self._known.get(pid)
        if known is None or known[0] != started:
            known = self._known[pid] = (started, self._look(pid, session))
        return known[1]

    def forget_unseen(self) -> None:
        """Keep nothing about processes that nobody asked about since the last time: they left their GPUs."""
        for pid in self._known.keys() - self._asked:
            del self._known[pid]
        self._asked.clear()

    def is_hosts_namespace(self) -> bool:
        """Whether pids here are the driver's: the host's."""
        try:
            return os.stat(f"{self._root}/self/ns/pid").st_ino == _OF_HOST  # noqa: PTH116
        except OSError:
            return True

    def _look(self, pid: int, session: int) -> dict[str, object]:
        inside = [found for found in container_ids(self._text(pid, "cgroup")) if found not in self._own]
        return {
            "user": self._user(pid),
            "command": short_command(self._text(pid, "cmdline")) or self._text(pid, "comm").strip() or None,
            "container_id": inside[0] if inside else None,  # the outermost: the one this host's engine knows
            "session": session,
            "attempt": attempt_of(self._text(pid, "environ")),
        }

    def _user(self, pid: int) -> str | None:
        try:
            uid = os.stat(f"{self._root}/{pid}").st_uid  # noqa: PTH116
        except OSError:
            return None
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def _text(self, pid: int | str, name: str) -> str:
        try:
            with open(f"{self._root}/{pid}/{name}", "rb") as file:  # noqa: PTH123
                return file.read(1 << 16).decode(errors="replace")
        except OSError:
            return ""


def stat_fields(text: str) -> tuple[int, str] | None:
    """Session and start time of /proc/<pid>/stat; the command in brackets may hold brackets and spaces itself."""
    fields = text.rpartition(")")[2].split()
    return (int(fields[3]), fields[19]) if len(fields) > 19 else None


def container_ids(cgroup: str) -> list[str]:
    """Ids of the containers a process is in, outermost first, of the cgroup line that names most."""
    return max((_CONTAINER.findall(line) for line in cgroup.splitlines()), key=len, default=[])


def short_command(cmdline: str) -> str:
    """The command line, its program without directories, cut to a length fit for a screen."""
    words = cmdline.rstrip("\0").split("\0")
    words[0] = words[0].rpartition("/")[2] or words[0]
    return " ".join(words)[:_LONGEST]


def attempt_of(environ: str) -> str | None:
    """The value of GPUTUI_ATTEMPT."""
    return next((word[15:] for word in environ.split("\0") if word.startswith("GPUTUI_ATTEMPT=")), None)
