"""Programs of CUDA C++ run on a virtual GPU by ``warpwright run``, with right numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from warpwright.cli import main

pytest.importorskip("zstandard", reason="zstandard is an extra: pip install 'warpwright[programs]'")
if shutil.which("nvcc") is None:
    pytest.skip("nvcc is not on PATH", allow_module_level=True)

ROOT = Path(__file__).parents[2]
CUDA = Path(__file__).with_name("cuda")
PROGRAMS = dict.fromkeys(("streams", "heap", "managed", "cooperative", "cluster", "tma", "im2col"), "h200")
BLACKWELL = {"clc": "b200", "pair": "b200", "tma": "rtx5090"}


def run(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs ``warpwright run``."""
    command = [sys.executable, "-m", "warpwright", "run", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="session")
def linked(tmp_path_factory):
    """A function that compiles a program, as its author would."""
    folder = tmp_path_factory.mktemp("cuda")

    def link(name: str, *options: str) -> Path:
        path = folder / "-".join([name, *options])
        if not path.exists():
            subprocess.run(["nvcc", *options, "-o", str(path), str(CUDA / f"{name}.cu")], check=True)
        return path

    return link


@pytest.mark.parametrize(("name", "device"), [*PROGRAMS.items(), *BLACKWELL.items()])
def test_a_source_is_compiled_and_runs(name: str, device: str) -> None:
    done = run("--device", device, CUDA / f"{name}.cu")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}: right\n", "")


def test_a_process_runs_programs_one_after_another() -> None:
    for _ in range(2):
        result = CliRunner().invoke(main, ["run", "--device", "h200", str(CUDA / "streams.cu")])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("options", [["-arch=sm_90a"], ["-arch=sm_90"], ["-arch=sm_90a", "--compress-mode=none"]])
def test_a_linked_program_runs(linked, options: list[str]) -> None:
    done = run("--device", "h200", linked("managed", "-cudart=shared", *options))
    assert (done.returncode, done.stdout) == (0, "managed: right\n"), done.stderr


def test_verdict_and_time_of_each_kernel(tmp_path: Path) -> None:
    report, sarif = tmp_path / "report.json", tmp_path / "report.sarif"
    options = ["--check", "--profile", "--only", "scale", "--json", report, "--sarif", sarif]
    done = run("--device", "h200", *options, CUDA / "streams.cu")
    assert done.returncode == 0 and done.stdout == "streams: right\n"
    found = json.loads(report.read_text())
    scale, rows = found["kernels"]
    assert (scale["kernel"], scale["launches"], scale["verdict"]) == ("scale", 2, "clean")
    assert 4 < scale["time_us"] < 20
    assert rows == {"kernel": "add_rows", "launches": 1, "verdict": "", "time_us": ""}
    assert [verdict["verdict"] for verdict in found["verdicts"]] == ["clean"] * 2
    (once,) = json.loads(sarif.read_text())["runs"]
    assert once["results"] == []
    assert re.search(r"scale +2 +clean +\d", done.stderr)


