"""What a command is: one declaration for each thing that can be done, from which all that names it is made."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType

from gputui.tui.key_names import key_name

JOBS, QUEUE, GPUS, SCHEDULER, VIEW, MOVE, LOGS = "Jobs", "Queue", "GPUs", "Scheduler", "View", "Move", "Logs"
WHAT_IF, TIMELINE, FORM = "What-if", "Timeline", "Submit form"


@dataclass(frozen=True)
class Command:
    """Something an operator can do."""

    action: str
    """The action as Textual runs it: `wish('hold')`."""
    keys: tuple[str, ...]
    title: str
    """What the footer calls it: a word."""
    help: str
    """A sentence."""
    group: str
    in_footer: bool = True
    in_palette: bool = True
    footer_key: str = ""
    """What the footer shows in place of the first key."""
    id: str = ""
    """Its name, where the action does not make a good one."""
    changes: bool = False
    """Whether it changes anything but the screen: not to be had in a console that only looks on."""

    @property
    def name(self) -> str:
        """What the settings file calls it; it stays the same from release to release."""
        return self.id or _name_of(self.action)

    @property
    def key_names(self) -> str:
        """The keys as a person reads them."""
        return " ".join(key_name(key) for key in self.keys)

    @property
    def first_key(self) -> str:
        """The key the footer shows; empty where it has none."""
        return self.footer_key or (key_name(self.keys[0]) if self.keys else "")


def _name_of(action: str) -> str:
    """`hold` of `wish('hold')`, `grow` of `grow(1)`."""
    verb, _, rest = action.partition("(")
    argument = rest.strip("')")
    if verb == "wish":
        return argument
    return verb if argument in {"", "1"} else f"{verb}_{argument.replace('-1', 'back')}"


def bindings(commands: tuple[Command, ...]) -> list[BindingType]:
    """What Textual is told."""
    return [
        Binding(",".join(command.keys), command.action, command.title, command.in_footer, id=command.name)
        for command in commands
        if command.keys
    ]
