"""Preprocesses a `docker run` command line before click: docker's ways to write options, and all errors at once.

Options end at the first word that is not an option, which is the image, or at `--`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct, field

from gputui.domain.errors import InputError
from gputui.domain.units import quoted

_DURATION = re.compile(r"(\d+[dhms])+|\d+(:\d\d){1,2}")
"""The value of Slurm's `-t`; no image has such a name."""
_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Tidied(Struct):
    """The words for click, and the findings on the way."""

    words: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    """Docker's options that change nothing here."""
    strays: list[str] = field(default_factory=list)
    """Options of the command that the job gets as its own arguments, because they follow the image."""
    faults: list[InputError] = field(default_factory=list)

    @property
    def note(self) -> str:
        """Return in one line what the ignored and the stray options mean; empty if there is nothing to say."""
        by_words: dict[str, list[str]] = {}
        for option in dict.fromkeys(self.taken):
            if words := TAKEN[option]:
                by_words.setdefault(words, []).append(option)
        told = [f"{', '.join(options)}: {words}" for words, options in by_words.items()]
        if self.strays:
            what = f"{', '.join(self.strays)} after the image or command: passed to the job"
            told.append(f"{what}; options of gputui go before it, and -- before it silences this note")
        return "; ".join(told)


def tidy(arguments: Sequence[str], options: Mapping[str, bool]) -> Tidied:
    """Return the words without docker's own options.

    `options` are those of the command, with whether each takes a value.
    """
    reader = _Reader(options)
    place = 0
    while place < len(arguments) and (word := arguments[place]).startswith("-") and word not in {"-", "--"}:
        place += reader.take(arguments[place], arguments[place + 1 :])
    rest = arguments[place:]
    command = [] if rest[:1] == ["--"] else rest[1:]
    names = {word.partition("=")[0]: None for word in command if word.startswith("--")}
    before = {word.partition("=")[0] for word in reader.found.words}
    reader.found.strays = [name for name in names if name in options and name not in before]
    reader.found.words += arguments[place:]
    if "-t" in reader.found.taken and place < len(arguments) and _DURATION.fullmatch(arguments[place]):
        hint = f"write --time-limit {arguments[place]}; -t is docker's terminal"
        reader.found.faults.append(InputError("takes no time", where="-t", hint=hint))
    return reader.found


class _Reader:
    """Takes one option after the other."""

    def __init__(self, options: Mapping[str, bool]) -> None:
        others = dict.fromkeys((*TAKEN, *REFUSED), True)
        self._options = {**others, **dict.fromkeys(WITHOUT_VALUE, False), **options}
        self._own = options
        self.found = Tidied()

    def take(self, word: str, rest: Sequence[str]) -> int:
        """Process the option and its value; return the number of words consumed."""
        if not word.startswith("--"):
            return self._short(word[1:], rest)
        name, equals, value = word.partition("=")
        if name not in self._options:
            self._unknown(name)
            return 2 if not equals and _is_value(rest) else 1
        if not self._options[name]:
            self._flag(name, value if equals else None)
        elif equals:
            self._value(name, [word])
        else:
            return self._separate(name, rest)
        return 1

    def _short(self, letters: str, rest: Sequence[str]) -> int:
        """Process short options: `-dit`, `-p80:80`, `-itp 80:80`, `-d=true`."""
        while letters:
            name, letters = f"-{letters[0]}", letters[1:]
            if name not in self._options:
                self._unknown(name)
                return 1
            if self._options[name]:
                if not letters:
                    return self._separate(name, rest)
                self._value(name, [name + letters])
                return 1
            if letters.startswith("="):
                self._flag(name, letters[1:])
                return 1
            self._flag(name, None)
        return 1

    def _separate(self, name: str, rest: Sequence[str]) -> int:
        if not rest:
            hint = "as in docker run, -h names the host; the help is --help" if name == "-h" else None
            self.found.faults.append(InputError("needs a value", where=name, hint=hint))
            return 1
        self._value(name, [name, rest[0]])
        return 2

    def _value(self, name: str, words: list[str]) -> None:
        if name in self._own:
            self.found.words += words
        else:
            self._others(name, words[-1].removeprefix(f"{name}="))

    def _flag(self, name: str, value: str | None) -> None:
        truth = True if value is None else _TRUTH.get(value.lower())
        if truth is None:
            self.found.faults.append(InputError(f"{quoted(value or '')} is neither true nor false", where=name))
        elif name == "--init" and not truth:
            self.found.words += ["--no-init"] if "--no-init" in self._own else []
        elif truth and name in self._own:
            self.found.words.append(name)
        elif truth:
            self._others(name, "")

    def _others(self, name: str, value: str) -> None:
        if name in REFUSED:
            hint = REFUSED[name]
            self.found.faults.append(InputError("is not an option of submit", where=name, hint=hint))
        elif not (name == "--restart" and value == "no"):
            self.found.taken.append(name)

    def _unknown(self, name: str) -> None:
        import difflib  # rarely needed

        near = difflib.get_close_matches(name, [each for each in self._own if each.startswith("--")], 1, 0.75)
        hint = f"did you mean {near[0]}?" if near else "gputui submit --help lists the options"
        self.found.faults.append(InputError("is not an option of submit", where=name, hint=hint))


