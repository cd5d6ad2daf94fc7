"""How often a report errs on honest studies of known truth: from records through all checks to the headline.

    .venv/bin/python -m benchmarks.honest [--studies 1000] [--first 0] [--cell 1 2] [--keep FILE]

Each cell simulates studies without a difference, or with native DDP 3 % faster on 4 workers; of 3 or 5
repeats and 2 to 4 frameworks. Every study is written as records, read and reported on, so that each check
takes part. Half of the studies have an efficiency of 0.9 on 4 workers, a quarter each just less and more than
the floor of 0.7. Printed are, in percent with exact 95 % intervals, the studies
  unfair       called unfair or impossible, or with a check that is not met or a run left out
  faster       where the wrong framework is called faster at some count, or suggested to be
  named        where the headline names one framework alone, which is not the faster one
  use          whose headline recommends 4 workers, of those below the floor
  stay         whose headline says not to scale out, of those above it
  found        where the difference is found
Ten studies take about 7 s on a core, 1,000 of each cell 2.3 hours. With --keep every study is written to a
file of JSON lines when it is judged; those that the file has are not made again, so that the work can be done
in slices, of cells (--cell, from 1) or of studies (--first), and may be interrupted.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from analysis.assemble import make_report
from analysis.contrast import NO
from analysis.load import load_study
from analysis.stats import share_interval
from analysis.study import Array
from slurm.study_folder import in_launch_order
from tests.records import digest, make_header, make_result, make_workers
from tests.studies import make_run
from unet_scaling.study.config import ALL_FRAMEWORKS, Framework, RunConfig, StudyConfig
from unet_scaling.study.files import write_json_with_checksum
from unet_scaling.study.record import RECORD_NAME, line_with_checksum
from unet_scaling.study.record_lines import PHASE_COLUMNS, Budget, CpuFacts, End, Epoch, Header, Result
from unet_scaling.study.study_file import STUDY_NAME
from unet_scaling.training import learning_rate

STUDIES = 1000
FIRST_SEED = 2026
WORKERS = (1, 4)
EPOCHS = 10
IMAGES = 1600
BATCH = 8
# Of a step on 1 worker.
STEP_SECONDS = 0.1
# From one run to the next: start-up, evaluation and end.
PAUSE_SECONDS = 20.0
# Parts of a step, in the order of phases; what is lost on several workers is sync.
PARTS = np.array([0.02, 0.01, 0.31, 0.58, 0.0, 0.07, 0.01])
SYNC = PHASE_COLUMNS.index("sync_seconds")
# Standard deviations of the pace of a repeat, a launch and an epoch.
REPEAT_NOISE, LAUNCH_NOISE, EPOCH_NOISE = 0.01, 0.02, 0.01
SEED_IOU_NOISE, LAUNCH_IOU_NOISE = 0.01, 0.002
EFFICIENCIES = (0.9, 0.693, 0.9, 0.707)
FLOOR = 0.7
COLUMNS = ("unfair", "faster", "named", "use", "stay", "found")


@dataclass(frozen=True)
class Cell:
    """What is true of its studies."""

    advantage: float
    repeats: int
    frameworks: tuple[Framework, ...]

    def __str__(self) -> str:
        return f"{100 * self.advantage:.0f} % | {self.repeats} | {len(self.frameworks)}"


CELLS = tuple(
    Cell(advantage, repeats, tuple(ALL_FRAMEWORKS[:number]))
    for advantage, repeats, number in product((0.0, 0.03), (3, 5), (2, 3, 4))
)


def write_study(folder: Path, cell: Cell, number: int) -> None:
    """Write the records of one study, whose runs start in the order of their launches."""
    random = np.random.default_rng([FIRST_SEED, number])
    study = StudyConfig.model_validate(
        {
            "name": "honest",
            "frameworks": list(cell.frameworks),
            "workers": list(WORKERS),
            "repeats": cell.repeats,
            "seed": number * 100,
            "data": {"folder": "/data", "image_height": 128, "image_width": 128},
            "training": {"epochs": EPOCHS, "batch_per_worker": BATCH},
        }
    )
    folder.mkdir()
    write_json_with_checksum(folder / STUDY_NAME, study.model_dump(mode="json"))
    pace_of_repeat = random.normal(0, REPEAT_NOISE, cell.repeats + 1)
    iou_of_seed = 0.8 + random.normal(0, SEED_IOU_NOISE, cell.repeats + 1)
    begun = datetime(2026, 3, 2, tzinfo=UTC)
    for config in in_launch_order(study):
        pace = pace_of_repeat[config.repeat] + random.normal(0, LAUNCH_NOISE)
        efficiency = EFFICIENCIES[number % len(EFFICIENCIES)] if config.workers > 1 else 1.0
        slower = 1 + cell.advantage * (config.framework != "pytorch_native" and config.workers > 1)
        epochs = _epochs(config, np.exp(pace), slower / efficiency - 1, random)
        header = _header(config, begun)
        iou = iou_of_seed[config.repeat] + LAUNCH_IOU_NOISE * _luck(*_training_of(config))
        result = make_result(header, epochs, float(iou))
        weights = {"weights_sha256": digest(f"{_training_of(config)}")}
        _write_run(folder / config.run, header, epochs, result.model_copy(update=weights))
        begun += timedelta(seconds=PAUSE_SECONDS + sum(epoch.seconds for epoch in epochs))


def _write_run(folder: Path, header: Header, epochs: Sequence[Epoch], result: Result) -> None:
    make_run(folder, header.config)
    lines = [header, *epochs, result, End(status="complete")]
    (folder / RECORD_NAME).write_bytes(b"".join(map(line_with_checksum, lines)))


def _header(config: RunConfig, begun: datetime) -> Header:
    known = {"environment": {"OMP_NUM_THREADS": "1"}, "allocator": {}}
    workers = [worker.model_copy(update=known) for worker in make_workers(config.workers)]
    started = begun.isoformat(timespec="seconds")
    return make_header(config, workers=workers, train_images=IMAGES, started_utc=started)


def _epochs(config: RunConfig, pace: float, lost: float, random: np.random.Generator) -> list[Epoch]:
    """Return the epochs of a launch; `lost` is the part of a step on 1 worker that sync takes beyond it."""
    steps = IMAGES // (BATCH * config.workers)
    parts = PARTS.copy()
    parts[SYNC] = lost
    paces = pace * np.exp(random.normal(0, EPOCH_NOISE, config.training.epochs))
    return [
        _epoch(config, number, steps, each * STEP_SECONDS * steps * parts, random)
        for number, each in enumerate(paces)
    ]


def _epoch(config: RunConfig, number: int, steps: int, phases: Array, random: np.random.Generator) -> Epoch:
    # Workers differ in how long they wait at the end, by a thousandth.
    own = np.array([phases for _ in range(config.workers)])
    own[:, -1] *= np.exp(random.normal(0, 0.1, config.workers))
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
        warmup=number == 0,
        budget=Budget.model_validate(budget | {"wire_seconds": float(phases[SYNC])}),
        cpu=[_processor(float(each), float(phases[SYNC]), random) for each in seconds],
    )


def _processor(seconds: float, sync: float, random: np.random.Generator) -> CpuFacts:
    training = 0.985 * (seconds - 0.8 * sync)
    waiting, other = 0.003 * seconds * random.uniform(0.5, 1.5, 2)
    return CpuFacts(
        process_seconds=training + 0.3 * sync,
        thread_seconds={"training": training, "communication": 0.3 * sync, "other": 0.0},
        training_runqueue_seconds=float(waiting),
        other_seconds=float(other),
        cores=1,
        peak_memory_bytes=2**29,
        frequency_mhz=2900.0 + float(random.normal(0, 8)),
    )


def _training_of(config: RunConfig) -> tuple[object, ...]:
    """Return what a training depends on: on 1 worker all frameworks train the same, to the bit."""
    return config.seed, config.workers, config.framework if config.workers > 1 else "any"


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
        report = make_report(load_study(study))
        # What the answer is made of; why efficiency was lost, which takes as long again, is not asked for.
        (advice,) = report.recommendations
        verdicts = [(WORKERS[-1], verdict.outcome) for verdict in report.verdicts]
    # A verdict is on the largest count. On 1 worker there is nothing to average, and so no difference.
    outcomes = zip(report.comparisons["workers"], report.comparisons["outcome"], strict=True)
    claims = [(count, outcome) for count, outcome in [*outcomes, *verdicts] if "faster" in outcome]
    is_true = [cell.advantage > 0 and count > 1 and "native DDP" in claim for count, claim in claims]
    kind, named = advice.kind, advice.framework
    is_worth_it = EFFICIENCIES[number % len(EFFICIENCIES)] > FLOOR
    unmet = any(check.mark == NO for check in report.checks)
    left_out = len(report.study.all_left_out) > 0
    return {
        "unfair": kind == "unfair" or unmet or bool(report.doubts) or left_out,
        "faster": not all(is_true),
        "named": named is not None and not (cell.advantage and named == "pytorch_native"),
        "use": None if is_worth_it else kind == "scale",
        "stay": kind == "stay" if is_worth_it else None,
        "found": any(is_true) if cell.advantage else None,
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
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--studies", type=int, default=STUDIES, help="of each cell")
    parser.add_argument("--first", type=int, default=0, help="study of each cell")
    parser.add_argument("--cell", type=int, nargs="+", default=range(1, len(CELLS) + 1), help="from 1")
    parser.add_argument("--keep", type=Path, help="file of what was found, added to and read again")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print(f"| faster by | repeats | frameworks | {' | '.join(COLUMNS)} |")
    print(f"|{'--:|' * (3 + len(COLUMNS))}", flush=True)
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
            print(f"| {cell} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
