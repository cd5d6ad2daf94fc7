"""A study on this machine that adds repeats until its intervals are narrow, with real launches."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import slurm.local
from slurm.commands.run import command_line, run_on_this_machine
from tests.studies import TINY_STUDY
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import recorded_study

ASKED = 'repeats = "until 30 %, at most 8"'
# Of the pause before each step: several times the step itself, so that launches differ little on any machine.
PAUSE_SECONDS = "0.05"


@pytest.fixture
def pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of a local study pause before each step."""
    pace = tmp_path / "pace"
    pace.write_text(PAUSE_SECONDS)
    launch = slurm.local.launch

    def launch_paced(program: Sequence[str], *rest: Any) -> int:
        return launch([str(PROJECT / "tests" / "paced.py"), str(pace), sys.executable, *program], *rest)

    monkeypatch.setattr(slurm.local, "launch", launch_paced)


@pytest.mark.verify
@pytest.mark.usefixtures("pauses")
def test_a_local_study_ends_at_its_width_and_the_report_says_so(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "narrow.toml"
    text = TINY_STUDY.format(data=images, workers=[1], epochs=2).replace("repeats = 1", ASKED)
    text = text.replace("batch_per_worker = 2", "batch_per_worker = 8")
    path.write_text(text + "cores_per_worker = 1\n")  # two threads would wait for each other's core
    run_on_this_machine(command_line().parse_args([str(path), "--logs", str(tmp_path)]))
    study = recorded_study(tmp_path / "narrow")
    assert study is not None
    assert study.until is not None
    assert study.repeats < study.until.most
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"after {study.repeats} repeats, the widest interval of the ratio is ± " in last
    assert last.endswith("(at 1 worker), narrow enough: no more are needed")
    page = report_of(tmp_path / "narrow")
    assert f"after {study.repeats} repeats, the widest interval of the ratio is ± " in page
    assert "narrow enough: no more are needed" in page
    assert "the intervals of the ratio are of 98 % confidence" in page


def report_of(study: Path) -> str:
    command = [sys.executable, "-m", "analysis", str(study), "--output", str(study / "page")]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, timeout=300)
    return (study / "page" / "report.html").read_text()
