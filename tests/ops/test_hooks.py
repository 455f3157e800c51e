"""Private interfaces of other libraries, and their public fallbacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from warpwright.ops.hooks import environment_reader, replace_class

NAME = "WARPWRIGHT_HOOKS_TEST"


class Plain:
    pass


class Faster(Plain):
    pass


@pytest.mark.parametrize("enabled", [False, True])
def test_the_environment_is_read_at_every_call(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read = environment_reader(NAME, enabled)
    assert read() is None
    monkeypatch.setenv(NAME, "1")
    assert read() in ("1", b"1")
    monkeypatch.delenv(NAME)
    assert read() is None


def test_an_environment_without_the_private_dictionary_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {NAME: "0"})
    assert environment_reader(NAME)() == "0"


def test_a_class_is_replaced_only_if_that_is_enabled_and_possible() -> None:
    value = Plain()
    assert not replace_class(value, Faster, enabled=False) and type(value) is Plain
    assert replace_class(value, Faster) and type(value) is Faster
    assert not replace_class(3, Faster)


@pytest.mark.parametrize(("setting", "enabled"), [("0", False), ("1", True), ("", True)])
def test_the_switch(setting: str, enabled: bool) -> None:
    text = "from warpwright.ops import hooks; print(hooks.ENABLED)"
    environment = {"PYTHONPATH": ":".join(sys.path), "WARPWRIGHT_HOOKS": setting}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(enabled)
