"""Fixtures and hooks of all tests: lanes, order, and what happens without an engine or a tool."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.lane import IS_LONG, examples, unchanged_parts
from tests.needs import LACKS, need

settings.register_profile(
    "any load",
    parent=settings(),
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)  # over whichever profile is in force: how long an example takes tells of the machine, not of the code
settings.load_profile("any load")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of the many commands that tests start is compiled anew,
sys.dont_write_bytecode = False  # and all test modules by each worker

for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # a shell's background jobs and nohup ignore them, and
    if signal.getsignal(_number) is signal.SIG_IGN:  # so would every process that a test starts and interrupts
        signal.signal(_number, signal.SIG_DFL if _number != signal.SIGINT else signal.default_int_handler)

YOUNG_OBJECTS = 50_000
"""Number of new objects that triggers a garbage collection: Python's 700 took a quarter of the time."""

WAITING = (
    "slurm",
    "remote",
    "servers",
    "backend",
    "e2e",
    "torture",
    "runtime",
    "cluster",
    "metrics",
    "gpus",
    "kubernetes",
)
"""Directories of tests that mostly wait for engines, terminals and clocks, in the order in which they begin.

First those of one group: a single worker runs them all, Slurm's for minutes.
"""
COMPUTING = ("tui/test_every_command.py", "tui", "console", "engine", "replay", "domain")
"""Directories and modules of the longest other tests, in the order in which they begin."""


LEFT_OUT = "GPUTUI_TEST_LEFT_OUT"
"""Variable by which workers know the parts whose tests the test line leaves out."""


def pytest_configure(config: pytest.Config) -> None:
    """Find the parts that have not changed, if all tests are asked for."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        os.environ[LEFT_OUT] = " ".join(unchanged_parts()) if whole else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what was left out also where the header is not shown."""
    if parts := os.environ[LEFT_OUT]:
        terminalreporter.write_line(
            f"without tests of parts that have not changed: {parts} (GPUTUI_TEST_REQUIRE= runs all)"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture", type=float, default=1.0, help="how much torture: 1 is CI's, 20 is at length")


@pytest.fixture(scope="session")
def torture(request: pytest.FixtureRequest) -> float:
    """Return the factor for the number of kills."""
    return float(request.config.getoption("--torture"))


def pytest_xdist_auto_num_workers() -> int | None:
    """Return the workers of `-n auto`: more than cores, since many tests wait for engines, terminals and clocks."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # the plugin reads it
    from tests.distribution import number_of_workers

    return number_of_workers()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what distributes the tests over workers."""
    from tests.distribution import Distributor

    return Distributor(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_sessionstart() -> None:
    """Collect garbage less often, and none while modules and tests are made, which all stay."""
    gc.set_threshold(YOUNG_OBJECTS, 50, 20)
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the modules of a whole run from another one on in each worker: each compiles a part of them for all."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    here = Path(__file__).parent
    names = [".".join(path.relative_to(here.parent).with_suffix("").parts) for path in sorted(here.rglob("test_*.py"))]
    first = len(names) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for name in names[first:] + names[:first]:
        with suppress(Exception):  # the collection finds it again, and reports it
            importlib.import_module(name)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the half a million objects of modules and tests out of every collection: each pass over them takes long."""
    gc.collect()
    gc.freeze()
    gc.enable()
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is not None:
        from tests.distribution import YIELDS, computes

        if computes(worker):
            os.nice(YIELDS)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Reduce the work of the five collections with which pytest ends: what the tests have left, they need not see."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return a short id for a text of thousands of letters: workers and results carry all ids."""
    return f"{val[:30]!a}..{len(val)}" if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the lane, after Hypothesis has marked the properties: deselected tests are not reported as skipped."""
    left_out = [item for item in items if not _is_in_lane(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = _sorted([item for item in items if _is_in_lane(item)])


def _sorted(items: list[pytest.Item]) -> list[pytest.Item]:
    """Put tests that wait first, and the longest of those that compute last: workers take tests from both ends."""
    waiting = [item for item in items if _folder(item) in WAITING]
    computing = [item for item in items if _folder(item) not in WAITING]
    return sorted(waiting, key=lambda item: WAITING.index(_folder(item))) + sorted(computing, key=_turn, reverse=True)


def _turn(item: pytest.Item) -> int:
    places = (f"{_folder(item)}/{item.path.name}", _folder(item))
    return next((COMPUTING.index(place) for place in places if place in COMPUTING), len(COMPUTING))


def _folder(item: pytest.Item) -> str:
    return _folder_of(item.path)


@cache
def _folder_of(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


def _is_in_lane(item: pytest.Item) -> bool:
    """Return whether a test is run: properties are in both lanes, with all their examples in the long one."""
    if _folder(item) in os.environ[LEFT_OUT].split():
        return False
    if IS_LONG:
        return any(item.get_closest_marker(name) is not None for name in ("long", "torture", "hypothesis"))
    return item.get_closest_marker("long") is None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests without what they need, with the reason; under GPUTUI_TEST_REQUIRE fail instead."""
    need(*(name for name in LACKS if item.get_closest_marker(name)))
    need(*(name for marker in item.iter_markers("needs") for name in marker.args))


@pytest.fixture(autouse=True)
def _garbage_as_python_has_it() -> Iterator[None]:
    """Restore Python's garbage collection.

    A scheduler disables most of it, too much for a thousand tests in one process. The few objects that it exempts stay
    exempt, as pytest's do.
    """
    before = gc.get_threshold()
    yield
    if gc.get_threshold() != before:
        gc.set_threshold(*before)
