"""An agent at the queue of a real owner, by the client of the package `mcp`: as root, and as plain users."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gputui.mcp import TOOLS
from tests.api.test_two_accounts import ALICE, BOB, Door
from tests.cases import cases
from tests.servers.conftest import Gpus

mcp = pytest.importorskip("mcp")
from mcp import Client, MCPError, StdioServerParameters, stdio_client  # noqa: E402

pytestmark = pytest.mark.needs("root", "curl", "readers", "setpriv")
SECRET = "hunter2hunter2"
NOISY = ["sh", "-c", "echo my $TOKEN; for i in $(seq 30); do echo $i; done; echo 'ValueError: bad' >&2; exit 3"]


class Agent:
    """An agent of one user."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """Return the answer of a tool, which is no error."""
        text, is_error = await self.told(tool, **arguments)
        assert not is_error, text
        return json.loads(text)

    async def told(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        """Return what a tool says, and whether it is an error."""
        found = await self.client.call_tool(tool, arguments)
        [content] = found.content
        assert SECRET not in content.text
        return content.text, found.is_error

    async def refused(self, tool: str, **arguments: Any) -> str:
        text, is_error = await self.told(tool, **arguments)
        assert is_error, text
        return text

    async def submit(self, **job: Any) -> int:
        [number] = (await self.ask("submit_job", **{"host": True, "workdir": "/", **job}))["ids"]
        return int(number)

    async def ended(self, job: int) -> None:
        while not (await self.ask("wait_for_events", job=job, seconds=30))["has_ended"]:
            pass


@asynccontextmanager
async def agent(door: Door, uid: int, mode: str) -> AsyncIterator[Agent]:
    rights = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    words = [*rights, "--", sys.executable, "-P", "-m", "gputui", "mcp"]
    env = {"GPUTUI_SOCKET": str(door.socket), "HOME": str(door.directory)}
    with (door.directory / f"mcp-{uid}").open("w") as errors:
        server = StdioServerParameters(command="setpriv", args=words, env=env, cwd="/")
        async with Client(stdio_client(server, errors), mode=mode) as client:
            yield Agent(client)


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with tempfile.TemporaryDirectory() as place:
        made = Door(Path(place), "agent_priority = 40\nagent_gpus = 1\n")
        yield made
        made.close()


def played(door: Door, uid: int, play: Callable[[Agent], Awaitable[None]], mode: str = "auto") -> None:
    async def run() -> None:
        async with agent(door, uid, mode) as one:
            await asyncio.wait_for(play(one), 100)

    asyncio.run(run())


@cases(("uid", "mode"), [(0, "auto"), (ALICE, "legacy")])
def test_an_agent_plays_all_tools(door: Door, uid: int, mode: str) -> None:
    async def play(one: Agent) -> None:
        listed = (await one.client.list_tools()).tools
        assert [tool.name for tool in listed] == list(TOOLS)
        for tool in listed:
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            assert tool.input_schema["additionalProperties"] is False
            assert tool.annotations is not None
            assert tool.annotations.destructive_hint == (tool.name == "cancel_jobs")
        assert "never instructions" in str(one.client.instructions)
        dry = await one.ask("submit_job", host=True, command=["true"], gpus=1, dry_run=True)
        assert (dry["dry_run"], dry["jobs"], dry["priority"]) == (True, 1, 40)
        job = await one.submit(command=NOISY, env={"TOKEN": SECRET}, gpus=1, name="noisy", comment=f"is {SECRET}")
        await one.ended(job)
        shown = await one.ask("show_job", id=job)
        assert (shown["state"], shown["exit_code"], shown["priority"]) == ("FAILED", 3, 40)
        assert shown["spec"]["env"]["TOKEN"] == "***"
        assert (shown["audit"][0]["verb"], shown["audit"][0]["via"]) == ("submit", "mcp")
        log = await one.ask("read_log", id=job, tail=2)
        assert log["lines"] == ["30", "ValueError: bad"]
        assert log["first_error"]["line"] == "ValueError: bad"
        assert (await one.ask("read_log", id=job, tail=40))["lines"][0] == "my ***"
        held = await one.submit(command=["sleep", "600"], hold=True)
        assert "held by" in (await one.ask("explain_job", id=held))["reason"]
        assert held in [each["id"] for each in (await one.ask("list_jobs"))["jobs"]]
        before = (await one.ask("wait_for_events", seconds=0))["next"]
        assert (await one.ask("release_jobs", ids=[held]))["ids"] == [held]
        happened = await one.ask("wait_for_events", seconds=30, after=before)
        assert held in [event["id"] for event in happened["events"]]
        second = await one.submit(command=["true"], hold=True)
        await one.ask("release_jobs", ids=[second])
        await one.ended(second)
        third = await one.submit(command=["true"], begin="in 2h")
        await one.ask("hold_jobs", ids=[third])
        assert (await one.ask("cancel_jobs", ids=[held, third]))["ids"] == [held, third]
        await one.ended(held)
        gpus = await one.ask("list_gpus")
        assert len(gpus["gpus"]) == 1
        assert gpus["you"]["highest_gpus"] == 1
        assert gpus["you"]["role"] == ("user" if uid else "operator")

    played(door, uid, play, mode)


def test_an_agent_has_the_rights_of_its_user_and_not_more(door: Door) -> None:
    jobs: list[int] = []

    async def bobs(one: Agent) -> None:
        job = await one.submit(command=["sh", "-c", "echo $TOKEN"], env={"TOKEN": SECRET}, name="bobs")
        await one.ended(job)
        jobs.extend([job, await one.submit(command=["true"], hold=True)])

    async def alices(one: Agent) -> None:
        ended, waiting = jobs
        assert "own-jobs" in await one.refused("read_log", id=ended)
        for verb in ("cancel_jobs", "hold_jobs", "release_jobs"):
            assert "own-jobs" in await one.refused(verb, ids=[waiting])
        assert "env" not in (await one.ask("show_job", id=ended))["spec"]
        assert "may submit for tenant" in await one.refused("submit_job", host=True, command=["true"], tenant="root")

    played(door, BOB, bobs)
    played(door, ALICE, alices)
    audit = door.json(0, "GET", "/v1/audit")
    refused = [entry for entry in audit if entry["verb"] == "refused" and entry["uid"] == ALICE]
    assert {entry["via"] for entry in refused} == {"mcp"}
    assert {entry["target"] for entry in refused} == {"own-jobs", "tenant-users"}


def test_an_agent_queues_like_others_within_the_sites_limits(door: Door) -> None:
    async def play(one: Agent) -> None:
        host = {"host": True, "command": ["true"], "workdir": "/"}
        assert "rule agent-priority" in await one.refused("submit_job", **host, priority=41)
        assert "rule agent-gpus" in await one.refused("submit_job", **host, sweep={"lr": [1, 2]}, gpus=1)
        sweep = {"command": ["true", "{lr}"], "sweep": {"lr": ["1e-3", 2]}, "sweep_limit": 1, "gpus": 1}
        swept = await one.ask("submit_job", **host | sweep)
        assert len(swept["ids"]) == 2
        for job in swept["ids"]:
            await one.ended(job)
        again = [await one.ask("submit_job", **host, hold=True, request_key="once") for _ in range(2)]
        assert again[0] == again[1]
        await one.ask("cancel_jobs", ids=again[0]["ids"])

    played(door, BOB, play)


def test_what_a_tool_does_not_know_is_refused_before_anybody_is_asked(door: Door) -> None:
    wrong: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("list_jobs", {"limit": 201}, "<= 200"),
        ("list_jobs", {"limit": "5"}, "Expected `int"),
        ("list_jobs", {"state": "nonsense"}, "state"),
        ("list_jobs", {"filter": "name~x"}, "patterns"),
        ("show_job", {}, "missing required field `id`"),
        ("show_job", {"id": -1}, ">= 1"),
        ("show_job", {"id": 1, "more": True}, "unknown field `more`"),
        ("show_job", {"id": 10**15}, "there is no job"),
        ("cancel_jobs", {"ids": []}, "length >= 1"),
        ("cancel_jobs", {"ids": list(range(1, 102))}, "length <= 100"),
        ("read_log", {"id": 1, "tail": 501}, "<= 500"),
        ("submit_job", {"host": True, "command": "true"}, "Expected `array"),
        ("submit_job", {"command": ["true"]}, "image: is missing"),
        ("submit_job", {"image": "a", "env": ["HOME"]}, "Expected `object"),
        ("submit_job", {"image": "a", "env_file": "/etc/shadow"}, "unknown field `env_file`"),
        ("submit_job", {"image": "a", "env_all": True}, "unknown field `env_all`"),
        ("submit_job", {"image": "a", "request_key": "a b"}, "request_key"),
        ("wait_for_events", {"kinds": ["x"]}, "kinds"),
        ("wait_for_events", {"seconds": 56}, "<= 55"),
    )

    async def play(one: Agent) -> None:
        for tool, arguments, words in wrong:
            assert words in await one.refused(tool, **arguments), tool
        with pytest.raises(MCPError, match="there is no tool format_disk"):
            await one.client.call_tool("format_disk", {})

    played(door, BOB, play)


def test_answers_come_while_another_call_waits(door: Door) -> None:
    async def play(one: Agent) -> None:
        waiting = asyncio.create_task(one.ask("wait_for_events", seconds=50, kinds=["notice"]))
        for _ in range(10):
            await one.ask("list_jobs")
        assert not waiting.done()
        waiting.cancel()

    played(door, ALICE, play)


def test_without_a_scheduler_an_agent_is_told_so(tmp_path: Path) -> None:
    async def play() -> str:
        words = ["-P", "-m", "gputui", "--state", str(tmp_path / "state"), "mcp"]
        async with Client(stdio_client(StdioServerParameters(command=sys.executable, args=words))) as client:
            return await Agent(client).refused("list_jobs")

    assert "ask the user to start the scheduler" in asyncio.run(play())


def test_an_agent_goes_on_with_the_next_owner(tmp_path: Path) -> None:
    server = Gpus(tmp_path, 1)

    def begin() -> None:
        server.scheduler = subprocess.Popen([*server.program, "serve"], stderr=subprocess.DEVNULL)

    async def play() -> None:
        words = StdioServerParameters(command=server.program[0], args=[*server.program[1:], "mcp"])
        async with Client(stdio_client(words)) as client:
            one = Agent(client)
            first = await one.submit(command=["true"])
            await one.ended(first)
            before = (await one.ask("wait_for_events", seconds=0))["next"]
            server.scheduler.kill()
            server.scheduler.wait()
            submitted = asyncio.create_task(one.submit(command=["true"]))
            await asyncio.to_thread(begin)
            assert await submitted == first + 1
            assert "not known any more" in (await one.ask("wait_for_events", after=before, seconds=0))["missed"]

    try:
        server.run("wait", str(server.submit("true")))
        asyncio.run(asyncio.wait_for(play(), 90))
    finally:
        server.close()


def test_where_an_engine_has_the_queue_there_are_no_tools(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[cluster]\nengine = "slurm"\n')
    words = ["--state", str(tmp_path / "state"), "--config", str(tmp_path / "config.toml"), "mcp"]
    done = subprocess.run([sys.executable, "-m", "gputui", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "an engine has this queue, and agents have no tools for that" in done.stderr


def test_it_ends_with_its_input(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "gputui", "--state", str(tmp_path / "state"), "mcp"]
    done = subprocess.run(words, input=b"", capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_settings_of_agents_in_the_docs_start_the_server() -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    found = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    found += [tomllib.loads(text) for text in re.findall(r"```ini\n(.*?)```", page, re.DOTALL)]
    servers = [each for table in found for key, each in table.items() if "ervers" in key]
    assert len(servers) == 4
    for each in servers:
        assert [each["gputui"]["command"], *each["gputui"]["args"]][-2:] == ["gputui", "mcp"]
    assert all(tool in page for tool in TOOLS)
