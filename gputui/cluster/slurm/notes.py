"""Records about a cluster on this machine: submitted specs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gputui.cluster.journal import Journal
from gputui.cluster.slurm.directives import COMMENT, INPUT, TERMINAL
from gputui.domain.job_spec import Interactive, Submission

if TYPE_CHECKING:
    from gputui.cluster.slurm.job_rows import JobRow


class Note(Struct, frozen=True, omit_defaults=True):
    """A step of a submission: first what is going to be submitted, then the job's number."""

    key: str
    at: datetime
    submission: Submission | None = None
    number: int | None = None
    output: str = ""
    """Pattern of the file with its output."""


class Submitted(Struct, frozen=True):
    """A submission as far as it is known."""

    key: str
    at: datetime
    submission: Submission
    output: str = ""
    number: int | None = None


def key_of_comment(comment: str) -> str:
    """Return the key in a job's comment; empty if gputui did not submit it."""
    words = comment.split(maxsplit=1)
    return words[0].removeprefix(COMMENT) if words and words[0].startswith(COMMENT) else ""


def streams_of_comment(comment: str) -> Interactive | None:
    """Return the streams of a job that gputui submitted, by its comment; None if it has neither terminal nor input."""
    words = comment.split()[1:] if key_of_comment(comment) else []
    streams = Interactive(stdin=INPUT in words, tty=TERMINAL in words)
    return streams if streams.stdin or streams.tty else None


def is_refused(row: JobRow) -> bool:
    """Return whether it is what Slurm keeps of a submission that it refused."""
    return row.state == "FAILED" and row.reason == "BadConstraints"


class Submissions:
    """Specs of the jobs that were submitted from this state directory, by key and by number."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "submissions.jsonl", Note)
        self._by_key: dict[str, Submitted] = {}
        self._by_number: dict[int, Submitted] = {}

    def intend(self, key: str, submission: Submission, output: str) -> None:
        """Note durably what is going to be submitted."""
        self._journal.append([Note(key, datetime.now(UTC), submission, output=output)])

    def settle(self, key: str, number: int) -> None:
        """Note durably which job it has become."""
        self._journal.append([Note(key, datetime.now(UTC), number=number)])

    def of_key(self, key: str) -> Submitted | None:
        """Return the submission with that key."""
        if not self._journal.mentions(key.encode()):
            return None
        self._refresh()
        return self._by_key.get(key)

    def of_number(self, number: int) -> Submitted | None:
        """Return the submission that became this job or array."""
        self._refresh()
        return self._by_number.get(number)

    def _refresh(self) -> None:
        is_new, notes = self._journal.fresh()
        if is_new:
            self._by_key, self._by_number = {}, {}
        for note in notes:
            if note.submission is not None:
                known = Submitted(note.key, note.at, note.submission, note.output)
                self._by_key[note.key] = known
            elif note.number is not None and (known_ := self._by_key.get(note.key)) is not None:
                settled = Submitted(known_.key, known_.at, known_.submission, known_.output, note.number)
                self._by_key[note.key] = self._by_number[note.number] = settled
