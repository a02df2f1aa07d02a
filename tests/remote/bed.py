"""A machine with GPUs and the laptop beside it, both made of namespaces of this host, with a cable between them.

The machine has its own network, host name, process tree, boot id, disk (/tmp, /var/lib, /root), sshd, dockerd and
stand-in GPUs with UUIDs of their own; gputui is not installed there. The laptop runs gputui.
`python -m tests.remote.bed` starts one to try things out on.
"""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import docker

from tests.gpus.standin import StandIn
from tests.needs import ROOT
from tests.remote import files
from tests.remote.image import PYTHON_IMAGE, python_archive
from tests.runtime.dockerd import IMAGE, until_stopped
from tests.runtime.rootfs import archive
from tests.runtime.sshd import Sshd
from tests.slurm.bed import new_directory, remove, start_whole
from tests.slurm.machine import ENVIRON, Machine
from tests.waiting import until

WAYS = ("ssh", "context", "tls")
"""Ways to the engine: DOCKER_HOST=ssh://…, a docker context over ssh, TCP with TLS."""
GPUS = 4
_PREFIX = "gputui-remote-"
_PS = ("ps", "-ww", "-e", "-o", "args=")
_OF_CLIENTS = ("DOCKER_", "GPUTUI_")


class Bed:
    """Both machines."""

    def __init__(self, gpus: int = GPUS) -> None:
        self.directory = new_directory(_PREFIX)
        files.write_machines(self.directory)
        self.driver = StandIn(self.directory / files.FAR / "driver" / "behaviour")
        self.uuids = [files.gpu_uuid(index) for index in range(gpus)]
        self.idle()
        self.at_home = StandIn(self.directory / "laptop" / "behaviour")
        self.at_home.write(gpus=1)
        self._machines: list[Machine] = []
        self.sshd: Sshd | None = None
        self._engine: docker.APIClient | None = None

    def start(self) -> Bed:
        """Start both machines, and wait until engine and sshd answer and the images are there."""
        start_whole(self._start, self.destroy)
        return self

    def _start(self) -> None:
        here = self.directory
        self.far = Machine(here, files.FAR, is_node=True, setup=files.setup_of_far(here, ROOT))
        self._machines.append(self.far)
        self.laptop = Machine(here, "laptop", is_node=False)
        self._machines.append(self.laptop)
        files.write_tls(here / "tls")
        for machine in self._machines:
            machine.wait()
        near, far = files.NEAR_ADDRESS, files.FAR_ADDRESS
        plug = f"link add far type veth peer name eth0 netns {self.far.holder.pid}\naddr add {near}/24 dev far"
        self.laptop.ip(f"{plug}\nlink set far up")
        self.far.ip(f"addr add {far}/24 dev eth0\nlink set eth0 up")
        keys = [f"--tlscacert={here}/tls/ca.pem", f"--tlscert={here}/tls/server.pem"]
        tls = ["--tlsverify", *keys, f"--tlskey={here}/tls/server-key.pem", f"--host=tcp://0.0.0.0:{files.TLS_PORT}"]
        self._options = ["--add-runtime=nvidia=runc", "--group=root", *tls]
        self.sshd = Sshd(into=self.far.into, address=far, within=here)
        self.start_engine()
        self.import_images()
        self.docker("context", "create", files.FAR, "--docker", "host=ssh://lab", way="ssh")

    def import_images(self) -> None:
        client = self.engine
        images = {
            IMAGE: archive({"bin/nvidia-smi": files.nvidia_smi()}, more="sed mkdir rmdir"),
            PYTHON_IMAGE: python_archive(),
        }
        for name, content in images.items():
            repository, tag = name.split(":")
            client.import_image_from_data(content, repository=repository, tag=tag)

    @property
    def engine(self) -> docker.APIClient:
        """A client of the engine past all cables, to look at it from outside."""
        if self._engine is None:
            self._engine = docker.APIClient(self.host)
        return self._engine

    @property
    def host(self) -> str:
        """Address of the engine past all cables."""
        return f"unix://{self.directory}/{files.FAR}/docker.sock"

    @property
    def pid(self) -> int | None:
        """Process id of what started dockerd, while it runs."""
        return self.dockerd.pid if self.dockerd.poll() is None else None

    def docker(self, *words: str, way: str = "", check: bool = True) -> str:
        """Return the output of the `docker` command, on the laptop by a way, or past all cables."""
        into, environ = (self.laptop.into, self.environ(way)) if way else ([], {**os.environ, "DOCKER_HOST": self.host})
        done = subprocess.run([*into, "docker", *words], env=environ, capture_output=True, text=True, check=False)
        assert not check or not done.returncode, f"docker {' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def idle(self, *lines: str) -> None:
        """Set the GPUs of the machine, with further lines of behaviour."""
        named = [f"gpu {index} uuid {uuid}" for index, uuid in enumerate(self.uuids)]
        self.driver.write(*named, *lines, gpus=len(self.uuids))

    def environ(self, way: str) -> dict[str, str]:
        """Environment of gputui and docker on the laptop for a way to the engine; the laptop has a GPU too."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_CLIENTS)}
        assert self.sshd is not None
        found = (
            kept | self.at_home.environment | {"PATH": self.sshd.path, "XDG_RUNTIME_DIR": f"{self.directory}/laptop"}
        )
        found["DOCKER_CONFIG"] = str(self.directory / "laptop" / "docker")
        if way == "context":
            return found | {"DOCKER_CONTEXT": files.FAR}
        if way == "ssh":
            return found | {"DOCKER_HOST": "ssh://lab"}
        address = {"DOCKER_HOST": f"tcp://{files.FAR_ADDRESS}:{files.TLS_PORT}", "DOCKER_TLS_VERIFY": "1"}
        return found | address | {"DOCKER_CERT_PATH": str(self.directory / "tls")}

    def on_far(self, *words: str) -> str:
        """Run a command on the machine with the GPUs, as somebody who is logged in there; return its output."""
        return self.far.run(*words, environ=ENVIRON).stdout

    @property
    def out(self) -> Path:
        """Directory that is /srv on the machine with the GPUs; the laptop lacks it there."""
        return self.directory / files.FAR / "srv"

    def containers(self) -> list[str]:
        """Return the names of all containers, ended ones too."""
        return sorted(each["Names"][0].removeprefix("/") for each in self.engine.containers(all=True))

    def probe_containers(self) -> list[str]:
        """Return the names of the containers in which gputui reads the GPUs."""
        return [name for name in self.containers() if name.startswith("gputui-probe-")]

    def start_on_far(self, *words: str) -> int:
        """Start a process of somebody who is logged in on the machine; return its pid there."""
        return int(self.on_far("sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *words))

    def processes(self) -> list[str]:
        """Return the command lines of all processes of the machine but those of the looking command."""
        return sorted(line for line in self.on_far(*_PS).splitlines() if line != " ".join(_PS))

    def written(self) -> list[str]:
        """Return the files on the machine's own disk, where programs write unasked."""
        places = ["/tmp", "/var/tmp", "/var/lib", "/root", "/home", "/dev/shm", str(self.sshd_home)]
        told = self.on_far("find", *places, "-xdev", "!", "-type", "d")
        return sorted(told.splitlines())

    @property
    def sshd_home(self) -> Path:
        """Home directory of those who log in."""
        assert self.sshd is not None
        return self.sshd.directory / "home"

    def stop_engine(self, how: str = "TERM") -> None:
        """End dockerd by a signal."""
        self.engine.close()
        self._engine = None
        self.far.forget(self.dockerd)
        self.on_far("sh", "-c", f"kill -{how} $(cat /run/dockerd.pid)")
        self.dockerd.wait(60)
        self.on_far("rm", "-f", "/run/dockerd.pid")

    def start_engine(self, *words: str) -> None:
        """Start dockerd, with further words, and wait until it answers."""
        self.dockerd = self.far.start_engine(*self._options, *words)
        until(lambda: self.docker("version", "--format", "{{.Server.Version}}", check=False), self.told)

    def stop_sshd(self) -> None:
        """End sshd and all connections."""
        assert self.sshd is not None
        self.sshd.stop()

    def reach(self) -> None:
        """Plug in the cable and start sshd, if they are not."""
        self.laptop.run("ip", "link", "set", "far", "up")
        if self.sshd is not None and self.sshd.process.poll() is not None:
            self.sshd.start()

    def pull_cable(self) -> None:
        """Let every packet between the machines vanish; connections stay open and silent."""
        self.laptop.run("ip", "link", "set", "far", "down")

    def told(self) -> str:
        """Return the ends of the logs."""
        found = [*self.directory.glob("*/*.out"), *self.directory.glob("*/machine.log"), *self.directory.glob("*/log")]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(found))

    def destroy(self) -> None:
        """End every process of both machines and remove their files."""
        atexit.unregister(self.destroy)
        if self._engine is not None:
            self._engine.close()
        if self.sshd is not None:
            self.sshd.close()
        for machine in reversed(self._machines):
            machine.end()
        self._machines.clear()
        remove(self.directory)


