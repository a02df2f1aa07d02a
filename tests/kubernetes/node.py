"""A real node: the kubelet of Kubernetes 1.20 over a private Docker engine, with two GPUs that it only claims to have.

`python -m tests.kubernetes.node` starts a control plane with one such node to try things out on, until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker

from tests.kubernetes.control_plane import ADMIN, ControlPlane, binaries, free_ports, is_of_1_20
from tests.kubernetes.kubelet import GPU
from tests.runtime.dockerd import IMAGE, Dockerd, until_stopped

NAME = "127.0.0.2"
"""Name of the node, and its address: a kubelet takes no loopback address but from its name."""
_PAUSE = "gputui-test:pause"
_DOCKERFILE = f"""FROM {IMAGE}
CMD ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]
"""
_RUNC = """#!/bin/sh
for word; do
  [ "$last" = --bundle ] && sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$word/config.json"
  last=$word
done
exec {runc} "$@"
"""
"""Kubelets ask for scores below 0, which need a capability that containers with tests in them lack."""
_HIDE = """
set -e
mount -t tmpfs logs /var/log
mkdir {directory}/kernel
while read name value; do
  [ -e /proc/sys/$name ] || continue
  file={directory}/kernel/$(basename $name)
  echo $value > $file
  mount --bind $file /proc/sys/$name
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
"""
"""A kubelet keeps logs in a place of its own, and changes settings of the kernel unless they are as it wants them."""
_MERGE = "application/merge-patch+json"


def has_kubelet() -> bool:
    """Return whether there is a kubelet that runs containers of Docker."""
    programs = binaries()
    return programs is not None and (programs / "kubelet").exists() and is_of_1_20()


class Node:
    """A kubelet and its engine."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.engine = Dockerd()
        wrapper = self.engine.directory / "bin" / "runc"
        wrapper.write_text(_RUNC.format(runc=_runc()))
        wrapper.chmod(0o755)

    def start(self) -> Node:
        """Start engine and kubelet, and give the node two GPUs."""
        self.engine.start()
        client = docker.APIClient(base_url=self.engine.host)
        for line in client.build(fileobj=io.BytesIO(_DOCKERFILE.encode()), tag=_PAUSE, rm=True, decode=True):
            assert "error" not in line, line
        client.close()
        self._in_engine(_HIDE.format(directory=self.engine.directory))
        self.launch()
        self._plane.until(self.is_ready, "the node is ready")
        gpus = {"status": {"capacity": {GPU: "2"}, "allocatable": {GPU: "2"}}}
        self._plane.ask("PATCH", f"/api/v1/nodes/{NAME}/status", gpus, _MERGE)
        return self

    def launch(self) -> None:
        """Start the kubelet alone."""
        assert self.engine.holder is not None
        words = [f"--{name}={value}" for name, value in self._options().items()]
        into = ["nsenter", "--target", str(self.engine.holder.pid), "--mount", "--"]
        programs = binaries()
        assert programs is not None
        with (self._directory / "kubelet.log").open("ab") as log:
            self._process = subprocess.Popen([*into, str(programs / "kubelet"), *words], stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the kubelet: for Kubernetes the node is lost, and its containers run on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    def is_ready(self) -> bool:
        """Return whether Kubernetes calls the node ready."""
        conditions = self.status().get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def status(self) -> dict[str, Any]:
        """Return the status of the node; empty before it has registered."""
        found = self._plane.ask("GET", "/api/v1/nodes")["items"]
        return next((dict(node["status"]) for node in found if node["metadata"]["name"] == NAME), {})

    def containers(self) -> list[str]:
        """Return the names of the containers of jobs that run."""
        client = docker.APIClient(base_url=self.engine.host)
        try:
            names = (each["Names"][0] for each in client.containers())
            return [name for name in names if not name.startswith("/k8s_POD_")]
        finally:
            client.close()

    def close(self) -> None:
        """End kubelet, engine and containers."""
        self.kill()
        self.engine.destroy()

    def _in_engine(self, script: str) -> None:
        assert self.engine.holder is not None
        into = ["nsenter", "--target", str(self.engine.holder.pid), "--mount", "--"]
        subprocess.run([*into, "sh", "-c", script], check=True)

    def _options(self) -> Mapping[str, str]:
        here = self._directory / "kubelet"
        here.mkdir(exist_ok=True)
        config = here / "kubeconfig"
        config.write_text(self._plane.kubeconfig(ADMIN))
        [port] = free_ports(1)
        socket = f"unix://{self.engine.directory}/shim.sock"
        return {
            "kubeconfig": str(config),
            "hostname-override": NAME,
            "address": NAME,
            "port": str(port),
            "healthz-port": "0",
            "anonymous-auth": "false",
            "authorization-mode": "AlwaysAllow",
            "client-ca-file": str(self._plane.certificate),
            "root-dir": str(here),
            "cert-dir": str(here / "pki"),
            "volume-plugin-dir": str(here / "plugins"),
            "experimental-dockershim-root-directory": str(here / "dockershim"),
            "docker-endpoint": self.engine.host,
            "container-runtime-endpoint": socket,
            "image-service-endpoint": socket,
            "network-plugin": "",
            "pod-infra-container-image": _PAUSE,
            "cgroup-driver": "cgroupfs",
            "cluster-dns": "10.0.0.10",
            "cgroups-per-qos": "false",
            "enforce-node-allocatable": "",
            "eviction-hard": "memory.available<1Mi",
            "fail-swap-on": "false",
            "feature-gates": "DevicePlugins=false",
            "make-iptables-util-chains": "false",
            "node-status-update-frequency": "1s",
            "oom-score-adj": "0",
            "sync-frequency": "1s",
            "v": "2",
        }


def _runc() -> str:
    found = (Path(folder) / "runc" for folder in ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"))
    return str(next(path for path in found if path.exists()))


def main() -> None:
    """Run a control plane with a node until told to stop."""
    programs = binaries()
    assert programs is not None, "GPUTUI_TEST_KUBERNETES names no programs: see build_control_plane.sh"
    ends = contextlib.ExitStack()
    with tempfile.TemporaryDirectory() as name, until_stopped(ends.close):
        directory = Path(name)
        plane = ControlPlane(programs, directory)
        ends.callback(plane.close)
        plane.start(("ann", "eve"), has_nodes=True)
        node = Node(plane, directory)
        ends.callback(node.close)
        begun = time.monotonic()
        node.start()
        print(f"# {NAME} is ready after {time.monotonic() - begun:.1f} s; DOCKER_HOST={node.engine.host}")
        print(f"export KUBECONFIG={directory}/kubeconfig GPUTUI_CLUSTER=kubernetes", flush=True)


if __name__ == "__main__":
    main()
