"""Mounts of members, on a real engine: what was checked is what the container gets, whoever swaps links meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import Launch
from gputui.domain.errors import Cause, CauseCode, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.policy.admission import MountSource
from gputui.domain.settings import RuntimeSettings
from gputui.engine.actions.permissions import open_mounts
from gputui.runtime.docker.runtime import DockerRuntime
from tests.factories import FakeClock
from tests.lane import in_its_lane
from tests.runtime.contract import STORE, Harness, output, shell
from tests.runtime.dockerd import IMAGE, NETWORK, Dockerd

pytestmark = [pytest.mark.docker, pytest.mark.skipif(os.geteuid() != 0, reason="makes directories of root and others")]

MEMBER = 61_234
"""Unused uid."""
SWAP = """
import os, sys, time
os.chdir(sys.argv[1])
os.mkdir("x")
open("x/own", "w").close()
print(flush=True)
while True:
    for target in ("../foreign", "mine"):
        os.rename("x", "away")
        os.symlink(target, "x")
        time.sleep(0.004)
        os.unlink("x")
        os.rename("away", "x")
        time.sleep(0.004)
"""
"""Puts links to a foreign directory and to an own one in the place of a directory, in turn."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory of root with `members/`, which may be mounted and is a member's, and `foreign/`."""
    with tempfile.TemporaryDirectory(prefix="gputui-mounts-", dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        for each in ("members/mine", "foreign", "state"):
            (path / each).mkdir(parents=True)
        (path / "members/mine/own").touch()
        (path / "foreign/secret").touch()
        os.chown(path / "members", MEMBER, MEMBER)
        yield path


@pytest.fixture
def harness(engine: Dockerd) -> Iterator[Harness]:
    settings = RuntimeSettings(docker_host=engine.host)
    harness = Harness(lambda store: DockerRuntime(store, settings, FakeClock()), image=IMAGE, name="docker")
    yield harness
    harness.clean()


class Starter:
    """Starts containers with mounts below `members/` alone, which are opened as those of a user are."""

    def __init__(self, harness: Harness, place: Path) -> None:
        self.harness = harness
        self.runtime = harness.open()
        self.place = place

    def allowed(self, until: ExitStack, script: str, **options: Any) -> Launch:
        launch = self.harness.launch(shell(script))
        spec = JobSpec(image=IMAGE, command=shell(script), options=ContainerOptions(network=NETWORK, **options))
        try:
            found = open_mounts(spec, self.runtime.root_directory(), self._approve, until)
        except (OSError, ValueError) as error:
            raise RuntimeFault(Cause(CauseCode.NOT_ALLOWED, str(error))) from error
        return Launch(STORE, launch.job_id, 1, found.spec, (), held=found.held)

    def _approve(self, source: MountSource, path: str) -> None:
        if not Path(path).is_relative_to(self.place / "members"):
            raise RuntimeFault(Cause(CauseCode.NOT_ALLOWED, f"{source.path} is foreign"))

    def output(self, script: str, **options: Any) -> str:
        with ExitStack() as until:
            name = self.runtime.create(self.allowed(until, script, **options)).id
            self.runtime.start(name)
        self.harness.ended(self.runtime, name)
        found = output(self.runtime, name, self.place / "log").decode()
        self.runtime.remove(name)
        return found


@pytest.fixture
def starter(harness: Harness, place: Path) -> Starter:
    return Starter(harness, place)


@contextmanager
def swapping(place: Path) -> Iterator[None]:
    """Let another process swap the directory `members/x` for links."""
    with subprocess.Popen([sys.executable, "-c", SWAP, str(place / "members")], stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            yield
        finally:
            swapper.kill()


@pytest.mark.parametrize("starts", [6, in_its_lane(200, is_long=True)])
@pytest.mark.parametrize("how", ["volumes", "mounts"])
def test_a_link_that_is_swapped_during_the_start_mounts_nothing_foreign(
    starter: Starter, how: str, starts: int
) -> None:
    source = f"{starter.place}/members/x"
    text = f"{source}:/r" if how == "volumes" else f"type=bind,source={source},target=/r"
    seen: list[str] = []
    with swapping(starter.place):
        while len(seen) < starts:
            with suppress(RuntimeFault):  # it was missing just then, or a link to the foreign directory
                seen.append(starter.output("ls /r", **{how: (text,)}))
    assert set(seen) == {"own\n"}
    (starter.place / "members/out").symlink_to("../foreign")
    text = text.replace("members/x", "members/out")
    with pytest.raises(RuntimeFault, match="is foreign"):
        starter.output("ls /r", **{how: (text,)})


def test_a_held_directory_is_mounted_with_all_below_it(starter: Starter, engine: Dockerd) -> None:
    mine, volumes = starter.place / "members/mine", engine.docker("volume", "ls", "--quiet")
    listed = starter.output("echo hers > /a/new; echo no > /b/new; cat /b/new", volumes=(f"{mine}:/a", f"{mine}:/b:ro"))
    assert sorted(listed.splitlines()) == ["hers", "sh: can't create /b/new: Read-only file system"]
    assert (mine / "new").read_text() == "hers\n"
    assert engine.docker("volume", "ls", "--quiet") == volumes


def test_an_unstarted_container_with_held_mounts_is_made_anew(starter: Starter, harness: Harness) -> None:
    """The descriptor that it names may be another file of another process by now."""
    with ExitStack() as until:
        launch = starter.allowed(until, "ls /r", volumes=(f"{starter.place}/members/mine:/r",))
        first = starter.runtime.create(launch)
    with ExitStack() as until:
        again = starter.allowed(until, "ls /r", volumes=(f"{starter.place}/members/mine:/r",))
        second = starter.runtime.create(replace(again, job_id=launch.job_id))
        assert (second.adopted, second.id != first.id) == (False, True)
        starter.runtime.start(second.id)
    harness.ended(starter.runtime, second.id)
    assert output(starter.runtime, second.id, starter.place / "log") == b"own\n"
