"""Slurm's own commands, run here or on a login node, in an environment without the user's formats and defaults."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, GputuiError, LostAnswerError
from gputui.domain.frames import CommandMarks

if TYPE_CHECKING:
    from gputui.cluster.command_channel import CommandChannel
    from gputui.cluster.ssh import SshConnection

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
    """Output and exit code of a command."""

    out: str
    err: str
    code: int

    @property
    def words(self) -> str:
        """Return what it complained about, in one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        lines = [line for line in lines if "warning: " not in line] or lines
        return "; ".join(dict.fromkeys(re.sub(_PREFIX, "", line) for line in lines[-2:])) or f"exit code {self.code}"


class SlurmCommands:
    def __init__(self, ssh: SshConnection | None, timeout: float, environ: Mapping[str, str] | None = None) -> None:
        self._ssh = ssh
        self._timeout = timeout
        self._environ = os.environ if environ is None else environ
        self.noise = ""
        """A line that a login shell printed around the last command, which is no part of its output."""

    @property
    def place(self) -> str:
        """Where they run: `login1`, or nothing for this machine."""
        return self._ssh.host if self._ssh else ""

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
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=nothing, env=self._env())
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
        from gputui.cluster.command_channel import CommandChannel  # few commands need terminals

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
            done = subprocess.run(
                self._argv(argv, marks),
                input=stdin.encode(errors="surrogateescape"),
                capture_output=True,
                timeout=self._timeout,
                env=self._env(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LostAnswerError(f"{name} did not answer within {self._timeout:.0f} s", where=self._where) from error
        except OSError as error:
            raise self._away(f"{name} cannot be run here: {error.strerror}", "is Slurm's client installed?") from error
        out, err, code = done.stdout, done.stderr, done.returncode
        if self._ssh:
            out, err, code = self._told(marks, done, name)
        result = Result(out.decode(errors="replace"), err.decode(errors="replace"), code)
        self._check(result, name)
        return result

    def _told(
        self, marks: CommandMarks, done: subprocess.CompletedProcess[bytes], name: str
    ) -> tuple[bytes, bytes, int]:
        """Return output and exit code of a command on the login node; raises ClusterUnavailableError without an end."""
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
        raise LostAnswerError(fault or f"its login shell did not run {name}: {told}", where=self._where)

    def _check(self, result: Result, name: str) -> None:
        """Raise ClusterUnavailableError if the command did not reach Slurm."""
        if result.code == _NOT_FOUND and "not found" in result.err:
            raise self._away(f"{name} is not installed there", "is Slurm's client installed on the login node?")
        if result.code and (re.search(_AWAY, result.err) or result.code < 0):
            if name == "sacct":
                raise self._away(f"Slurm's accounts do not answer: {result.words}", "is slurmdbd up?")
            kind = LostAnswerError if re.search(_LOST, result.err) else ClusterUnavailableError
            hint = "is slurmctld up? Try: scontrol ping"
            raise kind(f"Slurm does not answer: {result.words}", where=self._where, hint=hint)

    @property
    def _where(self) -> str | None:
        return self.place or None

    def _away(self, what: str, hint: str | None = None) -> ClusterUnavailableError:
        return ClusterUnavailableError(what, where=self._where, hint=hint)

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
    """Return a word that nobody can guess, which parts records in the output of commands."""
    return f"m{os.urandom(8).hex()}"
