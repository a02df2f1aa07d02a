"""Fetching an image, and telling in words how far it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault
from gputui.runtime.docker_faults import cause_of, fault

if TYPE_CHECKING:
    from docker import APIClient

_DONE = {"Download complete", "Verifying Checksum", "Extracting", "Pull complete", "Already exists"}

_NO_MOVE = ("Retrying", "Waiting")


class Progress:
    """How far a pull is: the bytes of each layer that are here, of those known so far."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}
        self._share = 0.0
        self._said = ""
        self._states: dict[str, tuple[str, object]] = {}
        self.moves = 0
        """Events so far that brought the pull on; to wait for another try does not."""

    def see(self, event: Mapping[str, Any]) -> str | None:
        """What to say after this event of the engine; None when nothing changed for a reader."""
        layer, status = event.get("id"), str(event.get("status", ""))
        detail = event.get("progressDetail") or {}
        state = (status, detail.get("current"))
        if self._states.get(layer or "") != state and not status.startswith(_NO_MOVE):
            self._states[layer or ""] = state
            self.moves += 1
        if layer and status == "Downloading" and detail.get("total"):
            self._layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif layer in self._layers and status in _DONE:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        return self._say(status)

    def _say(self, status: str) -> str | None:
        total = sum(each[1] for each in self._layers.values())
        if total:
            # never back, though layers that begin late make the whole larger
            self._share = max(self._share, sum(each[0] for each in self._layers.values()) / total)
        words = f"pulling {self._share:.0%}".replace("%", " %") if total else "pulling"
        if status == "Extracting" and self._share == 1:
            words = "unpacking"
        if words == self._said:
            return None
        self._said = words
        return words


def pull(client: APIClient, image: str, tell: Callable[[str | None], None]) -> None:
    """Fetch the image, telling its progress in words, or None where it moved and the words are as before.

    Raises RuntimeFault, which says whose fault it was.
    """
    from docker.errors import APIError

    progress, moves = Progress(), 0
    try:
        for event in client.pull(image, stream=True, decode=True):
            if "error" in event:
                raise pull_fault(image, str(event["error"]))
            words = progress.see(event)
            if words or progress.moves > moves:
                moves = progress.moves
                tell(words)
    except APIError as error:
        raise pull_fault(image, str(error.explanation or error)) from error


def pull_fault(image: str, text: str) -> RuntimeFault:
    """The error for a pull the engine gave up: the job's if there is no such image, else the network's."""
    cause = cause_of(text)
    if cause.code in {CauseCode.IMAGE_NOT_FOUND, CauseCode.DISK_FULL}:
        return fault(text)
    return RuntimeFault(Cause(CauseCode.PULL_FAILED, f"cannot pull {image}: {cause.text}"), hint="is the registry up?")
