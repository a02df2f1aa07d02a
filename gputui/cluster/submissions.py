"""Notes of this machine of what was submitted to a cluster: specs by key, and the jobs that they became."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.journal import Journal
from gputui.domain.job_spec import Submission


class Note(Struct, frozen=True, omit_defaults=True):
    """A step of a submission: first what is going to be submitted, then the jobs that it has become."""

    key: str
    at: datetime
    submission: Submission | None = None
    output: str = ""
    namespace: str = ""
    number: int | None = None
    uids: tuple[str, ...] = ()


class Submitted(Struct, frozen=True):
    key: str
    at: datetime
    submission: Submission
    output: str = ""
    """Pattern of the file with its output; in Slurm."""
    namespace: str = ""
    """Namespace of its jobs; in Kubernetes."""
    number: int | None = None
    """Slurm's number of the job or the array."""
    known_at: datetime | None = None
    """When its number, its uids or its refusal were noted."""
    uids: tuple[str, ...] = ()
    """Kubernetes' uids of its jobs, in the order of its indices; empty until the server has told all of them."""


class Submissions:
    """Specs of the jobs that were submitted from this state directory."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "submissions.jsonl", Note)
        self._by_key: dict[str, Submitted] = {}
        self._by_job: dict[int | str, Submitted] = {}

    def intend(self, key: str, submission: Submission, *, output: str = "", namespace: str = "") -> None:
        """Note durably what is going to be submitted."""
        self._journal.append([Note(key, datetime.now(UTC), submission, output, namespace)])

    def settle(self, key: str, number: int | None = None, uids: tuple[str, ...] = ()) -> None:
        """Note durably which jobs it has become, none if it was refused; a full disk leaves it to who sees the jobs."""
        with suppress(OSError):
            self._journal.append([Note(key, datetime.now(UTC), number=number, uids=uids)])

    def of_key(self, key: str) -> Submitted | None:
        if not self._journal.mentions(key.encode()):
            return None
        self.refresh()
        return self._by_key.get(key)

    def of_number(self, number: int) -> Submitted | None:
        self.refresh()
        return self._by_job.get(number)

    def all(self) -> Collection[Submitted]:
        """Return all submissions, the oldest first."""
        self.refresh()
        return self._by_key.values()

    def of_uid(self, uid: str, key: str, namespace: str) -> Submitted | None:
        """Return the submission that became a job, as of the last `refresh`; others may give theirs any label."""
        found = self._by_job.get(uid)
        if found is None and (named := self._by_key.get(key)) is not None:
            found = named if not named.uids and named.namespace == namespace else None
        return found

    def refresh(self) -> None:
        """Read what other processes have noted."""
        is_new, notes = self._journal.fresh()
        if is_new:
            self._by_key, self._by_job = {}, {}
        for note in notes:
            if note.submission is not None:
                self._by_key[note.key] = Submitted(note.key, note.at, note.submission, note.output, note.namespace)
            elif (known := self._by_key.get(note.key)) is not None:
                settled = self._by_key[note.key] = replace(known, number=note.number, uids=note.uids, known_at=note.at)
                jobs: tuple[int | str, ...] = note.uids if note.number is None else (note.number,)
                self._by_job |= dict.fromkeys(jobs, settled)
