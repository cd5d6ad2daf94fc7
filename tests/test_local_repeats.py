"""A study on this machine that adds repeats until its intervals are narrow, through the real command."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.studies import TINY_STUDY
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import recorded_study

# Of launches whose epochs take a fraction of a second; reached after 3 to 5 repeats on a busy machine.
ASKED = 'repeats = "until 60 %, at most 8"'


@pytest.mark.slow
def test_a_local_study_ends_at_its_width_and_the_report_says_so(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "narrow.toml"
    text = TINY_STUDY.format(data=images, workers=[1], epochs=3).replace("repeats = 1", ASKED)
    path.write_text(text + "cores_per_worker = 1\n")  # two threads would wait for each other's core
    submission = PROJECT / "slurm" / "submission.sh"
    launched = called([str(submission), str(path), "--local", "--logs", str(tmp_path)])
    assert "narrow enough: no more are needed" in launched
    study = recorded_study(tmp_path / "narrow")
    assert study is not None
    assert study.until is not None
    assert study.repeats < study.until.most
    assert f"after {study.repeats} repeats, the widest interval of the ratio is ± " in launched
    analysed = called([sys.executable, "-m", "analysis", str(tmp_path / "narrow")])
    assert "repeats = 'until 60 %, at most 8': after " in analysed
    page = (tmp_path / "narrow" / "report" / "report.html").read_text()
    assert "narrow enough: no more are needed" in page
    assert "the intervals of the ratio are of 98 % confidence" in page


def called(command: list[str]) -> str:
    """What a command of the project prints; it succeeds."""
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())
