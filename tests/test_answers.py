"""What a study comes to, in summary.json: kind, workers, framework, lights, and the words that must be said.

A headline claims no more than the evidence, in studies where that is easy to do.
"""

import importlib
import itertools
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main as report
from analysis.judge.answer import MOST_WORDS, NO_CLUSTER_FILE
from tests import tampering
from tests.attacks import hosts_in_turn
from tests.honest import START, Honest, Lines, write_honest
from tests.records import PIXELS, Steps, make_workers, near, write_all_played, write_budget_run, write_run
from tests.reports import all_said, report_of, without_figures
from tests.tampering import Change, Runs, as_own_task, processors, scored, started
from tests.test_disturbance import LOADED
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.record_lines import End
from unet_scaling.study.config import FRAMEWORKS, PROJECT, Framework
from unet_scaling.study.options import Criteria

# Launches of a point differ by so much.
NOISE = (0.99, 1.0, 1.01, 1.0, 1.005)
WIDE = (0.5, 1.4, 0.9, 1.0, 1.2)
DIVERGED = End(status="diverged", reason="loss is nan")
NATIVE: Framework = "pytorch_native"
CLUSTER = str(PROJECT / "slurm/clusters/generic_srun.toml")
# Of a framework, images per second and IoU (of every repeat, or of each) at each worker count.
Points = Mapping[int, tuple[float, float | Sequence[float]]]


def write(
    folder: Path,
    native: Points | None,
    horovod: Points | None = None,
    *,
    more: Mapping[Framework, Points] | None = None,
    repeats: int = 5,
    noise: Sequence[float] = NOISE,
    **run: Any,
) -> Path:
    """Runs of these points, in blocks, after those in the folder; `run` is passed on to `write_run`.

    Horovod has the noise in reverse order, so that the frameworks differ by it.
    """
    of = {NATIVE: native or {}, "horovod": horovod or {}} | dict(more or {})
    begun = len(list(folder.glob("*")))
    for repeat in range(1, repeats + 1):
        for framework, points in of.items():
            factor = noise[-repeat if framework == "horovod" else repeat - 1]
            for workers, (speed, iou) in points.items():
                score = iou[repeat - 1] if isinstance(iou, Sequence) else iou + 0.001 * NOISE[repeat - 1]
                header = {"started_utc": f"{START + timedelta(minutes=begun):%Y-%m-%dT%H:%M:%SZ}"}
                about: dict[str, Any] = {
                    "header": header,
                    "images_per_second": speed * factor,
                    "iou": round(score, 6),
                }
                write_run(folder, framework, workers, repeat, **about | run)
                begun += 1
    return folder


def both(folder: Path, points: Points, **run: Any) -> Path:
    return write(folder, points, points, **run)


