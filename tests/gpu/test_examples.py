"""The examples that use nothing of Blackwell verify their results on the GPU, unchanged but for their target."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import warpwright as ww
from warpwright.lang import Kernel

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["01_copy", "02_tma", "03_ring", "04_cluster", "06_reduction", "07_attention"])
def test_an_example_verifies_its_result(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for value in vars(module).values():
        if isinstance(value, Kernel):
            value.arch = "sm_90a"
    launched = []
    launch = ww.cuda.Device.launch
    monkeypatch.setattr(ww.cuda.Device, "launch", lambda self, *a, **k: launched.append(self) or launch(self, *a, **k))
    module.main()
    assert "verified" in capsys.readouterr().out
    assert launched
