"""Patterns of errors in the output of training jobs.

The patterns follow the programs' own wording: CPython's traceback module, PyTorch (c10::Error, torch.distributed), JAX
and XLA (XlaRuntimeError, absl's log lines), NCCL (its WARN lines), CUDA and the status names of its libraries, glibc,
the Linux kernel's OOM killer and Xid lines, and Slurm's slurmstepd.
"""

from __future__ import annotations

import re
from functools import cache

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
