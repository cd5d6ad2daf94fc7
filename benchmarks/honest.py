"""How often a report errs on studies of known truth on clusters: from files to the headline.

    .venv/bin/python -m benchmarks.honest [--studies 300] [--first 0] [--cell 1 2] [--keep FILE]

Each cell is a kind of cluster and study. In half of its studies frameworks are equal, else native DDP
is 3 % faster on several workers. Nodes differ by chance in their speed, and are drawn for each run where each
is a job of its own; runs are preempted and go on elsewhere; neighbours disturb launches, which are then made
again; drivers differ from node to node. Every study is written as records and read from these files; the
functions of the report judge it, up to the headline. Printed are, in percent with exact 95 % intervals, the
studies
  unfair     called unfair or impossible, with a run left out, or with a claim withheld
  said       with a check that is not met and refuses nothing
  faster     where a framework is called faster at some count, or suggested to be, and none is
  named      where the headline names one framework alone, which is not the faster one
  found      where the difference is found, of those with one
The last cells are not honest: the nodes of one framework are 5 % slower, always; `plain` are the studies
that call a framework faster with no word of it beside the claim.
Ten small studies take 5 s on a core. With --keep every study is written to a file of JSON lines when it is
judged; those that the file has are not made again, so that the work can be done in slices.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from analysis.assembly.assemble import StudyFindings, study_findings
from analysis.numbers.check import NO
from analysis.numbers.contrast import WITHHELD
from analysis.numbers.stats import share_interval
from analysis.read.load import load_study
from analysis.study import Array
from slurm.launch.study_folder import in_launch_order
from tests.records import digest, make_header, make_result, make_workers
from tests.studies import make_run
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.files import write_json_with_checksum
from unet_scaling.format.disturbance import disturbance
from unet_scaling.format.record import RECORD_NAME, line_with_checksum, read_record
from unet_scaling.format.record_lines import (
    PHASE_COLUMNS,
    AttemptFacts,
    Budget,
    CpuFacts,
    End,
    Epoch,
    Header,
    Result,
    Resumed,
)
from unet_scaling.study.config import ALL_FRAMEWORKS, RunConfig, StudyConfig
from unet_scaling.study.study_file import STUDY_NAME
from unet_scaling.training import learning_rate

STUDIES = 300
FIRST_SEED = 2026
EPOCHS = 10
BATCH = 8
# Whole steps for 1, 2, 4, 8 and 14 workers.
IMAGES = 1344
WORKERS_PER_NODE = 2
# Of a step on 1 worker.
STEP_SECONDS = 0.1
# From one run to the next: start-up, evaluation and end.
PAUSE_SECONDS = 20.0
# A job waits for its nodes: the mean, for each node.
WAIT_SECONDS = 300.0
# Parts of a step, in the order of phases; what is lost on several workers is sync.
PARTS = np.array([0.02, 0.01, 0.31, 0.58, 0.0, 0.07, 0.01])
SYNC = PHASE_COLUMNS.index("sync_seconds")
# Standard deviations of the pace of a repeat, a launch and an epoch.
REPEAT_NOISE, LAUNCH_NOISE, EPOCH_NOISE = 0.01, 0.02, 0.01
SEED_IOU_NOISE, LAUNCH_IOU_NOISE = 0.01, 0.002
EFFICIENCY = 0.9
ADVANTAGE = 0.03
SYSTEMATIC = 0.05
# Of the runs, where there is preemption; of the launches, where neighbours are busy; of the time of these.
PREEMPTED, DISTURBED, MOST_TAKEN = 0.15, 0.1, 0.3
DRIVERS = ("550.54", "535.161")
COLUMNS = ("unfair", "said", "faster", "named", "found", "plain")
Away = Literal["", "disjoint nodes", "one slow node", "two kinds of node"]
AWAY: tuple[Away, ...] = ("disjoint nodes", "one slow node", "two kinds of node")


@dataclass(frozen=True)
class Cell:
    """A kind of study; `nodes` of the cluster differ in their speed by `spread` (standard deviation).

    jobs     each run is a job of its own, else all are of one allocation
    away     how the nodes of Horovod's runs are slower by SYSTEMATIC, always; empty in an honest study
    """

    nodes: int = 8
    spread: float = 0.02
    frameworks: int = 2
    workers: tuple[int, ...] = (1, 4)
    repeats: int = 5
    jobs: bool = True
    preempted: bool = False
    busy: bool = False
    drivers: int = 1
    away: Away = ""

    def __str__(self) -> str:
        more = {"preempted": self.preempted, "busy": self.busy, "2 drivers": self.drivers > 1}
        words = [name for name, holds in more.items() if holds] + [self.away] * bool(self.away)
        workers = " ".join(map(str, self.workers))
        kind = "jobs" if self.jobs else "allocation"
        parts = (self.nodes, f"{100 * self.spread:.0f} %", kind, self.frameworks, workers, self.repeats)
        return f"{' | '.join(map(str, parts))} | {', '.join(words)}"


ALL_COUNTS = (1, 2, 4, 8, 14)
CELLS = (
    *(Cell(nodes, spread) for nodes in (1, 2, 4, 8, 16, 100) for spread in (0.0, 0.02, 0.03)),
    *(Cell(nodes, repeats=repeats) for nodes in (2, 8, 100) for repeats in (3, 8)),
    *(Cell(nodes, workers=ALL_COUNTS, repeats=repeats) for nodes in (8, 100) for repeats in (3, 5)),
    Cell(16, workers=(1, 14), repeats=8),
    *(Cell(nodes, frameworks=4) for nodes in (1, 8, 100)),
    Cell(8, frameworks=4, repeats=3),
    *(Cell(nodes, jobs=False, workers=workers) for nodes, workers in ((2, (1, 4)), (8, ALL_COUNTS))),
    *(Cell(nodes, preempted=True) for nodes in (4, 16)),
    *(Cell(nodes, busy=True, repeats=repeats) for nodes, repeats in ((4, 3), (4, 5), (100, 5))),
    *(Cell(nodes, drivers=2, repeats=repeats) for nodes, repeats in ((4, 3), (8, 5), (100, 5))),
    Cell(8, 0.03, preempted=True, busy=True, drivers=2),
    Cell(8, 0.03, frameworks=4, workers=ALL_COUNTS, preempted=True, busy=True, drivers=2),
    *(Cell(nodes, away=away) for away in AWAY for nodes in (4, 8, 16)),
    *(Cell(8, away=away, repeats=3) for away in AWAY),
    *(Cell(100, away=away, workers=ALL_COUNTS) for away in AWAY),
)  # fmt: skip


@dataclass
class Cluster:
    """The nodes of one study: how much slower each is, and until when it is taken."""

    cell: Cell
    random: np.random.Generator
    slower: Array = field(init=False)
    free: Array = field(init=False)

    def __post_init__(self) -> None:
        self.slower = self.random.normal(0, self.cell.spread, self.cell.nodes)
        self.free = np.zeros(self.cell.nodes)

    def deal(self, config: RunConfig) -> list[int]:
        """Return the nodes of a run: any that a scheduler has, or those that one framework always gets."""
        cell = self.cell
        number = min(cell.nodes, -(-config.workers // WORKERS_PER_NODE))
        if not cell.jobs:
            return list(range(number))
        is_away = config.framework == "horovod"
        own = np.arange(cell.nodes)
        if cell.away == "one slow node":
            others = self.random.permutation(own[1:])[: number - is_away]
            return [*[0] * is_away, *map(int, others)]
        if cell.away:
            half = cell.nodes // 2
            own = own[half:] if is_away else own[:half]
        return sorted(map(int, self.random.permutation(own)[:number]))

    def effect(self, nodes: Sequence[int]) -> Array:
        """Return by how much each of these nodes is slower."""
        away = SYSTEMATIC * (self.cell.away == "one slow node") * (np.asarray(nodes) == 0)
        if self.cell.away in ("disjoint nodes", "two kinds of node"):
            away = SYSTEMATIC * (np.asarray(nodes) >= self.cell.nodes // 2)
        return np.asarray(self.slower[list(nodes)] + away, dtype=np.float64)

    def clock(self, node: int) -> float:
        """Return the clock of a node's cores in MHz: of two kinds of node it tells."""
        is_slower = self.cell.away == "two kinds of node" and node >= self.cell.nodes // 2
        return 2900.0 * (1 - SYSTEMATIC * is_slower)

    def driver(self, node: int) -> str:
        return DRIVERS[node % self.cell.drivers]


