"""Commands of the submit form."""

from __future__ import annotations

from gputui.tui.commands.command import FORM, Command

MORE_FIELDS = Command(
    "more", ("ctrl+n",), "more", "Show the rare fields, or hide them.", FORM, footer_key="^N", id="more_fields"
)
GIVE_UP = Command(
    "give_up",
    ("escape",),
    "leave",
    "Leave the form, or a line that is typed; the form asks if anything would be lost.",
    FORM,
    in_palette=False,
)
SEND = Command("send", ("ctrl+s",), "submit", "Submit the job of the form.", FORM, True, False, "Enter", changes=True)
SUBMIT_COMMANDS = (
    SEND,
    Command("recent", ("ctrl+r",), "recent", "Fill the form from an earlier submission.", FORM, footer_key="^R"),
    Command("older(1)", ("ctrl+up",), "older", "Fill in the submission before.", FORM, False, False),
    Command("older(-1)", ("ctrl+down",), "newer", "Back towards the latest, and what was typed.", FORM, False, False),
    Command("templates", ("ctrl+l",), "templates", "Fill it from a template, or save one.", FORM, footer_key="^L"),
    Command("editor", ("ctrl+o",), "editor", "Open the job in your $EDITOR, as a job file.", FORM, footer_key="^O"),
    MORE_FIELDS,
    GIVE_UP,
)