def _is_value(rest: Sequence[str]) -> bool:
    """Return whether the next word looks like the value of an unknown option, rather than the image."""
    return len(rest) > 1 and not rest[0].startswith("-") and rest[1].startswith("-") and not set(rest[0]) & {"/", ":"}


def raised(faults: Iterable[InputError]) -> None:
    """Raise the errors: one as it is, several together."""
    from gputui.domain.errors import InputErrors

    found = tuple(faults)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InputErrors(found)


_DETACHED = "every job runs in the background"
_KEPT = "output is kept: gputui logs -f ID follows it"
_NO_INPUT = "a job has no input: gputui run -i gives it one"
_NO_TERMINAL = f"a job has no terminal: gputui run -t gives it one; {_KEPT}"
SILENT = ""

TAKEN = MappingProxyType(
    {
        "-d": _DETACHED,
        "--detach": _DETACHED,
        "--rm": "a job's container is removed once its log is saved",
        "--restart": "gputui restarts no container; --retries N runs a failed job again",
        "-i": _NO_INPUT,
        "--interactive": _NO_INPUT,
        "-t": _NO_TERMINAL,
        "--tty": _NO_TERMINAL,
        "-a": _KEPT,
        "--attach": _KEPT,
        "--detach-keys": _NO_TERMINAL,
        "--sig-proxy": "gputui cancel ID ends a job",
        "--init": SILENT,
        "-q": SILENT,
        "--quiet": SILENT,
        "--disable-content-trust": SILENT,
    }
)
"""Options that change nothing about a job, each with its meaning here; empty: as in docker."""

ANYHOW = frozenset({"-d", "--detach", "--rm"})
"""Ignored options that describe every job anyway, so that nothing is lost."""

_WINDOWS = "only Windows containers have it"
_SLURM = "sbatch's option"

REFUSED = MappingProxyType(
    {
        "--cidfile": "gputui show ID --json names the container",
        "--kernel-memory": "engines no longer support it: --memory bounds all memory",
        "--use-api-socket": "write -v /var/run/docker.sock:/var/run/docker.sock",
        "--isolation": _WINDOWS,
        "--cpu-count": f"{_WINDOWS}: write --cpus N",
        "--cpu-percent": f"{_WINDOWS}: write --cpus N",
        "--io-maxbandwidth": f"{_WINDOWS}: write --device-write-bps",
        "--io-maxiops": f"{_WINDOWS}: write --device-write-iops",
        "--env-from-file": "write --env-file FILE",
        "--time": f"{_SLURM}: write --time-limit DURATION",
        "--gres": f"{_SLURM}: write --gpus N",
        "--dependency": f"{_SLURM}: write --after ID or --after-any ID",
    }
)
"""Options that cannot be honoured, each with its replacement."""

WITHOUT_VALUE = frozenset(
    {
        *("-d", "--detach", "--rm", "-i", "--interactive", "-t", "--tty", "--sig-proxy", "--init"),
        *("-q", "--quiet", "--disable-content-trust", "--use-api-socket"),
    }
)
"""Ignored and refused options without a value."""
