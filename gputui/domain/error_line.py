"""Finds the line of a failed job's output that says why it failed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from gputui.domain.container_options import Pairs
from gputui.domain.log_errors import error_in
from gputui.domain.redaction import without_secrets
from gputui.domain.text import plain

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
    texts = [_text(raw) for raw in deque(lines, TAIL)]
    found = max(_candidates(texts), key=lambda candidate: candidate[:2], default=(0, 0, ""))
    return plain(without_secrets(found[2], env), SHOWN)


def _text(raw: bytes) -> str:
    """Return the final text of the line on a terminal: without control sequences and overwritten progress."""
    if len(raw) > _LINE:
        raw = raw[-_LINE:] if b"\r" in raw[-_LINE:] else raw[:_LINE]
    parts = raw.decode("utf-8", "replace").split("\r")
    return plain(next((part for part in reversed(parts) if part.strip()), "").expandtabs()).rstrip()


def _candidates(texts: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield weight, position and text of each line that may be the reason."""
    for place, text in enumerate(texts):
        if _HEAD in text:
            ended = _exception_after(texts, place)
            if ended is not None:
                at, words = ended
                yield _weight_of_exception(words), at, words
        elif what := _WHAT.match(text):
            yield _STRONG, place, what["words"]
        elif weight := _weight(text):
            yield weight, place, _RANK.sub("", text).strip()


def _weight_of_exception(words: str) -> int:
    if _ECHO.search(words):
        return _WEAK
    return _CRASH if _FOLLOWS.search(words) else _STRONG


def _weight(text: str) -> int:
    if _SHELL.search(text):
        return _ERROR
    kind = error_in(text)
    if kind is None:
        return 0
    if _ECHO.search(text):
        return _WEAK
    weight = _WEIGHTS.get(kind, 0)
    return min(weight, _CRASH) if _FOLLOWS.search(text) else weight


def _exception_after(texts: list[str], head: int) -> tuple[int, str] | None:
    """Return position and text of the exception that ends the traceback: the first line that is not indented.

    Lines in between with another prefix belong to other processes and are skipped.
    """
    prefix = texts[head].partition(_HEAD)[0]
    for place, text in enumerate(islice(texts, head + 1, None), head + 1):
        if not text.startswith(prefix):
            continue
        rest = text[len(prefix) :]
        if rest and not rest[0].isspace():
            return (place, rest.strip()) if _EXCEPTION.match(rest) else None
    return None
