"""The tables of a study, as every other module of the analysis takes them."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from unet_scaling.base.texts import score_title
from unet_scaling.format.record_lines import PHASE_COLUMNS, STARTUP_COLUMNS, Header, Saliency, ScriptHeader
from unet_scaling.format.run_state import Exclusion, State
from unet_scaling.format.saliency import SaliencyManifest
from unet_scaling.study.config import RunConfig
from unet_scaling.study.frameworks import FRAMEWORK_ROWS, FRAMEWORK_TITLES, FRAMEWORKS, Framework
from unet_scaling.study.options import CRITERIA_OF_OWN_TASK, Criteria
from unet_scaling.study.repeats import FIXED_SIGNIFICANCE, Precision

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# Tables hold a few dozen rows: strings of Arrow, made for millions, take 30 % of a report's time.
pd.set_option("mode.string_storage", "python")

NAN = float("nan")
SECONDS_PER_HOUR = 3600.0
EPOCHS_PER_HOUR = "epochs_per_hour"
# The confidence of every interval.
CONFIDENCE = 0.95
# The range of 2 launches holds the median in half of all cases: no interval worth the name.
FEWEST_REPEATS = 3
# The fewest whose range, whatever the noise, holds the median with nearly the confidence above.
RECOMMENDED_REPEATS = 5
Names = Mapping[Framework, str]
NAMES: Names = FRAMEWORK_TITLES
# The comparison of every report; contrast.py has further frameworks against native DDP.
COMPARED = FRAMEWORKS
_SHORT_NAMES: Names = {framework: row.short_title for framework, row in FRAMEWORK_ROWS.items()}
# What the columns of a number and of the ends of its interval end in.
ENDS = ("", "_low", "_high")
# What one curve has in common, and what one point of it.
SERIES = ["options", "framework", "knobs"]
POINT = [*SERIES, "workers"]


def bounded(*names: str) -> list[str]:
    """Return the columns of these numbers, each with its interval."""
    return [f"{name}{end}" for name in names for end in ENDS]


EPOCH_COLUMNS = (
    "run", "epoch", "seconds", "fastest_worker_seconds", "images", "steps", "loss", "learning_rate", "warmup",
    "stalled",
)  # fmt: skip
EVALUATION_COLUMNS = (
    "run", "epochs", "training_seconds", "images", "true_positive", "false_positive", "false_negative",
    "true_negative", "iou", "dice", "image_iou", "seconds", "weights_sha256",
)  # fmt: skip
SCORE_COLUMNS = ("run", "epochs", "score", "value")
GPU_COLUMNS = (
    "gpu_utilization", "gpu_memory_bytes", "gpu_power_watts", "gpu_power_limit_watts", "gpu_energy_joules",
    "gpu_sm_clock_mhz", "gpu_other_memory_bytes", "gpu_peak_allocated_bytes", "gpu_throttled",
)  # fmt: skip
BUDGET_COLUMNS = (
    "run", "worker", "host", "epochs", "seconds", "images", "steps", "worker_seconds", *PHASE_COLUMNS,
    "wire_seconds", "process_cpu_seconds", "training_cpu_seconds", "communication_cpu_seconds",
    "helper_cpu_seconds", "waiting_seconds", "runqueue_seconds", "cores", "frequency_mhz",
    "peak_memory_bytes", "no_budget", *GPU_COLUMNS, "gpu_throttle_reasons", "host_paced_seconds",
)  # fmt: skip
PROBE_COLUMNS = ("run", "bytes", "repeats", "median_seconds", "minimum_seconds")
STARTUP_TABLE_COLUMNS = ("run", "worker", *STARTUP_COLUMNS)
# `point` is a number of its own for each point; `fate` the state of a run that is left out, or one of these.
ASKED_COLUMNS = (
    "run", "point", "label", "framework", "workers", "repeat", "fate", "replaced", "quiet_replaced",
)  # fmt: skip
IS_READ = "read"
ABSENT = "absent"
NOT_ASKED = "not asked for"
PING_PONG_COLUMNS = ("measured_for", "host", "other_host", "medium", "latency_seconds", "bytes_per_second")
FORECAST_COLUMNS = (
    *POINT, "file", "written_utc", *bounded("predicted"), "linear", "unscored",
)  # fmt: skip


def names_of(frameworks: Collection[Framework] = ()) -> Names:
    """Return the names of the arms of a study with runs of these frameworks, at least of a pair."""
    if set(frameworks) <= set(COMPARED):
        return {framework: NAMES[framework] for framework in COMPARED}
    arms = {COMPARED[0], *frameworks}
    return {framework: name for framework, name in NAMES.items() if framework in arms}


def _nothing(columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One usable run, a row of runs.csv (docs/columns.md). What is not known is NaN or None, never 0.

    `options` and `knobs` are labels of what varies in the study, in all frameworks or in one only. `hosts`
    are those of all its attempts, and `started_utc` is the first one's. `disturbed` is why the launch counts
    as disturbed (unet_scaling/format/disturbance.py), empty where it does not. `statistics` says which of the
    norm layers `iou` is of, and `iou_running` is the score with those that training left.
    """

    run: str
    framework: Framework
    workers: int
    repeat: int
    seed: int | None = None
    options: str = ""
    knobs: str = ""
    images_per_second: float
    epochs_per_second: float
    epochs_used: int
    seconds_per_epoch: float
    images_per_epoch: float = NAN
    steps_per_epoch: float = NAN
    step_seconds: float = NAN
    loss: float = NAN
    iou: float = NAN
    iou_running: float = NAN
    statistics: str = ""
    dice: float = NAN
    test_images: float = NAN
    training_seconds: float = NAN
    hosts: str = ""
    nodes: float = NAN
    devices: str = ""
    cores_per_worker: str = ""
    started_utc: str = ""
    peak_memory_bytes: float = NAN
    busy_share: float = NAN
    uncounted_share: float = NAN
    disturbed: str = ""
    stalls: str = ""
    dilation: float = 1.0
    link_rate: str = ""
    emulated_by: str = ""
    scores: str = ""


