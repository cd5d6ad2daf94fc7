"""`make demo`: what it says before it starts, and what Ctrl-C leaves."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import read_study

pytestmark = pytest.mark.slow

# Two launches of seconds.
OPTIONS = (
    "--set workers=[1] --set repeats=1 --set training.epochs=2 --set training.batch_per_worker=8 "
    "--set training.cores_per_worker=1 --set data.image_height=32 --set data.image_width=32"
)


def demo(variables: Mapping[str, str], stop_at: str = "") -> tuple[int, list[str]]:
    """Run demo.sh as the recipe of `make demo`; Ctrl-C once a line holds `stop_at`. Exit code and lines."""
    command = ["slurm/demo.sh", variables["DEMO_DATA"], *shlex.split(variables["DEMO_OPTIONS"])]
    process = subprocess.Popen(
        command, cwd=PROJECT, env={**os.environ, **variables}, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        # A shell lets what it starts in the background ignore Ctrl-C, and all below that would inherit it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if stop_at and stop_at in line:
            stop_at = ""
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    return process.wait(), lines


@pytest.mark.parametrize(("stop_at", "complete"), [("complete already", 0), ("complete in", 1)])
def test_ctrl_c_leaves_a_report_of_what_is_complete_and_names_the_command_that_goes_on(
    stop_at: str, complete: int, images: Path, tmp_path: Path
) -> None:
    logs = tmp_path / "my logs"
    given = {"DEMO_DATA": str(images), "DEMO_LOGS": str(logs), "DEMO_OPTIONS": OPTIONS}
    code, lines = demo(given, stop_at)
    assert code == 75, lines
    reports = [*logs.glob("*/report/report.html")]
    assert len(reports) == complete
    assert [line for line in lines if line.startswith("report: ")] == [
        f"report: {each.parent}" for each in reports
    ]
    (told,) = (line for line in lines if line.endswith(" make demo goes on"))
    named = re.search(r"DEMO_DATA=.*(?= goes on)", told)
    assert named
    *variables, program, target = shlex.split(named.group())
    assert [program, target] == ["make", "demo"]
    assert not [line for line in lines if "run slurm/studies/demo.toml" in line]
    if complete:
        code, lines = demo(dict(variable.split("=", 1) for variable in variables))
        assert code == 0
        assert [line for line in lines if f"2 runs, {complete} complete already" in line]


def test_the_demo_tells_before_it_starts_how_many_launches_take_how_long() -> None:
    """As many as its study has, with the minutes of README."""
    launches = len(read_study(PROJECT / "slurm/studies/demo.toml").run_names())
    readme = (PROJECT / "README.md").read_text()
    told = re.search(r"(\d+) launches: about (\d+) minutes", (PROJECT / "slurm/demo.sh").read_text())
    assert told
    assert int(told.group(1)) == launches
    assert f"runs {launches} short launches" in readme
    assert f"on a quiet machine: {told.group(2)} for the launches" in readme
