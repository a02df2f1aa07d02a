"""A `docker run` command line before click reads it: docker's own ways to write options, and all that is wrong at once.

Options end at the first word that is none, which is the image, or at `--`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.domain.errors import InputError
from gputui.request import docker_only
from gputui.request.texts import quoted

_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass
class Tidied:
    """The words for click, and what was found on the way."""

    words: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    """Options of docker's that change nothing here."""
    faults: list[InputError] = field(default_factory=list)

    @property
    def note(self) -> str:
        """Return what the taken options mean here, in one line; empty where there is nothing to say."""
        by_words: dict[str, list[str]] = {}
        for option in dict.fromkeys(self.taken):
            if words := docker_only.TAKEN[option]:
                by_words.setdefault(words, []).append(option)
        return "; ".join(f"{', '.join(options)}: {words}" for words, options in by_words.items())


def tidy(arguments: Sequence[str], options: Mapping[str, bool]) -> Tidied:
    """Return the words without docker's own options; `options`: those of the command, and whether each has a value."""
    reader = _Reader(options)
    place = 0
    while place < len(arguments) and reader.is_option(arguments[place]):
        place += reader.take(arguments[place], arguments[place + 1 :])
    reader.found.words += arguments[place:]
    return reader.found


class _Reader:
    """Takes one option after the other."""

    def __init__(self, options: Mapping[str, bool]) -> None:
        others = dict.fromkeys((*docker_only.TAKEN, *docker_only.REFUSED), True)
        self._options = {**others, **dict.fromkeys(docker_only.WITHOUT_VALUE, False), **options}
        self._own = options
        self.found = Tidied()

    @staticmethod
    def is_option(word: str) -> bool:
        """Whether it is an option, and not the image."""
        return word.startswith("-") and word not in {"-", "--"}

    def take(self, word: str, rest: Sequence[str]) -> int:
        """Take the option and its value; returns how many words that were."""
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            return self._long(name, value if equals else None, rest)
        return self._short(word[1:], rest)

    def _long(self, name: str, value: str | None, rest: Sequence[str]) -> int:
        if name not in self._options:
            self._unknown(name)
            return 2 if value is None and _is_value(rest) else 1
        if not self._options[name]:
            self._flag(name, value)
            return 1
        if value is not None:
            self._value(name, [f"{name}={value}"])
            return 1
        return self._separate(name, rest)

    def _short(self, letters: str, rest: Sequence[str]) -> int:
        """`-dit`, `-p80:80`, `-itp 80:80`, `-d=true`."""
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
        """An option of docker's that is not ours."""
        if name in docker_only.REFUSED:
            hint = docker_only.REFUSED[name]
            self.found.faults.append(InputError("is not an option of submit", where=name, hint=hint))
        elif not (name == "--restart" and value == "no"):
            self.found.taken.append(name)

    def _unknown(self, name: str) -> None:
        import difflib  # not for every command

        near = difflib.get_close_matches(name, [each for each in self._own if each.startswith("--")], 1, 0.75)
        hint = f"did you mean {near[0]}?" if near else "gputui submit --help lists the options"
        self.found.faults.append(InputError("is not an option of submit", where=name, hint=hint))


def _is_value(rest: Sequence[str]) -> bool:
    """Whether the next word looks like the value of an option nobody knows, not like the image."""
    return len(rest) > 1 and not rest[0].startswith("-") and rest[1].startswith("-") and not set(rest[0]) & {"/", ":"}


def raised(faults: Iterable[InputError]) -> None:
    """Raise what is wrong: one error as it is, several together."""
    from gputui.domain.errors import InputErrors

    found = tuple(faults)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InputErrors(found)
