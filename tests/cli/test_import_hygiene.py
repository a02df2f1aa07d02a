"""Commands import only what they need: a static contract cannot prove that a deferred import is deferred."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench._jobs import store_waiting_jobs
from bench.commands import BARE, commands, compare

HEAVY = frozenset(
    {
        "textual", "rich", "docker", "requests", "urllib3", "apscheduler", "prometheus_client", "pynvml", "pygal",
        "mcp", "asyncio",
    }
)  # fmt: skip
SLOW = frozenset(
    {
        "dataclasses",
        "difflib",
        "email",
        "logging",
        "platformdirs",
        "random",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
    }
)
"""Modules that `submit` and `queue`, the most frequent commands, must not import."""
RATIOS = {"submit": 9.5, "queue": 12.0}
"""Processor time of a command as a multiple of a bare start of Python, at most: 8.1 and 10.1 when this was written."""
PROGRAM = """
import json, sys
from gputui.cli.main import run
found = {}
for words in json.loads(sys.argv[2]):
    code = run(["--state", sys.argv[1], *words])
    found[" ".join(words)] = [code, sorted(name for name in sys.modules if "." not in name)]
print(file=sys.stderr)
json.dump(found, sys.stderr)
"""


def modules_after_each(state: Path, lines: Sequence[Sequence[str]]) -> dict[str, set[str]]:
    """Return the top-level modules that one process has loaded after each of these commands."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(state.parent)}
    command = [sys.executable, "-c", PROGRAM, str(state), json.dumps(lines)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found = json.loads(done.stderr.splitlines()[-1])
    assert {code for code, _ in found.values()} == {0}
    return {words: set(loaded) for words, (_, loaded) in found.items()}


def modules_after(state: Path, *arguments: str) -> set[str]:
    [loaded] = modules_after_each(state, [arguments]).values()
    return loaded


@pytest.fixture(scope="module")
def queue_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with a job in its queue."""
    state = tmp_path_factory.mktemp("queue") / "state"
    modules_after(state, "submit", "--gpus", "2-4", "-e", "A=1", "busybox", "true")
    return state


@pytest.fixture
def state(tmp_path: Path, queue_of_one: Path) -> Path:
    return shutil.copytree(queue_of_one, tmp_path / "state")


LIGHT = [
    ["submit", "--gpus", "1", "busybox"],
    ["submit", "--array", "0-9", "busybox"],
    ["queue"],
    ["queue", "--json"],
    ["show", "1"],
    ["hold", "1"],
    ["priority", "1", "+10"],
    ["edit", "1", "--priority", "70", "--time-limit", "2h"],
    ["cancel", "1"],
    ["pause"],
    ["reserve", "list"],
    ["reserve", "standing", "80"],
    ["tenant", "set", "bob", "--gpus", "2"],
    ["tenant", "list"],
    ["cron", "add", "@daily", "--", "--gpus", "1", "busybox"],
    ["cron", "list"],
    ["completions", "bash"],
    ["submit", "--help"],
    ["--help"],
]


def test_light_commands_load_nothing_heavy(state: Path) -> None:
    after_each = modules_after_each(state, LIGHT)
    assert {command: loaded & HEAVY for command, loaded in after_each.items() if loaded & HEAVY} == {}


def test_the_commands_called_most_load_nothing_slow(state: Path) -> None:
    after_each = modules_after_each(state, [["submit", "--gpus", "1", "busybox", "true"], ["queue"]])
    assert {command: loaded & SLOW for command, loaded in after_each.items() if loaded & SLOW} == {}


ASKING = """
import json, sys
import gputui.client, gputui.bootstrap.owner, gputui.bootstrap.servers, gputui.api.streams
json.dump(sorted(sys.modules), sys.stdout)
"""


def test_who_asks_an_owner_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(done.stdout))


def test_a_report_in_the_terminal_loads_nothing_of_its_page(state: Path) -> None:
    for form in ("table", "csv", "json"):
        assert not modules_after(state, "report", "--format", form) & {"pygal", "string", "tempfile", "xml"}


def test_top_loads_no_app(state: Path) -> None:
    loaded = modules_after(state, "--probe", "sim:1", "--runtime", "process", "top", "-n", "1")
    assert "textual" in loaded
    assert "platformdirs" not in loaded  # textual.app loads it


EARLY = "import json, sys, gputui.{}; json.dump(sorted(sys.modules), sys.stdout)"


@pytest.mark.parametrize("name", ["console.startup", "cli.top"])
def test_little_is_loaded_before_the_early_probe_starts(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", EARLY.format(name)], capture_output=True, text=True, check=True)
    late = {"hashlib", "logging.handlers", "rich", "socket", "textual", "gputui.tui.present", "gputui.tui.widgets"}
    assert not late & set(json.loads(done.stdout))


def test_the_commands_called_most_start_fast(tmp_path: Path) -> None:
    state = tmp_path / "state"
    store_waiting_jobs(state, 1000)
    timed, environ = commands(str(state)), {**os.environ, "HOME": str(tmp_path)}
    bare, least = float("inf"), dict.fromkeys(RATIOS, float("inf"))
    for _ in range(15):  # the least of all runs: on a busy machine most are disturbed, on an idle one few suffice
        # ten starts last as long as a command: a single one may fit into a moment in which the machine is faster
        starts = compare({BARE: timed[BARE]}, 10, environ)[BARE]
        bare = min(bare, sum(run.cpu for run in starts) / len(starts))
        for name, runs in compare({name: timed[name] for name in RATIOS}, 3, environ).items():
            least[name] = min(least[name], *(run.cpu for run in runs))
        if all(least[name] <= most * bare for name, most in RATIOS.items()):
            return
    assert {name: round(cpu / bare, 2) for name, cpu in least.items()} == {}, "slower than allowed"


LOCAL = """
import sys
from gputui.cli.main import run
lines = (["submit", "--gpus", "1", "busybox"], ["queue"], ["hold", "1"])
code = max(run(["--state", sys.argv[1], *words]) for words in lines)
beginnings = ("gputui.cluster", "gputui.engine.cluster", "gputui.bootstrap.cl")
found = [name for name in sys.modules if name.startswith(beginnings)]
sys.exit(code or (f"loaded: {found}" if found else 0))
"""


def test_the_queue_of_this_machine_needs_nothing_of_clusters(state: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(state.parent)}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL, str(state)], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "held job 1; the time waited so far still counts\n")


SLURM = """
import json, sys
from gputui.cli.main import run
code = run(sys.argv[1:])
json.dump(sorted(sys.modules), sys.stderr)
sys.exit(code)
"""
NOT_TO_SUBMIT = frozenset(
    {
        "csv", "logging", "shutil", "tempfile",
        "gputui.bootstrap.adapters", "gputui.cluster.ssh",
        "gputui.cluster.slurm.changes", "gputui.cluster.slurm.picture",
        "gputui.cluster.slurm.inside",
        "gputui.domain.as_json", "gputui.domain.job", "gputui.domain.snapshot", "gputui.domain.sweep", "gputui.ports",
    }
)  # fmt: skip
"""Modules that a submission to Slurm does not need; its job waits while they are imported."""


def test_a_submission_to_slurm_imports_only_what_it_needs(tmp_path: Path) -> None:
    directory, programs = tmp_path / "state/clusters/slurm", tmp_path / "bin"
    for folder in (directory, programs):
        folder.mkdir(parents=True)
    site = {"cluster": "lab", "user": "alice", "home": str(tmp_path)}
    (directory / "poll.json").write_text(json.dumps({"at": 0.0, "site": site, "site_at": time.time()}))
    (programs / "sbatch").write_text("#!/bin/sh\necho 17\n")  # no scontrol and no squeue: neither is asked
    (programs / "sbatch").chmod(0o755)
    environ = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path), "GPUTUI_CLUSTER": "slurm"}
    command = [sys.executable, "-c", SLURM, "--state", str(tmp_path / "state"), "submit", "--gpus", "1", "busybox"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "17\n"
    assert not NOT_TO_SUBMIT & set(json.loads(done.stderr))


def test_lists_of_modules_name_real_ones() -> None:
    # Without this check the test would pass for a renamed module.
    import importlib.util

    assert all(importlib.util.find_spec(name) for name in HEAVY | SLOW)
    import importlib.util

    assert all(importlib.util.find_spec(name) for name in LATER | NOT_TO_SUBMIT)


def test_help_imports_no_command(tmp_path: Path) -> None:
    program = (
        "import sys; from gputui.cli.main import run; run(['--help']); sys.exit('gputui.cli.submit' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=True)


CONSOLE = "import json, sys, gputui.console.console; json.dump(sorted(sys.modules), sys.stdout)"
LATER = frozenset(
    {
        "apscheduler", "docker", "requests", "tinydb", "pynvml", "prometheus_client", "markdown_it", "pygments",
        "gputui.engine.actions.actions", "gputui.engine.saved_logs", "gputui.engine.job_exec",
        "gputui.engine.host", "gputui.engine.tick.scheduler", "gputui.domain.policy.plan",
        "gputui.domain.policy.whatif", "gputui.gpus.supervisor", "gputui.runtime.host_processes",
        "gputui.domain.policy.cluster_state", "gputui.request.job_options",
        "gputui.tui.present.detail", "gputui.tui.present.timeline",
        "gputui.tui.screens.pages", "gputui.tui.screens.help", "gputui.tui.screens.forms",
        "gputui.tui.screens.timeline", "gputui.tui.screens.what_if", "gputui.tui.screens.menu",
        "gputui.tui.proposals", "gputui.tui.screens.job_form", "gputui.web",
    }
)  # fmt: skip
"""Libraries that the first frame of the console does not need, so they are imported later."""
MODULES = 600
"""Maximum number of modules of the console: 588 when this was written. Each costs a start half a millisecond."""


def test_the_console_defers_imports_that_its_first_frame_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", CONSOLE], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & LATER
    assert len(loaded) <= MODULES
