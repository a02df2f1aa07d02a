"""The client for programs: jobs of a real owner, and the examples of the docs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import msgspec
import pytest

from gputui import AsyncClient, Client, GputuiError
from gputui import config as options
from gputui.client import Beginning, JobEvent, JobInfo, JobOptions
from gputui.domain.action import Pause
from gputui.domain.errors import InputError, NoOwnerError, NotFoundError
from tests.api.scripted_owner import answer_of, scripted, whole_message
from tests.waiting import until

EXAMPLES = Path(__file__).parents[1] / "examples"
PATIENCE = 60.0


class Owner:
    """A `gputui serve` with two simulated GPUs, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.socket = str(self.state / "api.sock")
        self._log = directory / "log"
        self.start()

    def start(self) -> None:
        words = ("--state", str(self.state), "--probe", "sim:2:A100", "--runtime", "process", "serve")
        with self._log.open("ab") as out:
            self._process = subprocess.Popen([sys.executable, "-P", "-m", "gputui", *words], stdout=out, stderr=out)
        until(self._answers, self._log.read_text)

    def _answers(self) -> bool:
        try:
            with Client(self.socket) as client:
                client.about()
        except NoOwnerError:
            return False
        return True

    def end(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.wait(PATIENCE)


@contextmanager
def owning(directory: Path) -> Iterator[Owner]:
    found = Owner(directory)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    with owning(tmp_path_factory.mktemp("owner")) as found:
        yield found


@pytest.fixture
def client(owner: Owner) -> Iterator[Client]:
    with Client(owner.socket, timeout=PATIENCE) as found:
        yield found


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


# jobs


def test_a_job_is_submitted_waited_for_and_read(client: Client) -> None:
    script = "for n in 1 2 3; do echo $WORD $n; done; pwd"
    number = client.submit(shell(script), gpus=1, name="count", time_limit=60, env={"WORD": "line"})
    ended = client.wait(number, timeout=PATIENCE)
    assert (ended.name, ended.state, ended.exit_code, len(ended.attempts[0].gpus)) == ("count", "COMPLETED", 0, 1)
    assert list(client.logs(number)) == ["line 1", "line 2", "line 3", str(Path.cwd())]
    assert list(client.logs(number, tail=1)) == [str(Path.cwd())]
    spec = client.job(number).spec
    assert spec is not None
    assert spec["env"]["WORD"] == "***"


def test_output_is_followed_from_the_start_of_a_job_that_waits(client: Client) -> None:
    number = client.submit(shell("echo first; sleep 0.5; echo last; exit 3"), held=True)
    lines = client.logs(number, follow=True)
    threading.Timer(0.3, lambda: client.release(number)).start()
    assert list(lines) == ["first", "last"]
    assert client.wait(number).exit_code == 3


def test_a_request_with_the_same_key_is_one_job(client: Client) -> None:
    numbers = {client.submit("true", key="night-1") for _ in range(3)}
    assert len(numbers) == 1
    with pytest.raises(InputError, match="another request"):
        client.submit("false", key="night-1")


def test_a_sweep_is_a_job_for_each_combination(client: Client) -> None:
    numbers = client.sweep(
        shell("echo {rate} $GPUTUI_SWEEP_SEED"), {"rate": [0.1, "a,b"], "seed": range(2)}, at_most=1, name="try"
    )
    told = {job.id: list(client.logs(job.id)) for job in client.as_ended(numbers, timeout=PATIENCE)}
    assert [told[number] for number in numbers] == [["0.1 0"], ["0.1 1"], ["a,b 0"], ["a,b 1"]]
    assert client.job(numbers[2]).sweep == {"rate": "a,b", "seed": "0"}


def test_many_jobs_are_waited_for_together_also_those_that_are_cancelled_as_one(client: Client) -> None:
    numbers = client.sweep("true", {"seed": range(60)}, held=True)
    assert numbers[-1] - numbers[0] == 59
    client.release(*numbers[:5])
    threading.Timer(0.5, lambda: client.cancel(*numbers[5:])).start()
    ended = client.wait_all(numbers, timeout=PATIENCE)
    assert [job.id for job in ended] == numbers
    assert {job.state for job in ended[:5]} == {"COMPLETED"}
    assert {job.state for job in ended[5:]} == {"CANCELLED"}


def test_actions_change_jobs_and_are_undone(client: Client) -> None:
    number = client.submit("true", held=True, priority=20, tenant="lab")
    changed = client.set_priority(80, number)
    assert [each.subject for each in changed.changes] == [f"job {number}"]
    assert [(job.id, job.priority) for job in client.jobs("PENDING", tenant="lab")] == [(number, 80)]
    assert client.undo(changed.changes) == [""]
    assert client.jobs(matching=f"id={number}")[0].priority == 20
    told = client.explain(number)
    assert told.reason is not None
    assert "held" in told.reason.text
    client.act(Pause("for a test"))
    assert client.ask("GET", "/v1/controls")["pause_reason"] == "for a test"
    client.ask("POST", "/v1/actions", {"action": "unpause"})
    client.cancel(number)
    assert client.wait(number).state == "CANCELLED"
    assert number in {job.id for job in client.jobs(ended=True)}


def test_what_a_job_would_get_is_told_before_it_is_submitted(client: Client) -> None:
    before = len(client.jobs(ended=True))
    assert client.expected_start("true", gpus=2) is not None
    assert len(client.jobs(ended=True)) == before
    assert [gpu.model for gpu in client.gpus()] == ["NVIDIA A100-SXM4-80GB"] * 2


def test_errors_are_those_of_the_commands(client: Client) -> None:
    with pytest.raises(NotFoundError, match="no job 99999"):
        client.wait(99_999)
    with pytest.raises(InputError, match="99 GPUs"):
        client.submit("true", gpus=99)
    with pytest.raises(TypeError, match="memmory"):
        client.submit("true", memmory=3)  # type: ignore[call-arg]
    client.cancel(client.submit("true", gpus=99, anyway=True))


def test_a_wait_has_an_end(client: Client) -> None:
    number = client.submit("true", held=True)
    with pytest.raises(TimeoutError):
        client.wait(number, timeout=0.3)
    mine = client.branch()
    threading.Timer(0.3, mine.close).start()
    with pytest.raises(GputuiError, match="closed"):
        mine.wait(number)
    client.cancel(number)


def test_events_tell_what_happens_from_now_on(client: Client) -> None:
    mine = client.branch()
    events = mine.events("job")
    assert isinstance(next(events), Beginning)
    number = client.submit("true")
    seen = []
    for event in events:
        assert isinstance(event, JobEvent)
        if event.id == number:
            seen.append(event.after)
            if event.job.has_ended:
                break
    assert seen[-1] == "COMPLETED"
    mine.close()


# owners


def test_a_wait_outlives_the_owner(tmp_path: Path) -> None:
    with owning(tmp_path) as owner, Client(owner.socket, timeout=PATIENCE) as client:
        number = client.submit(shell("while [ ! -e go ]; do sleep 0.1; done; echo done"), workdir=str(tmp_path))
        found: list[JobInfo] = []
        thread = threading.Thread(target=lambda: found.append(client.wait(number, timeout=PATIENCE)))
        thread.start()
        while client.job(number).state != "RUNNING":
            time.sleep(0.05)
        owner.end(signal.SIGKILL)
        owner.start()
        (tmp_path / "go").touch()
        thread.join(PATIENCE)
        assert [job.state for job in found] == ["COMPLETED"]
        assert list(client.logs(number)) == ["done"]


def test_where_nobody_listens_the_client_says_so(tmp_path: Path) -> None:
    with Client(str(tmp_path / "api.sock")) as client, pytest.raises(NoOwnerError, match="nobody listens"):
        client.jobs()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Hide the settings of this machine and of the user who runs the tests."""
    for name in [name for name in os.environ if name.startswith("GPUTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(options, "SITE_CONFIG", tmp_path / "site.toml")
    return monkeypatch


def test_without_a_name_the_queue_of_the_commands_is_asked(owner: Owner, mine: pytest.MonkeyPatch) -> None:
    mine.setenv("GPUTUI_STATE", str(owner.state))
    with Client() as client:
        assert (client.about().caller.uid, client.about().owner.kind) == (os.geteuid(), "serve")
    mine.setenv("GPUTUI_CLUSTER", "slurm")
    with pytest.raises(GputuiError, match="cluster"):
        Client()


def test_a_queue_that_nobody_owns_is_opened_until_an_owner_comes(tmp_path: Path, mine: pytest.MonkeyPatch) -> None:
    mine.setenv("GPUTUI_STATE", str(tmp_path / "state"))
    told: list[str] = []
    with Client(tell=told.append, timeout=PATIENCE) as client:
        number = client.submit("true", held=True, key="once")
        assert client.about().owner.kind == "api-stdio"
        assert [(job.id, job.state) for job in client.jobs()] == [(number, "PENDING")]
        found: list[JobInfo] = []
        thread = threading.Thread(target=lambda: found.append(client.wait(number, timeout=PATIENCE)))
        thread.start()
        with owning(tmp_path):
            assert client.submit("true", held=True, key="once") == number
            client.release(number)
            thread.join(PATIENCE)
    assert [job.state for job in found] == ["COMPLETED"]
    assert len(told) == 1
    assert "nobody schedules" in told[0]


def test_answers_come_in_pages_and_missed_events_are_told(tmp_path: Path) -> None:
    def page(number: int) -> bytes:
        return b'[{"id":%d,"name":"a","state":"PENDING","new":1}]' % number

    stream = b"event: hello\ndata: {}\n\nevent: reset\ndata: {}\n\n"
    answers = [
        answer_of(page(1), "200 OK", "Next: 1"),
        answer_of(page(2)),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + stream,
    ]
    asked: list[bytes] = []

    def play(link: object) -> None:
        assert hasattr(link, "sendall")
        while request := whole_message(link):  # type: ignore[arg-type]
            asked.append(request)
            link.sendall(answers[len(asked) - 1])
            if len(asked) == 3:
                return

    with scripted(tmp_path / "s", play), Client(str(tmp_path / "s")) as client:
        assert [job.id for job in client.jobs()] == [1, 2]
        events = client.events()
        assert [next(events), next(events)] == [Beginning(), Beginning()]
    assert b"after=1" in asked[1].partition(b"\r\n")[0]


def test_options_become_fields_of_the_request(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def play(link: object) -> None:
        while request := whole_message(link):  # type: ignore[arg-type]
            asked.append(request.partition(b"\r\n\r\n")[2])
            link.sendall(answer_of(b'{"ids":[1]}'))  # type: ignore[attr-defined]

    with scripted(tmp_path / "s", play), Client(str(tmp_path / "s")) as client:
        client.submit("python 'a b.py'", image="hub.lab:5000/torch:2.9", gpus=(1, 4), gpu_memory=40, retries=2)
        client.submit(["x"], image="y", gpus="all", env={"A": "1"}, volumes=["/data:/data"], options={"memory": 7})
        client.submit(["x"], image="y", gpus=["0", "1"], held=True, name="z")
    first, second, third = (msgspec.json.decode(body)["jobs"][0] for body in asked)
    assert first == {
        "spec": {
            "image": "hub.lab:5000/torch:2.9",
            "name": "torch",
            "command": ["python", "a b.py"],
            "gpus": {"minimum": 1, "maximum": 4, "memory": 40},
            "retries": 2,
            "options": {},
        },
        "held": False,
    }
    assert second["spec"]["gpus"] == {"minimum": 1, "maximum": 1024, "everything": True}
    assert second["spec"]["options"] == {"memory": 7, "env": [["A", "1"]], "volumes": ["/data:/data"]}
    assert third["spec"]["gpus"] == {"minimum": 2, "maximum": 2, "devices": ["0", "1"]}
    assert (third["held"], third["spec"]["name"]) == (True, "z")


# tasks


async def test_tasks_wait_at_the_same_time(owner: Owner) -> None:
    async with AsyncClient(owner.socket) as client:
        numbers = await asyncio.gather(*(client.submit(shell(f"sleep 0.{n}; echo {n}")) for n in range(4)))
        ended = await asyncio.gather(*(client.wait(number, timeout=PATIENCE) for number in numbers))
        assert {job.state for job in ended} == {"COMPLETED"}
        assert [[line async for line in client.logs(number)] for number in numbers] == [["0"], ["1"], ["2"], ["3"]]
        with pytest.raises(NotFoundError):
            await client.job(99_999)


async def test_many_tasks_wait_by_few_connections(owner: Owner) -> None:
    before = descriptors()
    async with AsyncClient(owner.socket) as client:
        gate = await client.submit("true", held=True)
        numbers = await client.sweep("true", {"seed": range(40)}, after=[gate])
        waiting = [asyncio.create_task(client.wait(number)) for number in numbers]
        following = [asyncio.create_task(_whole(client, number)) for number in numbers[:3]]
        await client.wait(await client.submit("true"))
        assert not any(task.done() for task in waiting)
        assert descriptors() - before < 12
        await client.release(gate)
        assert {job.state for job in await asyncio.gather(*waiting)} == {"COMPLETED"}
        assert await asyncio.gather(*following) == [[], [], []]


async def _whole(client: AsyncClient, number: int) -> list[str]:
    return [line async for line in client.logs(number, follow=True)]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_cancelled_task_leaves_no_thread(owner: Owner) -> None:
    before = set(threading.enumerate())
    async with AsyncClient(owner.socket) as client:
        number = await client.submit("true", held=True)
        waiting = asyncio.create_task(client.wait(number))
        async with aclosing(client.events("job")) as events:
            assert isinstance(await anext(events), Beginning)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.cancel(number)
    deadline = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, threading.enumerate()
        await asyncio.sleep(0.05)


# examples


def example(owner: Owner, name: str, *words: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "GPUTUI_STATE": str(owner.state)}
    command = [sys.executable, str(EXAMPLES / name), *words]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_example_that_trains_ends_as_its_job_does(owner: Owner) -> None:
    process = example(owner, "train.py", *shell("echo epoch 1; exit 5"))
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (5, "epoch 1\n")
    assert "is submitted" in err


def test_the_example_of_a_sweep_finds_the_best_values(owner: Owner) -> None:
    out, err = example(owner, "sweep.py").communicate(timeout=2 * PATIENCE)
    assert err == ""
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[0] == "0.000000  python3 lr=0.01 seed=0"


def test_the_example_that_watches_tells_what_ends(owner: Owner, client: Client) -> None:
    process = example(owner, "watch.py", owner.socket)
    assert process.stdout is not None
    assert process.stdout.readline() == f"watching {owner.socket}\n"
    client.submit(shell("echo out of luck; exit 1"), name="unlucky")
    lines = iter(process.stdout.readline, "")  # a job of the test before may end meanwhile
    assert next(line for line in lines if line.startswith("unlucky")).startswith("unlucky: FAILED")
    assert next(lines) == "    out of luck\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)


LOADED = """
import sys, gputui
print(*sorted(sys.modules))
from gputui import Client
print(*sorted(sys.modules))
"""


def test_programs_load_what_they_use() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    bare, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert not {"msgspec", "typing", "gputui.client"} & bare
    assert not {"asyncio", "click", "docker", "h11", "http.client", "textual", "tinydb", "apscheduler"} & loaded


def test_the_document_names_calls_and_options_that_exist() -> None:
    text = (EXAMPLES.parent / "docs" / "python.md").read_text()
    table = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    calls = {name for row in table for name in re.findall(r"`(\w+)[(`]", row)}
    assert len(calls) > 15
    assert calls <= set(dir(Client))
    assert calls <= set(dir(AsyncClient))
    [options] = re.findall(r"^Options of jobs: (.*?), and `options`", text, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", options)) | {"options"} == set(JobOptions.__annotations__)
