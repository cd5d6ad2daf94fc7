"""A worker: one process, the device it owns, and what it shares with the others: sums."""

import json
import os
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.group.allocator import allocator_settings
from unet_scaling.group.identity import CORES_VARIABLE, Identity, identify, job_id
from unet_scaling.group.provenance import versions
from unet_scaling.group.watchdog import waiting
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import WorkerFacts


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
        with waiting:
            self.sum_over_workers(torch.ones(1, device=self.device)).item()

    def gather_numbers(self, value: float) -> list[float]:
        """Every worker's value, by rank, on every worker; float64."""
        return [float(number) for number in self.gather_array(np.asarray(value, dtype=np.float64))]

    def gather_array(self, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Every worker's array, [workers, ...] by rank, on every worker; in one sum."""
        rows = torch.zeros(self.size, *own.shape, dtype=torch.float64, device=self.device)
        rows[self.rank] = torch.from_numpy(own)
        with waiting:
            gathered: npt.NDArray[np.float64] = self.sum_over_workers(rows).cpu().numpy()
        return gathered

    def agree(self, act: Callable[[], object]) -> None:
        """Do this on every worker; where it raised UserError on any, raise the first one's on all alike."""
        told = ""
        try:
            act()
        except UserError as error:
            told = f"{error.exit_code} {error}"
        first = next(filter(None, self.gather_strings(told)), "")
        if first:
            code, _, text = first.partition(" ")
            raise UserError(text, int(code))

    def gather_strings(self, text: str) -> list[str]:
        """Every worker's text, by rank, on every worker."""
        return [data.decode() for data in self.gather_bytes(text.encode())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every worker's bytes, by rank, on every worker."""
        lengths = [int(length) for length in self.gather_numbers(len(data))]
        rows = torch.zeros(self.size, max(lengths), dtype=torch.int32, device=self.device)
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0)
        rows[self.rank, : len(data)] = own.to(rows)
        with waiting:
            gathered = self.sum_over_workers(rows).to("cpu", torch.uint8)
        return [bytes(row[:length].numpy()) for row, length in zip(gathered, lengths, strict=True)]


def identify_worker(config: RunConfig) -> Identity:
    """This process's identity; refuses a group of another size than the run asks for."""
    identity = identify(os.environ)
    if identity.size != config.workers:
        raise UserError(
            f"run {config.run} asks for {config.workers} workers, but this process is one of {identity.size} "
            f"(launcher: {identity.launcher}); start it with {config.workers} tasks by srun, "
            f"or by the mpiexec of the MPI that environment/check.py names"
        )
    return identity


def own_device(identity: Identity, config: RunConfig) -> torch.device:
    """The GPU of this worker, or the CPU cores it was given where the machine has no GPU.

    A process that sees one GPU owns it; of several it takes the one of its local rank.
    """
    _take_own_cores(identity, config.training.cores_per_worker)
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


def _take_own_cores(identity: Identity, wanted: int | None) -> None:
    """Stay on this worker's share of the host's cores where the launcher leaves that to the worker.

    CORES_VARIABLE says how many each gets; without it the cores are those that the launcher bound. Of these
    the worker uses as many as its point wants: the first ones. Raises UserError where it has fewer.
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
    if wanted is not None:
        if wanted > len(cores):
            raise UserError(
                f"training.cores_per_worker = {wanted}: worker {identity.rank} has only {len(cores)} on "
                f"{socket.gethostname()}; give it more, or ask for fewer workers"
            )
        os.sched_setaffinity(0, cores[:wanted])
    torch.set_num_threads(wanted or len(cores))


def verify_group(group: Group, config: RunConfig, environment: dict[str, str]) -> list[WorkerFacts]:
    """Check that all workers belong to the same run and own what they use; return their facts by rank.

    `environment` are the variables that decide speed, as this process found them.

    Raises UserError on every worker alike: two jobs that met on one port, a worker with another
    configuration or with other versions, two workers on one GPU, or two CPU workers on one core.
    """
    claim = {"job": job_id(os.environ), "run": config.run, "config": config.digest()}
    facts = _own_facts(group, environment)
    own = json.dumps({"claim": claim, "facts": facts.model_dump(), "versions": _versions()})
    told = [json.loads(text) for text in group.gather_strings(own)]
    for rank, other in enumerate(told):
        if other["claim"] != told[0]["claim"]:
            raise UserError(
                f"workers 0 and {rank} do not belong together: {told[0]['claim']} and {other['claim']}; "
                f"did two jobs meet on one port?"
            )
    workers = [WorkerFacts.model_validate(other["facts"]) for other in told]
    differing = different_versions(workers, [other["versions"] for other in told])
    if differing:
        raise UserError(f"{'; '.join(differing)}: load the same environment on every node")
    shared = shared_devices(workers)
    if shared and not config.training.shared_devices:
        raise UserError(
            f"{'; '.join(shared)}: give each worker its own, or set training.shared_devices = true"
        )
    return workers


def shared_devices(workers: list[WorkerFacts]) -> list[str]:
    """What two workers both own, in words: a GPU, or for CPU workers a core."""
    owned = Counter(thing for worker in workers for thing in _owned(worker))
    return [f"{count} workers share {thing}" for thing, count in sorted(owned.items()) if count > 1]


def _owned(worker: WorkerFacts) -> list[str]:
    if worker.device_uuid:
        return [f"GPU {worker.device_uuid} of {worker.host}"]
    return [f"core {core} of {worker.host}" for core in worker.cores]


def different_versions(workers: list[WorkerFacts], told: list[dict[str, str]]) -> list[str]:
    """What is not of the same version as on worker 0, in words, each with the first worker that differs."""
    differing = []
    for name in sorted({name for worker in told for name in worker}):
        found = [worker.get(name, "none") for worker in told]
        other = next((rank for rank, version in enumerate(found) if version != found[0]), 0)
        if other:
            places = [f"{found[rank]} on worker {rank} ({workers[rank].host})" for rank in (0, other)]
            differing.append(f"{name} is {' and '.join(places)}")
    return differing


def _versions() -> dict[str, str]:
    """Of all that takes part in training; nodes may differ in their driver."""
    return {name: version for name, version in versions().items() if name != "driver"}


def _own_facts(group: Group, environment: dict[str, str]) -> WorkerFacts:
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
        allocator=allocator_settings(),
        environment=environment,
    )
