"""Verification of a group before it trains: one run, one software, and devices that nobody shares."""

import os
import socket

import torch
from pydantic import BaseModel

from unet_scaling.group.allocator import allocator_settings
from unet_scaling.group.device import owned_cores
from unet_scaling.group.group import Group
from unet_scaling.group.identity import Identity, job_id
from unet_scaling.group.provenance import versions
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_checks import different_versions, shared_devices
from unet_scaling.study.record_lines import WorkerFacts


class Introduction(BaseModel):
    """Facts that one worker sends to the others: its run, its device, and its software."""

    run: dict[str, str]
    facts: WorkerFacts
    versions: dict[str, str]


def verify_group(group: Group, config: RunConfig, environment: dict[str, str]) -> list[WorkerFacts]:
    """Verify that all workers belong to one run and own what they use; return their facts by rank.

    `environment` holds the variables that decide speed, as this process found them.

    Raises UserError on every worker alike: two jobs that met on one port, a worker with another
    configuration or with other versions, two workers on one GPU, or two CPU workers on one core.
    """
    own = Introduction(
        run={"job": job_id(os.environ), "run": config.run, "config": config.digest()},
        facts=own_facts(group.identity, group.device, environment, config.training.cores_per_worker),
        # Nodes of one cluster may differ in their driver.
        versions={name: version for name, version in versions().items() if name != "driver"},
    )
    texts = group.gather_strings(own.model_dump_json())
    introductions = [Introduction.model_validate_json(text) for text in texts]
    workers = [introduction.facts for introduction in introductions]
    first = introductions[0].run
    for rank, introduction in enumerate(introductions):
        if introduction.run != first:
            raise UserError(
                f"workers 0 and {rank} do not belong to one run: {first} and {introduction.run}; "
                f"did two jobs use one port?"
            )
    differing = different_versions(workers, [introduction.versions for introduction in introductions])
    if differing:
        raise UserError(f"{'; '.join(differing)}: load the same environment on every node")
    shared = shared_devices(workers)
    if shared and not config.training.shared_devices:
        raise UserError(
            f"{'; '.join(shared)}: give each worker its own, or set training.shared_devices = true"
        )
    return workers


def own_facts(
    identity: Identity, device: torch.device, environment: dict[str, str], cores: int | None = None
) -> WorkerFacts:
    """Return the facts of this worker, with the variables of its environment that decide speed."""
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return WorkerFacts(
        worker=identity.rank,
        host=socket.gethostname(),
        process=os.getpid(),
        device=gpu.name if gpu else "cpu",
        device_uuid=str(gpu.uuid) if gpu else "",
        cores=owned_cores(identity, cores),
        threads=torch.get_num_threads(),
        allocator=allocator_settings(),
        environment=environment,
    )
