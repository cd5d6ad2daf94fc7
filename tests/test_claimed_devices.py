"""Whole runs as if this machine had GPUs: nothing mixes devices, streams are ordered, no step waits for one.

What tests/claimed.py cannot see, kernels and the C++ of NCCL, is for tests/test_gpu.py.
"""

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from slurm.launch.processes import launch
from tests.studies import make_images, make_run, tiny_study
from tests.tasks import points_config
from tests.test_strategies import with_strategy
from tests.trained import over_gloo, plain_config
from unet_scaling.base.errors import error_file_name
from unet_scaling.data.folder import find_pairs
from unet_scaling.format.record import RECORD_NAME, Record, read_record
from unet_scaling.inference.replicas import LENGTH_BYTES, packed
from unet_scaling.study.config import FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.study.options import SaliencyOptions

pytestmark = pytest.mark.slow

CLAIMED = str(PROJECT / "tests" / "claimed.py")
MAPS = SaliencyOptions(
    method="rise", masks=8, grid=4, images=2, curve_steps=2, untrained_check=1, split="masks"
)
AUGMENTED: dict[str, Any] = {
    "augment_flips": True, "augment_crop": 0.75, "augment_brightness": 0.1, "augment_contrast": 0.1,
}  # fmt: skip
STALLED_TIMEOUT_SECONDS = 15


@pytest.fixture(scope="module", autouse=True)
def _project_is_found() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        yield


# Of each process its rank, and by kind what was found how often.
Reports = list[tuple[int, dict[str, dict[str, int]]]]


@dataclass(frozen=True)
class ClaimedRuns:
    """Runs of two workers in one launch: their folders, and the reports of their processes by run."""

    folder: Path

    def record(self, name: str) -> Record:
        path = self.folder / name / RECORD_NAME
        output = "".join(log.read_text() for log in [*self.folder.glob("*.log"), *path.parent.glob("*.log")])
        assert path.exists(), output
        record = read_record(path)
        assert record.complete, output
        return record

    def reports(self, name: str) -> Reports:
        """Return rank and report of each process of a run."""
        self.record(name)
        found = sorted((self.folder / "reports").glob(f"{name}.*.json"))
        assert len(found) == (4 if name.endswith("stopped") else 2)
        return [(int(path.name.split(".")[1]), json.loads(path.read_text())) for path in found]


def two_workers(data: Path, framework: str, **options: Any) -> RunConfig:
    """One epoch of 4 steps."""
    chosen: dict[str, Any] = {"epochs": 1, "batch_per_worker": 2, "budget": "off", "shared_devices": False}
    config = plain_config(data, framework, **(chosen | options))
    return over_gloo(config) if framework == "horovod" else config


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("data") / "images", 20)


def configurations(data: Path, folder: Path) -> dict[str, RunConfig]:
    """Return the configurations of all runs by name."""
    native, horovod = FRAMEWORKS
    stopped = two_workers(data, native, epochs=2, evaluate_every=1, loading="decode", **AUGMENTED)
    played = two_workers(data, native, plays=4, batch_per_worker=1)
    resident = two_workers(data, native, plays=4, batch_per_worker=1, loading="device")
    stalled = {"timeout_seconds": STALLED_TIMEOUT_SECONDS}
    return {
        "native-plain": two_workers(data, native, budget="on"),
        "native-stopped": stopped.model_copy(update={"saliency": MAPS}),
        "native-local": with_strategy(resident, synchronise_every=2),
        "native-late": with_strategy(played, staleness=1),
        "native-points": points_config(folder, workers=2, epochs=1, batch_per_worker=8, shared_devices=False),
        "native-stalled": two_workers(data, native, **stalled),
        "horovod-plain": two_workers(data, horovod, budget="on"),
        "horovod-accumulated": two_workers(data, horovod, batch_per_worker=1, accumulate=2),
        "horovod-stalled": two_workers(data, horovod, **stalled),
        "lightning": two_workers(data, "lightning"),
        "accelerate": two_workers(data, "accelerate"),
    }


# `make verify` trains the others.
QUICK = ("native-plain", "native-stopped", "native-stalled", "horovod-plain", "horovod-stalled")
TRAINED = (
    "native-plain", "native-stopped", "native-local", "native-late", "native-points",
    "horovod-plain", "horovod-accumulated", "lightning", "accelerate",
)  # fmt: skip
RUNS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.verify) for name in TRAINED]


def launch_claimed(configs: Mapping[str, RunConfig], folder: Path) -> ClaimedRuns:
    """Train these runs in one launch of two workers."""
    programs = []
    for framework in dict.fromkeys(config.framework for config in configs.values()):
        names = [name for name, config in configs.items() if config.framework == framework]
        names += [name for name in names if name.endswith("stopped")]  # goes on in a second attempt
        found = [str(make_run(folder / name, configs[name])) for name in names]
        several, twin = PROJECT / "tests" / "train_several.py", PROJECT / framework / "train.py"
        programs += ["--", str(several), str(twin), *found]
    reports = folder / "reports"
    reports.mkdir()
    cores = 1 if len(os.sched_getaffinity(0)) > 1 else None
    launch([CLAIMED, str(reports), *programs], 2, folder / "output.log", cores)
    return ClaimedRuns(folder)


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> ClaimedRuns:
    configs = configurations(data, tmp_path_factory.mktemp("task"))
    return launch_claimed({name: configs[name] for name in QUICK}, tmp_path_factory.mktemp("claimed"))


@pytest.fixture(scope="module")
def other_runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> ClaimedRuns:
    configs = configurations(data, tmp_path_factory.mktemp("task"))
    others = {name: config for name, config in configs.items() if name not in QUICK}
    return launch_claimed(others, tmp_path_factory.mktemp("others"))