@dataclass(frozen=True)
class LeftOut:
    """One run folder or log that is not used, and why. `state` is that of `status`, or why it is excluded.

    `options` and `knobs` are labels as those of a `Run`; they are empty where the point is not known.
    `config`, where it is known, is no column of a table.
    """

    run: str
    state: State | Exclusion
    reason: str
    framework: Framework | None = None
    workers: int | None = None
    repeat: int | None = None
    options: str = ""
    knobs: str = ""
    config: RunConfig | None = None


@dataclass(frozen=True)
class Explained:
    """The saliency maps of a run: the folder of their files, and what its manifest says of them."""

    folder: Path
    manifest: SaliencyManifest


# The score of the built-in task, by which columns, files and criteria are named in the code.
BUILT_IN_SCORE = "iou"
# Keys of [criteria] -> what they are called where the score is another one.
_CRITERIA = {built_in: own for own, built_in in CRITERIA_OF_OWN_TASK.items()}
# Which statistics of norm layers a score is of: recomputed for its weights, those that training left in the
# layers (early records do not say whether there are such layers), or none, as the model has no such layers.
RECOMPUTED = "recomputed"
RUNNING = "running"
NO_STATISTICS = "none in the model"
# Columns of the built-in task alone.
BUILT_IN_COLUMNS = frozenset(
    ("dice", "image_iou", "true_positive", "false_positive", "false_negative", "true_negative")
)
# What columns, files, figures and keys of a report are called besides those named for the score; written by
# python -m analysis.report.columns --write.
TAKEN_NAMES_FILE = Path(__file__).with_name("taken_names.txt")
TAKEN_NAMES = frozenset(TAKEN_NAMES_FILE.read_text().split())
# What such a name may end in.
SCORE_ENDINGS = re.compile(r"_(low|high|a|b)$")
_NAMED_FOR_IOU = re.compile(rf"(?<![a-z]){BUILT_IN_SCORE}(?![a-z])")


