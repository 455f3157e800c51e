"""The order of the layers, read from the imports: PTX text is the waist, and nothing imports what stands above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "warpwright"

FACTS = {"errors", "types", "targets", "layout", "isa", "tensormap", "ptx", "assemble", "arrays", "folders", "gpu"}
MAY_IMPORT = {
    "errors": set(),
    "types": {"errors"},
    "targets": {"errors", "types"},
    "layout": {"errors", "types", "targets"},
    "isa": {"errors", "types", "targets", "layout"},
    "assemble": {"errors", "targets"},
    "arrays": {"errors"},
    "folders": set(),
    "tuned": {"errors", "folders"},
    "tensormap": {"errors", "types", "targets", "layout", "arrays"},
    "gpu": {"targets", "ptx"},
    "ptx": {"errors"},
    "lang": FACTS,
    "vgpu": FACTS,
    "cuda": FACTS,
    "kernels": FACTS | {"lang"},
    "devices": FACTS | {"vgpu", "cuda"},
    "arguments": FACTS | {"lang"},
    "launch": FACTS | {"lang", "vgpu", "devices", "arguments"},
    "launch_file": FACTS | {"lang", "launch"},
    "libraries": FACTS,
    "extras": FACTS | {"kernels", "libraries"},
    "products": FACTS | {"lang", "cuda", "launch", "kernels", "libraries", "extras", "tuned"},
    "repeats": FACTS | {"cuda", "libraries", "extras", "products"},
    "ops": FACTS
    | {"lang", "vgpu", "cuda", "devices", "launch", "kernels", "libraries", "products", "extras", "repeats"},
    "sdpa_launch": FACTS | {"lang", "cuda", "launch", "kernels", "libraries"},
    "sdpa_arrays": FACTS | {"devices", "kernels", "libraries", "sdpa_launch"},
    "sdpa_repeats": FACTS | {"sdpa_launch"},
    "sdpa": FACTS | {"kernels", "libraries", "sdpa_arrays", "sdpa_launch", "sdpa_repeats"},
    "sdpa_backward_repeats": FACTS | {"cuda", "sdpa_launch", "sdpa_repeats"},
    "sdpa_backward": FACTS
    | {"lang", "cuda", "devices", "launch", "kernels", "libraries", "sdpa_arrays", "sdpa_launch"}
    | {"sdpa_backward_repeats"},
    "interop": FACTS
    | {"kernels", "libraries", "ops", "repeats", "sdpa", "sdpa_backward", "sdpa_backward_repeats", "sdpa_launch"}
    | {"sdpa_repeats", "sdpa_varlen"},
    "sdpa_varlen": FACTS
    | {"cuda", "devices", "launch", "kernels", "libraries", "sdpa_arrays", "sdpa_launch", "sdpa_repeats"},
    "report": FACTS | {"lang", "vgpu", "devices", "launch", "kernels", "ops"},
    "profile": FACTS | {"lang", "vgpu", "devices", "arguments", "launch"},
    "check": FACTS | {"lang", "vgpu", "devices", "arguments", "launch"},
    "__init__": FACTS
    | {"lang", "vgpu", "devices", "launch", "kernels", "ops", "profile", "check", "sdpa", "sdpa_varlen"},
    "pytest_plugin": FACTS | {"lang", "vgpu", "launch", "check"},
    "trials": FACTS | {"cuda", "lang", "arguments", "launch", "kernels", "products", "report"},
    "sdpa_trials": FACTS | {"cuda", "kernels", "report", "sdpa_launch", "trials"},
    "cli": FACTS
    | {
        "__init__",
        "lang",
        "vgpu",
        "cuda",
        "devices",
        "launch",
        "launch_file",
        "kernels",
        "ops",
        "profile",
        "check",
        "report",
        "sdpa",
        "sdpa_launch",
        "sdpa_trials",
        "trials",
        "tuned",
    },
    "__main__": {"cli"},
}


def unit(path: Path) -> str:
    """The layer a file belongs to: its first path component below the package."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[tuple[str, ...]]:
    """Every module of the package that ``path`` imports, as its components below ``warpwright``."""
    package = ("warpwright", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*module, alias.name) for alias in node.names]
        else:
            continue
        yield from (name[1:] for name in names if name[0] == "warpwright")


def layer(module: tuple[str, ...]) -> str:
    """The layer that an imported module belongs to; a name of the package itself is ``__init__``."""
    known = module and ((SOURCE / module[0]).is_dir() or (SOURCE / f"{module[0]}.py").is_file())
    return module[0] if known else "__init__"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_public_names_from_below_its_layer(path: Path) -> None:
    own, modules = unit(path), list(imported_modules(path))
    reached = {layer(module) for module in modules} - {own}
    assert reached <= MAY_IMPORT[own], f"{own} must not import {sorted(reached - MAY_IMPORT[own])}"
    private = [name for *_, name in filter(None, modules) if name.startswith("_") and not name.endswith("__")]
    assert not private, f"{', '.join(private)} are private to the modules that they stand in"


def test_the_reader_of_imports_sees_every_way_to_write_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    (tmp_path / "lang").mkdir()
    (tmp_path / "vgpu").mkdir()
    path = tmp_path / "lang" / "trace.py"
    path.write_text(
        "import warpwright.vgpu.run\nfrom warpwright import vgpu\nfrom .. import vgpu\nfrom ..vgpu.run import go\n"
        "from . import ops\nfrom .ops import ld\ndef f():\n    import warpwright\nimport numpy\n"
    )
    layers = [layer(module) for module in imported_modules(path)]
    assert sorted(layers) == ["__init__", "lang", "lang", "vgpu", "vgpu", "vgpu", "vgpu"]


def test_the_order_of_the_layers_has_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [name for name, below in MAY_IMPORT.items() if name not in order and below <= set(order)]
        assert ready, f"cycle among {sorted(set(MAY_IMPORT) - set(order))}"
        order += ready
