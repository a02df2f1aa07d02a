"""Runs a little of everything on the installed dependencies, whatever their versions: no pytest, no other tests.

    cd /tmp && some-venv/bin/python /path/to/tests/smoke/run.py

CI runs it on the lowest versions that pyproject.toml allows and on the newest: every module is imported, every command
runs once, the console opens in a terminal and paints, jobs run as processes on simulated GPUs, and pynvml, docker-py,
urllib3 and a Kubernetes are spoken to. Exits with 1 after the first failure.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import pty
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SECONDS = 30
"""Maximum seconds to wait for anything."""
STANDIN = Path(__file__).parents[1] / "gpus" / "nvml" / "nvml.c"


def import_everything(_: Path) -> None:
    """Import every module of the package; the probe's program runs only when it is called `__main__`."""
    import gputui

    for module in pkgutil.walk_packages(gputui.__path__, "gputui."):
        if module.name != "gputui.__main__":
            importlib.import_module(module.name)


def call(*words: str) -> str:
    """Run a command in this process, and return what it prints; it must succeed."""
    from gputui.cli.main import run

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    if code:
        raise SystemExit(f"gputui {' '.join(words)}: exit code {code}: {said[1]}")
    return said[0]


def run_every_command(directory: Path) -> None:
    """Run each command of the help once, on a queue of its own."""
    from gputui.cli.main import COMMANDS

    call("--help")
    for name in COMMANDS:
        call(name, "--help")
    one = call("submit", "--host", "--gpus", "1", "--time-limit", "1h", "--hold", "--", "true").strip()
    call("submit", "--host", "--gpus", "1", "--time-limit", "1m", "--array", "0-3%2", "--", "true")
    for words in (
        ["queue", "--all"],
        ["queue", "--json"],
        ["show", one],
        ["explain", one],
        ["edit", one, "--priority", "70"],
        *([name, one] for name in ("release", "hold")),
        ["priority", one, "+5"],
        ["cancel", one],
        ["gpus", "--json"],
        ["top"],
        ["drain", "1"],
        ["resume", "1"],
        ["pause"],
        ["unpause"],
        ["reserve", "add", "--gpus", "1", "--start", "18:00", "--for", "8h", "--tenant", "course"],
        ["reserve", "list"],
        ["reserve", "remove", "r1"],
        ["tenant", "set", "course", "--weight", "2"],
        ["tenant", "list"],
        ["cron", "add", "30 2 * * 1-5", "--name", "nightly", "--", "--host", "--", "true"],
        ["cron", "list"],
        ["completions", "fish"],
        ["doctor"],
        ["replay", str(_trace(directory)), "--gpus", "2"],
    ):
        call(*words)


def _trace(directory: Path) -> Path:
    path = directory / "trace.csv"
    path.write_text("submit_time_s,duration_s,gpus,vc\n0,60,1,a\n10,120,2,b\n")
    return path


