"""The gradient noise scale from records: table, words and figure."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from analysis.figures.catalogue import FIGURES, draw
from analysis.figures.drawing.critical_workers import critical_sentence
from analysis.figures.drawing.inputs import Inputs
from analysis.findings.comparison import compare
from analysis.findings.cost import cost_table
from analysis.findings.noise import NOISE_CAUTION, NOISE_COLUMNS, WHOLE_TRAINING, noise_notes, noise_table
from analysis.findings.quality import iou_table
from analysis.findings.speedup import summarise
from analysis.loading.load import load_study
from analysis.played.points import judged_points
from analysis.report.assemble import make_report
from analysis.report.figure_files import inputs_of as figure_inputs
from analysis.score import Score
from analysis.study import POINT, Study, names_of
from tests.records import Measured, make_epochs, make_point, write_run
from tests.simulated_gradients import sampled_norms
from unet_scaling.study.config import Framework
from unet_scaling.study.measurements import GradientNorms

EPOCHS = 30
SAMPLES = 10  # of an epoch
WORKERS = 4
BATCH = 8
ACCUMULATE = 2
IMAGES = BATCH * ACCUMULATE  # of a worker's step
STEPS = 8  # of an epoch on one worker
SIGNAL = 1.0
NOISE = 20.0
NOT_JUDGED = pd.DataFrame(columns=[*POINT, "non_inferior"])


def write(
    folder: Path,
    framework: Framework = "pytorch_native",
    workers: int = WORKERS,
    repeat: int = 1,
    *,
    plays: int | None = None,
    noise: Sequence[float] = (NOISE,) * EPOCHS,
) -> None:
    """Write a run whose gradients have this noise in each epoch."""
    random = np.random.default_rng([repeat, workers])
    played = plays or workers
    training = {"epochs": EPOCHS, "batch_per_worker": BATCH, "accumulate": ACCUMULATE, "plays": plays}
    point = make_point(framework, workers, repeat, options={"training": training})
    epochs = [
        epoch.model_copy(update={"gradient_norms": norms(random, played, each), "steps": STEPS // played})
        for epoch, each in zip(make_epochs(point, 100.0, STEPS * IMAGES), noise, strict=True)
    ]
    label = f"-plays={plays}" if plays else ""
    options = {"training": training}
    write_run(folder, framework, workers, repeat, options=options, measured=Measured(epochs), label=label)


def norms(random: np.random.Generator, workers: int, noise: float) -> GradientNorms | None:
    if workers == 1:
        return None
    own, mean = sampled_norms(random, workers, noise, np.full(SAMPLES, SIGNAL))
    return GradientNorms(own_squared=own.tolist(), mean_squared=mean.tolist())


def inputs_of(study: Study) -> Inputs:
    nothing = pd.DataFrame(columns=["options", "framework", "knobs"])
    quality = (iou_table(study), cost_table(study))
    return Inputs(study, summarise(study), compare(study), *quality, nothing, [], noise=noise_table(study))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Native DDP on 1 and 4 workers, Horovod on 4 and 8, two launches each; noise grows in training."""
    folder = tmp_path_factory.mktemp("logs") / "noise"
    growing = np.linspace(10.0, 30.0, EPOCHS).tolist()
    for repeat in (1, 2):
        write(folder, workers=1, repeat=repeat)
        write(folder, repeat=repeat, noise=growing)
        write(folder, "horovod", repeat=repeat, noise=growing)
        write(folder, "horovod", 8, repeat, noise=growing)
    return load_study(folder)


def test_the_table_has_the_noise_scale_of_each_point_whole_and_by_stages(study: Study) -> None:
    table = noise_table(study)
    assert list(table.columns) == list(NOISE_COLUMNS)
    points = table[["framework", "workers"]].drop_duplicates().to_numpy().tolist()
    assert points == [["pytorch_native", 4], ["horovod", 4], ["horovod", 8]]
    whole = table[table["stage"] == WHOLE_TRAINING].iloc[0]
    assert whole[["kind", "played_workers", "repeats", "sampled_steps"]].tolist() == ["real", 4, 2, 600]
    assert whole[["first_epoch", "last_epoch"]].tolist() == [1, EPOCHS]
    assert whole["noise_scale_workers"] == pytest.approx(NOISE / SIGNAL, rel=0.1)
    assert whole["noise_scale_workers_low"] < NOISE / SIGNAL < whole["noise_scale_workers_high"]
    for end in ("", "_low", "_high"):
        images = IMAGES * whole[f"noise_scale_workers{end}"]
        assert whole[f"noise_scale_images{end}"] == pytest.approx(images)


