"""The command ``check``: text, JSON and SARIF of a verdict, exit status and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from warpwright.cli import check, main
from warpwright.run.check import merge_verdicts
from warpwright.vgpu.checks.coverage import Coverage
from warpwright.vgpu.checks.findings import Finding, Verdict
from warpwright.vgpu.checks.rules import RULES

TURNED = """
from warpwright.lang import Global, bar, kernel, smem, tid, u32


@kernel("sm_90a", threads=64)
def turned(x: Global[u32], *, right: bool = False):
    held = smem.array(u32, 64)
    held[63 - tid.x] = 0
    bar.sync()
    held[tid.x] = tid.x
    if right:
        bar.sync()
    x[tid.x] = held[63 - tid.x]
"""
LAUNCH = 'kernel = "turned.py:turned"\ngrid = 1\n[config]\nright = {}\n[[args]]\ndtype = "u32"\nshape = [64]\n'
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry turned(.param .u64 x)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    .shared .align 4 .b8 held[256];
    mov.u32 %r1, %tid.x;
    mov.u32 %r0, held;
    mad.lo.u32 %r2, %r1, 4, %r0;
    st.shared.u32 [%r2], %r1;
    bar.sync 0;
    xor.b32 %r3, %r1, 32;
    mad.lo.u32 %r2, %r3, 4, %r0;
    ld.shared.u32 %r4, [%r2];
    st.shared.u32 [%r2], %r4;
    ld.shared.u32 %r4, [held];
    ld.param.u64 %rd1, [x];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r4;
    ret;
}
"""
LONG = (
    "   Repair: put a barrier of both threads between the two (bar.sync), or let the thread of the first arrive on an "
    "mbarrier after it, and the thread of the second wait for that phase before it (PTX ISA 8.9.4)"
)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, words)])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "turned.py").write_text(TURNED)
    (tmp_path / "turned.ptx").write_text(PTX)
    for name, value in (("wrong", "false"), ("right", "true")):
        (tmp_path / f"{name}.toml").write_text(LAUNCH.format(value))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finding_reads_as_both_lines_the_reason_and_the_repair(folder) -> None:
    result = run("wrong.toml")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines == [
        "turned on h200: findings; 13 of 13 instructions reached",
        "",
        "1. race: two accesses of the same memory, one of them a write, that nothing orders",
        "   first: turned.py:13  x[tid.x] = held[63 - tid.x]",
        "      ld.shared.u32, kernel, CTA (0, 0, 0), thread 0",
        "   second: turned.py:10  held[tid.x] = tid.x",
        "      st.shared.u32, kernel, CTA (0, 0, 0), thread 63",
        "   nothing orders the second after the first",
        LONG,
    ]


def test_ptx_without_lines_of_its_own_shows_the_ptx(folder) -> None:
    result = run("turned.ptx", "--grid", 1, "--block", 64, "--arg", "u32[64]", "--sarif", "found.sarif")
    assert result.exit_code == 1
    assert "   first: turned.ptx:18  ld.shared.u32 %r4, [held];\n" in result.stdout
    assert "   second: turned.ptx:17  st.shared.u32 [%r2], %r4;\n" in result.stdout
    (found, *_) = json.loads((folder / "found.sarif").read_text())["runs"][0]["results"]
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "turned.ptx"


def test_the_page_has_the_timeline_with_the_accesses(folder) -> None:
    assert run("turned.ptx", "--grid", 1, "--block", 64, "--arg", "u32[64]", "--html", "found.html").exit_code == 1
    page = (folder / "found.html").read_text(encoding="utf-8")
    assert '<section id="verdict"' in page and '<section id="pipeline"' in page
    timeline = json.loads(page.split('id="data">')[1].split("</script>")[0])["timeline"]
    assert timeline["marks"][0]["text"] == "1. first: ld.shared.u32, CTA (0, 0, 0)"


def test_the_page_of_a_kernel_that_stops_has_its_verdict_alone(folder) -> None:
    text = PTX.replace("bar.sync 0;", "bar.sync 1, 96;")
    (folder / "stops.ptx").write_text(text)
    assert run("stops.ptx", "--grid", 1, "--block", 64, "--arg", "u32[64]", "--html", "stops.html").exit_code == 1
    page = (folder / "stops.html").read_text(encoding="utf-8")
    assert "deadlock" in page and '<section id="pipeline"' not in page


def test_clean_is_one_line_and_status_0(folder) -> None:
    result = run("right.toml")
    assert (result.exit_code, result.stdout) == (0, "turned on h200: clean; 14 of 14 instructions reached\n")


def test_a_rule_that_is_off_finds_nothing(folder) -> None:
    assert run("wrong.toml", "--off", "race").exit_code == 0


def test_a_launch_file_switches_rules_off_too(folder) -> None:
    path = folder / "wrong.toml"
    text = path.read_text()
    path.write_text('off = ["race"]\n' + text)
    assert run("wrong.toml").exit_code == 0
    path.write_text('off = "uninitialised"\n' + text)
    assert run("wrong.toml").exit_code == 1
    assert run("wrong.toml", "--off", "race").exit_code == 0
    path.write_text('off = ["rase"]\n' + text)
    assert run("wrong.toml").stderr.startswith("warpwright: error: given off='rase'; expected one of race, ")