@dataclass(frozen=True)
class Score:
    """The score that is judged.

    `name` is that of the records, and `sample` what the training and test sets consist of. In all tables of
    the analysis it is the column `iou`; `key` gives the names of columns and files as they are written.
    """

    name: str = BUILT_IN_SCORE
    sample: str = "image"

    @property
    def title(self) -> str:
        """What it is called within a sentence, "IoU" or "top accuracy"."""
        return score_title(self.name)

    @property
    def heading(self) -> str:
        """What it is called at the beginning of a sentence, "IoU" or "Top accuracy"."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def with_article(self) -> str:
        """One value of it within a sentence, "an IoU" or "a top accuracy"."""
        return f"{'an' if self.title[0].lower() in 'aeiou' else 'a'} {self.title}"

    @property
    def column(self) -> str:
        """Its column in outputs: its name, or "loss_score" where "loss" is the name of something else."""
        taken = {self.name, SCORE_ENDINGS.sub("", self.name)} & TAKEN_NAMES
        return f"{self.name}_score" if taken else self.name

    def has(self, column: str) -> bool:
        """Return whether tables have this column where this score is judged."""
        return self.name == BUILT_IN_SCORE or column not in BUILT_IN_COLUMNS

    @property
    def samples(self) -> str:
        """The samples of a data set, "images" or "samples"."""
        return f"{self.sample}s"

    def key(self, name: str) -> str:
        """Return what a column, file, section or criterion that is named for IoU is called in outputs."""
        if self.name == BUILT_IN_SCORE:
            return name
        return _CRITERIA.get(name) or _NAMED_FOR_IOU.sub(self.column, name)


NOT_RECORDED = "not recorded"


# Sections of the report that tell what was learned, those that compare or predict, and those of a speed.
_OF_LEARNING = frozenset(("iou", "seen", "played", "saliency", "cost"))
_OF_COMPARISON = frozenset(("against", "strategies", "prediction"))
_OF_SPEED = _OF_COMPARISON | {"points", "frameworks", "iou", "budget", "cost"}


@dataclass(frozen=True)
class StudyKind:
    """What the runs of a study are, and what follows for all that is said of them.

    compares    whether frameworks are compared, anything is recommended, and speeds are predicted
    restricted  what stands before every number and `meaning`, what that means; empty where nothing has to
    unlearned   why nothing is said of what a training gives: IoU, loss and cost; empty where it is
    unknown     the value of these
    trains      whether a run trains for its epochs, so that it costs hours
    silent      the sections of the report that have nothing to say
    fairness    which rows the fairness table has: all, those of what decides a score, those that headers or
                those that tables answer
    """

    compares: bool = True
    restricted: str = ""
    meaning: str = ""
    unlearned: str = ""
    unknown: str = ""
    trains: bool = True
    silent: frozenset[str] = frozenset()
    fairness: Literal["all", "score", "headers", "tables"] = "all"

    @property
    def called(self) -> str:
        """What its runs are, in a word or a few."""
        return self.restricted or "measured"

    def told(self, sections: Iterable[str]) -> list[str]:
        """Return which of these sections of the report have something to say."""
        return [section for section in sections if section not in self.silent]

    def marked(self, words: str) -> str:
        """Return words on its runs, followed by what these are where that has to be said."""
        return f"{words} ({self.restricted})" if self.restricted else words

    def learned(self, words: str) -> str:
        """Return what is said of what was learned, or why nothing was."""
        return self.unlearned or words

    def lacking(self, *titles: str) -> tuple[str, ...]:
        """Return which of these titles, of what a training gives, have nothing to tell."""
        return titles if self.unlearned else ()

    def of_training(self, number: float) -> float:
        """Return a number of a whole training; NaN where nothing is trained."""
        return number if self.trains else NAN


MEASURED = StudyKind()
# Of the runs on fewer workers than they trained as: their score alone is known.
PLAYED = StudyKind(silent=_OF_SPEED, fairness="score")
# Of the runs that tell of their saliency maps only.
MAPS_ONLY = StudyKind(silent=_OF_SPEED, fairness="headers")
# Of somebody's table that has no score.
SPEEDS = StudyKind(
    unlearned="neither a score nor the time of a training is told",
    unknown=NOT_RECORDED,
    silent=_OF_LEARNING,
)
# The workers waited instead of computing; only their communication was real.
EMULATED = StudyKind(
    restricted="emulated",
    meaning="waits stand for computing",
    unlearned="emulated runs learn nothing: there is no IoU, and no time to reach one",
    unknown="not measured",
    trains=False,
    silent=_OF_LEARNING,
)
NOT_PROVEN_EQUAL = "arms not proven equal"
# Of unet_scaling/record.py: the runs are real, but nothing shows that two scripts do the same work.
SCRIPTS = StudyKind(
    compares=False,
    restricted=f"recorded in scripts, {NOT_PROVEN_EQUAL}",
    meaning="each arm is measured by itself, and no two are compared",
    unlearned="every run is one of a script, which records its speed alone",
    unknown=NOT_RECORDED,
    silent=_OF_LEARNING | _OF_COMPARISON,
    fairness="tables",
)


@dataclass(frozen=True)
class Study:
    """The tables of a study and how to read them.

    runs         one row per `Run`, sorted by options, framework, knobs, workers, repeat; further columns
                 are the study's axes, as text
    epochs       one row per epoch of these runs, warm-up included: EPOCH_COLUMNS
    evaluations  one row per evaluation of these runs: EVALUATION_COLUMNS
    scores       one row per evaluation and score of these runs, where their task has several: SCORE_COLUMNS
    left_out     one row per `LeftOut`
    budgets      one row per worker of these runs, sums over the epochs in use: BUDGET_COLUMNS;
                 analysis/read/records.py says what each is
    probes       one row per message size of these runs' probes: PROBE_COLUMNS
    startups     one row per worker of the runs whose record has its start: STARTUP_TABLE_COLUMNS
    ping_pongs   one row per pair of hosts and job that timed MPI between them: PING_PONG_COLUMNS
    forecasts    one row per point of each prediction file: FORECAST_COLUMNS; throughputs are in the
                 study's unit, `linear` is what N times one worker would give
    saliency     how long the saliency maps of a run took, of each of these runs that has some
    explained    their manifests, where they fit the record, and those of `maps_only`
    headers      the header of each of these runs; none for logs in the older layout, nor for scripts
    scripts      instead of it, that of each run of a script; a study has runs of scripts or others
    names        what the arms are called in every output; of records always those of NAMES
    criteria     what the study wants decided: margin of IoU, floor of efficiency, target IoU
    throughput   the column of `runs` that is the study's throughput; `unit` is its unit
    score        that is judged; in all tables it is the column `iou`
    iou_scope    what the score was computed on
    notes        what the reader of any figure should know
    digests      of what each of these runs measured, by run (analysis/read/records.py)
    image_ious   IoU of each test image in the last evaluation, by run; of runs that record it
    significance  of all comparisons together: smaller where repeats were added after a look at the results
    asked        one row per run that study.json asks for, and of each further repeat: ASKED_COLUMNS, with
                 the launches that it replaced, and how many of them were quiet; None without study.json
    until        how narrow the study asks its intervals to be; None for a fixed number of repeats
    folder       that was read, and `output`, where its report goes; None where that is not known
    provenance_known  whether the logs say which code, data and machine they are of
    played       the runs that trained as other workers than they had, as a study of their own; None where
                 there is none. Its `workers` are those played, and no time or speed of it is known
    maps_only    the runs with saliency maps and without an epoch to time, as a study of their own; None where
                 there is none
    part         what the runs are of a study that is such a part of another one
    """

    name: str
    runs: pd.DataFrame
    epochs: pd.DataFrame
    evaluations: pd.DataFrame
    left_out: pd.DataFrame
    headers: Mapping[str, Header]
    criteria: Criteria = Criteria()  # noqa: RUF009  (frozen)
    names: Names = field(default_factory=names_of)
    axes: tuple[str, ...] = ()
    throughput: str = "images_per_second"
    unit: str = "images / s"
    score: Score = Score()
    iou_scope: str = "whole test set"
    notes: tuple[str, ...] = ()
    provenance_known: bool = True
    scores: pd.DataFrame = field(default_factory=lambda: _nothing(SCORE_COLUMNS))
    budgets: pd.DataFrame = field(default_factory=lambda: _nothing(BUDGET_COLUMNS))
    probes: pd.DataFrame = field(default_factory=lambda: _nothing(PROBE_COLUMNS))
    startups: pd.DataFrame = field(default_factory=lambda: _nothing(STARTUP_TABLE_COLUMNS))
    ping_pongs: pd.DataFrame = field(default_factory=lambda: _nothing(PING_PONG_COLUMNS))
    forecasts: pd.DataFrame = field(default_factory=lambda: _nothing(FORECAST_COLUMNS))
    digests: Mapping[str, Collection[int]] = field(default_factory=dict)
    image_ious: Mapping[str, Array] = field(default_factory=dict)
    significance: float = FIXED_SIGNIFICANCE
    until: Precision | None = None
    folder: Path | None = None
    output: Path | None = None
    asked: pd.DataFrame | None = None
    played: "Study | None" = None
    maps_only: "Study | None" = None
    part: StudyKind | None = None
    scripts: Mapping[str, ScriptHeader] = field(default_factory=dict)
    saliency: Mapping[str, Saliency] = field(default_factory=dict)
    explained: Mapping[str, Explained] = field(default_factory=dict)

    @cached_property
    def kind(self) -> StudyKind:
        """What its runs are; runs of another kind are refused beside them."""
        if self.part:
            return self.part
        if self.scripts:
            return SCRIPTS
        if not self.provenance_known and self.runs["iou"].isna().all():
            return SPEEDS
        is_emulated = any(header.is_emulated for header in self.headers.values())
        return EMULATED if is_emulated else MEASURED

    @cached_property
    def timed(self) -> "Study":
        """The study without disturbed launches, where enough others of their point remain.

        What a launch learned does not depend on its speed: of its IoU the whole study tells.
        """
        counted = counts_for_speed(self.runs, self.runs["disturbed"] != "", POINT)
        return self if counted.all() else replace(self, runs=self.runs[counted])

    @property
    def subject(self) -> "Study":
        """The part that a report is about: where no run has a speed, the played ones, or those of maps."""
        parts = (self, self.played, self.maps_only)
        return next((part for part in parts if part is not None and len(part.runs)), self)

    @property
    def is_empty(self) -> bool:
        """Whether no run tells anything: of speed, of a score or of saliency maps."""
        return self.subject.runs.empty

    @property
    def source(self) -> str:
        """What its numbers were read from."""
        return "records" if self.provenance_known else "logs in the older layout"

    @property
    def real_and_played(self) -> "Sequence[tuple[Literal['real', 'played'], Study]]":
        """Both parts of a study with played runs, each with what it is called; none of others."""
        return (("real", self), ("played", self.played)) if self.played else ()

    @property
    def with_maps(self) -> "Study":
        """The study with the runs that tell of their saliency maps only among its runs."""
        if self.maps_only is None:
            return self
        others = self.maps_only
        tables = [each.runs for each in (self, others) if len(each.runs)]
        return replace(
            self,
            runs=pd.concat(tables, ignore_index=True),
            headers={**self.headers, **others.headers},
            saliency={**self.saliency, **others.saliency},
        )

    @property
    def all_left_out(self) -> pd.DataFrame:
        """Every run that is not used, real or played, by name."""
        others = [] if self.played is None else [self.played.left_out]
        known = [table for table in (self.left_out, *others) if len(table)]
        return pd.concat(known, ignore_index=True).sort_values("run") if known else self.left_out

    @property
    def compared_names(self) -> tuple[str, str]:
        """Names of the two arms of a comparison."""
        native, horovod = COMPARED
        return self.names[native], self.names.get(horovod, NAMES[horovod])

    @property
    def short_names(self) -> Names:
        """Names of the arms where room is short; names that a user gave are not shortened."""
        return {**_SHORT_NAMES, **self.names} if self.are_names_given else _SHORT_NAMES

    @property
    def are_names_given(self) -> bool:
        """Whether a user named the arms."""
        return not self.names.items() <= NAMES.items()

    @property
    def further_frameworks(self) -> tuple[Framework, ...]:
        """The frameworks besides the compared pair that have usable runs."""
        used = set(self.runs["framework"]) - set(COMPARED)
        return tuple(framework for framework in NAMES if framework in used)


def counts_for_speed(
    launches: pd.DataFrame, disturbed: "pd.Series[bool]", columns: list[str]
) -> NDArray[np.bool_]:
    """Return which launches, or pairs of them, count: all of a group in which too few are undisturbed.

    A group is what agrees in `columns`. An interval needs 3 launches, so fewer are not preferred to more.
    """
    groups = [launches[name] for name in columns]
    quiet = (~disturbed).groupby(groups, sort=False, dropna=False).transform("sum")
    return np.asarray(~disturbed | (quiet < FEWEST_REPEATS), dtype=np.bool_)


def run_table(rows: Sequence[Run]) -> pd.DataFrame:
    """Return runs as a table that has its columns even where there is no row."""
    return _table(Run, rows).astype({"seed": "Int64"})


def left_out_table(rows: Sequence[LeftOut]) -> pd.DataFrame:
    """Return what was left out, by name, as a table that has its columns even where there is no row."""
    table = _table(LeftOut, sorted(rows, key=lambda left: left.run))
    return table.astype({"workers": "Int64", "repeat": "Int64"})


def _table(row: type[Run] | type[LeftOut], rows: Sequence[Run | LeftOut]) -> pd.DataFrame:
    names = [field.name for field in fields(row) if field.name != "config"]
    return pd.DataFrame(list(map(vars, rows)), columns=names)
