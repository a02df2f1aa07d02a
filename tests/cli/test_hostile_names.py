"""Jobs whose texts try to control the terminal, read backwards, are wide or far too long, in every list and refusal."""

from __future__ import annotations

import unicodedata
from datetime import timedelta
from typing import Any

from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive
from gputui.domain.state import JobState
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import NOW, job, running

TEXTS = {
    "control": "\x1b]0;owned\x07\x1b[2J\r\x9b31m\x00\x08name\nline",
    "backwards": "train\u202egnp.exe\u2066\u200f\u061c",
    "wide": "[red]训练🚀" * 40 + "e\u0301" * 300,
    "long": "x" * 10_000,
}
_LINES = """
queue
queue --all
queue --array
queue --json
history
show 1
show 2
show 3
show --json 1
attach 3
exec 1 true
exec 3 true
signal 1 TERM
signal 3 TERM
explain 1
explain 2
wait 3
logs 3
hold 3
suspend 1
cancel 1
"""
COMMANDS = [tuple(line.split()) for line in _LINES.strip().splitlines()]


def hostile(text: str) -> tuple[Job, Job, Job]:
    """A waiting, a running and an ended job with this text wherever a member of a shared queue could write one."""
    written: dict[str, Any] = {"name": text, "image": text, "tenant": text, "comment": text, "command": (text, text)}
    by = {"submitted_by": text, "held_by": text, "ranked_by": text}
    ended = job(**written, interactive=Interactive(stdin=True))
    return (
        job(**written).evolve(**by, held=True, held_at=NOW),
        running(**written).evolve(**by),
        ended.evolve(**by, state=JobState.FAILED, ended_at=NOW + timedelta(hours=1)),
    )


def unsafe(shown: str) -> set[str]:
    """Return the characters that control a terminal or the direction of writing."""
    return {each for each in shown if unicodedata.category(each) in {"Cc", "Cf", "Zl", "Zp"} and each != "\n"}


@cases("text", TEXTS.values())
@cases("words", COMMANDS)
def test_no_text_of_a_job_reaches_the_terminal_as_it_is(
    run: Run, store: KeptStore, text: str, words: tuple[str, ...]
) -> None:
    store.clear()
    put(store, *hostile(text))
    found = run(*words)
    assert not unsafe(found.out + found.err), (found.out, found.err)
    assert "should not have happened" not in found.err
    assert len(found.err) < 600, "a refusal is a sentence"
    if words[0] in {"queue", "history"}:
        assert found.code == 0
    if words == ("queue",) and text == TEXTS["wide"]:
        assert "[red]训练🚀" in found.out


@cases("name", sorted(TEXTS))
def test_arguments_are_quoted_in_refusals(run: Run, store: KeptStore, name: str) -> None:
    text = TEXTS[name].replace("\x00", "")
    for words in (
        ("attach", text),
        ("exec", text, "true"),
        ("show", text),
        ("attach", "--detach-keys", text, "1"),
        ("run", "--name", text, "--anyway", "--gpus", "x", "busybox"),
        ("run", "--host", "--gpus", text, "--", "true"),
        ("history", "--since", text),
        ("queue", "--filter", f"{text}=="),
    ):
        found = run(*words)
        assert not unsafe(found.out + found.err), (words[0], found.err)
        assert "should not have happened" not in found.err, found.err
        assert len(found.err) < 600, (words[0], len(found.err))
