"""Slurm's own commands, run here or on a login node, in an environment without the user's formats and defaults."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from gputui.domain.cluster import array_of, element_id, element_runs, index_of, is_element
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, GputuiError, LostAnswerError
from gputui.domain.frames import CommandMarks
from gputui.domain.job_spec import JobId

if TYPE_CHECKING:
    from gputui.cluster.ssh import CommandChannel, SshConnection


OWN_VARIABLES = (
    *("SQUEUE_", "SBATCH_", "SLURM_", "SLURMD_", "SALLOC_", "SINFO_"),
    *("SACCT_", "SCANCEL_", "SCONTROL_", "SPRIO_", "SRUN_"),
)
"""Beginnings of the variables by which a user changes what the commands do or print."""
_KEPT = "SLURM_CONF"
_SET = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Times as seconds since 1970, and lists of indices that are never cut."""
_AWAY = (  # compiled for an error only
    r"Unable to contact slurm controller|Unable to establish control|Socket timed out|Connection refused"
    r"|Zero Bytes were transmitted|slurm_persist_conn_open|Address already in use|Transport endpoint"
    r"|backup controller is responding|Could not establish a configuration source|Unable to process configuration"
    r"|Incompatible versions of client|Unable to connect to database|Communications connection failure"
    r"|Protocol authentication error|Munge"
)
_LOST = "timed out|Zero Bytes|Transport endpoint"
"""Complaints of a command whose request may have arrived."""
_REFUSED = r"(?m)^(ssh: |Host key verification|\S+: Permission denied|Permission denied)"
"""Complaints of an ssh that has not reached a shell."""
_PREFIX = r"^(?:(?:scancel|scontrol|sbatch|squeue|sacct|sinfo|sacctmgr): )?(?:(?:\w+ )?(?:error|fatal): ?)?"
_NOT_FOUND = 127
CLEAR = (
    'for v in $(env | sed -n "s/^\\([A-Z]*_[A-Za-z0-9_]*\\)=.*/\\1/p"); do case $v in '
    f"{_KEPT}) ;; SQUEUE_*|SBATCH_*|SLURM_*|SLURMD_*|SALLOC_*|SINFO_*|SACCT_*|SCANCEL_*|SCONTROL_*|SPRIO_*|SRUN_*) "
    'unset "$v";; esac; done; '
)
"""Lines of sh that unset these variables on a login node."""


class Result(NamedTuple):
    out: str
    err: str
    code: int

    @property
    def words(self) -> str:
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        lines = [line for line in lines if "warning: " not in line] or lines
        return "; ".join(dict.fromkeys(re.sub(_PREFIX, "", line) for line in lines[-2:])) or f"exit code {self.code}"


