"""docs/api.md agrees with the table of routes, and its lines for curl work as printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gputui.api.routes import ROUTES
from scripts.api import updated
from tests.api.owner import ROOT, TestOwner
from tests.api.serving import serving

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_tables_are_up_to_date() -> None:
    assert updated(TEXT) == TEXT


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_lines(owner: TestOwner, tmp_path: Path) -> None:
    [block] = re.findall(r"^```\nS=\S+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    assert len(lines) >= 5
    owner.asks_as = ROOT
    with serving(tmp_path, owner.router) as served:
        told: list[Any] = []
        for line in lines:
            words = line.replace("curl -sS", "curl -sS --fail-with-body --max-time 20")
            done = subprocess.run(
                ["sh", "-c", words], env={**os.environ, "S": str(served.path)}, capture_output=True, check=False
            )
            assert done.returncode == 0, (line, done)
            told.append(json.loads(done.stdout))
    assert told[0]["caller"]["role"] == "operator"
    assert told[2]["ids"] == [1]
    job = owner.store.get(1)
    assert (job.spec.comment, job.held) == ("the first", True)


def test_the_first_routes_of_the_table_are_those_of_the_lines() -> None:
    first = list(dict.fromkeys(f"{route.method} {route.path.replace('{id}', '1')}" for route in ROUTES))[:5]
    for asked in first:
        assert f"http://localhost{asked.partition(' ')[2]}" in TEXT