def main() -> None:
    """Run both machines until told to stop."""
    bed, begun = Bed(), time.monotonic()
    with until_stopped(bed.destroy):
        bed.start()
        print(
            f"# after {time.monotonic() - begun:.1f} s. Each line opens a shell on the laptop, where `gputui doctor`,"
        )
        print(
            f"# `docker images` and `ssh lab` look at {files.FAR}. Images there: {IMAGE} (nvidia-smi), {PYTHON_IMAGE}"
        )
        for way in WAYS:
            print(shell_line(bed, way), flush=True)


def shell_line(bed: Bed, way: str) -> str:
    """Return the line that opens a shell on the laptop, in which gputui reaches the engine by that way."""
    own = {name: value for name, value in bed.environ(way).items() if os.environ.get(name) != value}
    before = own.pop("PATH").removesuffix(os.environ["PATH"])
    own["GPUTUI_STATE"] = f"{bed.directory}/laptop/state"
    if way == "tls":  # nothing there has the image that the probe runs in unless told otherwise
        own["GPUTUI_RUNTIME_PROBE_IMAGE"] = PYTHON_IMAGE
    words = [shlex.quote(f"{name}={value}") for name, value in own.items()]
    words.append(f"PATH={shlex.quote(f'{before}{Path(sys.executable).parent}')}:$PATH")
    return " ".join([shlex.join(bed.laptop.into), "env", *words, "bash"])


if __name__ == "__main__":
    main()
