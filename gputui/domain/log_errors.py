"""Patterns of errors in the output of training jobs, and the line of a failed job's output that says why it failed.

The patterns follow the programs' own wording: CPython's traceback module, PyTorch (c10::Error, torch.distributed), JAX
and XLA (XlaRuntimeError, absl's log lines), NCCL (its WARN lines), CUDA and the status names of its libraries, glibc,
the Linux kernel's OOM killer and Xid lines, and Slurm's slurmstepd.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache

from gputui.domain.job_spec import Pairs
from gputui.domain.text import plain, without_secrets

_KINDS: dict[str, tuple[str, ...]] = {
    "out of memory": (
        r"CUDA out of memory",
        r"\b\w*OutOfMemoryError\b",
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED",
        r"RESOURCE_EXHAUSTED",
        r"[Cc]annot allocate memory|std::bad_alloc|^MemoryError\b|Unable to allocate .{1,40} for an array",
        r"\b[Oo][Oo][Mm][-_ ][Kk]ill|Out of memory: Kill",
    ),
    "NCCL": (
        r"\bNCCL WARN\b|NCCL error|NCCL operation .{1,60} failed",
        r"\bnccl(?:SystemError|UnhandledCudaError|InternalError|RemoteError|InvalidUsage|InvalidArgument)\b",
        r"Watchdog caught collective operation timeout|\bDistBackendError\b",
    ),
    "CUDA": (
        r"CUDA error\b|CUDA failure\b|\bCUDA_ERROR_[A-Z]+|\bcudaError[A-Z]\w+",
        r"\bCU(?:BLAS|DNN|FFT|SPARSE)_STATUS_(?!SUCCESS)\w+",
        r"device-side assert|Assertion `.{1,200}` failed|illegal memory access|no kernel image is available",
        r"NVRM: Xid|Failed to initialize NVML|NVML: Unknown Error|NVIDIA driver on your system is too old",
    ),
    "crash": (
        r"\bSegmentation fault\b|\bBus error\b|[Uu]nexpected bus error|\bSIG(?:SEGV|ABRT|BUS|ILL|FPE)\b|core dumped",
        r"\bFatal Python error\b|terminate called after|\*\*\* Aborted at|^panic: |panicked at",
        r"stack smashing detected|double free or corruption",
    ),
    "traceback": (r"^.{0,60}Traceback \(most recent call last\)", r"\bChildFailedError\b"),
    "killed": (
        r"^Killed$|\bKilled process \d+|\bSIGKILL\b|exitcode: -\d+",
        r"(?:exit(?:ed)?|died|killed|terminated) (?:with|by|on|from) signal",
        r"CANCELLED AT .{1,40} DUE TO|DUE TO TIME LIMIT",
    ),
    "exit": (
        r"\bexit(?:ed)? (?:with )?(?:non-zero )?(?:exit )?(?:code|status)\W{0,2}[1-9]\d*",
        r"exitcode\W{1,6}[1-9]\d*|returned non-zero exit status|srun: error",
    ),
    "error": (
        r"^(?:\S{1,40} )?\W{0,2}(?:[\w.]{0,80}(?:Error|Exception)|KeyboardInterrupt|fatal|error)\W{0,2}:",
        r"^\w[\w.]{0,80}(?:Error|Exception)$|\b(?:ERROR|FATAL|CRITICAL)(?=[\s\])|:-]|$)|^[EF]\d{4} \d\d:\d\d:",
        r": (?:fatal )?error: |[:\]] No such file or directory|: command not found|[Pp]ermission denied",
    ),
}
_WORDS = (
    *(
        "error",
        "exception",
        "traceback",
        "memory",
        "nccl",
        "cuda",
        "kill",
        "exit",
        "fault",
        "abort",
        "fatal",
        "critical",
    ),
    *("assert", "signal", "sigsegv", "sigbus", "sigill", "sigfpe", "sigabrt", "xid", "nvml", "alloc", "exhausted"),
    *("interrupt", "panic", "dumped", "smashing", "corruption", "no such file", "not found", "denied", "time limit"),
    *("_status_", "nvidia", "watchdog", "kernel image", "cancelled", "terminate called"),
)
"""Words, one of which every error contains; for most lines this quick check suffices."""
_ABSL = re.compile(r"[EF]\d{4} ")


@cache
def kinds_of_errors() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the pattern of each kind; compiling them takes longer than many a command."""
    return tuple((kind, re.compile("|".join(expressions))) for kind, expressions in _KINDS.items())


