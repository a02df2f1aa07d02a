"""Commands of a log."""

from __future__ import annotations

from gputui.tui.commands.command import LOGS, Command

LOG_COMMANDS = (
    Command(
        "toggle_pause",
        ("space",),
        "pause log",
        "Stop the log where it is, or follow its end again.",
        LOGS,
        id="pause_log",
    ),
    Command(
        "search",
        ("slash",),
        "search",
        "Search the log for a regular expression; capitals count if any is typed.",
        LOGS,
        id="log_search",
    ),
    Command(
        "found(1)", ("n",), "next", "To the next line that was searched for.", LOGS, True, False, "n/N", "log_next"
    ),
    Command("found(-1)", ("N",), "previous", "To the line before that has it.", LOGS, False, False, id="log_previous"),
    Command("narrow", ("ampersand",), "only", "Show only lines that match an expression.", LOGS, id="log_only"),
    Command(
        "context(1)",
        ("right_parenthesis",),
        "more around",
        "Show more lines around each that matches.",
        LOGS,
        False,
        False,
        id="log_more_around",
    ),
    Command(
        "context(-1)",
        ("left_parenthesis",),
        "fewer around",
        "Show fewer lines around each that matches.",
        LOGS,
        False,
        False,
        id="log_fewer_around",
    ),
    Command(
        "error(-1)", ("E",), "error before", "To the error before in the log.", LOGS, False, False, id="error_before"
    ),
    Command("toggle_wrap", ("b",), "wrap", "Break long lines, or cut them at the right.", LOGS, False, id="log_wrap"),
    Command(
        "toggle_stamps",
        ("D",),
        "times",
        "Show when each line was written, where that is known.",
        LOGS,
        False,
        id="log_times",
    ),
    Command(
        "pick",
        ("V",),
        "pick lines",
        "Pick lines to copy: j and k pick further; the mouse picks too.",
        LOGS,
        False,
        id="pick_lines",
    ),
    Command(
        "copy_lines",
        ("y",),
        "copy lines",
        "Copy the picked lines, or those in sight, to the terminal's clipboard.",
        LOGS,
        False,
    ),
    Command("save_log", ("S",), "save log", "Save the whole log to a file; asks where.", LOGS, False),
    Command("clear_log", ("escape",), "show all", "Pick nothing, search nothing, show all lines.", LOGS, True, False),
    Command(
        "sideways(1)", ("right", "l"), "right", "Show what is cut off at the right.", LOGS, False, False, id="log_right"
    ),
    Command("sideways(-1)", ("left",), "left", "Back to the left.", LOGS, False, False, id="log_left"),
)
LOG_JOB_COMMANDS = (
    Command(
        "error(1)",
        ("e",),
        "error",
        "To the first error in the job's log; there, to the next.",
        LOGS,
        needs="a job that was started",
    ),
    Command(
        "attempt(-1)",
        ("comma",),
        "attempt before",
        "Show the log of the job's attempt before.",
        LOGS,
        False,
        id="attempt_before",
        needs="an attempt before this one",
    ),
    Command(
        "attempt(1)",
        ("full_stop",),
        "attempt after",
        "Show the log of the job's next attempt.",
        LOGS,
        False,
        id="attempt_after",
        needs="an attempt after this one",
    ),
    Command(
        "attempts",
        ("A",),
        "attempts",
        "Show the logs of the job's last two attempts together.",
        LOGS,
        False,
        needs="a job that was started more than once",
    ),
    Command(
        "pin_log",
        ("p",),
        "pin log",
        "Keep the job's log among those shown together, or not.",
        LOGS,
        False,
        needs="a job that was started",
    ),
    Command("logs", ("L",), "logs", "Show the pinned logs together, up to six.", LOGS, False),
)