@pytest.fixture
def reports(name: str, request: pytest.FixtureRequest) -> Reports:
    """Return rank and report of each process of the run of this name."""
    made: ClaimedRuns = request.getfixturevalue("runs" if name in QUICK else "other_runs")
    return made.reports(name)


WRONG = """
import torch
one, other = torch.ones(4, device="cuda:0"), torch.ones(4).to("cuda:1")
one + other; one + torch.ones(4); one + torch.ones(()); torch.ones(4)[one > 0]; one[torch.tensor([1])]
bool(one.sum() > 0); one.cpu(); one.tolist(); torch.cuda.synchronize()
page = torch.zeros(4, dtype=torch.uint8, pin_memory=True)
page.to("cuda:0"); one.copy_(page, non_blocking=True); torch.ones(4).pin_memory().cuda(non_blocking=True)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    ahead, ordered = (page.to("cuda:0", non_blocking=True) for _ in range(2))
ahead + 1
torch.cuda.current_stream().wait_stream(side)
ordered.record_stream(torch.cuda.current_stream())
ordered + 1
with torch.cuda.stream(side):
    ordered.zero_()
"""


def test_the_stand_in_sees_mixtures_waits_and_races(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(WRONG)
    subprocess.run([sys.executable, CLAIMED, str(tmp_path), str(program)], check=True)
    report = json.loads(next(tmp_path.glob("*.json")).read_text())
    found = {key: {text.split(" at ")[0]: n for text, n in of.items()} for key, of in report.items()}
    assert found["mixed"] == {
        "add of ['cuda:0', 'cuda:1']": 1, "add of ['cpu', 'cuda:0']": 1, "index of ['cpu', 'cuda:0']": 1,
    }  # fmt: skip
    assert found["waits outside"] == {
        "copy to cuda of pageable memory": 1, "index by an index of the host, or by a mask": 2,
        "_local_scalar_dense": 1, "copy to cpu of pageable memory": 1, "tolist": 1,
        "torch.cuda.synchronize": 1, "copy to cuda of pinned memory": 1,
    }  # fmt: skip
    assert found["races"] == {"add": 1, "zero_": 1}


@pytest.mark.parametrize("name", RUNS)
def test_all_operations_are_on_the_own_gpu_and_ordered(name: str, reports: Reports) -> None:
    for rank, report in reports:
        assert (report["mixed"], report["races"]) == ({}, {})
        assert [*report["operations"]] == [f"cuda:{0 if name.startswith('horovod') else rank}"]


@pytest.mark.parametrize("name", RUNS)
def test_the_host_waits_for_nothing_inside_a_step(name: str, reports: Reports) -> None:
    assert [report["waits"] for _, report in reports] == [{}] * len(reports)


def test_both_frameworks_train_the_same_on_their_own_gpus(runs: ClaimedRuns) -> None:
    records = [runs.record(name) for name in ("native-plain", "horovod-plain")]
    assert len({record.results[-1].weights_sha256 for record in records}) == 1
    for record in records:
        assert record.header is not None
        assert [worker.device for worker in record.header.workers] == ["Claimed GPU"] * 2
        assert [worker.device_uuid for worker in record.header.workers] == ["claimed-0", "claimed-1"]


def test_a_stopped_run_resumes_and_is_explained(runs: ClaimedRuns) -> None:
    record = runs.record("native-stopped")
    assert record.header is not None
    assert record.header.resumed is not None
    assert record.saliency is not None


def test_masks_replicas_and_profile_use_the_gpu(runs: ClaimedRuns, data: Path, tmp_path: Path) -> None:
    """The replica of a server is the last but one of nine, and has the last but one of eight GPUs."""
    run = runs.record("native-plain") and runs.folder / "native-plain"
    study = tiny_study(tmp_path, data, workers=[1], epochs=1)
    code = PROJECT / "unet_scaling"
    claimed = [sys.executable, CLAIMED, str(tmp_path)]
    words: list[object] = [code / "inference/segment.py", run, data, tmp_path / "masks", "--"]
    words += [code / "profile/__main__.py", "--samples", 4, "--seconds", 1, study]
    subprocess.run([*claimed, *map(str, words)], check=True, timeout=120)
    pair = find_pairs(data)[0][0]
    replica = [*claimed, str(code / "inference/replica.py"), "--device", "cuda", str(run), "7", "9"]
    batch = packed([("", (data / "images" / pair.image).read_bytes())])
    said = subprocess.run(replica, input=batch, stdout=subprocess.PIPE, check=True, timeout=120).stdout
    facts, [(place, status, mask)] = messages(said)
    assert (facts["device"], place, status) == ("cuda", 0, 200)
    served, written = (Image.open(each) for each in (io.BytesIO(mask), tmp_path / "masks" / pair.image))
    assert served.tobytes() == written.tobytes()
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [(report["mixed"], report["races"]) for report in reports] == [({}, {})] * 3


def messages(said: bytes) -> Iterator[Any]:
    """Yield what a replica sent."""
    while said:
        end = LENGTH_BYTES + int.from_bytes(said[:LENGTH_BYTES])
        yield pickle.loads(said[LENGTH_BYTES:end])
        said = said[end:]


@pytest.mark.parametrize("name", ["native-stalled", "horovod-stalled"])
def test_a_worker_that_waits_for_its_gpu_for_ever_says_so(name: str, runs: ClaimedRuns) -> None:
    """Worker 0 in synchronize, worker 1 where the next batch is copied: neither waits in a sum."""
    for worker in range(2):
        report = json.loads((runs.folder / name / error_file_name(1, worker)).read_text())
        assert (report["error"], report["during"]) == ("WaitedTooLongError", "train_epoch")
        assert f"{STALLED_TIMEOUT_SECONDS} s (training.timeout_seconds)" in report["message"]
