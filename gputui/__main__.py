"""`python -m gputui`, and the `gputui` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from gputui.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
