"""``warpwright run``: a program of CUDA C++, or a script of Python with kernels of the language, Triton, CuTe DSL,
cuda.core or CuPy, on a virtual GPU."""

from __future__ import annotations

import json
import re
import runpy
import sys
import tempfile
import traceback
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from warpwright import __version__
from warpwright.cli.check import STATUS
from warpwright.cli.console import OutputFile, remark, tell
from warpwright.cli.manual import manual
from warpwright.errors import UsageError, WarpwrightError
from warpwright.report.html.program import program_page
from warpwright.report.launches import kernel_rows, launch_lines, markdown_of
from warpwright.report.output import write_file
from warpwright.report.sarif import sarif_of
from warpwright.report.tables import table
from warpwright.run.devices import device as find_device
from warpwright.run.session import Session

__all__ = ["command"]


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=manual(
        "0 if the program ended with 0, 1 for findings, a fault of a kernel or a program that failed",
        "warpwright run --device b200 --check --profile saxpy.cu",
        "warpwright run --device h200 --check script.py",
        "warpwright run --profile --html report.html ./program 1024",
        incomplete="for an incomplete verdict",
    ),
)
@click.option("--device", "name", default="b200", show_default=True, help="The virtual GPU.")
@click.option("--check", is_flag=True, help="Look for races, deadlocks and broken protocols in each launch.")
@click.option("--strict", is_flag=True, help="With --check, notes are findings.")
@click.option("--profile", is_flag=True, help="Predict the time of each launch; events of the program use it.")
@click.option("--only", default="", metavar="REGEX", help="Check and profile only kernels with matching names.")
@click.option("--max-launches", type=click.IntRange(1), metavar="N", help="End the program after N launches.")
@click.option("--nvcc", multiple=True, metavar="OPTION", help="An option of nvcc for a .cu file; may be repeated.")
@click.option("--json", "as_json", type=OutputFile(), help="Write launches and findings (JSON).")
@click.option("--sarif", type=OutputFile(), help="Write the findings for code review tools (SARIF).")
@click.option("--html", type=OutputFile(), help="Write kernels, findings and the longest launch for a browser (HTML).")
@click.option("--markdown", type=OutputFile(), help="Write the kernels and the findings for the summary of a CI job.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(program: str, args: tuple[str, ...], **options: Any) -> None:
    """Run a program on a virtual GPU.

    PROGRAM is a program of CUDA C++ 13 that is linked with -cudart shared, a .cu file, which nvcc compiles, or a .py
    script with kernels of the language, Triton, CuTe DSL, cuda.core or CuPy. The report is on standard error.
    """
    try:
        re.compile(options["only"])
    except re.error as error:
        given = f"given --only {options['only']!r}, no regular expression ({error})"
        raise UsageError(f"{given}; put a backslash before special signs") from None
    session = Session(
        find_device(options["name"]), options["check"], options["profile"], options["only"], options["strict"]
    )
    run = _run_script if program.endswith(".py") else _run_program
    options["program"] = program
    try:
        failed = run(session, program, args, options)
    except Exception:  # of a script, or for an instruction that the device does not execute
        if session.launches:
            _report(session, options)
        raise
    _report(session, options)
    verdicts = [each.verdict.kind for each in session.launches if each.verdict is not None]
    status = next((STATUS[kind] for kind in ("findings", "incomplete") if kind in verdicts), 0)
    click.get_current_context().exit(1 if failed else status)


def _run_program(session: Session, program: str, args: tuple[str, ...], options: dict[str, Any]) -> bool:
    """Run a program of CUDA C++, or compile and run one. Returns whether it failed."""
    from warpwright.programs.calls import Calls
    from warpwright.programs.process import compile_source, run_program

    with tempfile.TemporaryDirectory() as folder:
        path = program
        if program.endswith(".cu"):
            path = str(Path(folder) / Path(program).stem)
            compile_source(Path(program), Path(path), session.device.spec.arch, options["nvcc"])
        elif options["nvcc"]:
            raise UsageError(f"given --nvcc with {program}; expected a .cu file: leave --nvcc out")
        calls = Calls(session, options["max_launches"])
        with closing(calls.memory):
            status = run_program([path, *args], calls)
    if status:
        remark(f"the program ended with {f'status {status}' if status > 0 else f'signal {-status}'}")
    elif not calls.launches:
        remark("the program launched no kernel")
    return bool(status)


def _run_script(session: Session, program: str, args: tuple[str, ...], options: dict[str, Any]) -> bool:
    """Run a script of Python. Returns whether it failed."""
    from warpwright.interop.virtual import serve

    for name in ("max_launches", "nvcc"):
        if options[name]:
            raise UsageError(f"given --{name.replace('_', '-')} with a script; expected a program: leave it out")
    if not Path(program).is_file():
        raise UsageError(f"given {program!r}; expected a script of Python")
    sys.argv = [program, *args]
    sys.path.insert(0, str(Path(program).resolve().parent))
    try:
        with serve(session, whole_process=True):
            runpy.run_path(program, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            click.echo(error.code, err=True)
        return bool(error.code)
    except WarpwrightError:
        raise
    except Exception as error:
        click.echo(
            "".join(traceback.format_exception(type(error), error, _frames_of(program, error))), err=True, nl=False
        )
        return True
    return False


def _frames_of(program: str, error: Exception) -> TracebackType | None:
    """Returns the traceback of ``error`` from the first frame of the script on; the whole one if it has none."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename != program:
        found = found.tb_next
    return found or error.__traceback__


def _report(session: Session, options: dict[str, Any]) -> None:
    launches, kernels = session.launches, kernel_rows(session.launches)
    verdicts = [each.verdict for each in launches if each.verdict is not None]
    if options["as_json"]:
        found = {"kernels": kernels, "verdicts": [verdict.as_dict() for verdict in verdicts]}
        write_file(options["as_json"], json.dumps(found, indent=2))
    if options["sarif"]:
        write_file(options["sarif"], json.dumps(sarif_of(verdicts, __version__), indent=2))
    if options["html"]:
        title = f"{Path(options['program']).name} on {session.places}"
        write_file(options["html"], program_page(title, launches, session.longest))
    if options["markdown"]:
        write_file(options["markdown"], markdown_of(launches))
    if kernels and (session.check or session.profile):
        tell(*launch_lines(launches), table(kernels, f"launches on {session.places}"))
