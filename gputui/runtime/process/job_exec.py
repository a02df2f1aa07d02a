"""Commands in host jobs, their streams, and their processes from /proc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerState, ExecRequest, ProcessRow
from gputui.domain.errors import RuntimeFault
from gputui.domain.job import Interactive
from gputui.ports import Channel, Permit
from gputui.runtime.host_processes import ProcessSampler
from gputui.runtime.process.attach import PipesChannel, connect
from gputui.runtime.process.attempt_folder import OpenFolder
from gputui.runtime.process.attempt_index import AttemptIndex
from gputui.runtime.process.execution import HostExecution, check_ours


class ProcessExec:
    """JobExec for host jobs of one store."""

    def __init__(self, store_id: str, directory: Path) -> None:
        self._root = directory / "attempts"
        self._index = AttemptIndex(store_id, self._root)
        self._sampler = ProcessSampler()

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """Return the job's processes, without the wrapper's."""
        return tuple(self._sampler.sample(sorted(self._members(container_id))))

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        """Attach to the terminal of an interactive attempt, or to its log and standard input.

        Its wrapper asks the kernel whose process connects, and refuses all but its submitter and root.
        """
        del detach_keys
        with self._entered(name, permit) as folder:
            return connect(folder, is_tty=True) if interactive.tty else PipesChannel(folder)

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        """Run a command with the environment, limits and user of the attempt."""

        def is_over() -> bool:
            try:
                record = self._index.find(name)
            except OSError:
                return False
            return record is None or record.state is ContainerState.EXITED

        with self._entered(name, permit) as folder:
            check_ours(folder)
            self._members(name)
            return HostExecution(folder, request, is_over)

    @contextmanager
    def _entered(self, name: str, permit: Permit) -> Iterator[OpenFolder]:
        """Open the attempt's directory once, so that it is the same one that is checked and used."""
        try:
            folder = OpenFolder.open(self._root / name)
        except PermissionError as error:
            permit(None)
            raise _unreachable(error) from error
        except OSError as error:
            raise _unreachable(error) from error
        try:
            permit(folder.submitter())
            yield folder
        except OSError as error:
            raise _unreachable(error) from error
        finally:
            folder.close()

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _members(self, container_id: str) -> tuple[int, ...]:
        pids = self._index.members(container_id)
        if not pids:
            raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, "all its processes have ended"))
        return pids


def _unreachable(error: OSError) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"nothing can be attached to: {error.strerror or error}"))
