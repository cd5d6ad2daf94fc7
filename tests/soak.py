"""A study under random faults on a virtual cluster: python -m tests.soak --runs 40 --seed 1.

The study is submitted once without faults and once with them; then again, as its user would, until nothing
is missing. Its steps are slow until all faults have come. It must end with every run complete or named, no
job twice, and the same records. Needs root.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import VirtualCluster, bring_up, skip_without_cluster
from tests.disks import full, small_disk
from tests.faults import trained
from tests.studies import make_images
from tests.sweeps import ON_THE_WAY, Row, Sweep
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.record import RECORD_NAME, attempt_records, read_record

EPOCHS = 12
OFTEN_SAVED = "checkpoint_minutes = 0.02\n"
LOOK_SECONDS = 3.0
LONGEST_SOAK_SECONDS = 1800.0
DISK_MEBIBYTES = 256
DISK_SECONDS = 10
CONTROLLER_SECONDS = 20
NODE_SECONDS = 15
PAUSE_SECONDS = (0.5, 3.0)
# Jobs stay in squeue to the end, so that one that was queued twice shows.
Trained = dict[str, list[object]]
SETTINGS = ("--set", "SlurmdTimeout=5", "--set", "MinJobAge=86400")


class Faults:
    """Injects `count` faults, one after the other, into the study on `disk`, or fewer if it ends before.

    A deck of all kinds is drawn in an order of the seed's, so that each kind comes equally often; a fault
    that finds no victim now, such as a worker to kill, is laid back under the deck.
    """

    def __init__(self, cluster: VirtualCluster, disk: Path, seed: int, count: int) -> None:
        self._cluster = cluster
        self._disk = disk
        self._count = count
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._inject_all)
        self._problem: BaseException | None = None
        self.injected: Counter[str] = Counter()

    @property
    def all_came(self) -> bool:
        return self.injected.total() == self._count

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when the fault of now is over; raises what the injection itself ran into."""
        self._over.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _inject_all(self) -> None:
        deck: list[str] = []
        try:
            while self.injected.total() < self._count:
                if self._over.wait(self._random.uniform(*PAUSE_SECONDS)):
                    return
                deck = deck or self._random.sample(sorted(KINDS), len(KINDS))
                kind = deck.pop(0)
                if KINDS[kind](self):
                    self.injected[kind] += 1
                else:
                    deck.append(kind)
        except BaseException as problem:
            self._problem = problem

    def kill_worker(self) -> bool:
        """SIGKILL to one worker of a run that trains."""
        for folder in self._shuffled_folders():
            with contextlib.suppress(OSError):
                record = read_record(folder / RECORD_NAME)
                if record.header is None or record.end is not None:
                    continue
                victim = self._random.choice(record.header.workers).process
                if str(folder) in Path(f"/proc/{victim}/cmdline").read_text():
                    os.kill(victim, signal.SIGKILL)
                    return True
        return False

    def requeue(self) -> bool:
        """`scontrol requeue` of a job that runs."""
        jobs = self._running("%i")
        return bool(jobs) and self._accepted("scontrol", "requeue", self._random.choice(jobs))

    def lose_node(self) -> bool:
        """A power cut on a node that works; it comes back later."""
        lists = self._running("%N")
        if not lists:
            return False
        nodes = self._cluster.run("scontrol", "show", "hostnames", ",".join(lists)).split()
        node = self._random.choice(sorted(set(nodes)))
        self._cluster.stop(node)
        time.sleep(NODE_SECONDS)
        self._cluster.start(node)
        return True

    def fill_disk(self) -> bool:
        with full(self._disk):
            time.sleep(DISK_SECONDS)
        return True

    def stop_controller(self) -> bool:
        self._cluster.stop("controller")
        time.sleep(CONTROLLER_SECONDS)
        self._cluster.start("controller")
        return True

    def _shuffled_folders(self) -> list[Path]:
        folders = sorted(path.parent for path in self._disk.glob(f"*/*/{RECORD_NAME}"))
        return self._random.sample(folders, len(folders))

    def _running(self, what: str) -> list[str]:
        """Return what squeue's format says of each job that runs."""
        return sorted(
            self._cluster.run("squeue", "--noheader", "--states=RUNNING", f"--format={what}").split()
        )

    def _accepted(self, *command: str) -> bool:
        """A job may have ended since it was chosen; then Slurm refuses."""
        done = subprocess.run(command, env=self._cluster.environment, capture_output=True, check=False)
        return done.returncode == 0


