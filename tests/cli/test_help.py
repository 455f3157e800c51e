"""The help of every command, and the completion of commands in a shell."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from warpwright.cli import COMMANDS, main

Words = tuple[str, ...]


def commands(group: click.Group, path: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    """All commands of a group and of its groups, with the words that call them."""
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


ALL = list(commands(main))


def help_of(path: Words) -> str:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="warpwright")
    assert result.exit_code == 0
    return result.output


def test_every_command_is_here() -> None:
    assert {path[0] for path, _ in ALL} == set(COMMANDS)
    assert {path for path, _ in ALL if path[1:]} == {("bench", "attention"), ("bench", "gemm"), ("ladder", "attention")}


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_the_help_has_a_summary_of_one_line_and_every_option_is_described(path: Words, command: click.Command) -> None:
    summary = (command.help or "").split("\n\n")[0]
    assert re.fullmatch(r"[A-Z][^\n]{10,60}\.", summary), summary
    assert [each.name for each in command.params if isinstance(each, click.Option) and not each.help] == []


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_the_help_ends_with_exit_statuses_and_examples_that_parse(
    path: Words, command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.json").touch()  # which selftest --compare reads
    text = help_of(path)
    status, _, examples = text.partition("Exit status: ")[2].partition("Examples:\n")
    assert re.fullmatch(r"0 .*, 2 for a usage error(, 3 .*)?, 130 after Ctrl-C\.", " ".join(status.split()))
    found = [re.sub(r'^eval "\$\((.*)\)"', r"\1", line.strip()) for line in examples.splitlines()]
    called = [called_by(line.partition(" | ")[0]) for line in found]
    assert called and all(words[: len(path)] == path for words in called)


def called_by(line: str) -> Words:
    """The words of the command that a line calls; its options are parsed. Raises UsageError of click for an option that
    does not exist."""
    _, *words = shlex.split(line, comments=True)
    group: click.Command = main
    path: Words = ()
    while words and isinstance(group, click.Group) and (found := group.get_command(click.Context(group), words[0])):
        group, path, words = found, (*path, words[0]), words[1:]
    group.make_context(line, words)
    return path


@pytest.mark.parametrize(("shell", "line"), [
    ("bash", "complete -o nosort -F _warpwright_completion warpwright"),
    ("zsh", "#compdef warpwright"),
    ("fish", "complete --no-files --command warpwright --arguments"),
])  # fmt: skip
def test_completion_prints_the_script_of_a_shell(shell: str, line: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and line in result.output
    assert f"_WARPWRIGHT_COMPLETE={shell}_complete" in result.output


def test_completion_of_another_shell_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert result.output == (
        "warpwright: error: Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'.\n"
    )


@pytest.mark.parametrize(("typed", "expected"), [
    ("warpwright sel", ["plain,selftest"]),
    ("warpwright check --sar", ["plain,--sarif"]),
    ("warpwright tune --dtype fl", ["plain,float8_e4m3fn"]),
])  # fmt: skip
def test_the_command_answers_what_a_shell_asks(typed: str, expected: list[str]) -> None:
    words = typed.split()
    asked = {"_WARPWRIGHT_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(main, env=asked, prog_name="warpwright")
    assert result.exit_code == 0 and result.output.split() == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_the_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    done = subprocess.run(["bash", "--norc", "-c", f"{script}\ncomplete -p warpwright"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "complete -o nosort -F _warpwright_completion warpwright\n"
