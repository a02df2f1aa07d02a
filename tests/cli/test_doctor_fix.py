"""`gputui doctor --fix`: the runtime `nvidia` in daemon.json, with everything else kept."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from gputui.cli import engine_checks as engine
from gputui.cli.engine_checks import HOOK, ConfigChange, EngineProcess, registration, write
from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import GputuiError
from gputui.runtime.docker.endpoint import DEFAULT_URL
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.cli.conftest import Run
from tests.factories import NOW

ENTRY = {"args": [], "path": "nvidia-container-runtime"}
ANSWERS: dict[str, dict[str, object]] = {
    "/version": {"Version": "27.5.1", "ApiVersion": "1.47", "MinAPIVersion": "1.24"},
    "/info": {"NCPU": 8, "LiveRestoreEnabled": True, "Runtimes": {"runc": {"path": "runc"}}},
}


class Engine(BaseHTTPRequestHandler):
    """The part of an engine that doctor queries."""

    def do_GET(self) -> None:
        body = json.dumps(next((a for path, a in ANSWERS.items() if self.path.endswith(path)), {})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingUnixStreamServer):
    daemon_threads = True


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the settings file of an engine that answers on a socket of this process."""
    path = tmp_path / "daemon.json"
    monkeypatch.setattr(engine, "SYSTEM_SETTINGS", path)
    found = EngineProcess(os.getpid(), ("dockerd", f"--config-file={path}"), path=str(tmp_path))
    monkeypatch.setattr(engine, "process_behind", lambda address: found)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with Server(f"{tmp_path}/docker.sock", Engine) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield path
        server.shutdown()
        thread.join()


def test_fix_adds_the_runtime_and_keeps_other_settings(run: Run, settings: Path) -> None:
    settings.write_text('{\n  "live-restore": true,\n  "runtimes": {"kata": {"path": "kata"}}\n}\n')
    settings.chmod(0o640)
    done = run("doctor", "--fix", "--yes")
    assert (done.code, done.err) == (0, "")
    written = json.loads(settings.read_text())
    assert written == {"live-restore": True, "runtimes": {"kata": {"path": "kata"}, "nvidia": ENTRY}}
    assert list(written) == ["live-restore", "runtimes"]
    assert settings.stat().st_mode & 0o777 == 0o640
    [backup] = settings.parent.glob("daemon.json.*.bak")
    assert backup.read_text() == '{\n  "live-restore": true,\n  "runtimes": {"kata": {"path": "kata"}}\n}\n'
    assert '+      "path": "nvidia-container-runtime"' in done.out
    assert "sudo systemctl restart docker" in done.out  # it does not know the hook, which is not there yet


def test_a_runtime_that_is_registered_needs_a_reload_only(
    run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings.parent / HOOK).touch(0o755)
    monkeypatch.setattr(engine, "hook_is_newer", lambda process, path: False)
    done = run("doctor", "--fix", "--yes")
    assert "sudo systemctl reload docker    # ends no container" in done.out
    assert "restart" not in done.out


def test_a_second_fix_changes_nothing(run: Run, settings: Path) -> None:
    assert run("doctor", "--fix", "--yes").code == 0
    text = settings.read_text()
    again = run("doctor", "--fix", "--yes")
    assert (again.code, "registered already" in again.out) == (0, True)
    assert settings.read_text() == text
    assert list(settings.parent.glob("*.bak")) == []


