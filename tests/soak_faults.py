"""Faults of a soak: what may go wrong on a cluster at any time, drawn by a seeded generator and injected."""

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.cluster import VirtualCluster
from tests.disks import full
from unet_scaling.study.record import RECORD_NAME, read_record

DISK_SECONDS = 10
CONTROLLER_SECONDS = 20
NODE_SECONDS = 15
PAUSE_SECONDS = (0.5, 3.0)


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
            with suppress(OSError):
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