def write_study(folder: Path, cell: Cell, number: int) -> None:
    """Write the records of one study, whose jobs are submitted in the order of its launches."""
    random = np.random.default_rng([FIRST_SEED, number])
    study = StudyConfig.model_validate(
        {
            "name": "honest",
            "frameworks": list(ALL_FRAMEWORKS[: cell.frameworks]),
            "workers": list(cell.workers),
            "repeats": cell.repeats,
            "seed": number * 100,
            "data": {"folder": "/data", "image_height": 128, "image_width": 128},
            "training": {"epochs": EPOCHS, "batch_per_worker": BATCH},
        }
    )
    folder.mkdir()
    write_json_with_checksum(folder / STUDY_NAME, study.model_dump(mode="json"))
    cluster = Cluster(cell, random)
    pace_of_repeat = random.normal(0, REPEAT_NOISE, cell.repeats + 1)
    iou_of_seed = 0.8 + random.normal(0, SEED_IOU_NOISE, cell.repeats + 1)
    for job, config in enumerate(in_launch_order(study), start=1000):
        lost = 0.0
        if config.workers > 1:
            slower = 1 + ADVANTAGE * (has_difference(cell, number) and config.framework != "pytorch_native")
            lost = slower / EFFICIENCY - 1
        launch = Launch(cluster, config, str(job if cell.jobs else 1000), lost, pace_of_repeat[config.repeat])
        run = make_run(folder / config.run, config)
        iou = float(iou_of_seed[config.repeat])
        _write(run / RECORD_NAME, *launch.trained(), iou)
        # Disturbed launches are made again, once.
        if cell.busy and disturbance(read_record(run / RECORD_NAME)).reason:
            (run / RECORD_NAME).rename(run / "run.disturbed1.jsonl")
            _write(run / RECORD_NAME, *launch.trained(), iou)


