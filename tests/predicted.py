"""Studies whose step times are known exactly, with profiles of computing and ping-pongs: to predict from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.records import GRADIENT_BYTES, write_run
from unet_scaling.measure.ping_pong import HostPair, PingPong, write_ping_pong
from unet_scaling.study.compute_profile import COMPUTE_NAME, ComputeProfile, ComputeStep
from unet_scaling.study.config import Framework
from unet_scaling.study.study_file import PING_PONG_NAME

BATCH = 8
STEPS = 10
LATER = "2126-01-01T00:00:00+00:00"


def write_launches(
    folder: Path,
    seconds: Mapping[int, Sequence[float]],
    framework: Framework = "pytorch_native",
    header: Mapping[str, object] | None = None,
) -> None:
    """Runs of these seconds per step, by worker count; their places are the repeats."""
    for workers, launches in seconds.items():
        for repeat, step in enumerate(launches, start=1):
            images = STEPS * BATCH * workers
            rate = images / STEPS / step
            write_run(
                folder, framework, workers, repeat,
                images_per_second=rate, images_per_epoch=images, header=header,
            )  # fmt: skip


def make_step(ready: Sequence[float], forward: float = 0.05) -> ComputeStep:
    return ComputeStep(
        data_seconds=0.0,
        data_cpu_seconds=0.0,
        forward_seconds=forward,
        forward_cpu_seconds=forward,
        ready_seconds=list(ready),
        backward_cpu_seconds=max(ready),
        optimizer_seconds=0.0,
        optimizer_cpu_seconds=0.0,
    )


def write_profile(
    run: Path, steps: Sequence[ComputeStep], assumption: str | None = None, batch: int = BATCH
) -> None:
    """The profile of a run on 1 worker: its last parameter is the first to be ready."""
    parameters = len(steps[0].ready_seconds)
    profile = ComputeProfile(
        device="cpu",
        assumption=assumption,
        batch_per_worker=batch,
        image_height=128,
        image_width=128,
        parameters=[f"layer{number}" for number in range(parameters)],
        parameter_bytes=[GRADIENT_BYTES // parameters] * parameters,
        steps=list(steps),
    )
    (run / COMPUTE_NAME).write_text(json.dumps(profile.model_dump(mode="json")))


def write_link(
    run: Path, latency: float, bandwidth: float, hosts: tuple[str, str] = ("node1", "node1")
) -> None:
    """A ping-pong of a job: between two hosts it is of the network, else of shared memory."""
    times = [latency, latency + 1e6 / bandwidth]
    pair = HostPair(
        ranks=(0, 1),
        hosts=hosts,
        medium="shared memory" if len(set(hosts)) == 1 else "network",
        bytes=[1, 1_000_000],
        repeats=[3, 3],
        median_seconds=times,
        minimum_seconds=times,
        latency_seconds=latency,
        bytes_per_second=bandwidth,
    )
    write_ping_pong(run / PING_PONG_NAME, PingPong(mpi="MPICH", hosts=sorted(set(hosts)), pairs=[pair]))