def test_fix_asks_before_it_writes(run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run("doctor", "--fix")
    assert (refused.code, "--yes writes it" in refused.err) == (1, True)
    assert not settings.exists()


class Typed(io.StringIO):
    """Terminal at which somebody has typed."""

    def isatty(self) -> bool:
        return True


@cases(("answer", "code"), [("y", 0), ("n", 1)])
def test_the_answer_at_a_terminal_decides(
    run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    settings.unlink(missing_ok=True)
    monkeypatch.setattr(sys, "stdin", Typed(f"{answer}\n"))
    done = run("doctor", "--fix")
    assert (done.code, settings.exists()) == (code, code == 0)
    assert f"Write this to {settings}?" in done.out + done.err
    assert ("nothing was changed" in done.out) is (code == 1)


def test_the_machines_engine_is_assumed_to_be_here_while_it_does_not_answer(
    run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")
    monkeypatch.setattr(
        DockerRuntime, "check", lambda self: RuntimeStatus("docker", False, "down", address=DEFAULT_URL)
    )
    assert run("doctor", "--fix", "--yes").code == 0
    assert json.loads(settings.read_text()) == {"runtimes": {"nvidia": ENTRY}}


@cases(
    ("address", "word"),
    [
        ("unix:///nowhere/docker.sock", "start the engine at unix:///nowhere/docker.sock"),
        ("unix:///run/user/4000000/docker.sock", "systemctl --user enable --now docker"),
        ("unix:///run/user/4000000/podman/podman.sock", "systemctl --user enable --now podman.socket"),
        ("tcp://127.0.0.1:1", "start the engine at tcp://127.0.0.1:1"),
        ("ssh://", "use ssh://user@host"),
    ],
)
def test_no_file_is_changed_for_another_engine_that_does_not_answer(
    run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch, address: str, word: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    refused = run("doctor", "--fix", "--yes")
    assert (refused.code, settings.exists(), word in refused.err) == (1, False, True)
    assert "does not answer, so its settings file is not known" in refused.err


def test_sudo_changes_no_file_of_an_engine_that_its_user_does_not_use(
    run: Run, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with a rootless engine who follows advice for the machine's: sudo drops DOCKER_HOST."""
    monkeypatch.setenv("SUDO_UID", "4000000")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine, "own_engine", lambda uid: f"unix:///run/user/{uid}/docker.sock")
    monkeypatch.delenv("DOCKER_HOST")
    refused = run("--state", str(tmp_path), "doctor", "--fix", "--yes")
    assert (refused.code, settings.exists()) == (1, False)
    assert "uses the engine unix:///run/user/4000000/docker.sock" in refused.err
    assert "without sudo" in refused.err


def test_root_changes_no_file_of_a_user(run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = EngineProcess(os.getpid(), ("dockerd", f"--config-file={settings}"), uid=4_000_000)
    monkeypatch.setattr(engine, "process_behind", lambda address: found)
    refused = run("doctor", "--fix", "--yes")
    assert (refused.code, settings.exists(), "belong to uid 4000000" in refused.err) == (1, False, True)


def test_the_engine_is_seen_that_sudo_dropped(tmp_path: Path) -> None:
    """A program called sudo that starts Python without DOCKER_HOST, as sudo does."""
    script = "from gputui.cli.engine_checks import own_engine; print(own_engine(4_000_000))"
    sudo = tmp_path / "sudo"
    sudo.symlink_to(sys.executable)
    inner = [sys.executable, "-c", script]
    run_it = f"import subprocess; subprocess.run({inner!r}, env={{}}, check=True)"
    environ = {**os.environ, "DOCKER_HOST": "tcp://lab:2376"}
    done = subprocess.run([sudo, "-c", run_it], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "tcp://lab:2376\n"


def test_an_engine_of_another_context_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)  # of an account that is gone
    monkeypatch.setattr(os, "getppid", lambda: 1)
    (tmp_path / ".docker").mkdir()
    for text, found in (("{}", ""), ('{"currentContext": "default"}', ""), ("[", ""), ("[]", "")):
        (tmp_path / ".docker/config.json").write_text(text)
        assert engine.own_engine(4_000_000) == found
    (tmp_path / ".docker/config.json").write_text('{"currentContext": "rootless"}')
    assert engine.own_engine(4_000_000) == "of the context rootless"


@cases(
    ("path", "facts", "words"),
    [
        ("/version", {"Components": [{"Name": "Podman Engine"}]}, ("Podman has no daemon.json", "nvidia-ctk cdi")),
        (
            "/info",
            {"KernelVersion": "0.0.1-of-another", "Name": "the-engine"},
            ("runs on another machine", "on the-engine: gputui doctor --fix"),
        ),
    ],
)
def test_engines_without_a_settings_file_here_are_refused(
    run: Run,
    settings: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    facts: dict[str, object],
    words: tuple[str, ...],
) -> None:
    monkeypatch.setitem(ANSWERS, path, {**ANSWERS[path], **facts})
    refused = run("doctor", "--fix", "--yes")
    assert (refused.code, settings.exists()) == (1, False)
    assert [word for word in words if word not in refused.err] == []


def test_without_docker_there_is_nothing_to_fix(run: Run, settings: Path) -> None:
    refused = run("--runtime", "process", "doctor", "--fix", "--yes")
    assert (refused.code, settings.exists()) == (1, False)
    assert "--fix is for Docker engines" in refused.err
    assert "--runtime docker doctor --fix" in refused.err


@cases(
    ("content", "word"),
    [
        (b'{"a": "\xff"}', "is not UTF-8 text at byte 7"),
        (b" " * (1024**2 + 1), "is larger than 1 MiB"),
        (b"[" * 100_000, "is not JSON that can be changed"),
    ],
)
def test_files_that_cannot_be_kept_as_they_are_are_refused(run: Run, settings: Path, content: bytes, word: str) -> None:
    settings.write_bytes(content)
    refused = run("doctor", "--fix", "--yes")
    assert (refused.code, word in refused.err) == (1, True)
    assert settings.read_bytes() == content


def test_a_place_that_takes_no_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(GputuiError, match="cannot be written: Permission denied") as refused:
        write(ConfigChange(tmp_path / "daemon.json", "", "{}"), NOW)
    assert refused.value.where == str(tmp_path / "daemon.json")
    assert refused.value.hint == "run it as root: sudo gputui doctor --fix"


def test_a_disk_that_fails_leaves_the_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "daemon.json"
    path.write_text("{}")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(GputuiError, match="No space left on device") as refused:
        write(ConfigChange(path, "{}", '{"a": 1}'), NOW)
    assert refused.value.hint is None
    assert path.read_text() == "{}"
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".bak"] == ["daemon.json"]


@cases(
    ("text", "word"),
    [
        ('{"debug": true,}', "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"runtimes": []}', '"runtimes" is not an object'),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
    ],
)
def test_files_that_dockerd_would_refuse_are_refused_and_kept(run: Run, settings: Path, text: str, word: str) -> None:
    settings.write_text(text)
    refused = run("doctor", "--fix", "--yes")
    assert (refused.code, word in refused.err, str(settings) in refused.err) == (1, True, True)
    assert settings.read_text() == text


def test_a_wrong_path_is_corrected_and_its_arguments_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text('{"runtimes": {"nvidia": {"path": "/gone", "runtimeArgs": ["x"]}}}')
    change = registration(path)
    assert change is not None
    assert json.loads(change.after)["runtimes"]["nvidia"] == {"path": ENTRY["path"], "runtimeArgs": ["x"]}


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GputuiError, match="cannot be read"):
        registration(tmp_path)


def test_json_and_a_lone_yes_are_refused(run: Run) -> None:
    assert run("doctor", "--yes").code == 2
    assert run("doctor", "--fix", "--json").code == 2


@cases("text", ["", "no number", "{own}", "4194305"])
def test_pid_files_of_others_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "docker.pid").write_text(text.format(own=os.getpid()))
    monkeypatch.setattr(engine, "_PID_FILES", (tmp_path / "missing", tmp_path / "docker.pid"))
    assert engine.process_behind("unix:///nowhere/docker.sock") == EngineProcess()