def test_what_is_not_reached_is_incomplete_and_status_3(folder) -> None:
    text = PTX.replace("    bar.sync 0;\n", "    .reg .pred %p;\n    setp.gt.u32 %p, %r1, 1000;\n    @!%p ret;\n", 1)
    (folder / "turned.ptx").write_text(text)
    result = run("turned.ptx", "--grid", 1, "--block", 64, "--arg", "u32[64]")
    assert result.exit_code == 3
    assert result.stdout == (
        "turned on b200: incomplete; 6 of 16 instructions and 1 of 2 directions of branches reached\n\n"
        "Incomplete: not reached: PTX line 18, PTX line 19, PTX line 20, PTX line 21, PTX line 24; "
        "choose a problem that comes there\n"
        "one way only: PTX line 15 never goes to PTX line 16 (depends on the block (64, 1, 1))\n"
    )


def test_what_is_not_executed_is_incomplete_and_status_3(folder) -> None:
    call = "    call %rd1, anything;\n    ret;\n"
    (folder / "turned.ptx").write_text(PTX.replace("    ret;\n", "    anything: .callprototype _ ();\n" + call))
    result = run("turned.ptx", "--grid", 1, "--block", 64, "--arg", "u32[64]")
    assert result.exit_code == 3
    assert result.stdout == (
        "turned on b200: incomplete; 0 of 16 instructions reached\n\n"
        "Incomplete: PTX line 24: `call` through a pointer: expected the address of a function with these parameters, "
        "but the module takes none.\n"
    )


def test_several_launches_are_one_verdict() -> None:
    finding = Finding(RULES["fault"], (), "it fails")
    one = Verdict("a", "h200", (finding,), Coverage(3, 5, ("k.py:1",), (1, 4)), ("not reached: k.py:1",))
    two = Verdict("b", "h200", (finding,), Coverage(4, 4, (), (2, 2)), ())
    both = merge_verdicts("both", [one, two])
    assert both == Verdict("both", "h200", (finding,), Coverage(7, 9, ("k.py:1",), (3, 6)), ("not reached: k.py:1",))


def test_json_is_the_verdict(folder) -> None:
    value = json.loads(run("wrong.toml", "--json").stdout)
    assert value.keys() == {
        "kernel",
        "device",
        "verdict",
        "causes",
        "findings",
        "notes",
        "coverage",
        "reasons",
        "seeds",
        "orders",
        "unexplored",
    }
    assert value["verdict"] == "findings" and value["causes"] == [[0]]
    rest = {"missed": [], "branches": [0, 0], "one_way": [], "idle": []}
    assert value["coverage"] == {"reached": 13, "present": 13} | rest
    finding = value["findings"][0]
    assert finding["rule"]["id"] == "race" and finding["message"] == "nothing orders the second after the first"
    assert [Path(step["where"]).name for step in finding["steps"]] == ["turned.py:13", "turned.py:10"]


def test_gemm_is_clean_and_its_result_verified() -> None:
    result = run("gemm", "--level", 4, "--size", "200x136x64")
    assert result.exit_code == 0, result.output
    head, *rest = result.stdout.splitlines()
    assert head.startswith("gemm level 4, 200 × 136 × 64 on b200: clean; ")
    assert rest[0].strip() == "the result, against float64"
    value = json.loads(run("gemm", "--level", 8, "--size", 128, "--device", "h200", "--json").stdout)
    assert value["verdict"] == "clean" and value["result"]["verified"]


def test_a_wrong_result_is_a_finding_though_the_launch_is_clean(monkeypatch) -> None:
    right = check.launches

    def wrong(*given: Any, **options: Any) -> Any:
        call = right(*given, **options)
        call.finish.append(lambda: call.result.__iadd__(call.result.dtype.type(1)))
        return call

    monkeypatch.setattr(check, "launches", wrong)
    result = run("gemm", "--level", 4, "--size", 128)
    assert result.exit_code == 1
    assert result.stderr == (
        "warpwright: not verified: the result differs from the float64 reference by more than the bound\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["other"], "given other; expected gemm, attention, memory_flow, a PTX file (.ptx) or a launch file (.toml)"),
        (["turned.ptx"], "given turned.ptx without --grid; expected the CTAs of the launch, such as --grid 148"),
        (["right.toml", "--level", 2], "given --level; the option does not apply to right.toml; leave it out"),
        (["gemm", "--grid", 32], "given --grid; the option does not apply to gemm; leave it out"),
        (
            ["right.toml", "--sarif", "no/t.json"],
            "cannot write no/t.json: No such file or directory; name a file in a folder that exists",
        ),
    ],
)
def test_mistakes_are_one_line_and_status_2(folder, words, sentence) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"warpwright: error: {sentence}\n")


def test_an_unknown_rule_is_answered_with_those_there_are(folder) -> None:
    result = run("right.toml", "--off", "rase")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "warpwright: error: given off='rase'; expected one of race, grid-race, peer-race, proxy-fence, "
    )