class SlurmCommands:
    def __init__(self, ssh: SshConnection | None, timeout: float, environ: Mapping[str, str] | None = None) -> None:
        self._ssh = ssh
        self._timeout = timeout
        self._environ = os.environ if environ is None else environ
        self.place = ssh.host if ssh else ""
        """Where they run: `login1`, or nothing for this machine."""
        self.noise = ""
        """A line that a login shell printed around the last command, which is no part of its output."""

    def run(self, *argv: str, stdin: str = "") -> Result:
        """Run a command to its end; raises ClusterUnavailableError if that fails or Slurm does not answer."""
        return self._finished(argv, argv[0], stdin)

    def script(self, text: str, name: str, *, stdin: str = "") -> Result:
        """Run lines of sh that call the command `name`, with the same environment."""
        return self._finished(("sh", "-c", text), name, stdin)

    def ask(self, *argv: str, stdin: str = "") -> str:
        """Return the output of a command; raises ClusterRefusedError with its words if it fails."""
        result = self.run(*argv, stdin=stdin)
        if result.code:
            raise ClusterRefusedError(result.words, where=argv[0])
        return result.out

    def popen(self, *argv: str) -> tuple[subprocess.Popen[bytes], CommandMarks]:
        """Start a command on the login node whose output is read as it comes, between marks; the caller ends it.

        Its input has no bytes, and ends with the connection.
        """
        marks, pipe, nothing = CommandMarks(), subprocess.PIPE, subprocess.DEVNULL
        words = self._argv(argv, marks)
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=nothing, env=self._env())  # noqa: S603 - a command of Slurm; over ssh each word is quoted
        return process, marks

    def channel(
        self,
        argv: Sequence[str],
        marks: CommandMarks,
        *,
        is_tty: bool,
        has_input: bool,
        term: str,
        refused: Callable[[str], GputuiError],
    ) -> CommandChannel:
        """Start a command whose streams a user talks to; `refused` words the complaints of one that did not begin."""
        from gputui.cluster.ssh import CommandChannel  # few commands need terminals

        def error(complaint: str, code: int) -> GputuiError:
            if self._ssh and (fault := self._ssh.fault(complaint, code)):
                return self._away(fault)
            try:
                self._check(Result("", complaint, code), argv[0])
            except ClusterUnavailableError as away:
                return away
            return refused(complaint)

        around = CommandMarks() if self._ssh and not is_tty else None  # a terminal has both streams in one
        words, environ = self._argv(argv, around, is_tty=is_tty), self._env() | ({"TERM": term} if is_tty else {})
        try:
            return CommandChannel(words, environ, marks, around, is_tty=is_tty, has_input=has_input, refused=error)
        except OSError as fault:
            raise self._away(f"{argv[0]} cannot be run here: {fault.strerror}") from fault

    def close(self) -> None:
        if self._ssh:
            self._ssh.close()

    def _finished(self, argv: Sequence[str], name: str, stdin: str) -> Result:
        marks = CommandMarks()
        try:
            done = subprocess.run(  # noqa: S603 - a command of Slurm; over ssh each word is quoted
                self._argv(argv, marks),
                input=stdin.encode(errors="surrogateescape"),
                capture_output=True,
                timeout=self._timeout,
                env=self._env(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            what = f"{name} did not answer within {self._timeout:.0f} s"
            raise LostAnswerError(what, where=self.place or None) from error
        except OSError as error:
            raise self._away(f"{name} cannot be run here: {error.strerror}", "is Slurm's client installed?") from error
        out, err, code = done.stdout, done.stderr, done.returncode
        if self._ssh:
            out, err, code = self._between_marks(marks, done, name)
        result = Result(out.decode(errors="replace"), err.decode(errors="replace"), code)
        self._check(result, name)
        return result

    def _between_marks(
        self, marks: CommandMarks, done: subprocess.CompletedProcess[bytes], name: str
    ) -> tuple[bytes, bytes, int]:
        assert self._ssh is not None
        errors = CommandMarks(key=marks.key)
        out, err = marks.whole(done.stdout), errors.whole(done.stderr)
        if marks.code is not None:
            self.noise = marks.told() or errors.told()
            return out, err, marks.code
        words = errors.words + err.decode(errors="replace")
        fault = self._ssh.fault(words, done.returncode)
        if fault and not marks.has_begun and re.search(_REFUSED, words):
            raise self._away(fault)
        told = marks.told(200) or errors.told(200) or f"exit code {done.returncode}"
        raise LostAnswerError(fault or f"its login shell did not run {name}: {told}", where=self.place or None)

    def _check(self, result: Result, name: str) -> None:
        if result.code == _NOT_FOUND and "not found" in result.err:
            raise self._away(f"{name} is not installed there", "is Slurm's client installed on the login node?")
        if result.code and (re.search(_AWAY, result.err) or result.code < 0):
            if name == "sacct":
                raise self._away(f"Slurm's accounts do not answer: {result.words}", "is slurmdbd up?")
            kind = LostAnswerError if re.search(_LOST, result.err) else ClusterUnavailableError
            hint = "is slurmctld up? Try: scontrol ping"
            raise kind(f"Slurm does not answer: {result.words}", where=self.place or None, hint=hint)

    def _away(self, what: str, hint: str | None = None) -> ClusterUnavailableError:
        return ClusterUnavailableError(what, where=self.place or None, hint=hint)

    def _argv(self, argv: Sequence[str], marks: CommandMarks | None, *, is_tty: bool = False) -> Sequence[str]:
        """Return the words that run a command; without `marks` it has some of its own."""
        if not self._ssh:
            return argv
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in _SET.items())
        script = f"{CLEAR}export {settings}; exec {shlex.join(argv)}"
        return self._ssh.argv(marks.around(script) if marks else script, is_tty=is_tty)

    def _env(self) -> dict[str, str]:
        if self._ssh:
            return dict(self._environ)
        kept = {k: v for k, v in self._environ.items() if k == _KEPT or not k.startswith(OWN_VARIABLES)}
        return {**kept, **_SET}


def mark_of() -> str:
    return f"m{os.urandom(8).hex()}"


_WORDS = re.compile(r"(\d{1,12})(?:_(\d{1,8}))?", re.ASCII)


def parts(job_id: JobId) -> tuple[int, int | None]:
    """Return Slurm's id of the job or array, and the index of an element."""
    return (array_of(job_id), index_of(job_id)) if is_element(job_id) else (job_id, None)


def words(job_id: JobId) -> str:
    """Return the id as Slurm writes it: `123`, or `123_4` for element 4 of array 123."""
    number, index = parts(job_id)
    return str(number) if index is None else f"{number}_{index}"


def of_words(text: str) -> JobId | None:
    match = _WORDS.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) if match[2] is None else element_id(int(match[1]), int(match[2]))


def grouped(ids: Iterable[JobId]) -> Iterator[tuple[str, tuple[JobId, ...]]]:
    """Yield words that name one job, or many elements of one array, with their ids: `7`, `123_[0-9,12]`."""
    arrays: dict[int, list[int]] = {}
    for job_id in dict.fromkeys(ids):
        number, index = parts(job_id)
        if index is None:
            yield str(number), (job_id,)
        else:
            arrays.setdefault(number, []).append(index)
    for number, indices in arrays.items():
        named = ",".join(map(str, element_runs(number, sorted(indices))))  # without steps, which scancel does not know
        text = f"{number}_{named}" if len(indices) == 1 else f"{number}_[{named}]"
        yield text, tuple(element_id(number, index) for index in sorted(indices))


