"""Emulated workers wait as the profile says and communicate for real; nobody takes them for measured."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from analysis.assembly.assemble import make_report
from analysis.figures.catalogue import FIGURES
from analysis.figures.frame import Inputs
from analysis.read.load import load_study
from analysis.report.exports import summary_markdown
from slurm.launch.preflight import check_inputs
from tests.records import write_run
from tests.studies import make_point
from tests.trained import PLAIN_EPOCHS, TrainedRun, TrainedRuns, plain_config
from unet_scaling.base.errors import UserError
from unet_scaling.emulation.worker import EmulatedUNet, emulated_compute
from unet_scaling.format.compute_profile import (
    COMPUTE_NAME,
    ComputeProfile,
    ComputeStep,
    profile_of,
    read_compute_profile,
)
from unet_scaling.measure.compute_recorder import parameter_bytes
from unet_scaling.model import UNet
from unet_scaling.run.training_state import WEIGHTS_NAME
from unet_scaling.study.config import FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.training import build_model, load_task

PROFILES = PROJECT / "slurm" / "profiles"


@pytest.fixture(scope="module")
def recorded(images: Path, trained_run: TrainedRuns) -> TrainedRun:
    """A run on 1 worker that recorded its computing; in the same launch another one waits by it."""
    recording = plain_config(images, workers=1, compute_profile="on")
    trained_run.together([recording, loading_config(trained_run.folder(recording), images)])
    return trained_run(recording)


def emulated_config(profile: Path, images: Path, framework: str, workers: int) -> RunConfig:
    """Return a run whose workers each take the batch of the profile in this folder."""
    return plain_config(images, framework, workers, batch_per_worker=4, compute=str(profile))


def loading_config(profile: Path, images: Path) -> RunConfig:
    """Return a run of one such worker, which loads its images."""
    config = emulated_config(profile, images, "pytorch_native", 1)
    changed = {
        "emulation": config.emulation.model_copy(update={"data": "real"}),
        "data": config.data.model_copy(update={"loading": "decode", "augment_flips": True}),
    }
    return config.model_copy(update=changed)


def of_model(model: nn.Module, order: list[int], seconds: float) -> ComputeProfile:
    """Return a profile of this model whose gradients get ready in this order, evenly over so many seconds."""
    places = {index: place for place, index in enumerate(order, start=1)}
    ready = [seconds * places[index] / len(order) for index in range(len(order))]
    sizes = parameter_bytes(model)
    step = ComputeStep(
        data_seconds=0.0, data_cpu_seconds=0.0, forward_seconds=seconds, forward_cpu_seconds=0.0,
        ready_seconds=ready, backward_cpu_seconds=0.0, optimizer_seconds=0.0, optimizer_cpu_seconds=0.0,
    )  # fmt: skip
    return ComputeProfile(
        device="cpu", batch_per_worker=2, image_height=32, image_width=32,
        parameters=list(sizes), parameter_bytes=list(sizes.values()), steps=[step],
    )  # fmt: skip


def test_gradients_are_ready_in_the_recorded_order_and_not_before_their_time() -> None:
    model = EmulatedUNet(width=2, depth=2)
    order = torch.randperm(len(list(model.parameters())), generator=torch.manual_seed(1)).tolist()
    emulated_compute.start(of_model(model, order, seconds=0.05), seed=1, rank=0)
    emulated_compute.begin_epoch(0, passes=1, first=0)
    seen: list[int] = []
    for index, weight in enumerate(model.parameters()):
        weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, index=index: seen.append(index)
        )
    begin = time.perf_counter()
    emulated_compute.begin_pass()
    model(torch.zeros(1, 1, 1, 1)).sum().backward()
    assert seen == order
    assert time.perf_counter() - begin >= 0.1
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


def test_every_worker_draws_its_own_steps_and_draws_them_again() -> None:
    model = EmulatedUNet(width=2, depth=2)
    count = len(list(model.parameters()))
    steps = of_model(model, list(range(count)), 0.0).steps * 50
    steps = [step.model_copy(update={"data_seconds": number / 1e9}) for number, step in enumerate(steps)]
    profile = of_model(model, list(range(count)), 0.0).model_copy(update={"steps": steps})

    def drawn(seed: int, epoch: int, rank: int, first: int = 0) -> list[Any]:
        emulated_compute.start(profile, seed, rank)
        emulated_compute.begin_epoch(epoch, passes=20, first=first)
        return [step.data.seconds for step in emulated_compute._drawn]

    assert drawn(1, 0, 0) == drawn(1, 0, 0)
    assert drawn(1, 0, 0, first=7) == drawn(1, 0, 0)[7:]
    assert len({tuple(drawn(*key)) for key in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]}) == 4


@pytest.mark.slow
def test_a_recorded_profile_has_every_step_after_the_warm_up(recorded: TrainedRun) -> None:
    profile = read_compute_profile(recorded.folder).profile
    epochs = [epoch for epoch in recorded.record.epochs if not epoch.warmup]
    assert len(profile.steps) == sum(epoch.steps for epoch in epochs)
    assert profile.parameters == [name for name, _ in UNet(width=4, depth=3).named_parameters()]
    # The head is last in the forward pass, so that its gradient is ready first, and the first layer's last.
    ready = profile.steps[0].ready_seconds
    assert ready[profile.parameters.index("head.bias")] < ready[0]


@pytest.mark.slow
@pytest.mark.parametrize("data", ["real", "replayed"])
def test_emulated_workers_complete_a_run_and_learn_nothing(
    data: str, recorded: TrainedRun, images: Path, trained_run: TrainedRuns
) -> None:
    replayed = emulated_config(recorded.folder, images, "horovod", 2)
    run = trained_run(loading_config(recorded.folder, images) if data == "real" else replayed)
    header = run.record.header
    assert header is not None
    assert header.compute is not None
    assert header.compute.sha256 == read_compute_profile(recorded.folder).sha256
    assert recorded.record.header is not None
    assert header.gradient_bytes == recorded.record.header.gradient_bytes
    assert run.record.results == ()
    assert [epoch.loss for epoch in run.record.epochs] == [None] * PLAIN_EPOCHS
    assert not (run.folder / WEIGHTS_NAME).exists()
    assert not (run.folder / "log.csv").exists()
    # A wait ends late on a busy machine, and never early.
    profile = read_compute_profile(recorded.folder).profile
    parts = ("forward_seconds", "backward_seconds", "optimizer_seconds")
    least = min(sum(getattr(step, part) for part in parts) for step in profile.steps)
    for epoch in run.record.epochs:
        assert epoch.seconds >= epoch.steps * least
        assert epoch.budget is not None
        assert min(epoch.budget.data_wait_seconds) > 0


EMULATED = {"compute": "logs/a/b"}
RECORDED = {"compute_profile": "on", "epochs": 2}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (EMULATED | {"plays": 2}, "training.plays = 2"),
        (EMULATED | {"epochs": 0}, "training.epochs = 0"),
        (EMULATED | RECORDED, "training.compute_profile = 'on'"),
        (EMULATED | {"batch_norm": "sync"}, "model.batch_norm = 'sync'"),
        (RECORDED | {"workers": 2}, "workers = 1, found workers = 2"),
        (RECORDED | {"epochs": 1}, "training.epochs of at least 2, found 1"),
        (RECORDED | {"accumulate": 2}, "one pass per step, found 2"),
    ],
)
def test_refuses_options_that_make_no_sense_for_workers_that_wait_or_are_recorded(
    options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        make_point(tmp_path, **options)


@pytest.mark.slow
def test_refuses_a_profile_of_other_work_by_file_key_and_cure(recorded: TrainedRun, images: Path) -> None:
    config = emulated_config(recorded.folder, images, "horovod", 1)
    other = config.training.model_copy(update={"batch_per_worker": 8})
    with pytest.raises(UserError, match=r"compute.json: batch_per_worker: found 4, .* = 8; use .* = 4"):
        profile_of(config.model_copy(update={"training": other}))
    wider = config.model_copy(update={"model": config.model.model_copy(update={"width": 8})})
    with pytest.raises(UserError, match=r"compute.json: parameters: found \d+, the model has"):
        build_model(load_task(wider), torch.device("cpu"), nn.SyncBatchNorm)


@pytest.mark.slow
def test_refuses_a_profile_that_is_damaged(recorded: TrainedRun, tmp_path: Path) -> None:
    for name in (COMPUTE_NAME, f"{COMPUTE_NAME}.sha256"):
        (tmp_path / name).write_bytes((recorded.folder / name).read_bytes())
    (tmp_path / COMPUTE_NAME).write_text((tmp_path / COMPUTE_NAME).read_text().replace("1", "2", 1))
    with pytest.raises(UserError, match="damaged"):
        read_compute_profile(tmp_path)


def test_a_submission_is_refused_where_the_profile_is_missing(images: Path, tmp_path: Path) -> None:
    for profile, said in (
        (tmp_path / "none", "none does not exist; train 1 worker"),
        (PROFILES / "v100_lik.toml", "did you mean .*v100_like"),
    ):
        with pytest.raises(UserError, match=said):
            check_inputs([plain_config(images, workers=1, compute=str(profile))])


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("assumption =", "#", "assumption: it is missing"),
        ("forward_seconds =", "forward_second =", "forward_second"),
    ],
)
def test_a_profile_written_by_hand_names_its_faults(old: str, new: str, named: str, tmp_path: Path) -> None:
    text = (PROFILES / "v100_like.toml").read_text()
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=f"mine.toml: (.|\n)*{named}"):
        read_compute_profile(tmp_path / "mine.toml")


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_profiles_that_come_with_the_project_are_of_the_reference_network(path: Path) -> None:
    profile = read_compute_profile(path).profile
    assert profile.assumption
    assert dict(zip(profile.parameters, profile.parameter_bytes, strict=True)) == parameter_bytes(UNet())


COMPUTE = {"emulation": {"compute": "slurm/profiles/v100_like.toml"}}


def write_emulated(folder: Path, options: dict[str, dict[str, Any]] = COMPUTE) -> Path:
    for framework in FRAMEWORKS:
        for workers in (1, 2, 4):
            for repeat in (1, 2, 3):
                speed = 10 * workers**0.9 + 0.01 * repeat
                write_run(folder, framework, workers, repeat, images_per_second=speed, options=options)
    return folder


def test_every_caption_answer_and_table_says_that_the_runs_are_emulated(tmp_path: Path) -> None:
    report = make_report(load_study(write_emulated(tmp_path / "study")))
    said = report.study.kind.restricted[1:]
    assert said == "mulated"
    inputs = Inputs(report)
    charts = {name: figure.known(inputs) for name, figure in FIGURES.items() if name != "quality"}
    texts = [FIGURES[name].caption(inputs, known) for name, known in charts.items() if known]
    assert len(texts) >= 2
    texts += [answer.said for answer in report.answers]
    texts += [verdict.sentence for verdict in report.verdicts] + [summary_markdown(report)]
    assert all(said in text for text in texts)
    assert report.points["iou"].isna().all()
