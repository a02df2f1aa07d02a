"""`python -m gputui`, and the `gputui` command."""

from __future__ import annotations

import gc
import sys

COLLECT_AFTER = (200_000, 20, 100)
"""New objects before a collection of young ones, and collections before one of each older generation.

Most commands end within a second or two, with up to some million objects of a large queue in memory and hardly a cycle
among them: with Python's thresholds a third of that time goes into walking through them. The imports of a command alone
make some ten thousand.
"""


def main() -> None:
    """Run the command line: a command that the owner of the queue runs is asked of it."""
    gc.set_threshold(*COLLECT_AFTER)
    from gputui import __version__, thin

    try:
        code = thin.run(sys.argv[1:], __version__)
        if isinstance(code, thin.Unanswered):
            from gputui.cli.main import resume  # the owner was killed, hangs, or has much to do

            code = resume(code)
    except KeyboardInterrupt:
        code = 130
    if code is not None:
        sys.exit(code)
    from gputui.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
