"""A real Slurm cluster on this host: a head, nodes with an engine and stand-in GPUs each, and cables between them.

`python -m tests.slurm.bed` starts one, prints the environment of its clients, and removes it on Ctrl-C.

All machines share the file system, as a cluster with shared homes does. Each has its own network, so that several beds
may run at once. slurmctld starts no job in its first three seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import docker
import docker.errors

from tests.runtime.dockerd import identity, remove_cgroups, sweep, until_stopped
from tests.slurm import files
from tests.slurm.accounts import Accounts
from tests.slurm.machine import ENVIRON, Machine

IMAGE = "gputui-test:latest"
"""Image of busybox on all nodes; its nvidia-smi lists the GPUs that the container was given."""
PATIENCE = 60.0
"""Seconds that a wait lasts at most."""
_PREFIX = "gputui-slurm-"


class Bed:
    """Slurm on nodes `gpu1`, `gpu2`, … of this host."""

    def __init__(self, nodes: int = 3, gpus: int = 2, *, accounts: bool = False, **settings: object) -> None:
        """Write its files; `patience` is the time in seconds after which a silent node is down.

        With `accounts` slurmdbd keeps them.
        """
        self.directory = new_directory(_PREFIX)
        self.nodes = {f"gpu{number}": f"10.77.0.{number}" for number in range(1, nodes + 1)}
        self.gpus = gpus
        defaults = {"patience": 60, "min_job_age": 300, "scheduler": "bf_interval=1,batch_sched_delay=1"}
        files.write_cluster(self.directory, self.nodes, gpus, defaults | settings, accounts=accounts)
        self._has_accounts = accounts
        self.accounts: Accounts | None = None
        self._machines: dict[str, Machine] = {}
        self._cut: set[str] = set()
        self._engines: dict[str, docker.APIClient] = {}

    @property
    def environ(self) -> dict[str, str]:
        """Environment for clients outside of the bed: Slurm's commands come first on PATH."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_CLIENTS)}
        return kept | {"PATH": f"{self.directory}/bin:{os.environ['PATH']}", "SLURM_CONF": str(self.configuration)}

    @property
    def configuration(self) -> Path:
        return self.directory / "slurm.conf"

    def environ_of(self, user: str) -> dict[str, str]:
        """Environment for clients outside of the bed that act as a user of it; `sh` runs as that user too."""
        into = [*self._machines["head"].into, *_become(user)]
        folder = files.write_clients_of(self.directory, user, into, self.home(user))
        return self.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}

    def start(self) -> Bed:
        """Start all machines and daemons, and wait until all nodes are idle."""
        start_whole(self._start, self.destroy)
        return self

    def _start(self) -> None:
        for name in ("head", *self.nodes):
            self._machines[name] = Machine(self.directory, name, is_node=name != "head")
        for machine in self._machines.values():
            machine.wait()
        self._plug_all()
        self._start_daemons()
        files.write_clients(self.directory, self._machines["head"].into)
        self.wait(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "all nodes are idle")

    def _plug_all(self) -> None:
        """Lay a cable from each node to the switch, which is a bridge on the head."""
        head = self._machines["head"]
        head.ip(f"link add switch type bridge\naddr add {files.HEAD_ADDRESS}/24 dev switch\nlink set switch up")
        for name, address in self.nodes.items():
            node = self._machines[name]
            cable = f"link add {name} type veth peer name eth0 netns {node.holder.pid}"
            head.ip(f"{cable}\nlink set {name} master switch up")
            node.ip(f"addr add {address}/24 dev eth0\nlink set eth0 up\nroute add default via {files.HEAD_ADDRESS}")

    def _start_daemons(self) -> None:
        here, environ = self.directory, self.environ_inside
        munge = [f"--key-file={here}/key", f"--socket={here}/munge/socket", f"--pid-file={here}/head/munged.pid"]
        munge += [f"--log-file={here}/head/munged.log", f"--seed-file={here}/head/munge.seed"]
        head = self._machines["head"]
        head.start("munged", "--foreground", "--force", *munge, f"--origin={files.HEAD_ADDRESS}", environ=environ)
        for name in self.nodes:
            self._machines[name].start_engine("--group=bed-docker")
        self.wait((here / "munge/socket").exists, "munge answers")
        if self._has_accounts:
            self.accounts = Accounts(head, environ, self.wait)
            self.accounts.start()
            self.accounts.fill(tuple(files.USERS))
        self.start_controller()
        for name in self.nodes:
            self.wait(partial(self._has_image, name), f"the engine of {name} has its image")
            self._machines[name].start("slurmd", "-D", "-N", name, environ=environ)

    def _has_image(self, name: str) -> bool:
        words = ("docker", "import", str(self.directory / "image.tar"), IMAGE)
        return self.run(*words, on=name, check=False).returncode == 0

    def start_controller(self) -> None:
        """Start slurmctld."""
        self.controller = self._machines["head"].start("slurmctld", "-D", environ=self.environ_inside)

    def restart_controller(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """End slurmctld by a signal, start it again, and wait until it answers."""
        self.controller.send_signal(with_signal)
        self.controller.wait(PATIENCE)
        self._machines["head"].forget(self.controller)
        self.start_controller()
        self.wait(lambda: self.run("scontrol", "ping", check=False).returncode == 0, "slurmctld answers")

    def cut(self, name: str) -> None:
        """Pull the cable of a node."""
        self._cut.add(name)
        self._machines["head"].run("ip", "link", "set", name, "down")

    def plug(self, name: str) -> None:
        """Plug in the cable of a node again, and have slurmctld look at once instead of within a minute or two."""
        self._machines["head"].run("ip", "link", "set", name, "up")
        self._cut.discard(name)
        self._reconfigure()

    def _reconfigure(self) -> None:
        """Have all daemons read their files; from Slurm 23.11 on nodes are unknown until they have registered again."""
        self.run("scontrol", "reconfigure")
        self.wait(self._knows_all_nodes, "all nodes are known")

    def _knows_all_nodes(self) -> bool:
        states = self.states()
        return bool(states) and not any(state.startswith("unk") for state in states.values())

    def run(
        self,
        *words: str,
        on: str = "head",
        user: str = "root",
        check: bool = True,
        stdin: str = "",
        environ: dict[str, str] | None = None,
    ) -> CompletedProcess[str]:
        """Run a command on a machine, as a user of the bed."""
        become = [] if user == "root" else _become(user)
        inside = self.environ_inside | {"USER": user, "LOGNAME": user} | (environ or {})
        if user != "root":
            inside["HOME"] = str(self.home(user))
        return self._machines[on].run(*become, *words, environ=inside, check=check, stdin=stdin, timeout=2 * PATIENCE)

    def home(self, user: str) -> Path:
        """Return the home directory of a user of the bed, which all machines share."""
        return self.directory / "home" / user  # root too has one here

    def docker_host(self, name: str) -> str:
        """Return the address of a node's engine for clients on this host."""
        return f"unix://{self.directory}/{name}/docker.sock"

    @property
    def into_head(self) -> list[str]:
        """Words before a command that run it on the head."""
        return self._machines["head"].into

    def into(self, name: str) -> list[str]:
        """Return words before a command that run it on a machine."""
        return self._machines[name].into

    def states(self) -> dict[str, str]:
        """Return each node's state as sinfo words it; empty if Slurm does not answer."""
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
        return dict(line.split() for line in done.stdout.splitlines()) if not done.returncode else {}

    def state(self, name: str) -> str:
        """Return the state of a node, without its mark."""
        return self.states().get(name, "").rstrip("*~#$@^-+!%")

    def containers(self, name: str | None = None) -> list[dict[str, str]]:
        """Return ID, Name, State and Node of the containers on a node, or on all, ended ones too."""
        return [
            {"ID": each["Id"], "Name": each["Names"][0].removeprefix("/"), "State": each["State"], "Node": node}
            for node in ([name] if name else self.nodes)
            for each in self._client(node).containers(all=True)
        ]

    def _client(self, name: str) -> docker.APIClient:
        """Return a client of a node's engine, which takes a fifth of the processor time of a `docker` command."""
        if name not in self._engines:
            self._engines[name] = docker.APIClient(self.docker_host(name))
        return self._engines[name]

    def jobs(self) -> dict[int, str]:
        """Return the state of each job that Slurm remembers."""
        out = self.run("squeue", "--noheader", "--all", "--states=all", "--array", "--format=%A %T").stdout
        return {int(number): state for number, state in (line.split() for line in out.splitlines())}

    def uuids(self, name: str, indexes: Iterable[int]) -> list[str]:
        """Return the UUIDs of GPUs of a node."""
        return [files.uuid(name, index) for index in indexes]

    @contextlib.contextmanager
    def without_engine(self, name: str) -> Iterator[None]:
        """Hide the engine's socket on a node for a while."""
        self.run("mv", "/run/docker.sock", "/run/hidden.sock", on=name)
        try:
            yield
        finally:
            self.run("mv", "/run/hidden.sock", "/run/docker.sock", on=name)

    def set_epilog(self, program: Path | None) -> None:
        """Have the nodes run a program after each job."""
        files.write_epilog(self.directory, program)
        self._reconfigure()

    def clear(self) -> None:
        """Cancel all jobs, plug all cables, resume all nodes, and wait until they are idle without any container."""
        self.run("sh", "-c", "squeue --noheader --all --format=%A | xargs --no-run-if-empty scancel", check=False)
        for name in tuple(self._cut):
            self.plug(name)
        self.wait(self._is_clear, "all nodes are idle")

    def _is_clear(self) -> bool:
        for name, state in self.states().items():
            if state.startswith(("drain", "down", "fail")):
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        if self.run("squeue", "--noheader", "--all", check=False).stdout:
            return False  # batch scripts remove their containers sooner than they notice that somebody else did
        for container in self.containers():
            with contextlib.suppress(docker.errors.APIError):  # it has gone, or goes
                self._client(container["Node"]).remove_container(container["ID"], force=True)
        return self.states() == dict.fromkeys(self.nodes, "idle")

    def wait(self, condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + patience
        while not condition():
            for machine in self._machines.values():
                assert not machine.failed(), f"{machine.name}: {machine.failed()} ended\n{self.told()}"
            assert time.monotonic() < deadline, f"not within {patience:.0f} s: {what}\n{self.told()}"
            time.sleep(0.05)

    def told(self) -> str:
        """Return what Slurm tells, and the ends of all logs."""
        asked = (("sinfo", "-N", "-l"), ("squeue", "--all", "--states=all"), ("scontrol", "-d", "show", "job"))
        text = [self.run(*words, check=False).stdout[-3000:] for words in asked]
        text += [self.run("docker", "ps", "--all", on=name, check=False).stdout for name in self.nodes]
        logs = sorted(self.directory.glob("*/slurm*.out"))
        return "\n".join([*text, *(f"--- {path}\n{path.read_text(errors='replace')[-600:]}" for path in logs)])

    def destroy(self) -> None:
        """End every process of this bed and remove its directory."""
        atexit.unregister(self.destroy)
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()
        for machine in reversed(self._machines.values()):
            machine.end()
        self._machines.clear()
        remove(self.directory)

    @property
    def environ_inside(self) -> dict[str, str]:
        """Environment of programs on a machine of the bed."""
        return ENVIRON | {"SLURM_CONF": str(self.configuration)}


_OF_CLIENTS = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCONTROL_", "SALLOC_", "DOCKER_")


def _become(user: str) -> list[str]:
    number = str(files.USERS[user])
    return ["setpriv", f"--reuid={number}", f"--regid={number}", "--init-groups"]


def new_directory(prefix: str) -> Path:
    """Make the directory of a bed, and remove those of beds whose owner died before it could."""
    sweep(prefix, remove)  # the processes of a bed die with its owner
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    (directory / "owner").write_text(identity(os.getpid()))
    return directory


def start_whole(start: Callable[[], object], destroy: Callable[[], object]) -> None:
    """Start a bed, which is destroyed if that fails, and at the latest with this process."""
    atexit.register(destroy)
    try:
        start()
    except BaseException:
        destroy()
        raise


def remove(directory: Path) -> None:
    """Remove the directory and the cgroups of a bed that has ended."""
    for _ in range(100):
        shutil.rmtree(directory, ignore_errors=True)
        if remove_cgroups(directory.name) and not directory.exists():
            return
        time.sleep(0.05)  # what is dying may still hold something


def main() -> None:
    """Run a bed until told to stop."""
    bed = Bed()
    begun = time.monotonic()
    with until_stopped(bed.destroy):
        bed.start()
        print(f"# {len(bed.nodes)} nodes idle after {time.monotonic() - begun:.1f} s")
        print(f"export SLURM_CONF={bed.configuration} PATH={bed.directory}/bin:$PATH", flush=True)


if __name__ == "__main__":
    main()
