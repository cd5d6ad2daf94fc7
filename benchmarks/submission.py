"""The time of the submission's own Python on a study of 1,000 runs, Slurm excluded.

    .venv/bin/python -m benchmarks.submission

Prints the median and range of interleaved repeats for each part. Slurm's answers are made up here; run
folders, scripts and records are real files.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from slurm.cluster import Cluster
from slurm.render import Places, job_script
from slurm.scheduler import JobState, Queue, Slurm
from slurm.status import study_rows
from slurm.study_folder import StudyFolder
from slurm.submissions import Submission, write_submission
from unet_scaling.study.config import RunConfig, StudyConfig

REPEATS = 5
CLUSTER = Cluster(launcher="srun", gpus_per_node=2, cores_per_worker=12, time="02:00:00")
PLACES = Places(Path("/project"), Path("/project/.venv/bin/python"))


def study_of_1000(folder: Path) -> StudyConfig:
    return StudyConfig.model_validate(
        {
            "name": "thousand",
            "workers": [1, 2, 4, 6, 8, 10, 12, 14, 16, 18],
            "repeats": 25,
            "data": {"folder": str(folder), "image_height": 768, "image_width": 1024},
            "training": {"epochs": 200, "batch_per_worker": [8, 16]},
        }
    )


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def parts(root: Path, number: int) -> dict[str, float]:
    """Python seconds of each part, in a study folder of its own."""
    study = study_of_1000(root)
    folder = StudyFolder(root / str(number) / study.name, study)
    configs: list[RunConfig] = []
    found = {"expand": seconds(lambda: configs.extend(study.configs()))}
    found["make run folders"] = seconds(folder.prepare)
    found["render"] = seconds(lambda: [render(folder, config) for config in configs])
    jobs = {}
    for job, config in enumerate(configs, start=1):
        submission = Submission(token=config.run, attempts=1, status="queued", job=str(job))
        write_submission(folder.run_folder(config), submission)
        jobs[config.run] = JobState("PENDING", "Priority", str(job), config.run)
    with mock.patch.object(Slurm, "queue", return_value=Queue(jobs, whole=True)):
        found["status"] = seconds(lambda: study_rows(folder.path))
    assert len(configs) == 1000
    return found


def render(folder: StudyFolder, config: RunConfig) -> str:
    return job_script(CLUSTER, config, folder.run_folder(config), config.run, PLACES)


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=formatter).parse_args()
    with tempfile.TemporaryDirectory() as root:
        measured = [parts(Path(root), number) for number in range(REPEATS)]
    totals = [sum(found.values()) for found in measured]
    rows = {name: [found[name] for found in measured] for name in measured[0]} | {"total": totals}
    for name, values in rows.items():
        print(f"{name:>18}  {statistics.median(values):6.2f} s  [{min(values):.2f}, {max(values):.2f}]")
    print(json.dumps({name: statistics.median(values) for name, values in rows.items()}))


if __name__ == "__main__":
    main()
