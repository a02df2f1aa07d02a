"""Submission of jobs by `sbatch`, once for each key, whatever is killed in between.

A script of sh does all of it where Slurm's commands run: once the whole batch script has come it takes a lock, which
`sbatch` inherits, looks for a job with the key, and only then submits. So a `sbatch` that outlived our process is
waited for, and found. A key that nobody can have tried before is not looked for. Whoever looks for one leaves a note,
at which a script that is still on its way gives up.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct

from gputui.cluster.journal import Submissions
from gputui.cluster.slurm import commands
from gputui.cluster.slurm.batch_script import COMMENT, INPUT, TERMINAL, batch_script
from gputui.cluster.slurm.commands import Result, SlurmCommands
from gputui.domain.cluster import element_id
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, InputError, LostAnswerError
from gputui.domain.job_spec import Interactive, JobId, Submission
from gputui.domain.settings import ClusterSettings, Settings

if TYPE_CHECKING:
    from gputui.cluster.slurm.listings import JobRow

DEFAULT_DIRECTORY = "~/.local/state/gputui/cluster-logs"
_KEY = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_START = r" to start at (\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
_BUSY, _UNKNOWN, _NO_DIRECTORY = 75, 74, 73
"""Exit codes of the script: another submission holds the lock; squeue did not answer; a directory cannot be made.

With 71 and 70 nobody waits for it: a later one has looked for the key, or a part of the batch script did not come.
"""
_AGAIN_AFTER = 2.0
"""Seconds before the second look for a submission whose answer was lost."""
_WHOLE = """
script=$(cat)
case $script in *"# all of {key}") ;; *) exit 70;; esac
"""
_LOCK = """
lock=${{XDG_CACHE_HOME:-${{HOME:-/tmp}}/.cache}}/gputui
[ -d "$lock" ] && [ -d {directory} ] || mkdir -p -- "$lock" {directory} || exit 73
: >>"$lock/submit.lock" || exit 73
exec 9>>"$lock/submit.lock" && flock -w 60 9 || exit 75
if [ -e "$lock/{key}.looked" ] && [ "$(cat "$lock/{key}.looked")" -ge {now} ]; then exit 71; fi
"""
_LOOK = """
echo {now} >"$lock/{key}.looked" || exit 73
find "$lock" -name '*.looked' -mtime +7 -exec rm -f {{}} +
found=$(sed -n 's/^{escaped} //p' "$lock/submitted" 2>/dev/null)
if [ -n "$found" ]; then echo "$found"; exit; fi
rows=$(squeue --noheader --all --states=all --user="$(id -un)" --format='%F %T,%r %k') || exit 74
found=$(printf '%s\\n' "$rows" | grep -v '^[0-9]* FAILED,BadConstraints ' |
  sed -n 's/^\\([0-9]*\\) [A-Z_]*,[^ ]* {comment}{escaped}\\( .*\\)\\{{0,1\\}}$/\\1/p' | head -n 1)
if [ -n "$found" ]; then echo "$found"; exit; fi
"""
_SUBMIT = """
number=$(printf '%s\\n' "$script" | {{
{sbatch}
}}) || exit
[ -z "$number" ] || echo "{key} ${{number%%;*}}" >>"$lock/submitted"
if [ "$(wc -c <"$lock/submitted")" -gt 2000000 ]; then
  tail -n 9999 "$lock/submitted" >"$lock/submitted.new" && mv "$lock/submitted.new" "$lock/submitted"
fi
echo "$number"
"""
"""Numbers are noted by key for those who look after Slurm has forgotten the job."""
_PLAIN = """unset SLURM_TIME_FORMAT SLURM_BITSTR_LEN LC_ALL TZ
exec sbatch --parsable"""
_CLEAN = """exec env -i PATH="$PATH" ${USER:+"USER=$USER"} ${LOGNAME:+"LOGNAME=$LOGNAME"} \\
  ${SLURM_CONF:+"SLURM_CONF=$SLURM_CONF"} ${KRB5CCNAME:+"KRB5CCNAME=$KRB5CCNAME"} \\
  sbatch --parsable --export=ALL"""
"""All of an almost empty environment, in place of the script's `--export=NIL`.

