"""An agent on another machine: ssh starts its tools on the server."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path

import pytest

from tests.mcp.test_agents import Agent
from tests.runtime.sshd import Sshd
from tests.servers.conftest import Gpus

mcp = pytest.importorskip("mcp")
from mcp import Client, StdioServerParameters, stdio_client  # noqa: E402

pytestmark = [pytest.mark.ssh, pytest.mark.long]  # tests/mcp/test_agents.py plays the tools, tests/servers ssh


def test_an_agent_elsewhere_submits_and_follows_a_job(tmp_path: Path) -> None:
    sshd, server = Sshd(), Gpus(tmp_path, 1)

    async def play() -> None:
        words = ["-T", "lab", shlex.join([*server.program, "mcp"])]
        environ = {**os.environ, "PATH": sshd.path}
        async with Client(stdio_client(StdioServerParameters(command="ssh", args=words, env=environ))) as client:
            one = Agent(client)
            job = await one.submit(command=["sh", "-c", "echo from afar"], gpus=2)
            await one.ended(job)
            assert (await one.ask("read_log", id=job))["lines"] == ["from afar"]
            assert [gpu["index"] for gpu in (await one.ask("list_gpus"))["gpus"]] == [0, 1]

    try:
        server.run("wait", str(server.submit("true")))  # it schedules
        asyncio.run(asyncio.wait_for(play(), 90))
    finally:
        server.close()
        sshd.close()
