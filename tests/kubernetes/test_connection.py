"""Ways to the server: contexts of a kubeconfig, from within a pod, and none at all."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gputui.cluster.kubernetes.api_server import connect
from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.cluster.kubernetes.kubeconfig import context_in
from gputui.domain.container import ExecRequest
from gputui.domain.errors import ClusterUnavailableError, LostAnswerError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from tests.cases import cases
from tests.cluster.talk import Talk
from tests.factories import spec
from tests.kubernetes.fake.access import ADMIN
from tests.kubernetes.fake.server import FakeKubernetes, kubeconfig
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until
from tests.needs import need


def test_a_context_is_chosen(harness: KubernetesHarness, tmp_path: Path) -> None:
    first, second = json.loads(kubeconfig("http://127.0.0.1:9")), json.loads(kubeconfig(harness.fake.address))
    for name in ("clusters", "users", "contexts"):
        second[name][0]["name"] = f"other-{name}"
        first[name].append(second[name][0])
    second["contexts"][0]["context"] |= {"cluster": "other-clusters", "user": "other-users", "namespace": "x"}
    file = tmp_path / "config"
    file.write_text(json.dumps(first))
    environ = {"KUBECONFIG": str(file)}
    server = connect("other-contexts", environ, 5.0)
    assert (server.place, server.namespace) == ("other-contexts", "x")
    assert b"gitVersion" in server.get("/version")
    server.close()
    assert context_in(environ) == "test"
    with pytest.raises(ClusterUnavailableError, match="no context 'missing'"):
        connect("missing", environ, 5.0)


def test_without_a_kubeconfig_there_is_no_way(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailableError, match="there is no way to Kubernetes"):
        connect(None, {"HOME": str(tmp_path)}, 5.0)


def test_only_a_request_that_may_have_arrived_has_lost_its_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "config").write_text(kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        server = connect(None, {"KUBECONFIG": str(tmp_path / "config")}, 0.3)
        with pytest.raises(LostAnswerError, match="Kubernetes does not answer"):
            server.send("POST", "/apis/batch/v1/namespaces/x/jobs", {})
    with pytest.raises(ClusterUnavailableError) as caught:
        server.send("POST", "/apis/batch/v1/namespaces/x/jobs", {})
    assert type(caught.value) is ClusterUnavailableError
    server.close()


def test_a_server_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        file = tmp_path / "config"
        file.write_text(kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        cluster = KubernetesCluster(
            lambda: connect(None, {"KUBECONFIG": str(file)}, 0.3), Settings(), tmp_path / "state", user="ann"
        )
        with pytest.raises(ClusterUnavailableError, match="Kubernetes does not answer"):
            cluster.snapshot()
        [fault] = cluster.faults()
        assert (fault.name, fault.stops_jobs) == ("server", True)
        cluster.close()


class _Elsewhere(BaseHTTPRequestHandler):
    """A server of something else."""

    def do_GET(self) -> None:
        body = b"<html>\x1b[31mPlease log in</html>"
        self.send_response(200 if self.headers["Authorization"] == "Bearer page" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""


@cases("token", ["page", "none"])
def test_another_server_is_no_kubernetes(tmp_path: Path, token: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        file = tmp_path / "config"
        file.write_text(kubeconfig(f"http://127.0.0.1:{server.server_port}", token))
        cluster = KubernetesCluster(
            lambda: connect(None, {"KUBECONFIG": str(file)}, 10.0), Settings(), tmp_path / "state", user="ann"
        )
        with pytest.raises(ClusterUnavailableError, match="no API server of Kubernetes") as refused:
            cluster.snapshot()
        assert "\x1b" not in str(refused.value)
        cluster.close()
        server.shutdown()
        thread.join(10)


def test_a_pod_reaches_the_server_of_its_own_cluster(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.crt"
    need("openssl")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    about = ["-days", "30", "-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", key, "-out", certificate, *about], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    fake = FakeKubernetes(tls=context)
    (tmp_path / "token").write_text(ADMIN)
    (tmp_path / "namespace").write_text("research")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(fake.port), "HOME": "/nowhere"}
    cluster = KubernetesCluster(
        lambda: connect(None, environ, 10.0, account=tmp_path), Settings(), tmp_path / "state", user="ann"
    )
    try:
        assert len(cluster.snapshot().nodes) == 3
        assert cluster.name == "in-cluster"
        until(cluster.snapshot, lambda _: any("watch" in each for each in fake.requests), "it watches, by TLS too")
        fake.add_node("gpu4")
        until(cluster.snapshot, lambda snapshot: len(snapshot.nodes) == 4, "the watch tells")
        [job_id] = cluster.submit([Submission(spec())], "k1")
        job = until(lambda: cluster.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")
        talk = Talk(cluster.enter(job, ExecRequest(("head", "-c", "100000", "/dev/zero"))))
        assert (talk.end(), len(talk.out)) == (0, 100_000)
    finally:
        cluster.close()
        fake.close()