KINDS: dict[str, Callable[[Faults], bool]] = {
    "worker killed": Faults.kill_worker,
    "node lost for 15 s": Faults.lose_node,
    "job requeued": Faults.requeue,
    "disk full for 10 s": Faults.fill_disk,
    "controller away for 20 s": Faults.stop_controller,
}


@dataclass
class Outcome:
    """The result of a soak; `problems` is what must not be."""

    seed: int
    injected: Counter[str]
    seconds: float = 0.0
    submissions: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    rows: Sequence[Row] = ()
    identical: int = 0
    jobs: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        states = Counter(row["state"] for row in self.rows)
        attempts = Counter(row["attempt"] for row in self.rows)
        lines = [
            f"seed {self.seed}, {self.injected.total()} faults in {self.seconds:.0f} s:",
            *(f"  {count} x {kind}" for kind, count in sorted(self.injected.items())),
            f"{len(self.rows)} runs: " + ", ".join(f"{count} {state}" for state, count in states.items()),
            *(f"  {row['run']}: {row['reason']}" for row in self.rows if row["state"] != "complete"),
            "attempts: " + ", ".join(f"{count} runs took {n}" for n, count in sorted(attempts.items())),
            f"{self.submissions} submissions, {self.refusals.total()} of them refused:",
            *(f"  {count} x {text}" for text, count in sorted(self.refusals.items())),
            f"{self.jobs} jobs, {self.identical} records equal to those without faults",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)


def soak(
    cluster: VirtualCluster,
    disk: Path,
    folder: Path,
    shape: "Shape",
    seed: int,
    faults: int,
    expected: Trained,
) -> Outcome:
    """Run the study under faults, and compare it with what it comes to where nothing happens."""
    sweep = shape.study(cluster, folder, "soak", disk)
    sweep.pace(shape.step_seconds)
    injector = Faults(cluster, disk, seed, faults)
    outcome = Outcome(seed, injector.injected)
    others = len(queued_names(cluster))
    begin = time.monotonic()
    outcome.problems += submit_until_done(sweep, outcome, injector)
    outcome.seconds = time.monotonic() - begin
    outcome.rows = sweep.rows()
    outcome.jobs = len(queued_names(cluster)) - others
    judge(sweep, expected, outcome)
    return outcome


@dataclass(frozen=True)
class Shape:
    """These points, so often, on these images; the least time of a step until all faults have come."""

    images: Path
    workers: tuple[int, ...]
    repeats: int = 1
    step_seconds: float = 1.0
    frameworks: Sequence[str] = FRAMEWORKS

    def study(self, cluster: VirtualCluster, folder: Path, name: str, logs: Path | None = None) -> Sweep:
        sweep = Sweep(cluster, folder, self.images, name, logs)
        sweep.prepare(list(self.workers), EPOCHS, OFTEN_SAVED, self.repeats, self.frameworks)
        return sweep


