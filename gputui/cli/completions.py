"""`gputui completions`: the completion script of a shell."""

from __future__ import annotations

import sys

import click


@click.command("completions", short_help="print the completion script of a shell")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(gputui completions bash)" in ~/.bashrc
    zsh:  eval "$(gputui completions zsh)" in ~/.zshrc
    fish: gputui completions fish > ~/.config/fish/completions/gputui.fish
    """
    from click.shell_completion import get_completion_class

    root = ctx.find_root()
    chosen = get_completion_class(shell)
    assert chosen is not None  # the Choice above has only those click knows
    script = chosen(root.command, {}, "gputui", "_GPUTUI_COMPLETE")
    # not source(): it starts bash to ask for its version, and some machines have no bash
    source = script.source_template % script.source_vars()
    if shell == "fish":  # fish would cut values and descriptions at their first comma
        source = source.replace('(string split "," $completion)', '(string split --max 1 "," $completion)')
    sys.stdout.write(source)
