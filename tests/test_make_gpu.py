"""`make gpu` on CPUs: all its stages with small sizes, and what is left when some fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unet_scaling.study.config import PROJECT

pytestmark = pytest.mark.verify


def run_dry(output: Path, *options: str) -> tuple[int, dict[str, str]]:
    """Return the exit code, and the end of each line of the table by stage."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry", "--output", str(output), *options]
    code = subprocess.run(command, cwd=PROJECT, check=False).returncode
    rows = [line.split(maxsplit=3) for line in (output / "summary.txt").read_text().splitlines()]
    return code, {name: state for name, _, _, state in rows}


def test_a_stage_that_fails_stops_no_other_one(tmp_path: Path) -> None:
    code, states = run_dry(tmp_path, "--stages", "records,facts,segment,horovod")
    assert code == 1
    assert {name: state.split()[0] for name, state in states.items()} == {
        "facts": "ok", "horovod": "ok", "records": "FAILED:", "segment": "FAILED:",
    }  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["horovod"]["sum of 1 worker"]["device"] == "cpu"
    late = run_dry(tmp_path, "--stages", "facts", "--seconds", "1")
    assert late == (1, {"facts": "not begun: out of time"})


def test_all_stages_run_on_cpus(tmp_path: Path) -> None:
    code, states = run_dry(tmp_path, "--seconds", "800")
    assert {name: state.split()[0] for name, state in states.items()} == dict.fromkeys(states, "ok")
    assert (code, len(states)) == (0, 16)
    results = json.loads((tmp_path / "results.json").read_text())
    same = results["records"]["horovod-w01-r1 against native DDP"]
    assert same["same weights"]
    assert same["losses differ by"] == 0
    assert results["roofline"]["step must"]["GFLOP"] > 0
    assert results["resume"]["stopped and resumed"]["resumed"] is not None
    assert (tmp_path / "report" / "report.html").stat().st_size > 0
    assert not (tmp_path / "work").exists()
    assert not [*tmp_path.rglob("weights.pt")]
