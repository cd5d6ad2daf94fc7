"""Tasks in files, trained by real workers and as whole studies; test_equality.py compares frameworks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.launch.preflight import is_installed
from slurm.launch.processes import launch
from tests.studies import make_run
from tests.task_mistakes import HIDDEN, RANK, changed
from tests.tasks import EXAMPLES, SOMETIMES_UNUSED, example, points_config
from unet_scaling.base.errors import EXIT_DIVERGED, EXIT_USAGE
from unet_scaling.format.record import RECORD_NAME, Record, read_record
from unet_scaling.format.record_lines import Scores
from unet_scaling.format.run_state import run_state
from unet_scaling.study.config import FRAMEWORKS, PROJECT, WRAPPERS

pytestmark = pytest.mark.slow

INSTALLED = [*FRAMEWORKS, *filter(is_installed, WRAPPERS)]
# One example with all frameworks tells what the wrappers add.
WITH_WRAPPERS = "residual_classifier"
WORKERS = (2,)
LEAST_STEPS = 20
# Not in words such as "previous".
IOU = re.compile(r"(?i)(?<![a-z])iou(?![a-z])")
# All is used while the task is verified; from the sixth pass on of a run, by some workers only.
LATER_UNUSED = SOMETIMES_UNUSED.replace("self.passes % 2", "self.passes < 6 or places[0, 0] > 0").replace(
    "self.training and places[0, 0] > 0", "True"
)


def learned(record: Record) -> list[object]:
    return [(each.weights_sha256, each.scores) for each in record.results if isinstance(each, Scores)]


def test_two_workers_end_alike_as_diverged_or_by_a_mistake_that_is_named(tmp_path: Path) -> None:
    """One worker alone has a sample whose output is not finite in evaluation; another run no gradient.

    After the verified passes. DDP would end with an error of its own in the next step, and Horovod go on.
    Data sets are made by the first worker of a host, here a slow one, before the others: they may download.
    """
    text = "self.trained = self.trained + self.training\n        factor = torch.nan if not self.training and "
    source = changed(
        {"        return self.head": f"        {text}self.trained > 30 and places[0, 0] > 1.5 else 1.0\n"
         "        return factor * self.head",
         HIDDEN: HIDDEN + "        self.trained = 0\n",
         "def datasets(options):\n": "def datasets(options):\n    import time\n"
         f"    time.sleep(0 if {RANK} else 0.5)\n    open(__file__ + '.made', 'a').write(str({RANK}))\n"}
    )  # fmt: skip
    folders = [
        make_run(tmp_path / f"r-{name}", points_config(tmp_path / name, task, framework="horovod", workers=2))
        for name, task in (("infinite", source), ("unused", LATER_UNUSED))
    ]
    program = str(PROJECT / "horovod" / "train.py")
    codes = [launch([program, str(folder)], 2, folder / "output.log", cores_each=1) for folder in folders]
    diverged, mistaken = folders
    state = run_state(diverged)
    assert state.state == "diverged"
    assert re.search(r"my_task\.py.*: count: ", state.reason)
    assert (tmp_path / "infinite" / "my_task.py.made").read_text() == "01"
    assert codes == [EXIT_DIVERGED, EXIT_USAGE]
    said = (mistaken / "output.log").read_text()
    assert re.search(r"my_task\.py:\d+: loss: no gradient after a pass for spare.weight, spare.bias", said)
    assert read_record(mistaken / RECORD_NAME).header is not None


def command(folder: Path, *words: str) -> str:
    """Run `unet-scaling` in this folder, which is all that it knows of; return what it printed."""
    program = [sys.executable, "-c", "from unet_scaling.__main__ import run_command; run_command()"]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [*program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records(logs: Path) -> dict[str, Record]:
    return {path.parent.name: read_record(path) for path in logs.glob(f"*/{RECORD_NAME}")}


@pytest.mark.verify
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_whole_study_outside_the_project(name: str, tmp_path: Path) -> None:
    """From the file alone to the report, on 2 workers."""
    frameworks = INSTALLED if name == WITH_WRAPPERS else FRAMEWORKS
    shutil.copy(example(name), tmp_path / "my_task.py")
    options = [word for key, value in EXAMPLES[name].items() for word in ("--option", f"{key}={value}")]
    command(tmp_path, "new", "mine", "--task", "my_task.py", *options, "--workers", "2")
    command(tmp_path, "check", "mine.toml", "--only-files")
    values = (f"frameworks={list(frameworks)}", "repeats=1", "training.batch_per_worker=2")
    chosen = [word for value in values for word in ("--set", value)]
    command(tmp_path, "run", "mine.toml", "--logs", "logs", *chosen)
    found = records(tmp_path / "logs" / "mine")
    assert set(found) == {f"{each}-w0{workers}-r1" for each in frameworks for workers in WORKERS}
    assert all(record.complete for record in found.values())
    assert sum(epoch.steps for epoch in found["horovod-w02-r1"].epochs) >= LEAST_STEPS
    for workers in WORKERS:
        native, *others = (f"{each}-w0{workers}-r1" for each in frameworks)
        for other in others:
            assert learned(found[native]) == learned(found[other])
    command(tmp_path, "report", "logs/mine")
    texts = {path.name: path.read_text() for path in (tmp_path / "logs/mine/report").glob("*.[hcmjst]*")}
    assert not [name for name, text in texts.items() if IOU.search(name) or IOU.search(text)]
    assert len(texts["runs.csv"].splitlines()) == 1 + len(found)
