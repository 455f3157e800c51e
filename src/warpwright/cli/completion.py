"""``warpwright completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from warpwright.cli.manual import manual

__all__ = ["command"]

SHELLS = ("bash", "zsh", "fish")
NAME = "warpwright"


@click.command(
    "completion",
    epilog=manual(
        "0 if the script is printed",
        """eval "$(warpwright completion bash)"        # a line of ~/.bashrc""",
        """eval "$(warpwright completion zsh)"         # a line of ~/.zshrc, after compinit""",
        """warpwright completion fish | source         # a line of ~/.config/fish/config.fish""",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    The script completes commands and options. The shell must find `warpwright` on PATH. Bash needs version 4.4.
    """
    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None, shell
    click.echo(found(root, {}, NAME, f"_{NAME.upper()}_COMPLETE").source())