With that, and with a list of variables, slurmd starts a login shell before each job, which takes a second or more.
"""
_ENVIRONMENT = ("--export", "--get-user-env")


def key_of_comment(comment: str) -> str:
    words = comment.split(maxsplit=1)
    return words[0].removeprefix(COMMENT) if words and words[0].startswith(COMMENT) else ""


def streams_of_comment(comment: str) -> Interactive | None:
    """Return the streams of a job that gputui submitted, by its comment; None if it has neither terminal nor input."""
    words = comment.split()[1:] if key_of_comment(comment) else []
    streams = Interactive(stdin=INPUT in words, tty=TERMINAL in words)
    return streams if streams.stdin or streams.tty else None


def is_refused(row: JobRow) -> bool:
    """Return whether it is what Slurm keeps of a submission that it refused; accounts have such a job too."""
    return row.state == "FAILED" and not row.nodes


class BatchSubmitter(Struct, eq=False):
    _commands: SlurmCommands
    _settings: Settings
    _submissions: Submissions
    _find: Callable[[str, datetime], int | None]
    """Returns the job with a key, submitted after a time, that Slurm may have forgotten."""

    def submit(
        self, submissions: Sequence[Submission], key: str, home: str, *, is_new: bool = False
    ) -> tuple[JobId, ...]:
        """Submit jobs that were not submitted with this key before; return the ids of all.

        `is_new`: from no other state directory either.
        """
        if not _KEY.fullmatch(key):
            raise InputError("a key has up to 64 letters, digits, dots, dashes and underscores", where=key[:64])
        keys = [key if index == 0 else f"{key}.{index}" for index in range(len(submissions))]
        output = output_directory(self._settings, home)
        scripts = [
            batch_script(each, its_key, self._settings, _pattern(output, each))
            for each, its_key in zip(submissions, keys, strict=True)
        ]
        found: list[JobId] = []
        for submission, its_key, script in zip(submissions, keys, scripts, strict=True):
            number = self._one(submission, its_key, script, output, is_new=is_new)
            found += [element_id(number, index) for index in submission.array] if submission.array else [number]
        return tuple(found)

    def expected_start(self, submission: Submission, home: str) -> datetime | None:
        script = batch_script(
            submission, "test", self._settings, _pattern(output_directory(self._settings, home), submission)
        )
        result = self._commands.run("sbatch", "--test-only", stdin=script)
        if result.code:
            raise ClusterRefusedError(result.words, where="sbatch")
        match = re.search(_START, result.err + result.out)
        if match is None:
            return None
        return commands.moment(match[1]) or datetime.fromisoformat(match[1]).replace(tzinfo=UTC)

    def _one(self, submission: Submission, key: str, script: str, output: str, *, is_new: bool) -> int:
        known = self._submissions.of_key(key)
        if known is not None:  # tried before
            if known.number is not None:
                return known.number
            if (number := self._find(key, known.at)) is not None:
                self._submissions.note_jobs(key, number)
                return number
        else:
            self._submissions.intend(key, submission, output=_pattern(output, submission))
        facts = {"directory": shlex.quote(output), "key": key, "escaped": key.replace(".", "[.]"), "comment": COMMENT}
        facts["sbatch"] = sbatch_line(self._settings.cluster, is_host=submission.spec.is_host)
        steps = _WHOLE + _LOCK + ("" if is_new and known is None else _LOOK) + _SUBMIT
        try:
            number = _number(self._run(steps, facts, f"{script}\n# all of {key}\n"))
        except LostAnswerError as lost:
            number = self._looked_up(facts, lost)
        except ClusterRefusedError:
            self._submissions.note_jobs(key)  # nobody has to look for its job
            raise
        self._submissions.note_jobs(key, number)
        return number

    def _run(self, steps: str, facts: Mapping[str, str], script: str = "") -> Result:
        return self._commands.script(steps.format(**facts, now=time.time_ns()), "sbatch", stdin=script)

    def _looked_up(self, facts: Mapping[str, str], lost: LostAnswerError) -> int:
        """Return the job of a submission whose answer was lost; raises ClusterUnavailableError with what is known."""
        for pause in (0.0, _AGAIN_AFTER):
            time.sleep(pause)
            with suppress(ClusterUnavailableError):
                result = self._run(_LOCK + _LOOK, facts)
                if result.code:
                    continue
                if result.out:
                    return _number(result)
                break
        else:
            what = f"{lost.what}: whether the job was submitted is not known"
            raise LostAnswerError(what, where=lost.where) from lost
        what = f"{lost.what}: nothing was submitted"
        raise ClusterUnavailableError(what, where=lost.where, hint="submit it again") from lost


def sbatch_line(settings: ClusterSettings, *, is_host: bool = False) -> str:
    """Return the line of sh that submits a script on standard input.

    Only jobs that Slurm's own processes run get the user's login environment on the node, unless the site asks for it.
    """
    is_asked = any(option.startswith(_ENVIRONMENT) for option in settings.sbatch_options)
    return _PLAIN if is_host or is_asked or settings.container != "docker" else _CLEAN


def output_directory(settings: Settings, home: str) -> str:
    directory = settings.cluster.log_directory or DEFAULT_DIRECTORY
    return str(PurePosixPath(home, directory.removeprefix("~").lstrip("/")) if directory[:1] == "~" else directory)


def expanded(pattern: str, job_id: JobId) -> str:
    number, index = commands.parts(job_id)
    return pattern.replace("%A", str(number)).replace("%a", str(index)).replace("%j", str(number)).replace("%%", "%")


def _pattern(directory: str, submission: Submission) -> str:
    name = "%A_%a.out" if submission.array else "%j.out"
    return f"{directory.replace('%', '%%')}/{name}"


def _number(result: Result) -> int:
    if result.code == _BUSY:
        raise ClusterUnavailableError("another submission has not ended for a minute", where="sbatch")
    if result.code == _NO_DIRECTORY:
        raise ClusterRefusedError(
            f"nothing was submitted: {result.words}",
            where="cluster.log_directory",
            hint="it and ~/.cache must be writable",
        )
    if result.code == _UNKNOWN:
        raise ClusterUnavailableError(f"Slurm does not answer: {result.words}", where="squeue")
    if result.code:
        raise ClusterRefusedError(f"Slurm refused the job: {result.words}", where="sbatch")
    number = result.out.strip().partition(";")[0]
    if not number.isdigit():
        raise LostAnswerError(f"sbatch printed no job id: {result.words}", where="sbatch")
    return int(number)
