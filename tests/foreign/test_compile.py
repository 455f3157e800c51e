"""The stored PTX equals nvcc's output for the sources, on a machine with nvcc."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.foreign.compile import ARCHS, HERE, NAMES, compile_ptx, golden
from tests.samples import sampled
from warpwright import ptx

HEADER_LINES = 6  # nvcc's banner: the compiler build, the release, the version of NVVM


def test_every_source_has_its_ptx_and_nothing_is_left_over() -> None:
    wanted = {golden(name, arch).name for name in NAMES for arch in ARCHS}
    assert {path.name for path in (HERE / "ptx").iterdir()} == wanted


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH; the stored PTX is tested anyway")
@pytest.mark.parametrize("arch", ARCHS)
@sampled("name", NAMES, every=11)
def test_compiled_afresh(name: str, arch: str, tmp_path: Path) -> None:
    """The syntax trees are equal for the same compiler; the output of another nvcc must still parse."""
    compile_ptx(name, arch, tmp_path / "fresh.ptx")
    fresh, stored = (path.read_text() for path in (tmp_path / "fresh.ptx", golden(name, arch)))
    module = ptx.parse(fresh)
    assert ptx.parse(ptx.to_text(module)) == module
    same_compiler = fresh.splitlines()[:HEADER_LINES] == stored.splitlines()[:HEADER_LINES]
    assert not same_compiler or module == ptx.parse(stored)
