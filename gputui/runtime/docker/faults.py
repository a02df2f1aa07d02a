"""Translates the engine's error messages into causes.

The engine distinguishes most failures only by their text, so the fragments below come from messages of moby, containerd
and runc, compared without case.
"""

from __future__ import annotations

import os
import re

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.engine_service import service_at
from gputui.domain.errors import RuntimeAccessError, RuntimeFault, RuntimeUnavailableError

_FRAGMENTS: tuple[tuple[CauseCode, tuple[str, ...]], ...] = (
    (CauseCode.DISK_FULL, ("no space left on device", "disk quota exceeded")),
    (
        CauseCode.GPU_SETUP_FAILED,
        (
            "could not select device driver",
            "nvidia-container",
            "nvidia-ctk",
            "nvml error",
            "cdi device injection",
            "unresolvable cdi",
            "error running (prestart |createruntime )?hook",
            "/dev/nvidia",
        ),
    ),
    (
        CauseCode.IMAGE_NOT_FOUND,
        (
            "no such image",
            "manifest unknown",
            "manifest for .* not found",
            "no matching manifest",
            "name unknown",
            "repository does not exist",
            "pull access denied",
            "unauthorized",
            "requested access to the resource is denied",
            "invalid reference format",
            "cannot contain a scheme",
            "invalid index name",
        ),
    ),
    (
        CauseCode.COMMAND_NOT_FOUND,
        ("executable file not found", "exec: .*: no such file or directory"),
    ),
    (
        CauseCode.COMMAND_NOT_EXECUTABLE,
        ("exec: .*: permission denied", "exec: .*: is a directory", "exec format error"),
    ),
)

_OPTIONS: tuple[tuple[str, str], ...] = (
    (
        r"bind source path|invalid (mount|volume)|mount (path|config|point)|volume name|are you trying to mount",
        "--volume or --mount",
    ),
    (r"not a shared (or slave )?mount", "--volume or --mount"),
    # a place for a mount, or to work in, that the engine would have to make below a mount that is read-only
    (r"during container init: .*read-only file system", "--volume or --mount"),
    (r"does not match the (specified|detected host) platform|unknown operating system or arch", "--platform"),
    (r"runtime name|unknown runtime|runtime .* not (found|installed)", "--runtime"),
    (r"unable to find user|no matching entries in (passwd|group)|linux spec user|uids and gids must be", "--user"),
    (r"memory limit|memoryswap|memory swap", "--memory"),
    (r"range of cpus|cpus available|nanocpus|cpu cfs|cpu\.cfs_quota|cpu\.max", "--cpus"),
    (r"cpu.?shares", "--cpu-shares"),
    (r"\bshm\b|shmsize|shm size", "--shm-size"),
    (r"ulimit|rlimit", "--ulimit"),
    (r"\bipc\b", "--ipc"),
    (r"network .*not found|network mode|no such network|could not find a network", "--network"),
    (r"working directory|chdir to cwd", "--workdir"),
    (r"no command specified", "COMMAND"),
)

_HINTS = {
    CauseCode.IMAGE_NOT_FOUND: "check the image's name, or `docker login`",
    CauseCode.GPU_SETUP_FAILED: "run `gputui doctor`: the NVIDIA driver or container toolkit failed",
    CauseCode.DISK_FULL: "make room on the engine's disk: `docker system df`",
}

_TLS: tuple[tuple[str, str, str], ...] = (
    (
        "http request to an https server",
        "speaks only TLS",
        "export DOCKER_TLS_VERIFY=1 DOCKER_CERT_PATH=DIR    # with ca.pem, cert.pem and key.pem",
    ),
    ("wrong.version.number|record layer failure", "speaks no TLS", "unset DOCKER_TLS_VERIFY and DOCKER_TLS"),
    (
        "certificate.verify.failed",
        "has a certificate that is not trusted",
        "DOCKER_CERT_PATH must name the directory with the ca.pem of its authority, and the address a name it contains",
    ),
    (
        "certificate.required|bad.certificate|unknown.ca|handshake.failure",
        "does not accept the certificate of this user",
        "DOCKER_CERT_PATH must name the directory with cert.pem and key.pem, signed by the engine's authority",
    ),
)
"""Patterns in errors of TLS, what is wrong, and advice."""