def error_in(text: str) -> str | None:
    """Return the kind of error that a line reports, in a word; None for other lines."""
    lowered = text.lower()
    if not any(word in lowered for word in _WORDS) and _ABSL.match(text) is None:
        return None
    return next((kind for kind, expression in kinds_of_errors() if expression.search(text)), None)


TAIL = 200
"""Number of last lines that are searched."""
SHOWN = 200
"""Maximum length of an error line, in characters."""
_LINE = 4096
"""Bytes of a line that are read."""
_RANK = re.compile(r"^(?:\s*\[rank\d+\]:\s?|\[?\w{0,20}\d{1,4}\]?[:|] |\d{1,4}: )")
"""Prefixes by which torchrun, mpirun and srun tell processes apart."""
_HEAD = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,120}(?:: |:?$)")
_WHAT = re.compile(r"^\s*what\(\):\s+(?P<words>\S.*)")
_ECHO = re.compile(
    r"ChildFailedError|exit ?code|exit status|exited with|\[E\w+\]? .*failed \(exitcode|^make(?:\[\d+\])?: \*\*\*|"
    r"^srun: error|returned non-zero|closing signal|CalledProcessError|^E\d{4} .*api\.py",
    re.IGNORECASE,
)
"""Lines in which launchers repeat that one of their processes failed."""
_FOLLOWS = re.compile(
    r"remote process exited|Connection (?:closed|reset) by peer|Broken pipe|Dist(?:Backend|Network|Store)Error|"
    r"ncclRemoteError|^KeyboardInterrupt|SignalException"
)
"""Exceptions that follow from the end of another process."""
_SHELL = re.compile(r"^(?:/\S+/)?\w{0,12}sh: (?:\d+: |line \d+: )?.{1,200}: not found$|: command not found$")
_STRONG, _ERROR, _CRASH, _WEAK = 4, 3, 2, 1
_WEIGHTS = {
    "out of memory": _STRONG,
    "CUDA": _STRONG,
    "error": _ERROR,
    "crash": _CRASH,
    "NCCL": _CRASH,
    "killed": _WEAK,
    "exit": _WEAK,
}


def find_error_line(lines: Iterable[bytes], env: Pairs = ()) -> str:
    """Return the line that best explains a job's failure, without control characters and secrets; empty if none.

    The exception of a Python traceback and errors of CUDA or memory come before other errors, and these before crashes
    and the lines of launchers; of several equal ones the last is returned.
    """
    texts = []
    for raw in deque(lines, TAIL):
        if len(raw) > _LINE:
            raw = raw[-_LINE:] if b"\r" in raw[-_LINE:] else raw[:_LINE]
        # the final text on a terminal: without control sequences and overwritten progress
        parts = raw.decode("utf-8", "replace").split("\r")
        texts.append(plain(next((part for part in reversed(parts) if part.strip()), "").expandtabs()).rstrip())
    found = max(_candidates(texts), key=lambda candidate: candidate[:2], default=(0, 0, ""))
    return plain(without_secrets(found[2], env), SHOWN)


def _candidates(texts: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield weight, position and text of each line that may be the reason."""
    for place, text in enumerate(texts):
        if _HEAD in text:
            # the exception is the first line that is not indented; those with another prefix are of other processes
            prefix = text.partition(_HEAD)[0]
            after = (
                (at, each[len(prefix) :]) for at, each in enumerate(texts) if at > place and each.startswith(prefix)
            )
            at, rest = next(((at, rest) for at, rest in after if rest and not rest[0].isspace()), (0, ""))
            if _EXCEPTION.match(rest):
                words = rest.strip()
                yield _WEAK if _ECHO.search(words) else _CRASH if _FOLLOWS.search(words) else _STRONG, at, words
        elif what := _WHAT.match(text):
            yield _STRONG, place, what["words"]
        elif weight := _weight(text):
            yield weight, place, _RANK.sub("", text).strip()


def _weight(text: str) -> int:
    """Return the weight of a line that is no part of a traceback; 0: it is not the reason."""
    if _SHELL.search(text):
        return _ERROR
    if (kind := error_in(text)) is None:
        return 0
    if _ECHO.search(text):
        return _WEAK
    return min(_WEIGHTS.get(kind, 0), _CRASH if _FOLLOWS.search(text) else _STRONG)
