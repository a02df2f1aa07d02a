"""Notes of this machine about a Kubernetes cluster: submitted specs, and jobs that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from gputui.cluster.journal import Journal
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission


class KubeNote(Struct, frozen=True, omit_defaults=True):
    """A step of a submission: first what is going to be submitted, then the uids of its jobs."""

    key: str
    at: datetime
    namespace: str = ""
    submission: Submission | None = None
    uids: tuple[str, ...] = ()


class KubeSubmitted(Struct, frozen=True):
    """A submission as far as it is known."""

    key: str
    at: datetime
    namespace: str
    submission: Submission
    uids: tuple[str, ...] = ()
    """Uids of its jobs, in the order of its indices; empty until the server has told all of them."""


class KubeSubmissions:
    """Specs of the jobs that were submitted from this state directory."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "submissions.jsonl", KubeNote)
        self._by_key: dict[str, KubeSubmitted] = {}
        self._by_uid: dict[str, KubeSubmitted] = {}

    def intend(self, key: str, namespace: str, submission: Submission) -> None:
        """Note durably what is going to be submitted."""
        self._journal.append([KubeNote(key, datetime.now(UTC), namespace, submission)])

    def settle(self, key: str, uids: Iterable[str]) -> None:
        """Note durably which jobs it has become."""
        self._journal.append([KubeNote(key, datetime.now(UTC), uids=tuple(uids))])

    def of_key(self, key: str) -> KubeSubmitted | None:
        """Return the submission with that key."""
        self.refresh()
        return self._by_key.get(key)

    def of_job(self, uid: str, key: str, namespace: str) -> KubeSubmitted | None:
        """Return the submission that became a job, as of the last `refresh`; others may give theirs any label."""
        found = self._by_uid.get(uid)
        if found is None and (named := self._by_key.get(key)) is not None:
            found = named if not named.uids and named.namespace == namespace else None
        return found

    def refresh(self) -> None:
        """Read what other processes have noted."""
        is_new, notes = self._journal.fresh()
        if is_new:
            self._by_key, self._by_uid = {}, {}
        for note in notes:
            known = self._by_key.get(note.key)
            if note.submission is not None:
                self._by_key[note.key] = KubeSubmitted(note.key, note.at, note.namespace, note.submission)
            elif known is not None:
                settled = KubeSubmitted(note.key, known.at, known.namespace, known.submission, note.uids)
                self._by_key[note.key] = settled
                self._by_uid |= dict.fromkeys(note.uids, settled)


class KubeEnded(Struct, frozen=True):
    """A job that has ended, as it was last seen."""

    uid: str
    job: Job
    log: str = ""
    """Name of the file with its output; empty if none was kept."""


class KubeEndedJobs:
    """Jobs that have ended, as long as the file keeps them."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "ended.jsonl", KubeEnded)
        self._by_number: dict[JobId, KubeEnded] = {}
        self._by_uid: dict[str, KubeEnded] = {}

    def add(self, ended: Iterable[KubeEnded]) -> None:
        """Keep jobs that have ended."""
        self._journal.append(ended)

    def of(self, number: JobId) -> KubeEnded | None:
        """Return the record of a job."""
        self._refresh()
        return self._by_number.get(number)

    def of_uid(self, uid: str) -> KubeEnded | None:
        """Return the record of a job."""
        self._refresh()
        return self._by_uid.get(uid)

    def all(self) -> Iterator[KubeEnded]:
        """Yield all records."""
        self._refresh()
        yield from list(self._by_number.values())

    def _refresh(self) -> None:
        is_new, found = self._journal.fresh()
        if is_new:
            self._by_number, self._by_uid = {}, {}
        for each in found:
            self._by_number[each.job.id] = self._by_uid[each.uid] = each