def undisturbed_study(cluster: VirtualCluster, folder: Path, shape: Shape) -> Trained:
    """Return what the runs come to where nothing happens, by their ids."""
    sweep = shape.study(cluster, folder, "undisturbed")
    done = sweep.submit("--wait", seconds=LONGEST_SOAK_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr + sweep.account()
    return {path.name: trained(read_record(path / RECORD_NAME)) for path in sweep.run_folders()}


def submit_until_done(sweep: Sweep, outcome: Outcome, faults: Faults) -> list[str]:
    """Submit again and again, as a user would, while faults happen; returns what must not be."""
    problems: list[str] = []
    faults.start()
    try:
        deadline = time.monotonic() + LONGEST_SOAK_SECONDS
        while not nothing_left_to_do(sweep, outcome, problems):
            problems += jobs_twice_in_the_queue(sweep.cluster)
            if time.monotonic() > deadline:
                problems.append(f"not done after {LONGEST_SOAK_SECONDS:.0f} s\n{sweep.account()}")
            if problems:
                break
            if faults.all_came:
                sweep.let_go()
            time.sleep(LOOK_SECONDS)
    finally:
        faults.stop()
    return problems


def nothing_left_to_do(sweep: Sweep, outcome: Outcome, problems: list[str]) -> bool:
    """Submit once more; whether there was nothing to submit and nothing on its way."""
    done = sweep.submit()
    outcome.submissions += 1
    if "Traceback" in done.stderr:
        problems.append(done.stderr)
    if done.returncode != 0:
        outcome.refusals[refusal(done.stderr)] += 1
        return False
    return "0 to submit" in done.stdout and not {row["state"] for row in sweep.rows()} & ON_THE_WAY


def refusal(text: str) -> str:
    """The first words of an error, without what differs from run to run."""
    return text.removeprefix("error: ").splitlines()[0].partition(":")[0]


def jobs_twice_in_the_queue(cluster: VirtualCluster) -> list[str]:
    """Runs of which two jobs wait or run at once; a name without its last number is the run's."""
    names = cluster.run("squeue", "--noheader", "--format=%j", check=False).split()
    places = Counter(name.rpartition(".")[0] for name in names)
    return [f"{count} jobs of {place} at once" for place, count in places.items() if count > 1]


def queued_names(cluster: VirtualCluster) -> list[str]:
    """Names of all jobs since the cluster is up."""
    return cluster.run("squeue", "--noheader", "--states=all", "--format=%j").split()


def judge(sweep: Sweep, expected: Trained, outcome: Outcome) -> None:
    """Every run complete or named, its attempts counted, its record the expected one; no job twice."""
    times = Counter(queued_names(sweep.cluster))
    outcome.problems += [f"job {name} was queued {n} times" for name, n in times.items() if n > 1]
    outcome.problems += [
        f"{row['run']} is {row['state']} without a reason"
        for row in outcome.rows
        if row["state"] != "complete" and not row["reason"]
    ]
    for folder in sweep.run_folders():
        record = read_record(folder / RECORD_NAME)
        assert record.header is not None
        if record.header.attempt != len(attempt_records(folder)) + 1:
            outcome.problems.append(f"{folder.name}: an attempt has no record")
        if record.complete and trained(record) == expected[folder.name]:
            outcome.identical += 1
        elif record.complete:
            outcome.problems.append(f"{folder.name} differs from the run without faults")


@contextlib.contextmanager
def place(hosts: int, folder: Path) -> Iterator[tuple[VirtualCluster, Path]]:
    """A cluster, and a small disk that all of its hosts see."""
    skip_without_cluster()
    disk = folder / "disk"
    disk.mkdir()
    options = ("--hosts", str(hosts), "--gpus-per-host", "2", *SETTINGS)
    with small_disk(disk, DISK_MEBIBYTES), bring_up("soak", *options) as cluster:
        yield cluster, disk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="at least so many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (%(default)s)")
    arguments = parser.parse_args()
    repeats = -(-arguments.runs // 6)
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        folder = Path(name)
        os.environ["UNET_SCALING_CACHE"] = str(folder / "cache")
        shape = Shape(make_images(folder / "squares", count=47), (1, 2, 4), repeats)
        with place(hosts=4, folder=folder) as (cluster, disk):
            expected = undisturbed_study(cluster, folder, shape)
            faults = len(KINDS) * repeats
            outcome = soak(cluster, disk, folder, shape, arguments.seed, faults, expected)
    print(outcome)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
