"""Contract of every Runtime, as tests that each implementation runs: subclass RuntimeContract with a `harness`."""

from __future__ import annotations

import itertools
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState, Created, Launch
from gputui.domain.errors import CauseCode, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.ports import LogStream, Runtime
from tests.factories import uuid
from tests.waiting import until

STORE = f"test{secrets.token_hex(4)}"
OTHER_STORE = f"test{secrets.token_hex(4)}"
"""Unique like real store ids, since processes of concurrent tests are distinguished by them."""
PATIENCE = 60.0
"""Seconds to wait for something that should have happened."""

SLEEP = ("sleep", "600")
IGNORE_TERM = ("sh", "-c", 'trap "" TERM; echo ready; while :; do sleep 1; done')
NOT_FOUND = ("/no/such/command",)
NOT_EXECUTABLE = ("/etc/hostname",)
"""File that exists on hosts and in every container, and is not a program."""


def shell(script: str) -> tuple[str, ...]:
    """Return a command for the shell that hosts and small images share."""
    return ("sh", "-c", script)


def until_told(then: str) -> tuple[str, ...]:
    """Return a command that prints `ready` and runs until it is asked to end; then it runs these words."""
    return shell(f'trap "{then}" TERM; echo ready; while :; do sleep 0.02; done')


@dataclass
class Harness:
    """Runtime under test, with its launches. All created attempts are removed at the end."""

    make_runtime: Callable[[str], Runtime]
    """Returns a new runtime over the same engine (or directory of host jobs) for that store id."""
    image: str | None = None
    """Name of a small image with a shell; None: host processes."""
    name: str = "process"
    gpus: tuple[str, ...] = (uuid(0), uuid(1), uuid(2))
    """UUIDs the runtime accepts."""
    runtimes: list[Runtime] = field(default_factory=list)
    _job_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def open(self, store_id: str = STORE) -> Runtime:
        """Open another runtime, as the next gputui process would after this one died."""
        self.runtimes.append(self.make_runtime(store_id))
        return self.runtimes[-1]

    def launch(
        self,
        command: tuple[str, ...],
        *,
        gpus: tuple[str, ...] = (),
        store_id: str = STORE,
        attempt: int = 1,
        array_index: int | None = None,
        **options: Any,
    ) -> Launch:
        """Return the launch of a new job that runs the command; keywords are ContainerOptions.

        Containers have the engine's own network unless a test asks for another, which costs the engine time.
        """
        options = {"network": "host", **options} if self.image else options
        spec = JobSpec(image=self.image, command=command, name="try", options=ContainerOptions(**options))
        return Launch(store_id, next(self._job_ids), attempt, spec, gpus, array_index)

    def clean(self) -> None:
        """End and remove everything of both stores."""
        for store_id in (STORE, OTHER_STORE):
            runtime = self.open(store_id)
            for record in runtime.containers():
                runtime.kill(record.id)
                self.ended(runtime, record.id)
                runtime.remove(record.id)
        for runtime in self.runtimes:
            runtime.close()

    def ended(self, runtime: Runtime, container_id: str) -> ContainerRecord:
        """Return the record once the attempt has ended."""
        until(lambda: record(runtime, container_id).state is not ContainerState.RUNNING, "it ended")
        return record(runtime, container_id)


def record(runtime: Runtime, container_id: str) -> ContainerRecord:
    """Return the record of an existing attempt."""
    found = runtime.inspect(container_id)
    assert found is not None, f"{container_id} is not there"
    return found


def output(runtime: Runtime, container_id: str, path: Path) -> bytes:
    """Return all of its output."""
    runtime.save_log(container_id, path)
    return path.read_bytes()


def seen(runtime: Runtime, container_id: str, line: bytes) -> None:
    """Wait until it has printed the line, so that its command is running."""
    stream = runtime.logs(container_id, follow=True)
    try:
        assert any(each == line for each in stream), f"it ended without printing {line!r}"
    finally:
        stream.close()


