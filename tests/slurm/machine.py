"""A machine of the test bed: network, host name and mounts of its own, and where asked a process tree of its own.

The namespaces live as long as one `unshare` process, which ends with the thread that started it. A machine with its
own process tree takes all its processes with it; the daemons of the others end with the thread too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.runtime.dockerd import FEW_COLLECTIONS
from tests.slurm.release import unpacked

ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
"""Environment of programs on a machine."""

_SETUP = """
set -e
hostname {name}
ip link set lo up
mount -t overlay etc -o lowerdir={bed}/etc:/etc /etc
mount --bind {bed}/no-commands {bed}/bin
{more}
echo ready
"""
"""A mount on /etc/passwd itself would vanish as soon as somebody adds a user to this host."""
_STAY = "exec sleep infinity"
_STAY_AS_INIT = "sleep infinity & wait"
"""`wait` waits for orphans too, so that none stays a zombie."""
_NODE = """
mount -t tmpfs run /run && mkdir /run/lock
mount -t tmpfs docker /etc/docker
mount -t overlay gpus -o lowerdir={bed}/{name}/bin:/usr/local/bin /usr/local/bin
"""
"""Nothing of the host's engine is seen; nvidia-smi lies where everyone finds it."""
_RELEASE = """
mount -t overlay bin -o lowerdir={release}/bin:/usr/bin /usr/bin
mount -t overlay sbin -o lowerdir={release}/sbin:/usr/sbin /usr/sbin
"""
"""Another release of Slurm stands where the programs of this host's are."""
_WITH_US = ("setpriv", "--pdeathsig", "KILL")


class Machine:
    """Namespaces on this host, by the name that its processes have as their host name."""

    def __init__(self, bed: Path, name: str, *, is_node: bool, setup: str = "") -> None:
        """`setup` are further lines of the script that sets it up."""
        self.name = name
        self.folder = bed / name
        self.is_node = is_node
        more = _RELEASE.format(release=unpacked()) if unpacked() else ""
        more += _NODE.format(bed=bed, name=name) if is_node else ""
        script = _SETUP.format(bed=bed, name=name, more=more + setup) + (_STAY_AS_INIT if is_node else _STAY)
        kinds = ["--net", "--uts", "--mount", "--propagation", "private"]
        kinds += ["--pid", "--fork", "--kill-child", "--mount-proc"] if is_node else []
        with (self.folder / "machine.log").open("wb") as log:
            words = [*_WITH_US, "unshare", *kinds, "sh", "-c", script]
            self.holder = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        self._daemons: list[subprocess.Popen[bytes]] = []

    def wait(self) -> None:
        """Wait until the machine is set up."""
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != b"ready\n":
            raise AssertionError(f"no machine {self.name}: {(self.folder / 'machine.log').read_text()}")
        self.holder.stdout.close()

    @property
    def into(self) -> list[str]:
        """Words before a command that run it on this machine."""
        own = [f"--pid=/proc/{self.holder.pid}/ns/pid_for_children"] if self.is_node else []
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts", "--mount", *own, "--"]

    def start(self, *words: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a daemon; its output goes into a file of its name."""
        with (self.folder / f"{Path(words[0]).name}.out").open("ab") as log:
            daemon = subprocess.Popen(
                [*_WITH_US, *self.into, *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    def start_engine(self, *words: str) -> subprocess.Popen[bytes]:
        """Start dockerd, which also listens in the machine's folder and keeps all cgroups below one of the bed."""
        here = self.folder
        paths = [f"--data-root={here}/docker", "--exec-root=/run/docker", "--pidfile=/run/dockerd.pid"]
        sockets = ["--host=unix:///var/run/docker.sock", f"--host=unix://{here}/docker.sock"]
        rest = ["--log-level=warn", "--iptables=false", "--ip6tables=false", f"--cgroup-parent=/{here.parent.name}"]
        return self.start("dockerd", *paths, *sockets, *rest, *words, environ=ENVIRON | FEW_COLLECTIONS)

    def forget(self, daemon: subprocess.Popen[bytes]) -> None:
        """Do not count a daemon that was ended on purpose as failed."""
        self._daemons.remove(daemon)

    def run(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 60.0,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this machine to its end."""
        done = subprocess.run(
            [*self.into, "env", "-C", str(Path.cwd()), *words],
            env=environ,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {words}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def ip(self, lines: str) -> None:
        """Run several lines of `ip` at once."""
        self.run("sh", "-c", f"ip -batch - <<'END'\n{lines}\nEND")

    def end(self) -> None:
        """End all processes of this machine."""
        for process in (*self._daemons, self.holder):
            process.kill()  # the child of a killed unshare is killed with it, and all others with that
        for process in (*self._daemons, self.holder):
            process.wait(60)

    def failed(self) -> Sequence[str]:
        """Return which daemons have ended."""
        return [str(daemon.args) for daemon in self._daemons if daemon.poll() is not None]
