"""Honest studies of many kinds: each of their reports has to claim plainly what is so."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from tests.attacks import Do, every, horovod, without_study
from tests.honest import Honest, Lines
from tests.own_task_records import as_own_task
from tests.tampering import Runs, config, header, in_turn, processors, started, workers, write_lines
from unet_scaling.study.config import Framework
from unet_scaling.study.record_lines import AttemptFacts, Resumed


def resumed(folder: Path) -> None:
    """One run was interrupted and went on, on the same machine and code."""

    def change(lines: Lines) -> Lines:
        first = AttemptFacts(**{name: getattr(lines.header, name) for name in AttemptFacts.model_fields})
        new = {"attempt": 2, "earlier": [first], "resumed": Resumed(epoch=4, step=0)}
        return replace(lines, header=lines.header.model_copy(update=new))

    Runs(folder).of("horovod", workers=[4], repeats=[2]).change(change)


def began_again(folder: Path) -> None:
    """One run failed in its second epoch and was launched again."""
    ((run, lines),) = Runs(folder).of("horovod", workers=[4], repeats=[2]).records()
    broken = replace(lines, epochs=lines.epochs[:2], results=[], end=None)
    write_lines(run, started(lambda _, at: at - timedelta(seconds=5))(broken))
    (run / "run.jsonl").rename(run / "run.attempt1.jsonl")
    write_lines(run, header(attempt=2)(lines))


def disturbed_and_repeated(folder: Path) -> None:
    """Other programs took a fifth of one launch, which was therefore launched again."""
    ((run, lines),) = Runs(folder).of("horovod", workers=[2], repeats=[3]).records()
    lost = processors(other_seconds=lambda facts: 0.2 * facts.process_seconds)
    write_lines(run, in_turn(lost, started(lambda _, at: at - timedelta(hours=12)))(lines))
    (run / "run.jsonl").rename(run / "run.disturbed1.jsonl")
    write_lines(run, lines)


def of_older_code(folder: Path) -> None:
    every(in_turn(header(format=2, gradient_bytes=None), workers(environment=None, allocator=None)))(folder)


SLURM = {"SLURM_CLUSTER_NAME": "main", "SLURM_JOB_PARTITION": "cpu", "SLURM_CPUS_PER_TASK": "1"}
IN_JOBS = header(job=lambda found: SLURM | {"SLURM_JOB_ID": found.started_utc[11:19].replace(":", "")})
WRAPPERS: Sequence[Framework] = ("pytorch_native", "horovod", "lightning", "accelerate")
HONEST: Mapping[str, tuple[Honest, Do | None]] = {
    "native DDP faster": (Honest(), None),
    "Horovod faster": (Honest(advantage=-0.02, seed=5), None),
    "15 % faster": (Honest(advantage=0.15, seed=6), None),
    "equally fast": (Honest(advantage=0.0, seed=3), None),
    "equally fast, 3 repeats": (Honest(advantage=0.0, repeats=3, seed=8), None),
    "3 repeats": (Honest(repeats=3), None),
    "4 repeats": (Honest(repeats=4, seed=9), None),
    "12 repeats": (Honest(workers=(1, 2), repeats=12), None),
    "a wrapper": (Honest(WRAPPERS[:3], workers=(1, 2)), None),
    "two wrappers": (Honest(WRAPPERS, workers=(1, 2), seed=10), None),
    "GPUs": (Honest(is_gpu=True), None),
    "two hosts": (Honest(workers=(1, 2, 8), hosts=("node1", "node2")), None),
    "step samples and older logs": (Honest(has_files=True), None),
    "evaluated once": (Honest(training={"evaluate_every": 0}), None),
    "a low IoU that was learned": (Honest(iou=0.45), None),
    "does not scale": (Honest(overhead=20.0), None),
    "an own task": (Honest(), as_own_task),
    "jobs of Slurm": (Honest(), every(IN_JOBS)),
    "a clock that is not known": (Honest(), every(processors(frequency_mhz=None))),
    "a virtual machine's clock": (Honest(), every(processors(frequency_mhz=2700.0))),
    "records of older code": (Honest(), of_older_code),
    "without study.json": (Honest(), without_study),
    "a resumed run": (Honest(), resumed),
    "a run that began again": (Honest(), began_again),
    "a disturbed launch, repeated": (Honest(), disturbed_and_repeated),
    "another time limit in one arm": (Honest(), horovod(config(training={"timeout_seconds": 600}))),
}