class RuntimeContract:
    """Subclasses give a `harness` fixture that yields a Harness and calls `clean()` on it afterwards."""

    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        raise NotImplementedError

    @pytest.fixture
    def runtime(self, harness: Harness) -> Runtime:
        return harness.open()

    def run(self, runtime: Runtime, launch: Launch) -> str:
        """Create and start an attempt; return its id."""
        created = runtime.create(launch)
        runtime.start(created.id)
        return created.id

    def run_out(self, harness: Harness, runtime: Runtime, launch: Launch) -> ContainerRecord:
        """Create and start an attempt, and wait for its end."""
        return harness.ended(runtime, self.run(runtime, launch))

    # what it is

    def test_the_runtime_reports_its_state(self, harness: Harness, runtime: Runtime) -> None:
        checked = runtime.check()
        assert (checked.name, checked.up) == (harness.name, True)
        assert runtime.status() == checked
        assert runtime.name == harness.name

    def test_an_existing_image_is_found(self, harness: Harness, runtime: Runtime) -> None:
        assert runtime.has_image(harness.image or "")

    # create

    def test_a_created_attempt_is_not_started(self, harness: Harness, runtime: Runtime) -> None:
        launch = harness.launch(shell("echo ran"), gpus=harness.gpus[:2], attempt=3)
        created = runtime.create(launch)
        found = record(runtime, created.id)
        assert not created.adopted
        assert found in runtime.containers()
        assert (found.id, found.job_id, found.attempt) == (created.id, launch.job_id, 3)
        assert (found.state, found.gpus) == (ContainerState.CREATED, harness.gpus[:2])
        assert (found.started_at, found.ended_at, found.exit_code, found.cause) == (None, None, None, None)

    def test_a_second_create_adopts_the_first(self, harness: Harness, runtime: Runtime) -> None:
        launch = harness.launch(SLEEP, gpus=harness.gpus[:1])
        first = runtime.create(launch)
        second = harness.open().create(launch)
        assert (second.id, second.adopted) == (first.id, True)
        assert len(runtime.containers()) == 1

    def test_concurrent_creates_make_one_attempt(self, harness: Harness, runtime: Runtime) -> None:
        launch = harness.launch(SLEEP)
        made: list[Created] = []

        def create(one: Runtime) -> None:
            made.append(one.create(launch))

        _run_all([threading.Thread(target=create, args=(harness.open(),)) for _ in range(4)])
        assert sorted(each.adopted for each in made) == [False, True, True, True]
        assert len(runtime.containers()) == 1

    def test_an_unstarted_attempt_with_other_gpus_is_replaced(self, harness: Harness, runtime: Runtime) -> None:
        launch = harness.launch(shell("echo $NVIDIA_VISIBLE_DEVICES"), gpus=harness.gpus[:1])
        runtime.create(launch)
        other = Launch(launch.store_id, launch.job_id, launch.attempt, launch.spec, harness.gpus[1:3])
        created = runtime.create(other)
        assert not created.adopted
        assert [each.gpus for each in runtime.containers()] == [harness.gpus[1:3]]

    def test_a_container_that_ran_is_adopted_regardless_of_its_gpus(self, harness: Harness, runtime: Runtime) -> None:
        launch = harness.launch(SLEEP, gpus=harness.gpus[:1])
        first = self.run(runtime, launch)
        other = Launch(launch.store_id, launch.job_id, launch.attempt, launch.spec, harness.gpus[1:2])
        created = runtime.create(other)
        assert (created.id, created.adopted) == (first, True)
        assert record(runtime, first).gpus == harness.gpus[:1]

    def test_an_impossible_spec_is_blamed_on_the_spec(self, harness: Harness, runtime: Runtime) -> None:
        with pytest.raises(RuntimeFault) as fault:
            self.run(runtime, harness.launch(SLEEP, ulimits=("nonsense",)))
        assert fault.value.cause.code is CauseCode.BAD_SPEC
        assert "nonsense" in fault.value.cause.text

    # start and end

    def test_an_attempt_runs_from_start_to_end(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(until_told("read x < /proc/uptime; exit 0")))
        running = record(runtime, container_id)
        assert running.state is ContainerState.RUNNING
        assert running.started_at is not None
        assert running.started_at.utcoffset() is not None
        assert running.pid is not None
        assert (running.exit_code, running.cause, running.ended_at) == (None, None, None)
        seen(runtime, container_id, b"ready")
        runtime.terminate(container_id)
        ended = harness.ended(runtime, container_id)
        assert (ended.state, ended.exit_code, ended.cause) == (ContainerState.EXITED, 0, None)
        assert ended.ended_at is not None
        assert ended.started_at == running.started_at < ended.ended_at

    def test_the_exit_code_is_kept(self, harness: Harness, runtime: Runtime) -> None:
        ended = self.run_out(harness, runtime, harness.launch(shell("exit 3")))
        assert ended.exit_code == 3
        assert ended.cause is not None
        assert ended.cause.code is CauseCode.NON_ZERO_EXIT

    def test_a_second_start_runs_nothing_twice(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        container_id = self.run(runtime, harness.launch(shell("echo ran; sleep 0.3")))
        runtime.start(container_id)
        harness.ended(runtime, container_id)
        runtime.start(container_id)
        assert record(runtime, container_id).state is ContainerState.EXITED
        assert output(runtime, container_id, tmp_path / "log") == b"ran\n"

    def test_concurrent_starts_run_an_attempt_once(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        container_id = runtime.create(harness.launch(shell("echo ran; sleep 0.2"))).id
        _run_all([threading.Thread(target=harness.open().start, args=(container_id,)) for _ in range(4)])
        assert record(runtime, container_id).started_at is not None
        harness.ended(runtime, container_id)
        assert output(runtime, container_id, tmp_path / "log") == b"ran\n"

    @pytest.mark.parametrize(
        ("command", "code"),
        [(NOT_FOUND, CauseCode.COMMAND_NOT_FOUND), (NOT_EXECUTABLE, CauseCode.COMMAND_NOT_EXECUTABLE)],
        ids=["not found", "not executable"],
    )
    def test_an_unrunnable_command_is_reported(
        self, harness: Harness, runtime: Runtime, command: tuple[str, ...], code: CauseCode
    ) -> None:
        created = runtime.create(harness.launch(command))
        with pytest.raises(RuntimeFault) as fault:
            runtime.start(created.id)
        assert fault.value.cause.code is code
        assert command[0] in fault.value.cause.text
        assert record(runtime, created.id).state is not ContainerState.RUNNING
        runtime.remove(created.id)
        assert runtime.inspect(created.id) is None

    def test_terminate_sends_sigterm(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        script = 'trap "echo bye; exit 5" TERM; echo ready; while :; do sleep 0.1; done'
        container_id = self.run(runtime, harness.launch(shell(script)))
        seen(runtime, container_id, b"ready")
        runtime.terminate(container_id)
        assert harness.ended(runtime, container_id).exit_code == 5
        assert b"bye" in output(runtime, container_id, tmp_path / "log")

    def test_an_end_by_a_signal_is_recorded(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(shell("echo ready; exec sleep 600")))
        seen(runtime, container_id, b"ready")  # before that a signal ends runc's own process, with 2
        runtime.terminate(container_id)
        ended = harness.ended(runtime, container_id)
        assert ended.exit_code == 143
        assert ended.cause is not None
        assert ended.cause.code is CauseCode.SIGNALLED

    def test_kill_ends_a_job_that_ignores_sigterm(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(IGNORE_TERM))
        seen(runtime, container_id, b"ready")
        runtime.terminate(container_id)
        assert record(runtime, container_id).state is ContainerState.RUNNING
        runtime.kill(container_id)
        ended = harness.ended(runtime, container_id)
        assert ended.exit_code == 137
        assert ended.cause is not None
        assert ended.cause.code is CauseCode.SIGNALLED

    def test_a_signal_reaches_the_command_which_keeps_running(
        self, harness: Harness, runtime: Runtime, tmp_path: Path
    ) -> None:
        script = 'trap "echo warned" USR1; trap "exit 5" TERM; echo ready; while :; do sleep 0.1; done'
        container_id = self.run(runtime, harness.launch(shell(script)))
        seen(runtime, container_id, b"ready")
        runtime.signal(container_id, signal.SIGUSR1)
        seen(runtime, container_id, b"warned")
        assert record(runtime, container_id).state is ContainerState.RUNNING
        runtime.terminate(container_id)
        assert harness.ended(runtime, container_id).exit_code == 5
        assert output(runtime, container_id, tmp_path / "log").count(b"warned") == 1

    def test_a_suspended_job_is_stopped_until_it_is_continued_or_ended(
        self, harness: Harness, runtime: Runtime
    ) -> None:
        counts = 'trap "echo bye; exit 5" TERM; echo ready; while :; do sleep 0.02; echo tick; done'
        container_id = self.run(runtime, harness.launch(shell(counts)))
        seen(runtime, container_id, b"tick")
        for _ in range(2):
            runtime.suspend(container_id)
            assert record(runtime, container_id).is_suspended
            assert record(runtime, container_id).state is ContainerState.RUNNING
        until(lambda: self.is_still(runtime, container_id), "it stands still, and all that it wrote has come")
        before = tuple(runtime.logs(container_id))
        for _ in range(2):
            runtime.unsuspend(container_id)
            assert not record(runtime, container_id).is_suspended
        until(lambda: len(tuple(runtime.logs(container_id))) > len(before), "it goes on")
        runtime.suspend(container_id)
        runtime.terminate(container_id)
        assert harness.ended(runtime, container_id).exit_code == 5
        runtime.suspend(container_id)
        runtime.unsuspend(container_id)

    def is_still(self, runtime: Runtime, container_id: str) -> bool:
        """Return whether the attempt writes nothing for ten times its usual interval."""
        before = tuple(runtime.logs(container_id))
        time.sleep(0.2)
        return tuple(runtime.logs(container_id)) == before

    def test_a_suspended_job_can_be_killed(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(SLEEP))
        runtime.suspend(container_id)
        runtime.kill(container_id)
        assert harness.ended(runtime, container_id).exit_code == 137

    def test_ending_an_ended_attempt_does_nothing(self, harness: Harness, runtime: Runtime) -> None:
        ended = self.run_out(harness, runtime, harness.launch(shell("exit 4")))
        runtime.signal(ended.id, signal.SIGUSR1)
        runtime.terminate(ended.id)
        runtime.kill(ended.id)
        assert record(runtime, ended.id) == ended

    # what it runs in

    def test_a_job_has_its_environment(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        launch = harness.launch(
            shell(
                'echo "$NVIDIA_VISIBLE_DEVICES|$GPUTUI_ATTEMPT|$GPUTUI_JOB_ID|$GPUTUI_GPUS|$GPUTUI_ARRAY_INDEX|$MINE"'
            ),
            gpus=harness.gpus[:2],
            env=(("MINE", "a b=c"),),
            array_index=7,
        )
        ended = self.run_out(harness, runtime, launch)
        printed = output(runtime, ended.id, tmp_path / "log").decode()
        assert printed == f"{','.join(harness.gpus[:2])}|{launch.tag}|{launch.job_id}|2|7|a b=c\n"

    def test_the_environment_has_the_promised_memory_of_shared_gpus(
        self, harness: Harness, runtime: Runtime, tmp_path: Path
    ) -> None:
        made = harness.launch(shell('echo "$NVIDIA_VISIBLE_DEVICES|$GPUTUI_GPU_MEMORY"'), gpus=harness.gpus[:1])
        shared = replace(made, spec=replace(made.spec, gpus=GpuRequest(1, 1, memory=10 * 1024**3, share=True)))
        ended = self.run_out(harness, runtime, shared)
        assert output(runtime, ended.id, tmp_path / "log").decode() == f"{harness.gpus[0]}|{10 * 1024**3}\n"

    def test_a_job_without_gpus_sees_none(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        ended = self.run_out(harness, runtime, harness.launch(shell("echo $NVIDIA_VISIBLE_DEVICES")))
        assert output(runtime, ended.id, tmp_path / "log") == b"void\n"

    def test_workdir_and_ulimits_are_set(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        launch = harness.launch(shell("pwd; ulimit -Sn; ulimit -Hn"), workdir="/usr", ulimits=("nofile=100:200",))
        ended = self.run_out(harness, runtime, launch)
        assert output(runtime, ended.id, tmp_path / "log") == b"/usr\n100\n200\n"

    # finding

    def test_an_attempt_is_found_by_the_next_process(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(until_told("exit 7"), gpus=harness.gpus[:1]))
        seen(runtime, container_id, b"ready")
        runtime.close()
        later = harness.open()
        (found,) = later.containers()
        assert (found.id, found.state, found.gpus) == (container_id, ContainerState.RUNNING, harness.gpus[:1])
        later.terminate(container_id)
        assert harness.ended(later, container_id).exit_code == 7

    def test_an_attempt_is_ended_by_the_next_process(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(SLEEP))
        runtime.close()
        later = harness.open()
        later.kill(container_id)
        assert harness.ended(later, container_id).exit_code == 137

    def test_attempts_of_another_store_are_not_listed(self, harness: Harness, runtime: Runtime) -> None:
        other = harness.open(OTHER_STORE)
        container_id = self.run(other, harness.launch(SLEEP, store_id=OTHER_STORE))
        assert runtime.containers() == ()
        assert [each.id for each in other.containers()] == [container_id]

    def test_own_attempts_are_not_foreign(self, harness: Harness, runtime: Runtime) -> None:
        self.run(runtime, harness.launch(SLEEP, gpus=harness.gpus[:1]))
        assert runtime.foreign() == ()

    def test_an_unknown_container_is_reported(self, runtime: Runtime, tmp_path: Path) -> None:
        name = f"gputui-{STORE}-999-1"
        assert runtime.inspect(name) is None
        runtime.remove(name)
        with pytest.raises(RuntimeFault):
            runtime.start(name)
        with pytest.raises(RuntimeFault):
            runtime.save_log(name, tmp_path / "log")
        assert list(tmp_path.glob("log*")) == []

    # output

    def test_the_output_is_saved_completely(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        script = r"echo out; echo err >&2; printf 'raw \377 byte\n'; printf unfinished"
        ended = self.run_out(harness, runtime, harness.launch(shell(script)))
        printed = output(runtime, ended.id, tmp_path / "log")
        assert sorted(printed.split(b"\n")) == [b"err", b"out", b"raw \xff byte", b"unfinished"]

    def test_the_last_lines_are_read(self, harness: Harness, runtime: Runtime) -> None:
        ended = self.run_out(harness, runtime, harness.launch(shell("seq 1 3000")))
        assert list(runtime.logs(ended.id, tail=3)) == [b"2998", b"2999", b"3000"]
        assert len(list(runtime.logs(ended.id))) == 3000
        assert list(runtime.logs(ended.id, tail=0)) == []

    def test_following_ends_with_the_attempt(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(
            runtime, harness.launch(shell("for i in 1 2 3; do echo $i; sleep 0.1; done; printf end"))
        )
        assert list(runtime.logs(container_id, follow=True)) == [b"1", b"2", b"3", b"end"]
        assert list(runtime.logs(container_id, follow=True)) == [b"1", b"2", b"3", b"end"]

    def test_close_ends_following(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(shell("echo one; sleep 600")))
        stream = runtime.logs(container_id, follow=True)
        lines: list[bytes] = []
        first = threading.Event()
        thread = threading.Thread(target=_collect, args=(stream, lines, first), daemon=True)
        thread.start()
        assert first.wait(PATIENCE)
        stream.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert lines == [b"one"]
        assert record(runtime, container_id).state is ContainerState.RUNNING

    # removing and watching

    def test_a_removed_attempt_is_gone(self, harness: Harness, runtime: Runtime) -> None:
        ended = self.run_out(harness, runtime, harness.launch(shell("true")))
        runtime.remove(ended.id)
        runtime.remove(ended.id)
        assert runtime.inspect(ended.id) is None
        assert runtime.containers() == ()

    def test_a_running_attempt_is_not_removed(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(SLEEP))
        with pytest.raises(RuntimeFault):
            runtime.remove(container_id)
        assert record(runtime, container_id).state is ContainerState.RUNNING

    def test_an_end_wakes_the_scheduler(self, harness: Harness, runtime: Runtime) -> None:
        woken = threading.Event()
        runtime.watch(woken.set)
        container_id = self.run(runtime, harness.launch(SLEEP))
        woken.clear()
        runtime.kill(container_id)
        assert woken.wait(PATIENCE)
        assert harness.ended(runtime, container_id).exit_code == 137

    def test_the_end_of_an_attempt_started_before_wakes_the_scheduler(self, harness: Harness, runtime: Runtime) -> None:
        container_id = self.run(runtime, harness.launch(SLEEP))
        runtime.close()
        later = harness.open()
        woken = threading.Event()
        later.watch(woken.set)
        until(lambda: later.check().up, "it answers")
        woken.clear()
        later.kill(container_id)
        assert woken.wait(PATIENCE)

    def test_close_leaves_attempts_running(self, harness: Harness, runtime: Runtime) -> None:
        runtime.watch(lambda: None)
        container_id = self.run(runtime, harness.launch(SLEEP))
        runtime.close()
        runtime.close()
        assert record(harness.open(), container_id).state is ContainerState.RUNNING


def _run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _collect(stream: LogStream, lines: list[bytes], first: threading.Event) -> None:
    for line in stream:
        lines.append(line)
        first.set()
