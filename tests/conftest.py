"""Fixtures of all tests: the engines and tools that are here, and the meaning of a missing one."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "any load", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # over whichever profile is in force: how long an example takes tells of the machine, not of the code
settings.load_profile("any load")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of the many commands that tests start is compiled anew,
sys.dont_write_bytecode = False  # and all test modules by each worker

YOUNG_OBJECTS = 10_000
"""New objects that set off a collection of garbage: with Python's 700 a tenth of the time went there."""

REQUIRED = frozenset(filter(None, os.environ.get("GPUTUI_TEST_REQUIRE", "").split(",")))
"""Engines without which a test fails instead of being skipped: any of docker, ssh, nvml, tmux, chromium,
prometheus."""


def lacks_docker() -> str | None:
    """Why the tests cannot start a Docker engine of their own; None when they can."""
    if os.geteuid() != 0:
        return "starting a private dockerd needs root"
    missing = [name for name in ("docker", "dockerd", "containerd", "iptables", "unshare") if not shutil.which(name)]
    if not shutil.which("busybox"):
        missing.append("busybox (busybox-static)")
    return f"not installed: {', '.join(missing)}" if missing else None


def lacks_ssh() -> str | None:
    """Why the tests cannot start an sshd of their own; None when they can."""
    if os.geteuid() != 0:
        return "starting a private sshd needs root"
    return None if shutil.which("ssh") and shutil.which("/usr/sbin/sshd") else "not installed: openssh-server"


def lacks_nvml() -> str | None:
    return None if shutil.which("gcc") or shutil.which("cc") else "not installed: gcc, to compile the stand-in NVML"


def lacks_tmux() -> str | None:
    return None if shutil.which("tmux") else "not installed: tmux"


def lacks_chromium() -> str | None:
    from tests.e2e.browser import find

    return None if find() else "not installed: chromium"


def lacks_prometheus() -> str | None:
    missing = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else None


LONG_LANE = os.environ.get("GPUTUI_TEST_LANE") == "long"
"""Run the long lane: only the tests marked `long` or `torture`. Without it, tests marked `long` are left out."""

SLOW_FIRST = ("torture", "e2e", "runtime")

LACKS: dict[str, Callable[[], str | None]] = {
    "docker": lacks_docker,
    "ssh": lacks_ssh,
    "nvml": lacks_nvml,
    "tmux": lacks_tmux,
    "chromium": lacks_chromium,
    "prometheus": lacks_prometheus,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture", type=float, default=1.0, help="how much torture: 1 is CI's, 20 is at length")


@pytest.fixture(scope="session")
def torture(request: pytest.FixtureRequest) -> float:
    """Factor of the number of kills."""
    return float(request.config.getoption("--torture"))


def pytest_xdist_auto_num_workers() -> int | None:
    """Return the workers of `-n auto`: more than cores, since many tests wait for engines, terminals and clocks."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # the plugin reads it
    return len(os.sched_getaffinity(0)) + 2


def pytest_sessionstart() -> None:
    """Collect garbage less often."""
    gc.set_threshold(YOUNG_OBJECTS, 50, 20)


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
def pytest_sessionfinish() -> None:
    """Leave little to the five collections with which pytest ends."""
    gc.collect()
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return a short id for a text of thousands of letters: workers and results carry all ids."""
    return f"{val[:30]!a}..{len(val)}" if isinstance(val, str | bytes) and len(val) > 200 else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the lane: deselected tests are not reported as skipped."""
    left_out = [item for item in items if not _is_in_lane(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(filter(_is_in_lane, items), key=_turn)
    for item in filter(_shares_engine, items):
        item.add_marker(pytest.mark.xdist_group("end to end" if _folder(item) == "e2e" else "engine"))


def _shares_engine(item: pytest.Item) -> bool:
    """Return whether the test uses the shared Docker engine.

    Two workers start one each, since tests of one engine see each other's containers and so run in turn: one for tests
    of the whole program, which wait for most of their time, the other for the rest.
    """
    return "engine" in getattr(item, "fixturenames", ()) and item.get_closest_marker("docker") is not None


def _turn(item: pytest.Item) -> int:
    """Sort tests that wait long to the front, so that no worker begins one when the others are done."""
    folder = _folder(item)
    if _shares_engine(item):
        return -2 if folder == "e2e" else -1
    return SLOW_FIRST.index(folder) if folder in SLOW_FIRST else len(SLOW_FIRST)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _is_in_lane(item: pytest.Item) -> bool:
    is_long = item.get_closest_marker("long") is not None
    return is_long or item.get_closest_marker("torture") is not None if LONG_LANE else not is_long


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what lacks its engine, and say why; under GPUTUI_TEST_REQUIRE fail instead."""
    for name, lacks in LACKS.items():
        if item.get_closest_marker(name) and (why := lacks()):
            if name in REQUIRED:
                pytest.fail(f"{name} is required here, but {why}", pytrace=False)
            pytest.skip(f"{name}: {why}")


@pytest.fixture(autouse=True)
def _garbage_as_python_has_it() -> Iterator[None]:
    """A scheduler leaves old objects alone for minutes: of a thousand tests in one process they would be too many."""
    before = gc.get_threshold()
    yield
    if gc.get_threshold() != before:
        gc.set_threshold(*before)
        gc.unfreeze()
