"""The allocator's settings, in real processes that read them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.local import launch
from tests.studies import make_images
from unet_scaling.group.allocator import GLIBC_PREFIX, KEEP_MEMORY, PRELOAD, SWITCH
from unet_scaling.study.config import PROJECT

PAGE = 4096
FAULTS = """
import resource

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""
TAKE_AND_GIVE_BACK = """
import torch
from unet_scaling.group.allocator import keep_memory

torch.ones(2**24)
keep_memory()
for _ in range(10):
    torch.ones(2**24)
before = faults()
for _ in range(4):
    torch.ones(2**24)
print((faults() - before) / 4)
"""
# As a worker trains: the warm-up step, then steps.
TRAIN = """
import sys
from pathlib import Path
import torch
from tests.studies import make_point
from unet_scaling.data.loader import load_data
from unet_scaling.group.group import single_worker
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.task.loading import load_task
from unet_scaling.training import build_model, build_optimizer, local_step

size = {"image_height": 128, "image_width": 128, "width": 8, "depth": 5}
point = make_point(Path(sys.argv[1]), batch_per_worker=4, **size)
data = load_data(point, single_worker())
task = load_task(point)
model = build_model(task, torch.device("cpu"), torch.nn.BatchNorm2d)
step = local_step(model, build_optimizer(task, model), task)
step.warm_up_step(data)
batches = list(next(data.steps(0, NO_CLOCK)))
for _ in range(3):
    step.take(batches, NO_CLOCK)
before = faults()
for _ in range(4):
    step.take(batches, NO_CLOCK)
print((faults() - before) / 4)
"""


def without_settings() -> dict[str, str]:
    """This environment as if nobody had set anything of the allocator."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in KEEP_MEMORY and not name.startswith(GLIBC_PREFIX)
    }


def printed_by(program: str, environment: dict[str, str], *arguments: str) -> float:
    """The number that a program prints, which may ask for faults()."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS + program, *arguments], cwd=PROJECT,
        env=without_settings() | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def faults_per_tensor(environment: dict[str, str]) -> float:
    """Pages mapped anew for each tensor of 64 MiB that takes the place of one before it."""
    return printed_by(TAKE_AND_GIVE_BACK, environment)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's variables")
def test_a_tensor_of_the_next_step_gets_the_pages_of_the_last() -> None:
    pages = 2**26 / PAGE
    assert faults_per_tensor({}) > pages / 2**9 / 2  # huge pages, where the system gives them unasked
    assert faults_per_tensor(KEEP_MEMORY) < 8
    assert faults_per_tensor(KEEP_MEMORY | {SWITCH: "0"}) > pages / 2**9 / 2  # as a cluster file may ask


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's variables")
def test_a_step_after_the_warm_up_step_maps_next_to_nothing(tmp_path: Path) -> None:
    folder = str(make_images(tmp_path / "images", 10, 128, 128))
    cache = {"UNET_SCALING_CACHE": str(tmp_path / "cache")}
    assert printed_by(TRAIN, KEEP_MEMORY | cache, folder) < 64
    assert printed_by(TRAIN, KEEP_MEMORY | cache | {SWITCH: "0"}, folder) > 1024


def test_the_local_launcher_sets_them_for_its_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    output = tmp_path_factory.mktemp("launch") / "output.log"
    program = "import os, json; print(json.dumps(dict(os.environ)))"
    assert launch(["-c", program], 1, output, cores_each=None) == 0
    for name, value in KEEP_MEMORY.items():
        assert f'"{name}": "{value}"' in output.read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's variables")
def test_the_record_gets_the_settings_and_what_was_preloaded_indeed() -> None:
    program = "from unet_scaling.group.allocator import allocator_settings; print(allocator_settings())"
    plain = {name: value for name, value in without_settings().items() if name != PRELOAD}
    chosen = {"MALLOC_TRIM_THRESHOLD_": "1000", PRELOAD: "/no/such/liballocator.so:libutil.so.1"}
    for environment, expected in (
        ({}, {}),
        (chosen, {"MALLOC_TRIM_THRESHOLD_": "1000", PRELOAD: "libutil.so.1"}),
    ):
        command = [sys.executable, "-c", program]
        told = subprocess.run(
            command, cwd=PROJECT, env=plain | environment, capture_output=True, text=True, check=True
        )
        assert told.stdout.strip() == str(expected)
