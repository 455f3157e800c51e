"""The names of the package are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import warpwright as ww

HEAVY = ("warpwright.vgpu.checks", "warpwright.vgpu.timing", "warpwright.kernels.gemm", "warpwright.ops.matmul")
LOADED = "import sys; print(*(name for name in sys.modules if name.startswith(('warpwright.', 'numpy', 'llvmlite'))))"


def loaded_by(code: str) -> list[str]:
    """Returns the modules that a new process imports for ``code``."""
    ran = subprocess.run([sys.executable, "-c", f"{code}\n{LOADED}"], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()[-1].split() if ran.stdout.strip() else []


def test_the_import_of_the_package_imports_only_where_notebooks_ask() -> None:
    assert loaded_by("import warpwright") == ["warpwright.display"]


def test_a_command_imports_what_it_needs() -> None:
    """A small attention takes less than a second of processor time; imports are most of it."""
    loaded = loaded_by("import warpwright.cli.attention")
    assert "warpwright.kernels.attention.sm120.kernel" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_every_name_is_there() -> None:
    assert {name for name in ww.__all__ if getattr(ww, name) is None} == set()
    assert set(ww.__all__) <= set(dir(ww)) and ww.lang.kernel is ww.kernel


@pytest.mark.parametrize("name", ["nothing", "_nothing"])
def test_another_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(ww, name)
    assert str(caught.value) == f"module 'warpwright' has no attribute '{name}'"