NOTHING = frozenset({"", "N/A", "n/a", "(null)", "None", "Unknown", "NONE", "(none)"})
_LONGEST_TIME = 253402300799
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_GRES = re.compile(
    r"(?:gres[:/])?gpu(?:[:=/](?P<type>[^:,=()\s]*[^\d:,=()\s][^:,=()\s]*))?(?:[:=](?P<count>\d+))?(?P<rest>\([^)]*\))?"
)
_IDX = re.compile(r"IDX:([\d,-]+)")
_SHARED = re.compile(r"(?:gres[:/])?(?P<kind>shard|mps)[:\w.-]*\((?P<places>[^)]*)\)")
_PART = re.compile(r"(\d{1,9})/(\d{1,9})")
MOST_HOSTS = 100_000


def some(text: str) -> str:
    return "" if text in NOTHING else text


def moment(text: str) -> datetime | None:
    """Return the time of a count of seconds since 1970; None for Slurm's words for no time."""
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= _LONGEST_TIME:
        return None
    return datetime.fromtimestamp(int(text), UTC)


def span(text: str) -> timedelta | None:
    """Return the duration of `2-03:04:05`, `3:04:05`, `4:05` or minutes; None for UNLIMITED and the like."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, *fields = [None if part is None else int(part) for part in match.groups()]
    known = [part for part in fields if part is not None]
    if days is not None:  # begins with hours
        hours, minutes, seconds = (*known, 0, 0)[:3]
    elif len(known) == 1:
        hours, minutes, seconds = 0, known[0], 0
    else:  # ends with seconds
        hours, minutes, seconds = (0, *known)[-3:]
    return timedelta(days=days or 0, hours=hours, minutes=minutes, seconds=seconds)


def numbers(text: str) -> list[int]:
    """Return the numbers of `0,2,4-10:2`; raises ValueError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        span_text, _, step = part.partition(":")
        first, dash, last = span_text.partition("-")
        found += range(int(first), int(last if dash else first) + 1, int(step or 1))
    return found


def hosts(text: str) -> tuple[str, ...]:
    """Return the names in a list of hosts: `gpu[1-3,07],login`."""
    found: list[str] = []
    for part in filter(None, re.split(r",(?![^\[\]]*\])", some(text))):
        found += _expanded(part)
        if len(found) > MOST_HOSTS:
            break
    return tuple(found)


def _expanded(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    ranges, closing, after = rest.partition("]")
    if not bracket or not closing:
        return [part]
    found, tails = list[str](), _expanded(after) if after else [""]
    for each in ranges.split(","):
        first, dash, last = each.partition("-")
        numbers = [each]
        if dash and first.isdigit() and last.isdigit():  # with their leading zeros
            most = min(int(last), int(first) + MOST_HOSTS)
            numbers = [f"{number:0{len(first)}}" for number in range(int(first), most + 1)]
        found += [f"{before}{number}{tail}" for number in numbers for tail in tails]
    return found


def gpu_count(text: str) -> int:
    """Return the number of GPUs in a list of resources: `gres:gpu:h200:2`, `gpu:2(S:0)`, `gres/gpu=4`."""
    kinds = gpu_lists(text)
    totals = [count for model, count, _ in kinds if not model]
    return sum(totals if totals and "=" in text else [count for _, count, _ in kinds])  # TRES repeat the total by model


def gpu_lists(text: str) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return model, number and indices of each kind of GPU in a list of resources.

    The list may be Gres, GresUsed or GRES of a node or job: `gpu:h200:2(IDX:0-1)`. A model is empty where none is
    named, and indices where none are.
    """
    found = []
    for part in re.split(r",(?![^(]*\))", some(text)):
        match = _GRES.fullmatch(part.strip())
        if match is None:
            continue
        places = _IDX.search(match["rest"] or "")
        found.append((match["type"] or "", int(match["count"] or 1), tuple(numbers(places[1])) if places else ()))
    return found


def shared_gpus(text: str) -> dict[int, float]:
    """Return the GPUs of which a list of resources has parts, as shards or by MPS, with the share of each.

    `shard:h200:3(3/4,0/4),mps:a100:0(0/100)` tells of every GPU in turn; before Slurm 23.02 `shard:3(IDX:0)` tells only
    which GPUs, whose share then counts as 1.
    """
    found: dict[int, float] = {}
    seen: dict[str, int] = {}
    for match in _SHARED.finditer(some(text)):
        kind, places = match["kind"], match["places"]
        parts = [(int(used), int(total)) for used, total in _PART.findall(places)]
        first = seen.get(kind, 0)
        seen[kind] = first + len(parts)
        found |= {first + place: used / total for place, (used, total) in enumerate(parts) if used and total}
        if named := _IDX.search(places):
            found |= dict.fromkeys(numbers(named[1]), 1.0)
    return found