_TINI = re.compile(rb"\[FATAL tini \(\d+\)\] exec (.+?) failed: (.+)")


def cause_of(text: str, *, status: int | None = None, exit_code: int | None = None) -> Cause:
    """Return the cause of an error message of the engine."""
    words = _tidy(text)
    lower = words.lower()
    for code, fragments in _FRAGMENTS:
        if any(re.search(fragment, lower) for fragment in fragments):
            return Cause(code, words)
    if option := next((option for pattern, option in _OPTIONS if re.search(pattern, lower)), None):
        return Cause(CauseCode.BAD_SPEC, f"{option}: {words}")
    by_exit = {126: CauseCode.COMMAND_NOT_EXECUTABLE, 127: CauseCode.COMMAND_NOT_FOUND}
    if status == 400 and exit_code in by_exit:
        return Cause(by_exit[exit_code], words)
    return Cause(CauseCode.BAD_SPEC if status == 400 else CauseCode.RUNTIME_ERROR, words)


def cause_of_init(log_tail: bytes) -> Cause | None:
    """Return the cause that the engine's init logged when it could not run the command; None without one.

    With `--init` it is tini that finds the command missing: the container runs for a moment, exits with 127 or 126,
    and only its output distinguishes that from an exit of the job's own shell.
    """
    found = _TINI.search(log_tail)
    if not found:
        return None
    command, why = (part.decode(errors="replace").strip() for part in found.groups())
    missing = "no such file" in why.lower()
    code = CauseCode.COMMAND_NOT_FOUND if missing else CauseCode.COMMAND_NOT_EXECUTABLE
    return Cause(code, f"the image has no command {command!r}" if missing else f"cannot run {command!r}: {why}")


def fault(text: str, *, status: int | None = None, exit_code: int | None = None) -> RuntimeFault:
    """Return the error to raise for a message of the engine."""
    cause = cause_of(text, status=status, exit_code=exit_code)
    return RuntimeFault(cause, hint=_HINTS.get(cause.code))


def bad_spec(option: str, problem: str) -> RuntimeFault:
    """Return the error for an invalid option of the job."""
    return RuntimeFault(Cause(CauseCode.BAD_SPEC, f"{option}: {problem}"))


class SilentError(RuntimeUnavailableError):
    """The engine did not answer in time: it may only hang."""


def unavailable(where: str, error: BaseException) -> RuntimeUnavailableError:
    """Return the error for an engine that does not answer, with advice."""
    text = str(error)
    lower = text.lower()
    service = service_at(where, os.geteuid())
    for pattern, what, hint in _TLS:
        if re.search(pattern, lower):
            return RuntimeUnavailableError(f"Docker at {where} {what}", hint=hint)
    if "permission denied" in lower:
        hint = f"`ls -l {where.partition('://')[2]}` shows whose engine it is; use one of your own: DOCKER_HOST"
        if service.settings and not service.uid:
            hint = "users in the group docker may, which equals root: `sudo usermod -aG docker USER`, then log in again"
        return RuntimeAccessError(f"no permission to speak to Docker at {where}", hint=hint)
    if "no such file" in lower or "connection refused" in lower:
        return RuntimeUnavailableError(f"Docker does not run at {where}", hint=service.start)
    if "timed out" in lower or "timeout" in lower:
        return SilentError(f"Docker at {where} did not answer in time", hint=service.status)
    return RuntimeUnavailableError(f"Docker at {where} does not answer: {_tidy(text)}", hint=service.status)


def _tidy(text: str) -> str:
    """Return one line of at most 400 characters, without the prefixes of the engine's layers."""
    line = " ".join(text.split())
    line = re.sub(
        r"^(failed to create (shim )?task( for container)?: |OCI runtime create failed: |runc create failed: )+",
        "",
        line,
    )
    line = line.removesuffix(": unknown").removesuffix(": unknown.")
    return line if len(line) <= 400 else line[:399] + "…"


def is_missing(error: RuntimeFault) -> bool:
    """Return whether the engine said that there is no such container."""
    return "no such container" in error.what.lower()


def is_conflict(error: RuntimeFault) -> bool:
    """Return whether the engine said that the container's name is taken."""
    words = error.what.lower()
    return "conflict" in words and "already in use" in words
