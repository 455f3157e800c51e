"""The order of the folders, read from the imports: PTX text is the waist, and nothing imports what stands above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.imports import SOURCE, circles, imported_names, imports, modules

LAYERS = [  # from the bottom up; a folder imports only what stands below it
    {"display", "errors"},
    {"arrays", "folders", "targets", "types"},
    {"isa", "layout"},
    {"ptx"},
    {"gpu"},
    {"cuda", "lang", "vgpu"},  # PTX text is the waist: `lang` writes it, `cuda` and `vgpu` run it
    {"kernels", "run"},
    {"report"},
    {"ops"},
    {"distributed", "programs", "selftest"},
    {"interop"},
    {"pytest_plugin", "__init__"},
    {"cli"},
    {"__main__"},
]


def layer(module: str) -> int:
    unit = module.split(".")[0]
    return next(number for number, units in enumerate(LAYERS) if unit in units)


@pytest.mark.parametrize("module", sorted(modules(SOURCE)))
def test_a_file_imports_only_from_below_its_layer(module: str) -> None:
    for other in imports(SOURCE, module):
        inside = module.split(".")[0] == other.split(".")[0]
        assert inside or layer(other) < layer(module), f"{module} must not import {other}"
    private = [name for *_, name in filter(None, imported_names(SOURCE, module)) if name[0] == "_" and name[-1] != "_"]
    assert not private, f"{', '.join(private)} are private to the modules that they stand in"


def test_the_reader_of_imports_sees_every_way_to_write_one(tmp_path: Path) -> None:
    for folder in ("lang", "vgpu"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    package = tmp_path.rename(tmp_path.with_name("warpwright"))
    (package / "__init__.py").touch()
    (package / "vgpu" / "run.py").write_text("from warpwright.lang import trace\n")
    (package / "lang" / "ops.py").touch()
    (package / "lang" / "trace.py").write_text(
        "import warpwright.vgpu.run\nfrom warpwright import vgpu\nfrom .. import vgpu\nfrom ..vgpu.run import go\n"
        "from . import ops\nfrom .ops import ld\ndef f():\n    import warpwright\nimport numpy\n"
    )
    assert imports(package, "lang.trace") == {"vgpu.run", "vgpu.__init__", "lang.ops", "__init__"}
    assert circles(package) == [{"lang.trace", "vgpu.run"}]


def test_no_modules_import_one_another() -> None:
    assert not circles(SOURCE)
