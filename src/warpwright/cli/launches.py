"""The launches that commands take: ``gemm`` or ``attention`` with a size, ``memory_flow``, a PTX file with options, or
a launch file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warpwright.cli.problems import PROBLEM_OPTIONS, SIZE_HELP, is_number, problem_options
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.ops.binding import Launch
from warpwright.run import devices
from warpwright.run.launch_file import LaunchSpec, arguments, entry_of, parse_arguments, read_launch

if TYPE_CHECKING:
    from warpwright.vgpu.timing import Profile

__all__ = [
    "LAUNCH_OPTIONS",
    "STEP_DEVICE",
    "device_for",
    "device_of",
    "launch_options",
    "launch_spec",
    "parse_size",
    "profile_each",
    "refuse_options",
]

LAUNCH_OPTIONS = ("entry", "grid", "block", "cluster", "smem", "arg")
STEP_DEVICE = "rtx5090"
_OPTIONS = (
    click.option("--level", type=int, help="Of gemm: level of the ladder (default: the kernel that matmul chooses)."),
    click.option("--step", help="Of attention: step of `warpwright ladder attention`, such as v3, on the rtx5090."),
    click.option("--entry", help="Of a PTX file: the kernel; not needed if the file has only one."),
    click.option("--grid", help="Of a PTX file: CTAs, x or x,y,z."),
    click.option("--block", help="Of a PTX file: threads, x or x,y,z; not needed with .reqntid."),
    click.option("--cluster", help="Of a PTX file: CTAs of a cluster, x or x,y,z."),
    click.option("--smem", type=int, help="Of a PTX file: dynamic shared memory, bytes."),
    click.option(
        "--arg", multiple=True, help="Of a PTX file, once for each parameter: 1000, 2.5, f32[64,32] or x.npy."
    ),
    click.option(
        "--trust",
        is_flag=True,
        help="Of a launch file: run Python code outside the current folder, or of another user.",
    ),
    click.option(
        "--device",
        help="One of `warpwright devices` (default: that of the launch file, else one that runs the kernel).",
    ),
)

Dim3 = tuple[int, int, int]
Command = Callable[..., None]


def launch_options(size: str, heads: str) -> Callable[[Command], Command]:
    """Returns a decorator that adds the argument and options of a launch; ``size`` and ``heads`` are the default sizes
    of gemm and of attention."""
    extent = click.option(
        "--size",
        help=f"Of gemm: M = N = K, or MxNxK (default {size}). Of attention: {SIZE_HELP} (default {heads}).",
    )
    argument = click.argument("what", metavar="gemm|attention|memory_flow|FILE.ptx|FILE.toml")

    def describe(command: Command) -> Command:
        for option in reversed((argument, extent, problem_options("Of attention: "), *_OPTIONS)):
            command = option(command)
        return command

    return describe


def launch_spec(what: str, options: Mapping[str, Any]) -> LaunchSpec:
    """Returns the launch that a .toml file describes, or that of a .ptx file and ``options``.

    Raises UsageError for another file, and for options that do not apply to it.
    """
    path = Path(what)
    refuse_options(what, options, ("level", "step", *PROBLEM_OPTIONS))
    if path.suffix == ".toml":
        refuse_options(what, options, LAUNCH_OPTIONS)
        return read_launch(path, options["trust"])
    if path.suffix != ".ptx":
        raise UsageError(
            f"given {what}; expected gemm, attention, memory_flow, a PTX file (.ptx) or a launch file (.toml)"
        )
    if options["grid"] is None:
        raise UsageError(f"given {what} without --grid; expected the CTAs of the launch, such as --grid 148")
    grid, block, cluster = (_dims(name, options[name]) for name in ("grid", "block", "cluster"))
    args = tuple(arguments(parse_arguments(options["arg"]), Path(), "--arg"))
    return LaunchSpec(entry_of(path, options["entry"]), grid, block, cluster, options["smem"], args, None, path)


def device_for(launch: LaunchSpec, options: Mapping[str, Any]) -> Device | None:
    """Returns the device of the option, else of the launch file; None if neither names one."""
    name = options["device"] or launch.device
    return None if name is None else devices.device(name)


def device_of(options: Mapping[str, Any]) -> Device:
    """Returns the device of the option, else the default one, for a step of attention that of the published kernel."""
    return devices.device(options["device"] or (STEP_DEVICE if options["step"] else devices.DEFAULT))


def refuse_options(what: str, options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise UsageError for given options that do not apply to ``what``."""
    for name in names:
        if options[name] not in (None, ()):
            option = name.replace("_", "-")
            raise UsageError(f"given --{option}; the option does not apply to {what}; leave it out")


def _dims(name: str, text: str | None) -> tuple[int, ...] | None:
    """Parses ``"4"`` or ``"4,2,1"``."""
    parts = [] if text is None else text.replace("x", ",").split(",")
    if len(parts) > 3 or not all(is_number(part.strip()) for part in parts):
        raise UsageError(f"given --{name} {text}; expected a number, or up to three: {name} 4,2,1")
    return tuple(map(int, parts)) or None


def parse_size(text: str) -> Dim3:
    """Parses ``"4096"`` or ``"4096x512x8192"`` as (M, N, K)."""
    parts = text.lower().split("x")
    if len(parts) not in (1, 3) or not all(is_number(part) and int(part) for part in parts):
        raise UsageError(f"given --size {text}; expected M = N = K such as 4096, or MxNxK such as 4096x512x8192")
    m, n, k = (parts * 3)[:3]
    return int(m), int(n), int(k)


def profile_each(
    launches: Iterable[Launch], device: Device, fast: bool, sustained: bool = False, warm: bool = False
) -> list[Profile]:
    """Returns the profile of each launch of a call."""
    from warpwright.run import profile  # commands that predict nothing do not need the timing model

    how: dict[str, Any] = {"device": device, "fast": fast, "sustained": sustained, "warm": warm}
    return [profile.profile(launch.kernel, launch.grid, args=launch.args, **how) for launch in launches]