def test_stages_are_consecutive_and_follow_the_training(study: Study) -> None:
    table = noise_table(study)
    stages = table[
        (table["stage"] != WHOLE_TRAINING) & (table["framework"] == "horovod") & (table["workers"] == 8)
    ]
    assert stages["stage"].tolist() == [f"{number} of 10" for number in range(1, 11)]
    assert stages["first_epoch"].tolist() == list(range(1, EPOCHS + 1, 3))
    assert (stages["last_epoch"] - stages["first_epoch"] == 2).all()
    for stage, truth in ((stages.iloc[0], 10.7), (stages.iloc[-1], 29.3)):
        assert stage["noise_scale_workers_low"] < truth < stage["noise_scale_workers_high"]
    assert stages["noise_scale_workers"].corr(stages["first_epoch"]) > 0.8


def test_with_enough_launches_the_interval_is_over_launches(tmp_path: Path) -> None:
    for repeat in range(1, 7):
        write(tmp_path / "tiny", repeat=repeat, noise=[5.0 * repeat] * EPOCHS)
    whole = noise_table(load_study(tmp_path / "tiny")).iloc[0]
    # Launches differ by a factor of six: hundreds of steps of each do not make their mean more certain.
    assert whole["noise_scale_workers_high"] > 1.8 * whole["noise_scale_workers_low"]


def test_words_name_n_crit_where_it_is_resolved_and_what_adam_makes_of_it(study: Study) -> None:
    notes = noise_notes(noise_table(study), NOT_JUDGED, study)
    assert len(notes) == 3
    pattern = r"native DDP, measured on 4 real workers: the gradient noise scale is \d+ \[\d+, \d+\] images, "
    assert re.match(pattern + r"the batch of N_crit = \d+ \[\d+, \d+\] workers$", notes[0])
    assert notes[-1] == f"{NOISE_CAUTION} IoU at so many workers, played or real"
    assert "2505.23971" in NOISE_CAUTION
    assert "1907.04164" in NOISE_CAUTION
    assert noise_notes(noise_table(study).iloc[:0], NOT_JUDGED, study) == []


def test_words_say_where_it_is_not_resolved(tmp_path: Path) -> None:
    write(tmp_path / "tiny", noise=[1e5] * EPOCHS)
    study = load_study(tmp_path / "tiny")
    table = noise_table(study)
    assert table["noise_scale_workers"].isna().all()
    assert "the gradient noise scale is not resolved" in noise_notes(table, NOT_JUDGED, study)[0]
    assert "-" not in noise_notes(table, NOT_JUDGED, study)[0]


@pytest.mark.parametrize(
    ("judged", "outcome"),
    [
        ({2: "yes", 8: "no"}, "It came too late: the IoU is inferior on 8 workers already"),
        ({2: "yes", 64: "yes"}, "It was too cautious: the IoU is not inferior on 64 workers"),
        ({2: "yes", 32: "no", 64: "no"}, "It fits: the IoU is inferior on 32 workers, and on no fewer"),
        ({2: "yes", 8: "yes"}, "It was not put to the test: the IoU is not inferior on 8 workers, the most"),
        ({1: "baseline", 8: "not shown"}, ""),
    ],
)
def test_the_warning_is_held_against_the_iou(study: Study, judged: dict[int, str], outcome: str) -> None:
    point = {"options": "", "framework": "horovod", "knobs": ""}
    rows = [point | {"workers": workers, "non_inferior": answer} for workers, answer in judged.items()]
    native, horovod, _ = noise_notes(noise_table(study), pd.DataFrame(rows), study)
    assert native.endswith("workers")
    assert outcome in horovod
    assert (". It" in horovod) == bool(outcome)


def test_played_workers_are_those_of_the_estimate(tmp_path: Path) -> None:
    write(tmp_path / "tiny", workers=1, plays=8)
    report = make_report(load_study(tmp_path / "tiny"))
    assert "measured on 8 played workers" in report.noise_notes[0]
    whole = report.noise.iloc[0]
    assert whole[["kind", "played_workers"]].tolist() == ["played", 8]
    assert whole["noise_scale_workers"] == pytest.approx(NOISE / SIGNAL, rel=0.1)