FAULT = ["-cudart=shared", "-gencode=arch=compute_90a,code=compute_90a", "-lineinfo"]
FAULTS = {
    "outside": (
        1,
        "cudaErrorIllegalAddress",
        f"{CUDA}/fault.cu:9: `st.global.u32`: kernel outside, CTA (0, 0, 0), warp 0, lane 0: address "
        "0x680000000100 is outside global memory: 0 bytes past the end of the 256 bytes at 0x680000000000; if it "
        "belongs to another array, add that array to memory=.",
    ),
    "smem": (
        0,
        "cudaErrorInvalidValue",
        "kernel large is launched with 100,000 bytes of dynamic shared memory; expected at most 49,152: call "
        "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000) before",
    ),
    "assert": (
        1,
        "cudaErrorAssert",
        f"{CUDA}/fault.cu:14: `call.__assertfail`: kernel check, CTA (0, 0, 0), warp 0, lane 0: assertion `n < 3` "
        f"failed in {CUDA}/fault.cu.",
    ),
    "descriptor": (
        1,
        "cudaErrorLaunchFailure",
        f"{CUDA}/fault.cu:27: `wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16`: kernel multiply, CTA (0, 0, 0), "
        "warp 0: given descriptor 0x0000000000004000 with bit 14 set; expected 0 on sm_90a; mask each field to its 14 "
        "bits before shifting it into place",
    ),
    "hang": (
        1,
        "cudaErrorLaunchFailure",
        "kernel hang: no warp can make progress.\n  CTA (0, 0, 0), warp 0, lanes 0-31: waits for parity 0 of the "
        "mbarrier at offset 0x400 of CTA 0 (phase 0, 1 of 1 arrivals and 0 bytes pending) "
        f"({CUDA}/fault.cu:19)\n"
        "  `ww.check`, or `warpwright run --check` of a program, reports who should have arrived.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_and_reaches_the_program(linked, fault: str) -> None:
    status, name, message = FAULTS[fault]
    done = run("--device", "h200", linked("fault", *FAULT), fault)
    assert (done.returncode, done.stdout) == (status, f"{name}\n")
    assert done.stderr == f"warpwright: error: {message}\n"


@pytest.mark.parametrize("options", [[], ["--check"]])
@pytest.mark.parametrize(("fault", "rule", "line"), [("outside", "fault", 9), ("hang", "deadlock", 19)])
def test_the_reports_have_a_fault(linked, tmp_path: Path, fault: str, rule: str, line: int, options: list[str]) -> None:
    report, sarif = tmp_path / "report.json", tmp_path / "report.sarif"
    program = linked("fault", *FAULT)
    done = run("--device", "h200", *options, "--json", report, "--sarif", sarif, program, fault)
    assert done.returncode == 1, done.stderr
    found = json.loads(report.read_text())
    assert found["kernels"] == [{"kernel": fault, "launches": 1, "verdict": "findings"}]
    assert [finding["rule"]["id"] for finding in found["verdicts"][0]["findings"]] == [rule]
    (result,) = json.loads(sarif.read_text())["runs"][0]["results"]
    where = result["locations"][0]["physicalLocation"]
    assert (result["ruleId"], where["region"]) == (rule, {"startLine": line})
    assert where["artifactLocation"]["uri"].endswith("tests/programs/cuda/fault.cu")


TEXTURE = """\
__global__ void good(int *y) { *y = 1; }
__global__ void sample(float *y, unsigned long long texture) {
    asm volatile(
        "{.reg .f32 r<3>; tex.1d.v4.f32.f32 {%0, r0, r1, r2}, [%1, {r0}];}"
        : "=f"(*y) : "l"(texture));
}
int main() {
    void *y;
    cudaMalloc(&y, 4);
    good<<<1, 1>>>((int *)y);
    sample<<<1, 1>>>((float *)y, 1);
}
"""


def test_the_reports_have_what_the_device_does_not_execute(tmp_path: Path) -> None:
    (tmp_path / "texture.cu").write_text(TEXTURE)
    report, sarif = tmp_path / "report.json", tmp_path / "report.sarif"
    done = run("--json", report, "--sarif", sarif, tmp_path / "texture.cu")
    assert done.returncode == 3 and "tex.1d" in done.stderr.splitlines()[-1], done.stderr
    kernels = json.loads(report.read_text())["kernels"]
    assert [(row["kernel"], row["verdict"]) for row in kernels] == [("good", ""), ("sample", "incomplete")]
    (invocation,) = json.loads(sarif.read_text())["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]


def test_the_limit_of_launches_ends_the_program(linked) -> None:
    done = run("--device", "h200", "--max-launches", 1, linked("managed", "-cudart=shared", "-arch=sm_90"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_fails(linked) -> None:
    done = run("--device", "b200", "--max-launches", 5, linked("fault", "-cudart=shared", "-arch=sm_90"))
    assert done.returncode == 1
    assert done.stderr == "warpwright: the program ended with signal 11\n"  # it has no argument


def test_a_program_with_its_own_runtime_is_refused(linked) -> None:
    path = linked("managed", "-cudart=static", "-arch=sm_90")
    done = run(path)
    assert done.returncode == 2
    assert done.stderr == (
        f"warpwright: error: {path} has a CUDA runtime of its own; expected the shared one, which Warpwright replaces: "
        "link it again with nvcc -cudart shared\n"
    )


def test_a_program_without_ptx_for_the_device_is_refused(linked) -> None:
    done = run("--device", "h200", linked("clc", "-cudart=shared", "-arch=sm_100a"))
    assert done.returncode == 2
    assert done.stderr == (
        "warpwright: error: given a program with PTX for sm_100, sm_100a; expected PTX for sm_90a: compile it with "
        "nvcc -arch=sm_90a -cudart shared, or name another --device\n"
    )


def test_what_is_no_program(tmp_path: Path) -> None:
    done = run("nothing.out")
    assert done.returncode == 2
    assert done.stderr == (
        "warpwright: error: given 'nothing.out'; expected a program, or a file of CUDA C++ that ends in .cu\n"
    )
    done = run("true")
    assert (done.returncode, done.stderr) == (0, "warpwright: the program launched no kernel\n")
    done = run("--only", "(", "true")
    assert done.returncode == 2
    assert done.stderr == (
        "warpwright: error: given --only '(', no regular expression (missing ), unterminated subpattern at position "
        "0); put a backslash before special signs\n"
    )


def test_a_source_that_nvcc_refuses(tmp_path: Path) -> None:
    path = tmp_path / "wrong.cu"
    path.write_text("int main() { return }\n")
    done = run(path)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last == (
        f"warpwright: error: nvcc refuses {path} (its messages stand above); correct them, or pass --nvcc OPTION"
    )


def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    source, command = re.search(r"^```cuda\n(.*?)^```\n\n`warpwright run (.*?)`", readme, re.M | re.S).groups()
    (tmp_path / "saxpy.cu").write_text(source, encoding="utf-8")
    done = run(*command.replace("saxpy.cu", str(tmp_path / "saxpy.cu")).split())
    assert (done.returncode, done.stdout) == (0, "no error, y[999] = 1999\n")
    assert re.search(r"saxpy +1 +clean +\d", done.stderr)