def on_gpus(folder: Path) -> Path:
    for number, framework in enumerate(FRAMEWORKS * 3):
        for workers in (1, 2):
            started = f"{START + timedelta(minutes=2 * number + workers):%Y-%m-%dT%H:%M:%SZ}"
            facts = {"workers": make_workers(workers, device="NVIDIA H200"), "started_utc": started}
            speed = 99.0 * workers
            write_run(folder, framework, workers, number // 2 + 1, images_per_second=speed, header=facts)
    return folder


def noisy_on_two(folder: Path, speed: float, iou: float, noise: Sequence[float]) -> Path:
    both(folder, {1: (100, 0.8)})
    return both(folder, {2: (speed, iou)}, noise=noise)


def one_diverged(folder: Path) -> Path:
    write(folder, {1: (100, 0.8), 2: (195, 0.8), 4: (380, 0.8)})
    write_run(folder, NATIVE, 4, 6, end=DIVERGED)
    return folder


def all_diverged(folder: Path, workers: int, points: Points) -> Path:
    write(folder, points)
    for repeat in (1, 2, 3):
        write_run(folder, NATIVE, workers, repeat, end=DIVERGED)
    return folder


def faster_diverged(folder: Path) -> Path:
    """Native DDP is faster, but one of its launches diverged: its 4 others do not speak for Horovod."""
    write(folder, {1: (100, 0.8), 2: (190, 0.8)}, {1: (100, 0.8), 2: (150, 0.8)})
    shutil.rmtree(folder / "pytorch_native-w02-r5")
    write_run(folder, NATIVE, 2, 5, end=DIVERGED)
    return folder


def refused_baseline(folder: Path) -> Path:
    write(folder, {1: (100, 0.8), 2: (190, 0.8)}, {2: (150, 0.8)})
    return write(folder, None, {1: (100, 0.8)}, header={"test_images": 30})


def without_iou(folder: Path) -> Path:
    write(folder, {1: (91, 0.8)})
    return write(folder, {2: (181, 0.8)}, iou=None)


def busy(folder: Path, repeats: int = 5, *, all_are: bool = False) -> Path:
    """Both frameworks in turn; other programs take cores of every run, or of native DDP on 2 workers."""
    begun = 0
    for repeat in range(1, repeats + 1):
        for workers in (1, 2):
            for framework in FRAMEWORKS[:: (-1) ** repeat]:
                is_busy = all_are or (workers == 2 and framework == NATIVE)
                steps = Steps(forward=0.08, contended=LOADED) if is_busy else Steps()
                started = f"{START + timedelta(minutes=begun):%Y-%m-%dT%H:%M:%SZ}"
                write_budget_run(folder, framework, workers, repeat, steps, about={"started_utc": started})
                begun += 1
    return folder


def paced(folder: Path, forward: float, data_wait: float = 0.0) -> Path:
    """1 worker takes so long for a step's forward pass, and for its data; 2 workers are as usual."""
    begun = 0
    for repeat, workers in itertools.product(range(1, 6), (1, 2)):
        for framework in FRAMEWORKS[:: (-1) ** repeat]:
            steps = Steps() if workers > 1 else Steps(forward=forward, data_wait=0.01 + data_wait)
            started = f"{START + timedelta(minutes=begun):%Y-%m-%dT%H:%M:%SZ}"
            about, pace = {"started_utc": started}, NOISE[repeat - 1]
            write_budget_run(folder, framework, workers, repeat, steps, pace=pace, about=about)
            begun += 1
    return folder


def with_lightning(folder: Path) -> Path:
    """Horovod has the best IoU: that speaks against native DDP, which is compared with it, alone."""
    plain: Points = {1: (100, 0.6), 2: (190, 0.6)}
    return write(
        folder, plain, {1: (100, 0.9), 2: (150, 0.9)}, more={"lightning": {1: (100, 0.6), 2: (199, 0.6)}}
    )


def incomplete(folder: Path) -> Path:
    both(folder, {1: (100, 0.8), 2: (190, 0.8)})
    write_run(folder, NATIVE, 2, 6, end=None)
    return folder


def own_task(folder: Path) -> Path:
    return as_own_task(both(folder / "study", {1: (100, 0.8), 2: (190, 0.8)}))


class Case:
    """A study and its only answer: kind, workers, framework, lights, and a floor of efficiency.

    A framework is "-" where none is named alone; lights are those of speed, IoU, cost and trust, "." for any.
    Of `words` the headline or a remark has each, in lower case, none of those that begin with "!", and a next
    step those that begin with ">". `asked`: what the study asked for is known.
    """

    def __init__(
        self, name: str, answer: str, study: Callable[[Path], Path], *words: str, asked: bool = True
    ) -> None:
        self.name, self.study, self.asked = name, study, asked
        self.kind, self.workers, self.framework, self.lights, *floor = answer.split()
        self.criteria = Criteria(efficiency_floor=float(floor[0])) if floor else Criteria()
        self.says = [word for word in words if word[0] not in "!>"]
        self.next = [word[1:] for word in words if word.startswith(">")]
        self.never = [word[1:] for word in words if word.startswith("!")]


LIGHTS = {"g": "good", "c": "caution", "b": "bad", "u": "unknown", "n": "none"}
# 0.2 % of the test set is foreground, so that little is better than nothing.
RARE: dict[str, Any] = {"test_pixels": 500 * PIXELS}
NOTHING = ("nothing was learned: iou 0.004", "a constant prediction scores 0.100")
LOST: Points = {1: (100, 0.003), 2: (190, 0.003)}
STILL = (1.0,) * 5
EVEN: dict[str, Any] = {"repeats": 2, "noise": (1, 1)}  # no noise
EMULATED = {"emulation": {"compute": "slurm/profiles/v100_like.toml"}}
NOISY_IOU = (0.80, 0.78, 0.84, 0.76, 0.82)

# fmt: off
CASES = (
    Case("good", "scale 4 native ggng", write_honest, "use native ddp on 4 workers: 3.8x", "iou ±0.000"),
    Case("gpus", "scale 2 - ...c", on_gpus, "on 2 gpus"),
    Case("the IoU collapses", "stay 1 - gb..", lambda to: both(to, {1: (100, 0.33), 2: (190, 0.01)}), "1.9x",
         "iou falls from 0.33 to 0.01"),
    Case("hosts in turn", "unfair 2 - c..b", hosts_in_turn, "no fair comparison", "same nodes",
         "1.74x", "1.94x", "!use", "!caution", ">on the same hosts", ">_again"),
    Case("more than linear", "scale 2 - c...", lambda to: both(to, {1: (100, 0.8), 2: (250, 0.8)}),
         "2.5x", "more than linear (efficiency 1.25", "may fit into memory", "!slowed"),
    Case("1 worker slowed", "unfair - - c...", lambda to: paced(to, 0.05), "no fair baseline",
         "computed 25 % longer per image", ">with 1 worker on the same hosts"),
    Case("1 worker waited for data", "scale 2 - c...", lambda to: paced(to, 0.03, 0.04), "more than linear"),
    Case("two repeats", "undecided - - u..b",
         lambda to: write(to, {1: (100, 0.8), 2: (187, 0.8)}, {1: (100, 0.8), 2: (162, 0.8)}, **EVEN),
         "2 repeats per point", "1.62x", "1.87x", ">--more-repeats 3"),
    Case("a slow baseline of its own", "undecided - - ....",
         lambda to: write(to, {1: (100, 0.8), 2: (190, 0.8)}, {1: (50, 0.8), 2: (98, 0.8)}, **EVEN),
         "horovod 0.98x", "native ddp 1.90x"),
    Case("the interval holds the floor", "undecided - - c...", lambda to: noisy_on_two(to, 140, 0.8, WIDE),
         "may be below the limit", ">--more-repeats 5"),
    Case("the faster one loses IoU", "scale 8 native gg..",
         lambda to: write(to, {1: (100, 0.8), 8: (700, 0.8)}, {1: (100, 0.8), 8: (760, 0.6)}),
         "use native ddp on 8 workers: 7.0x", "horovod is 9 % faster than native ddp [",
         "iou falls from 0.80 to 0.60"),
    Case("as fast, but its IoU is not shown", "scale 4 - gg..",
         lambda to: write(to, {1: (100, 0.8), 4: (380, 0.8)}, {1: (100, 0.8), 4: (380, NOISY_IOU)}),
         "use 4 workers", "are equal within 3 %", "horovod: its iou", "!use native", "!use horovod",
         "!faster"),
    Case("1 worker alone", "unfair - - .u..", lambda to: write(to, {1: (110, 0.8)}, {1: (100, 0.8)}),
         "asked for and read", "!native ddp is", ">add larger worker counts", asked=False),
    Case("all that was asked for is 1 GPU", "undecided - - .u..",
         lambda to: write_honest(to, Honest(workers=(1,), is_gpu=True)),
         "on 1 gpu native ddp and horovod are equal within 3 %",
         "1 worker averages no gradients", "!scale out", "!undecided", ">add larger worker counts"),
    Case("one framework alone", "scale 2 horovod gg..",
         lambda to: write(to, None, {1: (100, 0.8), 2: (190, 0.8)}), "use horovod on 2 workers: 1.9x",
         "native ddp has no usable run"),
    Case("no baseline", "undecided - - u...", lambda to: write(to, {8: (880, 0.8)}, {8: (800, 0.8)}),
         "native ddp is 10 % faster than horovod [", "no usable run"),
    Case("no difference", "scale 2 - gg..", lambda to: both(to, {1: (100, 0.8), 2: (190, 0.8)}),
         "use native ddp or horovod on 2 workers: 1.9x", "either: equal within 3 %", "!faster", "!repeat"),
    Case("which trains faster cannot be told", "scale 2 - gg..",
         lambda to: both(to, {1: (100, 0.8), 2: (190, 0.8)}, noise=(0.95, 1.0, 1.05, 1.02, 0.98)),
         "which trains faster cannot be told", "!faster than", "!equal"),
    Case("faster by less than matters", "scale 2 native gg..",
         lambda to: write(to, {1: (100, 0.8), 2: (194, 0.8)}, {1: (100, 0.8), 2: (191, 0.8)}, noise=STILL),
         "native ddp is 2 % faster than horovod, less than the 3 % that matter here"),
    Case("one of 6 diverged", "scale 2 native ....", one_diverged,
         "not 4 workers with native ddp: 1 of its 6 runs diverged", "!faster"),
    Case("all of 8 workers diverged", "scale 2 native ....",
         lambda to: all_diverged(to, 8, {1: (100, 0.8), 2: (195, 0.8)}), "every run diverged on 8 workers"),
    Case("1 worker diverged", "undecided - - ....", lambda to: all_diverged(to, 1, {2: (190, 0.8)}),
         "every run diverged on 1 worker", ">training.learning_rate"),
    Case("the faster one diverged", "scale 2 horovod ....", faster_diverged, "1 of its 5 runs diverged",
         "!3 repeats suggest", "!4 repeats suggest that it is"),
    Case("three repeats", "scale 2 native ...c",
         lambda to: write(to, {1: (100, 0.8), 2: (195, 0.8)}, {1: (100, 0.8), 2: (170, 0.8)}, repeats=3),
         "3 repeats suggest", "!is faster"),
    Case("below the limit", "stay 1 - b...", lambda to: both(to, {1: (100, 0.8), 2: (60, 0.8)}),
         "slower than 1 (0.60x)", "0.30 is below the limit of 0.7"),
    Case("the speed-up holds 1", "stay 1 - .b..",
         lambda to: noisy_on_two(to, 105, 0.2, (0.9, 1.1, 0.95, 1.0, 1.05)), "not shown to be faster than 1",
         "iou falls from 0.80 to 0.20"),
    Case("baseline refused", "undecided - - ....", refused_baseline, "no usable run of horovod on 1 worker",
         ">Runs left out in report.html why no run on 1 worker is used of Horovod"),
    Case("no IoU on 2 workers", "undecided - - .u..", without_iou, "iou is not known"),
    Case("machine busy", "undecided 2 - ...b", busy, "the machine was not quiet", "so far", "x on 2 workers",
         "!machine quiet", ">--repeat-disturbed"),
    Case("runs to come", "scale 2 - gg.c", incomplete, "caution: 1 run incomplete"),
    Case("nothing learned", "undecided - - .bn.", lambda to: both(to, LOST), *NOTHING, "1.90x", "!use",
    ">learn first"),
    Case("nothing learned, and slow", "stay 1 - bbn.", lambda to: both(to, {1: (100, 0.003), 2: (60, 0.003)}),
         *NOTHING, "do not scale out", "0.60x"),
    Case("nothing learned on 1 worker alone", "undecided - - .b..",
         lambda to: both(to, {1: (100, 0.003), 2: (190, 0.8)}), *NOTHING, "!use"),
    Case("one arm learned nothing", "unfair 2 native ....",
         lambda to: write(to, {1: (100, 0.8), 2: (180, 0.8)}, LOST), "same training",
         "horovod: nothing was learned", "!use", "!or horovod"),
    Case("one seed learned nothing", "undecided - - .b..",
         lambda to: both(to, {1: (100, (0.8, 0.8, 0.04, 0.04, 0.8)), 2: (190, 0.8)}),
         "not shown that anything was learned"),
    Case("two thirds of little are lost", "stay 1 - gb..",
         lambda to: both(to, {1: (100, 0.0135), 2: (190, 0.0045)}, **RARE), "iou falls"),
    Case("little is kept", "scale 2 - gg..",
         lambda to: both(to, {1: (100, 0.0135), 2: (190, 0.0135)}, **RARE), "use native ddp or horovod"),
    Case("others' IoU is no concern", "scale 2 - gg..", with_lightning,
         "use lightning fabric or horovod on 2", "no comparison with horovod"),
    Case("own task", "scale 2 - gg..", own_task, "top accuracy"),
    Case("emulated", "speed - - guuc",
         lambda to: both(to, {1: (100, 0.0), 4: (350, 0.0)}, options=EMULATED, iou=None),
         "speed only: 4 workers with native ddp are 3.5x as fast as 1, efficiency 0.8", "!undecided"),
)
# fmt: on


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_answer_claims_what_its_study_shows(case: Case, tmp_path: Path) -> None:
    summary = report_of(case.study(tmp_path), case.criteria, asked=case.asked).summary
    ((answer,), (advice,)) = summary["answers"], summary["recommendations"]
    headline = all_said(answer).lower()
    assert len(answer["headline"].split()) <= MOST_WORDS
    framework = {None: "-", NATIVE: "native"}.get(advice["framework"], advice["framework"])
    found = (answer["kind"], str(advice["workers"] or "-"), framework)
    assert found == (case.kind, case.workers, case.framework), headline
    lights = [tile["light"] for tile in answer["tiles"]]
    assert [LIGHTS.get(mark, light) for mark, light in zip(case.lights, lights, strict=True)] == lights
    assert [part for part in case.says if part not in headline] == [], headline
    assert [part for part in case.never if part in headline] == [], headline
    assert all(any(part in step for step in answer["next_steps"]) for part in case.next), answer["next_steps"]
    outcomes = {row["outcome"] for row in summary["comparisons"]}
    if not any(outcome.endswith("faster") for outcome in outcomes):
        said = [headline, *(verdict["sentence"].lower() for verdict in summary["verdicts"])]
        assert [text for text in said if re.search(r"\b(is|are) ([0-9.]+ % )?faster", text)] == []


def diverge(lines: Lines) -> Lines:
    return replace(lines, results=[], end=DIVERGED)


HOROVOD = {"framework": "horovod"}
ONE_RUN = {"framework": NATIVE, "workers": [2], "repeats": [1]}
BUSY = (ONE_RUN, processors(other_seconds=lambda facts: 0.3 * facts.process_seconds))
DAY_LATER = (HOROVOD, started(lambda _, at: at + timedelta(days=1)))
OTHER_HOST = (HOROVOD, tampering.workers(host="node2"))
OF_SLURM: tuple[dict[str, Any], Change] = ({}, tampering.header(job={"SLURM_JOB_ID": "7"}))
REFUSED = (HOROVOD | {"workers": [1]}, tampering.header(commit="1" * 40))
RATES = {"rate_scaling": ["linear", "square_root"], "warmup_epochs": 1}
# Of an honest study: its repeats, which runs were changed, and what its next steps say, or not ("!").
STEPS: Sequence[tuple[str, int, Sequence[tuple[Mapping[str, Any], Change]], Sequence[str]]] = (
    ("interleaved, but broken in time", 5, [DAY_LATER], ["in one go", "!order ="]),
    ("disturbed, and broken in time", 5, [BUSY, DAY_LATER], ["a quiet machine", "!--repeat-disturbed"]),
    ("disturbed", 3, [BUSY], ["--repeat-disturbed", "!--force"]),
    ("disturbed again and again", 3, [BUSY], ["--force=pytorch_native-w02-r1"]),
    ("hosts of Slurm", 5, [OF_SLURM, OTHER_HOST], ["submit", "--one-allocation"]),
    ("hosts without Slurm", 5, [OTHER_HOST], ["on the same hosts", "!--one-allocation"]),
    ("1 worker asked for, and refused", 5, [REFUSED], ["Runs left out in report.html", "!add 1 to workers"]),
    ("one diverged", 3, [(ONE_RUN, diverge)], ["--set repeats=6", "!--more-repeats"]),
    ("2 workers diverged", 5, [({"workers": [2]}, diverge)], ["training.learning_rate", "!larger"]),
    ("rates tried", 5, [({"workers": [2]}, scored(0.5))], ["training.epochs", "!rate_scaling", "!warmup"]),
)


@pytest.mark.parametrize("case", STEPS, ids=lambda case: case[0])
def test_no_next_step_is_done_already_impossible_or_harmful_and_its_command_works(
    case: Any, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    name, repeats, changes, words = case
    training = RATES if "rates" in name else None
    study = write_honest(tmp_path / "honest", Honest(workers=(1, 2), repeats=repeats, training=training))
    for which, change in (
        ({}, tampering.config(data={"folder": str(images), "foreground": "255"})),
        *changes,
    ):
        Runs(study).of(**which).change(change)
    run = study / "pytorch_native-w02-r1"
    for number in (1, 2) if "again" in name else ():
        shutil.copy(run / RECORD_NAME, run / f"run.disturbed{number}.jsonl")
    monkeypatch.chdir(tmp_path)
    with without_figures():
        report(["honest", "--output", "elsewhere"])
    answers = json.loads(Path("elsewhere/summary.json").read_text())["answers"]
    steps = "; ".join(step for answer in answers for step in answer["next_steps"])
    for command in re.findall(r"unet-scaling (\w+ [^;]*)", steps):
        runnable = re.sub(" --more-repeats [0-9]+", "", command).replace(NO_CLUSTER_FILE, CLUSTER)
        monkeypatch.setattr(sys, "argv", [*shlex.split(runnable), "--dry-run"])
        importlib.import_module(f"slurm.commands.{sys.argv[0]}").main()
        assert "_again" in command or not re.search(r"\b(\d+) runs, \1 would", capsys.readouterr().out)
    assert [word for word in words if (word.removeprefix("!") in steps) == word.startswith("!")] == [], steps


def test_a_study_of_disturbed_launches_is_answered_says_so_and_how_to_measure_it_on_a_quiet_machine(
    tmp_path: Path,
) -> None:
    """Both frameworks were slowed alike: none is called faster for that."""
    (answer,) = report_of(busy(tmp_path / "study", 3, all_are=True)).summary["answers"]
    assert answer["kind"] == "scale"
    assert "the machine was not quiet" in answer["headline"]
    (speed,) = (tile for tile in answer["tiles"] if tile["title"] == "Speed")
    assert re.search(r"[\d.]+ \[[\d.]+, [\d.]+\] times 1 worker", speed["detail"]), speed
    assert "--repeat-disturbed" in answer["next_steps"][0]
    write_run(tmp_path / "study", NATIVE, 2, 4, end=None)
    (answer,) = report_of(tmp_path / "study").summary["answers"]
    commands = [step.rpartition(": ")[2].strip() for step in answer["next_steps"]]
    (again,) = (command for command in commands if command.endswith(" --repeat-disturbed"))
    ends = again.removesuffix(" --repeat-disturbed")
    assert commands.index(again) == commands.index(ends) + 1, "a study that is not complete ends first"


def test_time_and_cost_have_a_light_only_where_a_target_is_stated(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study", Honest(workers=(1, 2), repeats=3))
    for criteria, light in ((Criteria(), "none"), (Criteria(target_iou=0.5), "good")):
        (tile,) = (
            tile
            for tile in report_of(study, criteria).summary["answers"][0]["tiles"]
            if tile["title"] == "Time and cost"
        )
        assert tile["light"] == light


def test_launches_that_hardly_learned_are_named_beside_the_median(tmp_path: Path) -> None:
    both(tmp_path / "study", {1: (100, 0.8), 2: (190, [0.8, 0.47, 0.81, 0.05, 0.79])})
    tile = report_of(tmp_path / "study").summary["answers"][0]["tiles"][1]
    assert tile["reasons"][-1] == "2 of 5 launches scored far below the median: 0.05 and 0.47"


def test_a_study_that_goes_on_counts_the_runs_of_the_same_options(tmp_path: Path) -> None:
    """Other sets of options have runs of their own, and one that diverged has ended."""
    runs = itertools.product((1, 2), FRAMEWORKS, (1, 2), (2, 4))
    for number, (repeat, framework, workers, batch) in enumerate(runs):
        is_lost = (repeat, framework, workers, batch) == (2, NATIVE, 2, 4)
        end: dict[str, Any] = {} if repeat == 1 else {"end": DIVERGED if is_lost else None}
        options = {"training": {"batch_per_worker": batch}}
        header = {"started_utc": f"{START + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}"}
        label = f"b{batch}"
        write_run(
            tmp_path / "s", framework, workers, repeat, options=options, label=label, header=header, **end
        )
    headlines = [answer["headline"] for answer in report_of(tmp_path / "s").summary["answers"]]
    assert sorted(headlines) == [
        "Not finished: 4 of 8 runs have ended",
        "Not finished: 5 of 8 runs have ended",
    ]


def test_played_runs_that_learned_nothing_judge_no_number_of_workers(tmp_path: Path) -> None:
    ious = {1: near(0.003, deviation=0.0003), 8: near(0.003, deviation=0.0003, seed=2)}
    summary = report_of(write_all_played(tmp_path, ious)).summary
    (answer,) = summary["answers"]
    assert answer["kind"] == "undecided"
    assert "nothing was learned" in answer["headline"].lower()
    assert {row["verdict"] for row in summary["played"]} == {"baseline", "not judged"}
    assert answer["tiles"][1]["light"] == "bad"
    assert "learn first" in answer["next_steps"][0]


def test_sets_of_options_have_an_answer_each_and_the_best_only_where_shown(tmp_path: Path) -> None:
    # Learning rate, images per second on 1 worker, IoU on 1 and on 2 workers, repeats.
    sets = {
        "one collapses": ([(0.001, 100, 0.8, 0.8, 5), (0.1, 100, 0.8, 0.2, 5)], ["scale", "stay"], True),
        "the faster one is worse": (
            [(0.001, 100, 0.8, 0.8, 5), (0.1, 200, 0.4, 0.4, 5)],
            ["scale", "scale"],
            False,
        ),
        "one is undecided": (
            [(0.001, 100, 0.8, 0.8, 2), (0.1, 100, 0.8, 0.8, 5)],
            ["scale", "undecided"],
            False,
        ),
    }
    for name, (options, kinds, is_best_shown) in sets.items():
        for rate, speed, of_one, of_two, repeats in options:
            run = {"options": {"training": {"learning_rate": rate}}, "label": f"-{rate}", "repeats": repeats}
            both(tmp_path / name, {1: (speed, of_one), 2: (1.9 * speed, of_two)}, **run)
        report = report_of(tmp_path / name).report
        assert [answer.kind for answer in report.answers] == kinds, name
        assert ("not shown" not in report.compared_options) == is_best_shown, report.compared_options