@contextlib.contextmanager
def scheduling() -> Iterator[None]:
    """Run `gputui serve`."""
    server = subprocess.Popen([sys.executable, "-m", "gputui", "serve"], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.terminate()
        server.wait(SECONDS)


def run_a_job(_: Path) -> None:
    """Run a job as a process on a simulated GPU, to its end and its log."""
    with scheduling():
        job = call(
            "submit",
            "--host",
            "--gpus",
            "1",
            "--time-limit",
            "1m",
            "--",
            "sh",
            "-c",
            "echo it works on $CUDA_VISIBLE_DEVICES",
        ).strip()
        until(lambda: json.loads(call("show", job, "--json"))["state"] == "COMPLETED", f"job {job} to end")
        assert "it works on GPU-" in call("logs", job)
        call("requeue", job)


def open_the_console(_: Path) -> None:
    """Open the console in a terminal, and wait until it has drawn the GPUs and the queue."""
    call("submit", "--host", "--hold", "--name", "smoke-job", "--", "true")
    see_in_terminal([], b"smoke-job", b"/80G")


def open_the_demo(_: Path) -> None:
    """Open the demo, and wait until it has drawn its GPUs and the jobs that it keeps submitting."""
    see_in_terminal(["demo"], b"/80G", b"llama")


def see_in_terminal(words: list[str], *texts: bytes) -> None:
    """Run gputui in a terminal until it has drawn these texts."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
        os.execv(sys.executable, [sys.executable, "-m", "gputui", *words])
    drawn = b""

    def shows() -> bool:
        nonlocal drawn
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # its end
                drawn += os.read(terminal, 65536)
        return all(text in drawn for text in texts)

    try:
        until(shows, f"gputui {' '.join(words)} to draw", lambda: drawn[-2000:].decode(errors="replace"))
    finally:
        os.kill(pid, signal.SIGTERM)
        os.close(terminal)
        os.waitpid(pid, 0)


def open_the_web(_: Path) -> None:
    """Serve the console to browsers, and open its link."""
    command = [sys.executable, "-m", "gputui", "web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            link = server.stdout.readline().split()[0]
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(link, timeout=SECONDS) as page:
                place = page.read().decode().partition('href="/')[2].partition('"')[0]
            with browser.open(urllib.parse.urljoin(link, f"/{place}"), timeout=SECONDS) as page:
                assert b"textual" in page.read()
        finally:
            server.terminate()


def report(directory: Path) -> None:
    """Write a report as a page, a backup, and the units; the manual is where pip puts it."""
    page = call("report", "--since", "-1d", "--format", "html")
    assert "<svg" in page
    assert "<table" in page
    backup = str(directory / "backup.tar.gz")
    call("state", "backup", backup)
    assert "everything can be read" in call("state", "verify", backup)
    assert "ExecStart=" in call("install", "--dry-run")
    assert '"gputui job file"' in call("schema", "job")
    assert (Path(sys.prefix) / "share" / "man" / "man1" / "gputui-submit.1").exists()
    assert (Path(sys.prefix) / "share" / "gputui" / "schemas" / "job.schema.json").exists()


def read_gpus(directory: Path) -> None:
    """Have pynvml read the stand-in driver's GPUs, in a probe process."""
    library = str(directory / "libnvidia-ml.so.1")
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-O1", "-o", library, str(STANDIN)], check=True)
    behaviour = directory / "behaviour"
    behaviour.write_text("count 2\n")
    environ = {**os.environ, "LD_LIBRARY_PATH": str(directory), "NVML_STANDIN": str(behaviour), "GPUTUI_PROBE": "nvml"}
    command = [sys.executable, "-m", "gputui", "--state", str(directory / "other"), "gpus", "--json"]
    told = subprocess.run(command, env=environ, check=True, capture_output=True, timeout=SECONDS).stdout
    assert [gpu["state"] for gpu in json.loads(told)] == ["FREE", "FREE"], told


class Listener(BaseHTTPRequestHandler):
    """Webhook, and the part of a Docker engine that reports its version."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        body = b'{"Version": "27.5.1", "ApiVersion": "1.47", "Runtimes": {"nvidia": {"path": "x"}}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def speak_http(_: Path) -> None:
    """Have docker-py ask an engine over TCP, and urllib3 deliver to a webhook."""
    from gputui.bootstrap import clock
    from gputui.domain.settings import RuntimeSettings
    from gputui.engine.hooks import post
    from gputui.runtime.docker.runtime import DockerRuntime

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        post(f"http://{address}/hook", b"{}", 5)
        engine = DockerRuntime("0" * 12, RuntimeSettings(f"tcp://{address}", timedelta(seconds=5)), clock())
        status = engine.check()
        engine.close()
        server.shutdown()
    assert status.up, status.text


def speak_to_kubernetes(directory: Path) -> None:
    """Have PyYAML read a kubeconfig, and urllib3 ask its server."""
    from gputui.cluster.kubernetes.api_server import connect

    file = directory / "kubeconfig"
    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        users = [{"name": "a", "user": {"token": "t"}}]
        contexts = [{"name": "a", "context": {"cluster": "a", "user": "a"}}]
        named = {"clusters": [place], "users": users, "contexts": contexts, "current-context": "a"}
        file.write_text(json.dumps(named))
        api = connect(None, {"KUBECONFIG": str(file)}, 5.0)
        assert api.get("/version")
        api.close()
        server.shutdown()


def until(is_so: Callable[[], bool], what: str, more: Callable[[], str] = lambda: "") -> None:
    """Wait for something; fail when it does not come."""
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {SECONDS} s in vain for {what}\n{more()}")
        time.sleep(0.05)


_PARTS = (
    *(import_everything, run_every_command, run_a_job, open_the_console, open_the_demo, open_the_web, report),
    *(read_gpus, speak_http, speak_to_kubernetes),
)


def main() -> None:
    """Run every part in a directory of its own."""
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        for name in [name for name in os.environ if name.startswith(("GPUTUI_", "DOCKER_"))]:
            del os.environ[name]
        os.environ.update(GPUTUI_STATE=f"{text}/state", GPUTUI_PROBE="sim:2:H100", GPUTUI_RUNTIME="process")
        os.environ.update(GPUTUI_SCHEDULER_HAND_OVER="never")  # nothing is to be left behind
        os.environ.update(XDG_STATE_HOME=text, XDG_CONFIG_HOME=text)
        for part in _PARTS:
            before = time.monotonic()
            part(directory)
            print(f"smoke: {part.__name__}: {time.monotonic() - before:.1f} s", flush=True)


if __name__ == "__main__":
    main()
