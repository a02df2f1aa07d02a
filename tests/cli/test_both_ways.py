"""Commands say and do the same in a process of their own and by the owner of the queue."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from gputui import bootstrap, thin
from gputui.cli.main import run as run_command
from gputui.domain.state import JobState
from tests.cli.conftest import KeptStore, owned_command, picture, put
from tests.factories import ACTOR, NOW, array, job, recurring, running, snapshot, uuid

LINES = (
    *("queue", "queue --json", "queue -a -s F,PD", "queue -f nope:1", "queue --tenant bob -r"),
    *("show 1", "show 1 --json", "show 6_2", "show 99", "show", "show 1,2"),
    *("explain 1", "explain 2", "explain 6_1 --json", "gpus", "gpus --json", "gpus extra"),
    *("history", "history --json -n 1", "history --columns id,nope", "history --since nonsense"),
    *("cancel 1,2", "cancel 3", "cancel 1 99", "cancel 1 --dry-run", "cancel x", "hold 1", "hold 2", "hold 6_[1-2]"),
    *(
        "release 4",
        "release 6",
        "suspend 2",
        "unsuspend 2",
        "suspend 1",
        "requeue 3",
        "requeue 6",
        "requeue --failed 3",
    ),
    *("signal USR1 2", "signal USR1 1", "signal WINK 2", "priority 1 +20", "priority 1 top", "priority 1 101"),
    *("pause fan", "unpause", "drain 0 --reason fan", "drain 9", "resume 0", "resume 9 -q"),
    *("reserve add --gpus 1 --for 1h", "reserve add --gpus 9 --for 1h", "reserve list", "reserve remove r1", "reserve"),
    *("tenant set bob --gpus 1 --users ann", "tenant list", "tenant remove bob", "tenant set a"),
    *("cron add @daily -- busybox", "cron add @never -- busybox", "cron list", "cron pause 1", "cron resume 1"),
    *("cron remove 1", "cron remove 9", "submit busybox true", "submit --host --hold -- true", "submit --json busybox"),
    *("submit --array 0-9%2 busybox", "submit --dry-run --gpus 1 busybox", "submit --gpus nine busybox", "submit"),
    *("submit --begin 18:00 busybox", "submit -it busybox", "submit -f /nowhere", "submit --sweep a=1,2 busybox {a}"),
)


def test_the_owner_says_and_does_what_the_command_itself_says_and_does(
    store: KeptStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=4)))
    assert {line.split()[0] for line in LINES} == thin.COMMANDS
    for line in LINES:
        found = []
        for run in (run_command, owned_command):
            store.clear()
            over = running().evolve(state=JobState.FAILED, ended_at=NOW, exit_code=3)
            put(store, job(gpus=8), running(on=[uuid(1)]), over, job(held=True, tenant="bob"))
            put(store, job(name="\x1b[2J训练"))
            store.submit([array(range(3), first=0)], actor=ACTOR)
            with store.transaction() as transaction:
                transaction.add_recurring(recurring())
            code = run(line.split())
            changed = (dict(store.jobs()), store.controls(), dict(store.recurring()), [*store.audit_log()])
            found.append((code, capfd.readouterr(), changed))
        assert found[0] == found[1], line


def test_the_owner_gives_the_same_help_as_wide(
    store: KeptStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    del store
    for command, columns in zip(sorted(thin.COMMANDS), cycle(("60", "70", "200")), strict=False):
        monkeypatch.setenv("COLUMNS", columns)
        found = [(run([command, "--help"]), capfd.readouterr()) for run in (run_command, owned_command)]
        assert found[0] == found[1], command
        assert found[0][1].out.startswith("Usage: gputui")