def test_the_figure_shows_stages_on_the_fewest_workers_beside_the_batches_of_workers(study: Study) -> None:
    inputs = inputs_of(study)
    table = inputs.noise
    played = table.assign(kind="played", noise_scale_images=100.0)
    (axes,) = draw("noise_scale", replace(inputs, noise=pd.concat([played, table]))).axes
    for framework, name in names_of().items():
        line = next(line for line in axes.lines if line.get_label() == name)
        fewest = table[(table["framework"] == framework) & (table["workers"] == 4)]
        stages = fewest[fewest["stage"] != WHOLE_TRAINING]
        np.testing.assert_array_equal(line.get_ydata(), stages["noise_scale_images"])
        np.testing.assert_array_equal(line.get_xdata(), 3 * np.arange(10) + 1.5)
    guides = {text.get_text() for text in axes.texts}
    assert {"8 workers", "16 workers", "32 workers"} <= guides
    assert "arXiv" in FIGURES["noise_scale"].caption(inputs)
    assert "measured on 4 real workers" in FIGURES["noise_scale"].alternative(inputs)


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        ([1e5] * EPOCHS, "the noise scale is not resolved at any stage"),
        (None, "no run on several workers, real or played, sampled its gradients"),
    ],
)
def test_the_figure_says_why_it_is_not_drawn(tmp_path: Path, noise: list[float] | None, reason: str) -> None:
    if noise:
        write(tmp_path / "tiny", noise=noise)
    else:
        write(tmp_path / "tiny", workers=1)
    assert FIGURES["noise_scale"].missing(inputs_of(load_study(tmp_path / "tiny"))) == reason


def test_a_played_curve_judges_the_warning_as_real_points_do() -> None:
    verdicts = {1: "baseline", 2: "no loss", 4: "undecided", 8: "loss", 14: "diverges"}
    rows = [
        {
            "options": "",
            "framework": "horovod",
            "knobs": "",
            "workers": workers,
            "kind": kind,
            "verdict": verdict,
        }
        for workers, verdict in verdicts.items()
        for kind in ("real", "played")
    ]
    judged = judged_points(pd.DataFrame(rows))
    assert judged[judged["non_inferior"] == "yes"]["workers"].tolist() == [2]
    assert judged[judged["non_inferior"] == "no"]["workers"].tolist() == [8, 14]
    assert judged_points(pd.DataFrame()).empty


def n_crit_texts(folder: Path) -> tuple[Axes, list[str]]:
    (axes,) = draw("quality", figure_inputs(make_report(load_study(folder)))).axes
    return axes, [text.get_text() for text in axes.texts if "N_crit" in text.get_text()]


def write_played(folder: Path, noise: float) -> None:
    for repeat in (1, 2, 3):
        for plays in (1, 4, 8):
            write(folder, workers=1, plays=plays, repeat=repeat, noise=(noise,) * EPOCHS)


def test_the_figure_of_the_iou_has_n_crit_at_its_foot_where_it_is_resolved(tmp_path: Path) -> None:
    write_played(tmp_path, noise=5 * SIGNAL)
    axes, (text,) = n_crit_texts(tmp_path)
    mark = next(line for line in axes.lines if line.get_marker() == "|")
    bar = axes.lines[list(axes.lines).index(mark) - 1]
    low, value, high = np.sort(np.concatenate([bar.get_xdata(), mark.get_xdata()]))
    # S is the variance of one worker's gradient: N_crit = S / G.
    assert 4 < low < value < high < 6
    assert 4 < float(text.split()[1]) < 6
    caption = FIGURES["quality"].caption(figure_inputs(make_report(load_study(tmp_path))))
    assert critical_sentence(Score()) in caption


def test_an_n_crit_beyond_the_workers_of_the_figure_is_told_at_its_end(tmp_path: Path) -> None:
    write_played(tmp_path, noise=40 * SIGNAL)
    _, (text,) = n_crit_texts(tmp_path)
    assert text.endswith("→")
    assert 30 < float(text.split()[1]) < 50


def test_the_figure_of_the_iou_is_silent_of_an_n_crit_that_is_not_resolved(tmp_path: Path) -> None:
    for plays in (1, 4):
        write(tmp_path, workers=1, plays=plays, noise=(1e6,) * EPOCHS)
    _, texts = n_crit_texts(tmp_path)
    assert texts == []
    inputs = figure_inputs(make_report(load_study(tmp_path)))
    assert critical_sentence(Score()) not in FIGURES["quality"].caption(inputs)
