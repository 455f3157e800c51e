"""The GitHub Action of `action.yml`: its steps run here, one after another, as a runner of GitHub would run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.report.sarif_schema import SCHEMA

yaml = pytest.importorskip("yaml", reason="PyYAML is of the extra dev: pip install 'warpwright[dev]'")

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]  # GitHub's `shell: bash`
INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")

PYTHON = """\
#!/bin/bash
# The interpreter of a runner: an installation puts the command on PATH.
echo "$*" > "{folder}/installed"
printf '#!/bin/bash\\nPYTHONPATH="{source}" exec "{python}" -m warpwright "$@"\\n' > "{folder}/bin/warpwright"
chmod +x "{folder}/bin/warpwright"
"""

PROGRAM = """\
#include <cstdio>
#include <cstdlib>

__global__ void reverse(int *y) {
    __shared__ int x[64];
    x[threadIdx.x] = threadIdx.x;
    SYNC;
    y[threadIdx.x] = x[63 - threadIdx.x];
}

int main(int count, char **words) {
    int *y;
    cudaMalloc(&y, 64 * sizeof(int));
    for (int i = 0; i < atoi(words[1]); i++) reverse<<<1, 64>>>(y);
    printf("%d %s %s\\n", count, words[2], cudaGetErrorName(cudaDeviceSynchronize()));
}
"""


class Runner:
    """A runner of GitHub in a folder: the inputs of the action, and the files that its steps leave."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder, self.summary = folder, folder / "summary.md"
        defaults = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}
        self.inputs = defaults | inputs
        (folder / "bin").mkdir()
        python = folder / "bin" / "python"
        python.write_text(PYTHON.format(folder=folder, source=ROOT / "src", python=sys.executable))
        python.chmod(0o755)
        self.summary.touch()

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the steps with a shell until one fails; returns the last that ran."""
        for step in STEPS:
            if "run" in step:
                done = self.run_step(step)
                if done.returncode:
                    break
        return done

    def run_step(self, step: dict) -> subprocess.CompletedProcess[str]:
        script = self.folder / "step.sh"
        script.write_text(step["run"], encoding="utf-8")
        given = {key: INPUT.sub(lambda found: self.inputs[found[1]], text) for key, text in step.get("env", {}).items()}
        runner = {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(self.summary)}
        path = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        environment = {**os.environ, **runner, **path, **given}
        return subprocess.run([*BASH, script], cwd=self.folder, env=environment, capture_output=True, text=True)

    def results(self) -> list[dict]:
        """The results in the SARIF file that the action would upload."""
        (upload,) = [step for step in STEPS if "upload-sarif" in step.get("uses", "")]
        log = json.loads(
            (self.folder / INPUT.sub(lambda found: self.inputs[found[1]], upload["with"]["sarif_file"])).read_text()
        )
        jsonschema.validate(log, SCHEMA)
        (run,) = log["runs"]
        return run["results"]


def test_each_input_is_used_and_described() -> None:
    texts = [*(str(step.get("env", {})) + str(step.get("with", {})) for step in STEPS), STEPS[-1]["if"]]
    used = set(re.findall(r"inputs\.(\w+)", " ".join(texts)))
    assert used == set(ACTION["inputs"])
    for given in ACTION["inputs"].values():
        assert given["description"].endswith(".") and ("default" in given) != given.get("required", False)
        assert isinstance(given.get("default", ""), str)


def test_no_shell_line_has_an_expression() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", "")
        assert ("run" in step) == (step.get("shell") == "bash")
        for name in step.get("env", {}):
            assert f"${name}" in step["run"], name


def test_the_findings_are_uploaded_although_the_program_failed() -> None:
    upload = STEPS[-1]
    assert upload["if"] == "always() && inputs.upload == 'true' && hashFiles(inputs.sarif) != ''"
    assert all(re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"]) for step in STEPS if "uses" in step)


def test_the_workflow_of_the_readme_uses_inputs_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```", readme, re.M | re.S)[1])
    (job,) = workflow["jobs"].values()
    (step,) = [step for step in job["steps"] if "warpwright" in step["uses"]]
    assert set(step["with"]) <= set(ACTION["inputs"]) and "program" in step["with"]
    assert job["permissions"]["security-events"] == "write"


@needs_nvcc
def test_a_right_program(tmp_path: Path) -> None:
    (tmp_path / "reverse.cu").write_text(PROGRAM)
    options = {"args": " 2\n $(touch${IFS}x)* ", "nvcc": "-DSYNC=__syncthreads() -O1", "profile": "true"}
    runner = Runner(tmp_path, program="reverse.cu", json="report.json", **options)
    (tmp_path / "warpwright.sarif").write_text("of a program before")
    done = runner.run()
    assert (done.returncode, done.stdout) == (0, "3 $(touch${IFS}x)* cudaSuccess\n"), done.stderr
    assert (tmp_path / "installed").read_text() == f"-m pip install {ROOT}[programs]\n"
    assert not (tmp_path / "x").exists()
    assert runner.results() == []
    assert re.fullmatch(
        r"\| kernel \| launches \| verdict \| time µs \|\n\| --- \| ---: \| --- \| ---: \|\n"
        r"\| `reverse` \| 2 \| clean \| \d+\.\d+ \|\n",
        runner.summary.read_text(),
    )
    assert json.loads((tmp_path / "report.json").read_text())["kernels"][0]["launches"] == 2


@needs_nvcc
def test_a_program_with_a_race(tmp_path: Path) -> None:
    (tmp_path / "reverse.cu").write_text(PROGRAM)
    runner = Runner(tmp_path, program="reverse.cu", args="1 x", nvcc="-DSYNC=", device="h200")
    assert runner.run().returncode == 1
    (race,) = [result for result in runner.results() if result["ruleId"] == "race"]
    lines = [
        each["physicalLocation"]["region"]["startLine"] for each in (*race["locations"], *race["relatedLocations"])
    ]
    assert sorted(lines) == [6, 8]
    assert race["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "reverse.cu"
    assert re.search(r"^- `reverse`: \*\*race\*\* at `reverse.cu:[68]` and", runner.summary.read_text(), re.M)


@needs_nvcc
def test_a_program_that_does_not_compile_leaves_nothing_to_upload(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text("int main() { return }\n")
    (tmp_path / "warpwright.sarif").write_text("of a program before")
    runner = Runner(tmp_path, program="wrong.cu")
    assert runner.run().returncode == 2
    assert not (tmp_path / "warpwright.sarif").exists() and not runner.summary.read_text()


@needs_nvcc
def test_checks_and_kernels_are_chosen_by_inputs(tmp_path: Path) -> None:
    (tmp_path / "reverse.cu").write_text(PROGRAM)
    options = {"program": "reverse.cu", "args": "1 x", "nvcc": "-DSYNC="}
    for number, chosen in enumerate([{"check": "false"}, {"only": "^other"}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(tmp_path / "reverse.cu", folder)
        runner = Runner(folder, **options, **chosen)
        assert (runner.run().returncode, runner.results()) == (0, [])


def test_the_readme_names_the_repository() -> None:
    """The account is that of the project's address; without an address the README says so."""
    address = re.search(r"github\.com/([\w-]+)/warpwright", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"- uses: {address[1] if address else 'OWNER'}/warpwright@main\n" in readme
    assert ("names no public address yet" in readme) == (address is None)


def test_the_action_needs_only_its_own_folder() -> None:
    """A copy in the workspace runs too: `uses: ./warpwright`. Other actions have an account and a version."""
    for step in STEPS:
        assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"]) if "uses" in step else "OWNER" not in step["run"]
    installs = [step["run"] for step in STEPS if "pip install" in step.get("run", "")]
    assert installs == ['python -m pip install "${GITHUB_ACTION_PATH}[programs]"']
