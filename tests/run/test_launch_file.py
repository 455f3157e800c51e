"""Launch files and command-line arguments: every kind of argument, and the message of each error."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import warpwright as ww
from warpwright.cli import main
from warpwright.errors import UsageError
from warpwright.run.launch_file import arguments, entry_of, parse_arguments, read_launch

SCALE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u32 n, .param .f32 by, .param .u64 x)
{
    .reg .pred %p;
    .reg .b32 %r<3>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<2>;
    mov.u32 %r0, %tid.x;
    ld.param.u32 %r1, [n];
    setp.ge.u32 %p, %r0, %r1;
    @%p ret;
    ld.param.f32 %f0, [by];
    ld.param.u64 %rd0, [x];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    ld.global.f32 %f1, [%rd0];
    mul.f32 %f1, %f1, %f0;
    st.global.f32 [%rd0], %f1;
    ret;
}
"""

COPY = """
from warpwright.lang import Global, f32, kernel, tid


@kernel("sm_90a", threads=32)
def copy(x: Global[f32], y: Global[f32], *, times: int = 1):
    y[tid.x] = x[tid.x] * float(times)
"""


STRUCT = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry copy(.param .align 8 .b8 p[32], .param .u64 table)
{
    .reg .b64 %x, %y, %t, %z, %d; .reg .b32 %i, %n, %b; .reg .f32 %f, %v; .reg .pred %p;
    ld.param.b64 %x, [p]; ld.param.b32 %n, [p+8]; ld.param.u8 %b, [p+12]; ld.param.b64 %y, [p+16];
    ld.param.f32 %f, [p+24]; ld.param.u64 %t, [table]; ld.global.u64 %z, [%t+8];
    mov.u32 %i, %tid.x; setp.ge.s32 %p, %i, %n; @%p exit;
    mul.wide.u32 %d, %i, 4; add.u64 %x, %x, %d; add.u64 %y, %y, %d; add.u64 %z, %z, %d;
    ld.global.f32 %v, [%x]; mul.f32 %v, %v, %f; st.global.f32 [%y], %v; st.global.u32 [%z], %b; ret;
}
"""
POINTERS = """
kernel = "struct.ptx"
grid = 1
block = 64

[[memory]]
name = "x"
shape = 40
fill = "ones"

[[memory]]
name = "y"
shape = 40

[[memory]]
name = "z"
shape = 40
dtype = "u32"

[[args]]
fields = ["x", 40, {dtype = "u8", value = 7}, "y", 3.0]

