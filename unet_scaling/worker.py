"""A worker: one process, the device it owns, and what it shares with the others: sums."""

import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from unet_scaling.config import Point
from unet_scaling.errors import UserError
from unet_scaling.identity import CORES_VARIABLE, Identity, identify, job_id, meeting_point
from unet_scaling.record import WorkerFacts


@dataclass(frozen=True)
class Group:
    """This worker among all workers of the run.

    `sum_over_workers` is the only way in which workers talk outside the training step: it adds up
    a tensor of the worker's device in place. Gathering and waiting are sums too.
    """

    identity: Identity
    device: torch.device
    sum_over_workers: Callable[[Tensor], Tensor]
    transport: dict[str, str]

    @property
    def rank(self) -> int:
        return self.identity.rank

    @property
    def size(self) -> int:
        return self.identity.size

    def wait_for_all(self) -> None:
        """Return when every worker has come here."""
        self.sum_over_workers(torch.ones(1, device=self.device)).item()

    def gather_numbers(self, value: float) -> list[float]:
        """Every worker's value, by rank, on every worker; float64."""
        row = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        row[self.rank] = value
        return [float(number) for number in self.sum_over_workers(row).tolist()]

    def gather_texts(self, text: str) -> list[str]:
        """Every worker's text, by rank, on every worker."""
        encoded = text.encode()
        lengths = [int(length) for length in self.gather_numbers(len(encoded))]
        rows = torch.zeros(self.size, max(lengths), dtype=torch.int32, device=self.device)
        rows[self.rank, : len(encoded)] = torch.tensor(list(encoded), dtype=torch.int32, device=self.device)
        gathered = self.sum_over_workers(rows).tolist()
        return [bytes(row[:length]).decode() for row, length in zip(gathered, lengths, strict=True)]


def identify_worker(point: Point) -> Identity:
    """This process's identity; refuses a group of another size than the run asks for."""
    identity = identify(os.environ)
    if identity.size != point.workers:
        raise UserError(
            f"run {point.run} asks for {point.workers} workers, but this process is one of {identity.size} "
            f"(launcher: {identity.launcher}); start it with {point.workers} tasks by srun, "
            f"or by the mpiexec of the MPI that environment/check.py names"
        )
    return identity


def own_device(identity: Identity) -> torch.device:
    """The GPU of this worker, or the CPU cores it was given where the machine has no GPU.

    A process that sees one GPU owns it; of several it takes the one of its local rank.
    """
    _take_own_cores(identity)
    count = torch.cuda.device_count()
    if count == 0:
        return torch.device("cpu")
    index = identity.local_rank if count > 1 else 0
    if index >= count:
        raise UserError(
            f"worker {identity.rank} is number {identity.local_rank} on {socket.gethostname()}, "
            f"which shows it only {count} GPUs; ask for fewer workers per node"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _take_own_cores(identity: Identity) -> None:
    """Stay on this worker's share of the host's cores where the launcher leaves that to the worker.

    CORES_VARIABLE says how many each gets; without it the cores are those that the launcher bound.
    Called before anything has started threads that work: those of torch and MPI inherit the cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = os.environ.get(CORES_VARIABLE)
    if share is not None:
        first = identity.local_rank * int(share)
        cores = cores[first : first + int(share)]
        if len(cores) < int(share):
            raise UserError(
                f"worker {identity.rank} has no {share} cores left on {socket.gethostname()}: it is number "
                f"{identity.local_rank} there ({CORES_VARIABLE}={share})"
            )
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))


@contextmanager
def meeting(identity: Identity) -> Iterator[tuple[str, int]]:
    """Host and port to meet at; a meeting that fails says where it was and what to look at."""
    host, port = meeting_point(os.environ) if identity.size > 1 else ("localhost", 0)
    try:
        yield host, port
    except RuntimeError as error:
        raise UserError(
            f"worker {identity.rank} of {identity.size} on {socket.gethostname()} could not meet the "
            f"others at {host}:{port}: {str(error).splitlines()[0]}. "
            f"Is the port taken, a host missing, a worker not started?"
        ) from error


def meet(group: Group, point: Point) -> list[WorkerFacts]:
    """Check that all workers belong to the same run and own what they use; return their facts by rank.

    Raises UserError on every worker alike: two jobs that met on one port, a worker with another
    configuration, two workers on one GPU, or two CPU workers on one core.
    """
    claim = {"job": job_id(os.environ), "run": point.run, "point": point.digest()}
    own = json.dumps({"claim": claim, "facts": _own_facts(group).model_dump()})
    told = [json.loads(text) for text in group.gather_texts(own)]
    for rank, other in enumerate(told):
        if other["claim"] != told[0]["claim"]:
            raise UserError(
                f"workers 0 and {rank} do not belong together: {told[0]['claim']} and {other['claim']}; "
                f"did two jobs meet on one port?"
            )
    facts = [WorkerFacts.model_validate(other["facts"]) for other in told]
    shared = shared_devices(facts)
    if shared and not point.training.shared_devices:
        raise UserError(
            f"{'; '.join(shared)}: give each worker its own, or set training.shared_devices = true"
        )
    return facts


def shared_devices(workers: list[WorkerFacts]) -> list[str]:
    """What two workers both own, in words: a GPU, or for CPU workers a core."""
    owned = Counter(thing for worker in workers for thing in _owned(worker))
    return [f"{count} workers share {thing}" for thing, count in sorted(owned.items()) if count > 1]


def _owned(worker: WorkerFacts) -> list[str]:
    if worker.device_uuid:
        return [f"GPU {worker.device_uuid} of {worker.host}"]
    return [f"core {core} of {worker.host}" for core in worker.cores]


def _own_facts(group: Group) -> WorkerFacts:
    device, uuid = "cpu", ""
    if group.device.type == "cuda":
        properties = torch.cuda.get_device_properties(group.device)
        device, uuid = properties.name, str(properties.uuid)
    return WorkerFacts(
        worker=group.rank,
        host=socket.gethostname(),
        process=os.getpid(),
        device=device,
        device_uuid=uuid,
        cores=sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
    )