def has_difference(cell: Cell, number: int) -> bool:
    """Return whether native DDP is faster in a study of this number."""
    return bool(number % 2) and not cell.away


@dataclass(frozen=True)
class Launch:
    """A run to be launched; `lost` is the share of a step on 1 worker that sync takes beyond it.

    `pace` is that of its repeat.
    """

    cluster: Cluster
    config: RunConfig
    job: str
    lost: float
    pace: float

    def taken(self) -> float:
        """Return the share of its time that neighbours take; 0 of most launches."""
        random = self.cluster.random
        is_taken = self.cluster.cell.busy and random.random() < DISTURBED
        return float(random.uniform(0.1, MOST_TAKEN)) if is_taken else 0.0

    def trained(self) -> tuple[Header, list[Epoch]]:
        """Return header and epochs, of two attempts where the job was preempted."""
        random, cell = self.cluster.random, self.cluster.cell
        taken = self.taken()
        pace = self.pace + random.normal(0, LAUNCH_NOISE)
        attempts = 1 + int(cell.preempted and random.random() < PREEMPTED)
        first = EPOCHS if attempts == 1 else int(random.integers(1, EPOCHS))
        epochs: list[Epoch] = []
        facts: list[Header] = []
        for attempt, upto in ((1, first), (2, EPOCHS))[:attempts]:
            nodes = self.cluster.deal(self.config)
            numbers = range(len(epochs), upto)
            resumed_warmup = numbers.start if attempt > 1 else 0
            own = [self._epoch(number, nodes, pace, taken, number == resumed_warmup) for number in numbers]
            facts.append(self._header(nodes, attempt, sum(epoch.seconds for epoch in own)))
            epochs += own
        earlier = [
            AttemptFacts(**{name: getattr(each, name) for name in AttemptFacts.model_fields})
            for each in facts[:-1]
        ]
        resumed = {"resumed": Resumed(epoch=first, step=0), "earlier": earlier} if earlier else {}
        return facts[-1].model_copy(update=resumed), epochs

    def _header(self, nodes: Sequence[int], attempt: int, seconds: float) -> Header:
        """Return the header of an attempt that begins when all its nodes are free and it has waited."""
        cluster = self.cluster
        wait = cluster.random.exponential(WAIT_SECONDS * len(nodes)) if cluster.cell.jobs else 0.0
        begin = float(cluster.free[list(nodes)].max() + wait)
        if not cluster.cell.jobs:
            begin = float(cluster.free.max())
        cluster.free[list(nodes)] = begin + seconds + PAUSE_SECONDS
        known = {"environment": {"OMP_NUM_THREADS": "1"}, "allocator": {}}
        each = -(-self.config.workers // len(nodes))
        workers = [
            worker.model_copy(update=known | {"host": f"node{1 + nodes[worker.worker // each]}"})
            for worker in make_workers(self.config.workers)
        ]
        started = (datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=begin)).isoformat(timespec="seconds")
        header = make_header(
            self.config, workers=workers, train_images=IMAGES, started_utc=started, attempt=attempt,
            job={"SLURM_JOB_ID": self.job, "SLURM_JOB_PARTITION": "cpu", "SLURM_CLUSTER_NAME": "main"},
        )  # fmt: skip
        return header.model_copy(update={"versions": header.versions | {"driver": cluster.driver(nodes[0])}})

    def _epoch(self, number: int, nodes: Sequence[int], pace: float, taken: float, is_warmup: bool) -> Epoch:
        """Return an epoch, in which all wait for the workers on the slowest node."""
        config, random = self.config, self.cluster.random
        steps = IMAGES // (BATCH * config.workers)
        each = -(-config.workers // len(nodes))
        node = [nodes[worker // each] for worker in range(config.workers)]
        slower = np.exp(pace + self.cluster.effect(node) + random.normal(0, EPOCH_NOISE)) / (1 - taken)
        own = STEP_SECONDS * steps * slower[:, None] * PARTS
        # Workers differ in how long they wait at the end, by a thousandth.
        own[:, -1] *= np.exp(random.normal(0, 0.1, config.workers))
        if config.workers > 1:
            work = own.sum(axis=1)
            wire = STEP_SECONDS * steps * np.exp(pace) * self.lost
            own[:, SYNC] = work.max() - work + wire
        seconds = own.sum(axis=1)
        budget = {name: own[:, place].tolist() for place, name in enumerate(PHASE_COLUMNS)}
        return Epoch(
            epoch=number,
            seconds=float(seconds.max()),
            worker_seconds=seconds.tolist(),
            images=IMAGES,
            steps=steps,
            loss=_loss(config, number),
            learning_rate=learning_rate(config, number),
            warmup=is_warmup,
            budget=Budget.model_validate(budget | {"wire_seconds": float(own[:, SYNC].min())}),
            cpu=[
                _processor(float(whole), float(sync), taken, self.cluster.clock(place), random)
                for whole, sync, place in zip(seconds, own[:, SYNC], node, strict=True)
            ],
        )


def _write(path: Path, header: Header, epochs: Sequence[Epoch], iou: float) -> None:
    iou += LAUNCH_IOU_NOISE * _luck(*_training_of(header.config))
    result = make_result(header, [*epochs], iou)
    weights = {"weights_sha256": digest(f"{_training_of(header.config)}")}
    lines: list[Header | Epoch | Result | End] = [
        header, *epochs, result.model_copy(update=weights), End(status="complete")
    ]  # fmt: skip
    path.write_bytes(b"".join(map(line_with_checksum, lines)))


def _processor(
    seconds: float, sync: float, taken: float, mhz: float, random: np.random.Generator
) -> CpuFacts:
    training = 0.985 * (1 - taken) * (seconds - 0.8 * sync)
    waiting, other = 0.003 * seconds * random.uniform(0.5, 1.5, 2) + taken * seconds
    return CpuFacts(
        process_seconds=training + 0.3 * sync,
        thread_seconds={"training": training, "communication": 0.3 * sync, "other": 0.0},
        training_runqueue_seconds=float(waiting),
        other_seconds=float(other),
        cores=1,
        peak_memory_bytes=2**29,
        frequency_mhz=mhz + float(random.normal(0, 8)),
    )


def _training_of(config: RunConfig) -> tuple[object, ...]:
    """Return what a training depends on: on up to 2 workers all frameworks train the same, to the bit."""
    return config.seed, config.workers, config.framework if config.workers > 2 else "any"


def _luck(*parts: object) -> float:
    """Return a standard normal number that depends on these parts alone."""
    return float(np.random.default_rng(int(digest(repr(parts))[:16], 16)).normal())


def _loss(config: RunConfig, epoch: int) -> float:
    falling = (0.06 + 0.5 * np.exp(-(epoch + 1) / 3)) * (1 + 0.02 * _luck(config.seed, config.workers))
    return float(np.float32(falling * (1 + 1e-7 * _luck(*_training_of(config), epoch))))


def judged(cell: Cell, number: int) -> Mapping[str, bool | None]:
    """Return what the report of one study says, of COLUMNS; None where the study cannot show it."""
    with tempfile.TemporaryDirectory() as root:
        study = Path(root) / "study"
        write_study(study, cell, number)
        found = study_findings(load_study(study))
        return outcomes_of(cell, number, found)


def outcomes_of(cell: Cell, number: int, found: StudyFindings) -> Mapping[str, bool | None]:
    """Return COLUMNS of what decides the answer of a study."""
    (advice,) = found.recommendations
    # A verdict is on the largest count. On 1 worker there is nothing to average, and so no difference.
    verdicts = [(cell.workers[-1], verdict.outcome) for verdict in found.verdicts]
    outcomes = [*zip(found.arms["workers"], found.arms["outcome"], strict=True), *verdicts]
    claims = [(count, outcome) for count, outcome in outcomes if "faster" in outcome]
    differs = has_difference(cell, number)
    is_true = [differs and count > 1 and "native DDP" in claim for count, claim in claims]
    withheld = any(WITHHELD in outcome for _, outcome in outcomes)
    unmet = [check for check in found.checks if check.mark == NO]
    named = advice.framework
    refused = bool(advice.kind == "unfair" or withheld or len(found.study.all_left_out))
    plain = [
        verdict for verdict in found.verdicts if "faster" in verdict.outcome and ";" not in verdict.sentence
    ]
    return {
        "unfair": refused,
        "said": None if cell.away else bool(unmet) and not refused,
        "faster": None if cell.away or differs else not all(is_true),
        "named": None if cell.away else named is not None and not (differs and named == "pytorch_native"),
        "found": any(is_true) if differs else None,
        "plain": bool(plain) if cell.away else None,
    }


def share_words(values: Sequence[bool | None]) -> str:
    """Return "3.0 [1.7, 4.9]": the percentage of those known, with its exact interval."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = share_interval(sum(known), len(known))
    return f"{100 * sum(known) / len(known):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def kept_rows(path: Path | None) -> dict[tuple[int, int], Mapping[str, bool | None]]:
    """Return what earlier calls found, by cell and study."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    return {(row["cell"], row["study"]): row["found"] for row in map(json.loads, lines)}


def main() -> None:
    parser = CommandLine("python -m benchmarks.honest", __doc__)
    parser.add_argument("--studies", type=int, default=STUDIES, help="of each cell")
    parser.add_argument("--first", type=int, default=0, help="study of each cell")
    parser.add_argument("--cell", type=int, nargs="+", default=range(1, len(CELLS) + 1), help="from 1")
    parser.add_argument("--keep", type=Path, help="file of what was found, added to and read again")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    head = ("cell", "nodes", "spread", "launched as", "frameworks", "workers", "repeats", "", *COLUMNS)
    print(f"| {' | '.join(head)} |")
    print(f"|{'--:|' * len(head)}", flush=True)
    of_all: dict[str, list[Mapping[str, bool | None]]] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        for number in options.cell:
            cell = CELLS[number - 1]
            studies = range(options.first, options.first + options.studies)
            rows = kept_rows(options.keep)
            missing = [study for study in studies if (number, study) not in rows]
            for study, found in zip(missing, pool.map(partial(judged, cell), missing), strict=True):
                rows[number, study] = found
                if options.keep:
                    with options.keep.open("a") as file:
                        file.write(json.dumps({"cell": number, "study": study, "found": found}) + "\n")
            known = [rows[number, study] for study in studies]
            cells = " | ".join(share_words([row[name] for row in known]) for name in COLUMNS)
            print(f"| {number} | {cell} | {cells} |", flush=True)
            of_all.setdefault("all of one framework slower" if cell.away else "all honest", []).extend(known)
    for name, known in of_all.items():
        cells = " | ".join(share_words([row[column] for row in known]) for column in COLUMNS)
        print(f"| {name} |{'  |' * 7} {cells} |")


if __name__ == "__main__":
    main()