[[args]]
pointers = ["x", "z"]
"""
FIELD = 'expected the name of an array, an s32, an f32, or {dtype = "u64", value = 1}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scale.ptx").write_text(SCALE)
    (tmp_path / "struct.ptx").write_text(STRUCT)
    (tmp_path / "copies.py").write_text(COPY)
    np.save(tmp_path / "x.npy", np.arange(32, dtype=np.float32))
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "launch.toml"
    path.write_text(text)
    return path


def run(launch, device):
    ww.launch(launch.kernel, launch.grid, launch.block, launch.cluster, launch.smem, launch.args, device=device)


def test_a_file_describes_a_launch_of_ptx(folder) -> None:
    path = written(
        folder,
        'kernel = "scale.ptx"\nentry = "scale"\ngrid = 1\nblock = [32, 1, 1]\ndevice = "h200"\n'
        '[[args]]\nvalue = 32\n[[args]]\nvalue = 3.0\n[[args]]\nfile = "x.npy"\n',
    )
    launch = read_launch(path)
    run(launch, launch.device)
    assert np.array_equal(launch.args[2], 3 * np.arange(32))


def test_a_file_describes_a_launch_of_a_kernel_of_the_language(folder) -> None:
    path = written(
        folder,
        'kernel = "copies.py:copy"\ngrid = 1\n[config]\ntimes = 5\n'
        '[[args]]\ndtype = "f32"\nshape = [32]\nfill = "index"\n[[args]]\nshape = [32]\nfill = "zeros"\n',
    )
    launch = read_launch(path)
    assert launch.block is None and launch.device is None
    run(launch, "h200")
    assert np.array_equal(launch.args[1], 5 * np.arange(32))


def test_arrays_are_filled_as_they_say(tmp_path) -> None:
    np.save(tmp_path / "b.npy", np.ones(4, ml_dtypes.bfloat16))
    tables = [
        {"dtype": "bf16", "shape": [4, 8]},
        {"dtype": "u32", "shape": [3]},
        {"dtype": "s32", "shape": [3], "fill": "index"},
        {"dtype": "f16", "shape": [2], "fill": "ones"},
        {"bytes": "00ff"},
        {"file": "b.npy", "dtype": "bf16"},
    ]
    normal, zeros, index, ones, struct, loaded = arguments(tables, tmp_path)
    assert normal.dtype == ml_dtypes.bfloat16 and normal.shape == (4, 8) and len(np.unique(normal)) > 20
    assert zeros.tolist() == [0, 0, 0] and index.tolist() == [0, 1, 2] and ones.tolist() == [1, 1]
    assert struct == b"\x00\xff" and loaded.dtype == ml_dtypes.bfloat16
    assert np.array_equal(arguments(tables, tmp_path)[0], normal)


def test_a_map_covers_an_array_that_another_argument_shares() -> None:
    tables = [
        {"name": "x", "dtype": "bf16", "shape": [64, 64], "map": {"box": [8, 64], "swizzle": 128}},
        {"same": "x"},
    ]
    tensor, array = arguments(tables, Path())
    assert tensor.array is array and tensor.box == (64, 8) and tensor.swizzle == 128


def test_words_describe_numbers_arrays_and_files() -> None:
    assert parse_arguments(["1000", "0x10", "2.5", "1e-3", "bf16[64, 32]", "x.npy"]) == [
        {"value": 1000},
        {"value": 16},
        {"value": 2.5},
        {"value": 1e-3},
        {"dtype": "bf16", "shape": [64, 32]},
        {"file": "x.npy"},
    ]


def test_the_file_of_the_documentation_is_one(folder) -> None:
    page = (Path(__file__).parents[2] / "docs" / "profile.md").read_text(encoding="utf-8")
    text = page.split("```toml\n")[1].split("```")[0].replace("4096, 4096", "256, 64")
    np.save(folder / "b.npy", np.zeros((3, 5), np.float32))
    path = written(folder, text.replace("gemm.ptx", "scale.ptx").replace('"gemm"', '"scale"').split("[config]")[0])
    assert read_launch(path).cluster == 2
    path = written(folder, 'kernel = "copies.py:copy"\ngrid = 1\n[[args]]' + text.split("[[args]]", 1)[1])
    launch = read_launch(path)
    tensor, same, loaded, number, struct, fields, pointers = launch.args
    assert tensor.array is same and same.shape == (256, 64) and tensor.swizzle == 128
    assert loaded.shape == (3, 5) and number == 4096 and len(struct) == 4 and len(fields) == 24
    assert launch.memory is not None and pointers.tolist() == [each.ctypes.data for each in (same, launch.memory[0])]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kernel = ", "launch.toml is not TOML: Invalid value (at end of document)"),
        ("grid = 1", 'launch.toml has no kernel; expected kernel = "file.ptx" and grid = 4 or [4, 2, 1]'),
        ('kernel = "scale.ptx"\ngird = 1', "launch.toml has a key 'gird'; did you mean grid?"),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[config]\nstages = 4',
            "given [config] for scale.ptx; expected it only for a kernel of the language, file.py:name",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\nexplore = -1',
            "launch.toml has explore = -1; expected 0 or more, such as explore = 20",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\nseed = 0.5',
            "launch.toml has seed = 0.5; expected a value such as seed = 7",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\noff = [1]',
            'launch.toml has off = [1]; expected names in quotes, such as off = ["race"]',
        ),
        (
            'kernel = "copies.py:nothing"\ngrid = 1',
            "copies.py has no kernel 'nothing'; expected a function under @kernel",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nvalue = 1\nshape = [2]',
            "launch.toml: argument 0 has value and shape of value, bytes, fields, pointers, same, file, shape; "
            "expected exactly one of them",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nname = "x"',
            "launch.toml: argument 0 has none of value, bytes, fields, pointers, same, file, shape; "
            "expected exactly one of them",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nsame = "x"',
            "launch.toml: argument 0 is the same as 'x'; expected the name of an array above it",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nshape = [2]\nfill = "random"',
            "launch.toml: argument 0 has fill = 'random'; expected one of normal, zeros, ones, index",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nshape = [2]\ndtype = "pred"',
            "launch.toml: argument 0 has dtype pred, which no array holds; expected f32, bf16, u32 or the like",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nshape = [2, 0.5]',
            "launch.toml: argument 0 has shape = [2, 0.5]; expected positive integers, such as [64, 32]",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nbytes = "0x1"',
            "launch.toml: argument 0 has bytes = '0x1'; expected pairs of hexadecimal digits in quotes",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\nargs = [7]',
            "launch.toml: argument 0 is 7; expected a table, such as {value = 7}",
        ),
        (
            'kernel = "scale.ptx"\ngrid = 1\n[[args]]\nvalue = 2\nmap = {box = [2]}',
            "launch.toml: argument 0 has a map; expected an array and a box: shape = [64, 64], map = {box = [8, 64]}",
        ),
    ],
)
def test_mistakes_are_named(folder, text, sentence) -> None:
    with pytest.raises(UsageError) as caught:
        read_launch(written(folder, text))
    assert str(caught.value) == sentence


def test_missing_files_and_entries_are_named(folder) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*no\.toml: No such file or directory; name a launch file"):
        read_launch(folder / "no.toml")
    (folder / "two.ptx").write_text(SCALE + SCALE.replace("scale", "other").split(".address_size 64")[1])
    with pytest.raises(UsageError, match=r"two\.ptx has 2 kernels; name one of scale, other as the entry"):
        entry_of(folder / "two.ptx", None)
    assert entry_of(folder / "two.ptx", "other").name == "other"


def test_a_word_that_is_no_argument_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        parse_arguments(["x"])
    assert str(caught.value) == (
        "given --arg x; expected a number, an array such as f32[64,32], or a .npy file; tensor maps need a launch file "
        "(TOML)"
    )


def test_a_file_describes_pointers_in_a_struct_and_in_a_table(folder: Path) -> None:
    launch = read_launch(written(folder, POINTERS))
    how: dict[str, Any] = {"args": launch.args, "memory": launch.memory, "device": "h200"}
    assert ww.check(launch.kernel, launch.grid, launch.block, **how).kind == "clean"
    ww.launch(launch.kernel, launch.grid, launch.block, **how)
    x, y, z = launch.memory or ()
    assert (y == 3).all() and (z == 7).all() and (x == 1).all()


@pytest.mark.parametrize("command", ["check", "profile"])
def test_commands_take_memory_from_a_file(folder: Path, command: str) -> None:
    result = CliRunner().invoke(main, [command, str(written(folder, POINTERS))])
    assert result.exit_code == 0, result.output
    assert "copy" in result.output


def test_arguments_that_a_struct_names_have_host_addresses(folder: Path) -> None:
    """Without [[memory]]: an argument may point to those above it."""
    text = POINTERS.replace("[[memory]]", "[[args]]").replace('"struct.ptx"', '"scale.ptx"')
    launch = read_launch(written(folder, text))
    assert launch.memory == () and launch.args[3][:8] == launch.args[0].ctypes.data.to_bytes(8, "little")


NODE = """
kernel = "scale.ptx"
entry = "scale"
grid = 1
block = 32
device = "h200x2"
args = [{value = 32}, {value = 3.0}, {name = "x", shape = 32}]
"""


def test_every_rank_of_a_node_has_its_own_arrays(folder: Path) -> None:
    launch = read_launch(written(folder, NODE))
    own = [each.copy() for each in launch.args[2].values]
    assert not np.array_equal(*own)
    run(launch, launch.device)
    assert all(np.array_equal(done, 3 * given) for done, given in zip(launch.args[2].values, own, strict=True))
    mapped = NODE.replace("shape = 32}", "shape = [8, 64], map = {box = [8, 32]}}")
    values = read_launch(written(folder, mapped)).args[2].values
    assert [each.box for each in values] == [(32, 8)] * 2 and values[0].array is not values[1].array


def test_an_address_of_the_arrays_of_a_node_is_refused(folder: Path) -> None:
    text = NODE.replace("shape = 32}", 'shape = 32}, {pointers = ["x"]}')
    with pytest.raises(UsageError) as caught:
        read_launch(written(folder, text))
    sentence = "points to 'x', of which every rank has its own; expected a parameter Peers for arrays of a node"
    assert str(caught.value) == f"launch.toml: argument 3 {sentence}, or the device of one GPU"


def test_the_report_of_a_node_has_its_ranks(folder: Path) -> None:
    written(folder, NODE)
    result = CliRunner().invoke(main, ["profile", "launch.toml", "--html", "node.html"])
    assert result.exit_code == 0, result.output
    assert "the ranks of the node" in result.output
    assert '<section id="ranks"' in (folder / "node.html").read_text()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"x", 40', '"w", 40', "argument 0 points to 'w'; expected the name of an array above it, or of [[memory]]"),
        ('["x", "z"]', '["x", 2]', "argument 1 points to 2; expected the name of an array above it, or of [[memory]]"),
        ('["x", "z"]', "[[2]]", "argument 1 points to [2]; expected the name of an array above it, or of [[memory]]"),
        ("value = 7", "value = 256", f"argument 0 has a field {{'dtype': 'u8', 'value': 256}}; {FIELD}"),
        ("value = 7", "value = 7.5", f"argument 0 has a field {{'dtype': 'u8', 'value': 7.5}}; {FIELD}"),
        ("3.0", "1e39", f"argument 0 has a field 1e+39; {FIELD}"),
        (", value = 7", "", f"argument 0 has a field {{'dtype': 'u8'}}; {FIELD}"),
        ("value = 7", "size = 7", "argument 0 has a key 'size'; expected dtype, value"),
        ("40, {", "[40], {", "argument 0 has value = [40]; expected a value such as value = 1000"),
    ],
)  # fmt: skip
def test_fields_that_are_refused(folder: Path, old: str, new: str, expected: str) -> None:
    assert old in POINTERS
    with pytest.raises(UsageError) as caught:
        read_launch(written(folder, POINTERS.replace(old, new)))
    assert str(caught.value) == f"launch.toml: {expected}"


def test_a_struct_is_laid_out_as_in_c(folder: Path) -> None:
    """Against ctypes: padding before each field, and at the end."""
    text = POINTERS.replace(
        '["x", 40, {dtype = "u8", value = 7}, "y", 3.0]',
        '[1, {dtype = "u64", value = 2}, {dtype = "bf16", value = 1}, {dtype = "u8", value = 3}, true]',
    )

    class Expected(ctypes.Structure):
        _fields_ = (
            ("a", ctypes.c_int),
            ("b", ctypes.c_uint64),
            ("c", ctypes.c_uint16),
            ("d", ctypes.c_uint8),
            ("e", ctypes.c_int),
        )

    expected = Expected(1, 2, 0x3F80, 3, 1)
    assert read_launch(written(folder, text)).args[0] == bytes(expected)
