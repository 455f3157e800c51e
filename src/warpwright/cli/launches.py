"""The launches that commands take: ``gemm`` or ``attention`` with a size, a PTX file with options, or a launch file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from warpwright.cli.problems import PROBLEM_OPTIONS, SIZE_HELP, problem_options
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.ops.binding import Launch
from warpwright.run.devices import device as device_of
from warpwright.run.launch_file import Described, arguments, described, entry_of, read_launch
from warpwright.run.profile import profile
from warpwright.vgpu.timing import Profile

__all__ = [
    "LAUNCH_OPTIONS",
    "chosen_device",
    "launch_options",
    "parse_size",
    "profile_each",
    "read_described",
    "refuse",
]

LAUNCH_OPTIONS = ("entry", "grid", "block", "cluster", "smem", "arg")
_OPTIONS = (
    click.option("--level", type=int, help="Of gemm: the level of the ladder; without it, as matmul chooses."),
    click.option("--entry", help="Of a PTX file: the kernel; may be left out where there is one."),
    click.option("--grid", help="Of a PTX file: CTAs, x or x,y,z."),
    click.option("--block", help="Of a PTX file: threads, x or x,y,z; a kernel with .reqntid knows."),
    click.option("--cluster", help="Of a PTX file: CTAs of a cluster, x or x,y,z."),
    click.option("--smem", type=int, help="Of a PTX file: dynamic shared memory, bytes."),
    click.option("--arg", multiple=True, help="Of a PTX file, once a parameter: 1000, 2.5, f32[64,32] or x.npy."),
    click.option("--device", help="One of `warpwright devices`; without it the launch file's, else one that runs it."),
)

Dim3 = tuple[int, int, int]
Command = Callable[..., None]


def launch_options(size: str, heads: str) -> Callable[[Command], Command]:
    """Returns a decorator that adds the argument and options of a launch; ``size`` is gemm's default, ``heads`` that of
    attention."""
    extent = click.option(
        "--size",
        help=f"Of gemm: M = N = K, or MxNxK, 4096x512x8192 (without it, {size}). Of attention: {SIZE_HELP} ({heads}).",
    )
    argument = click.argument("what", metavar="gemm|attention|FILE.ptx|FILE.toml")

    def describe(command: Command) -> Command:
        for option in reversed((argument, extent, problem_options("Of attention: "), *_OPTIONS)):
            command = option(command)
        return command

    return describe


def read_described(what: str, options: Mapping[str, Any]) -> Described:
    """Returns the launch of a file. Raises UsageError for another file, and for options that do not apply to it."""
    path = Path(what)
    refuse(what, options, ("level", *PROBLEM_OPTIONS))
    if path.suffix == ".toml":
        refuse(what, options, LAUNCH_OPTIONS)
        return read_launch(path)
    if path.suffix != ".ptx":
        raise UsageError(f"given {what}; expected gemm, attention, a PTX file (.ptx) or a launch file (.toml)")
    if options["grid"] is None:
        raise UsageError(f"given {what} without --grid; expected the CTAs of the launch, such as --grid 148")
    grid, block, cluster = (_dims(name, options[name]) for name in ("grid", "block", "cluster"))
    args = tuple(arguments(described(options["arg"]), Path(), "--arg"))
    return Described(entry_of(path, options["entry"]), grid, block, cluster, options["smem"], args, None, path)


def chosen_device(launch: Described, options: Mapping[str, Any]) -> Device | None:
    """Returns the device of the option, else of the launch file; None if neither names one."""
    name = options["device"] or launch.device
    return None if name is None else device_of(name)


def refuse(what: str, options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise UsageError for given options that do not apply to ``what``."""
    for name in names:
        if options[name] not in (None, ()):
            raise UsageError(f"given --{name.replace('_', '-')} for {what}; it says nothing there: leave it out")


def _dims(name: str, text: str | None) -> tuple[int, ...] | None:
    """``"4"`` or ``"4,2,1"``."""
    parts = [] if text is None else text.replace("x", ",").split(",")
    if len(parts) > 3 or not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"given --{name} {text}; expected a number, or up to three: {name} 4,2,1")
    return tuple(map(int, parts)) or None


def parse_size(text: str) -> Dim3:
    """``"4096"`` or ``"4096x512x8192"`` as (M, N, K)."""
    parts = text.lower().split("x")
    if len(parts) not in (1, 3) or not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"given --size {text}; expected M = N = K such as 4096, or MxNxK such as 4096x512x8192")
    m, n, k = (parts * 3)[:3]
    return int(m), int(n), int(k)


def profile_each(launches: Iterable[Launch], device: Device, fast: bool, sustained: bool = False) -> list[Profile]:
    """Returns the profile of each launch of a call."""
    how: dict[str, Any] = {"device": device, "fast": fast, "sustained": sustained}
    return [profile(launch.kernel, launch.grid, args=launch.args, **how) for launch in launches]
