"""A real control plane of Kubernetes on loopback: etcd, API server, controllers and scheduler, without nodes."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.needs import need

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
ADMIN = "admin-token"
PATIENCE = 180.0
_CONTROLLERS = "job,garbagecollector,namespace,ttl-after-finished"
_OF_NODES = "nodelifecycle,podgc"
_OF_1_20 = {"feature-gates": "TTLAfterFinished=true"}
_UNWANTED = "ServiceAccount,TaintNodesByCondition"
"""Admission plugins that need other controllers."""


def binaries() -> Path | None:
    """Return the directory that build_control_plane.sh filled; None if none is named."""
    named = os.environ.get("GPUTUI_TEST_KUBERNETES")
    return Path(named) if named and all((Path(named) / name).exists() for name in PROGRAMS) else None


def is_of_1_20() -> bool:
    """Return whether the programs are those of 1.20, and not of a current release."""
    programs = binaries()
    if programs is None:
        return False
    words = [str(programs / "kube-apiserver"), "--version"]
    return " v1.20." in subprocess.run(words, capture_output=True, text=True, check=True).stdout


def certificate(directory: Path) -> tuple[Path, Path]:
    """Return key and certificate for loopback."""
    key, made = directory / "tls.key", directory / "tls.crt"
    need("openssl")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=gputui-test"]
    files = ["-keyout", str(key), "-out", str(made), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, *files], check=True, capture_output=True)
    return key, made


def free_ports(number: int) -> list[int]:
    """Return ports that nothing listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class ControlPlane:
    """Processes of a control plane, and requests to its server as an administrator."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._words: dict[str, list[str]] = {}
        self._users = {ADMIN: "admin"}
        self._tokens = directory / "tokens.csv"
        self.key, self.certificate = certificate(directory)
        self._ports = free_ports(5)
        self.address = f"https://127.0.0.1:{self._ports[0]}"
        self._context = ssl.create_default_context(cafile=str(self.certificate))

    def start(self, users: tuple[str, ...], *, has_nodes: bool = False) -> None:
        """Start everything; `users` have tokens `NAME-token` and no rights.

        With `has_nodes` there are real nodes, which are looked after: one that is silent loses its pods within seconds.
        """
        lines = [f'{ADMIN},admin,1,"system:masters"', *(f"{name}-token,{name},{name}" for name in users)]
        self._tokens.write_text("\n".join(lines) + "\n")
        api, store, peer, controllers, scheduler = map(str, self._ports)
        etcd, key, made = f"http://127.0.0.1:{store}", str(self.key), str(self.certificate)
        self._run(
            "etcd",
            {
                "data-dir": str(self._directory / "etcd"),
                "listen-client-urls": etcd,
                "advertise-client-urls": etcd,
                "listen-peer-urls": f"http://127.0.0.1:{peer}",
                "logger": "zap",
            },
        )
        self._run(
            "kube-apiserver",
            {
                "etcd-servers": etcd,
                "secure-port": api,
                "bind-address": "127.0.0.1",
                "endpoint-reconciler-type": "none",
                "tls-cert-file": made,
                "tls-private-key-file": key,
                "token-auth-file": str(self._tokens),
                "authorization-mode": "RBAC",
                "service-cluster-ip-range": "10.0.0.0/24",
                "disable-admission-plugins": _UNWANTED,
                "service-account-issuer": "https://gputui.test",
                "service-account-signing-key-file": key,
                "service-account-key-file": made,
                "kubelet-client-certificate": made,
                "kubelet-client-key": key,
                "default-not-ready-toleration-seconds": "5",
                "default-unreachable-toleration-seconds": "5",
            }
            | (_OF_1_20 | {"insecure-port": "0"} if is_of_1_20() else {}),
        )
        self.until(lambda: self._answers("/readyz"), "the API server is ready")
        file = self._directory / "kubeconfig"
        file.write_text(self.kubeconfig(ADMIN))
        common = {"kubeconfig": str(file), "leader-elect": "false", "cert-dir": str(self._directory)}
        common |= {"port": "0"} if is_of_1_20() else {}
        works = {"controllers": _CONTROLLERS} | (_OF_1_20 if is_of_1_20() else {})
        if has_nodes:
            works = works | {"controllers": f"{_CONTROLLERS},{_OF_NODES}", "node-monitor-grace-period": "6s"}
        self._run("kube-controller-manager", common | works | {"secure-port": controllers})
        self._run("kube-scheduler", common | {"secure-port": scheduler})

    def kubeconfig(self, token: str, namespace: str = "default") -> str:
        """Return a kubeconfig."""
        cluster = {"server": self.address, "certificate-authority": str(self.certificate)}
        context = {"cluster": "real", "user": "user", "namespace": namespace}
        return json.dumps(
            {
                "current-context": "real",
                "clusters": [{"name": "real", "cluster": cluster}],
                "users": [{"name": "user", "user": {"token": token}}],
                "contexts": [{"name": "real", "context": context}],
            }
        )

    def restart_server(self) -> None:
        """Kill the API server and start it again: it has forgotten all changes, and its connections are cut."""
        self._processes["kube-apiserver"].kill()
        self._processes["kube-apiserver"].wait(60)
        self._launch("kube-apiserver")
        self.until(lambda: self._answers("/readyz"), "the API server is ready again")

    def compact(self) -> None:
        """Have etcd forget all states before the present one."""
        revision = self._etcd("range", {"key": "Lw=="})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})

    def _etcd(self, call: str, body: Mapping[str, Any]) -> Any:
        address = f"http://127.0.0.1:{self._ports[1]}/v3/kv/{call}"
        request = urllib.request.Request(address, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json", token: str = ADMIN) -> Any:
        """Make a request, as an administrator unless there is another token; raises HTTPError."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, context=self._context, timeout=30) as answer:
            return json.loads(answer.read())

    def create(self, path: str, body: Any) -> None:
        """Create an object; raises FileExistsError if there is one of its name."""
        try:
            self.ask("POST", path, body)
        except urllib.error.HTTPError as error:
            if error.code == 409:
                raise FileExistsError(path) from error
            raise

    def close(self) -> None:
        """End all processes."""
        processes = list(self._processes.values())
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:  # a server waits for the ends of its watches
                process.kill()
                process.wait(60)

    def _run(self, name: str, options: Mapping[str, str]) -> None:
        self._words[name] = [str(self._programs / name), *(f"--{option}={value}" for option, value in options.items())]
        self._launch(name)

    def _launch(self, name: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(self._words[name], stdout=log, stderr=log)

    def _answers(self, path: str) -> bool:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        request = urllib.request.Request(self.address + path, headers=headers)
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is true, while all processes run."""
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            over = [name for name, process in self._processes.items() if process.poll() is not None]
            assert not over, f"ended: {over}; see {self._directory}"
            assert time.monotonic() < deadline, f"gave up waiting until {what}; see {self._directory}"
            time.sleep(0.2)
