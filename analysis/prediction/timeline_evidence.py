"""What the records of a series tell a timeline of its steps: gradients, own work, schedule and links."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.budget.network_floor import gradient_bytes, latency_and_pace, reaches
from analysis.loading.ping_pongs import Link
from analysis.prediction.timeline import (
    BUCKET_BYTES,
    CYCLE_SECONDS,
    FIRST_BUCKET_BYTES,
    FUSION_BYTES,
    MEBIBYTE_BYTES,
    Buckets,
    Cycles,
    Gradients,
    Schedule,
)
from analysis.study import Study
from unet_scaling.study.compute_profile import ComputeProfile, ComputeStep
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import HorovodKnobs, NativeKnobs

OWN_TASK = "when each gradient is ready is recorded of the built-in U-Net alone, and not of a task of its own"
NO_PROFILE = 'no run on 1 worker has a compute.json (training.compute_profile = "on" records it)'
OTHER_WORK = "compute.json is of another batch or image size than the records"
NO_LINKS = "no probe and no ping-pong timed the network"
MILLISECOND_SECONDS = 1e-3


@dataclass(frozen=True)
class TimedLink:
    """A link as a probe of the group's all-reduce, or a ping-pong between two processes, timed it."""

    link: Link
    workers: int
    between_nodes: bool
    is_probe: bool


@dataclass(frozen=True)
class TimelineEvidence:
    """The evidence for one series; `assumption` says where figures come from that were not measured."""

    gradients: Gradients
    work_seconds: Array
    schedule: Schedule
    links: tuple[TimedLink, ...]
    assumption: str = ""

    def links_for(self, largest: float, nodes: float) -> list[Link]:
        """Return the links that an all-reduce over so many nodes uses, none of them timed on more workers.

        Probes are of the library that trains, and of those the ones of the largest group are nearest.
        """
        alike = [timed for timed in self.links if timed.between_nodes == (nodes > 1)]
        probes = [timed for timed in alike if timed.is_probe and timed.workers <= largest]
        most = max((timed.workers for timed in probes), default=0)
        chosen = [timed for timed in probes if timed.workers == most]
        return [timed.link for timed in chosen or (timed for timed in alike if not timed.is_probe)]


def timeline_evidence(study: Study, runs: pd.DataFrame) -> TimelineEvidence | str:
    """Return the evidence that the runs of one series and the study's links give, or what is lacking.

    The profile is that of a run on 1 worker, of this series or else of another with the same options:
    computing is the same whatever averages the gradients.
    """
    if any(header.config.has_own_task for header in study.headers.values()):
        return OWN_TASK
    profiles = _profiles(study, runs)
    if not profiles:
        return NO_PROFILE
    header = study.headers[runs["run"].iloc[0]]
    if not all(_is_of(profile, header.config) for profile in profiles):
        return OTHER_WORK
    schedule = _schedule(header.config)
    links = (*_probed_links(study, runs, schedule), *_ping_pong_links(study))
    if not links:
        return NO_LINKS
    steps = [step for profile in profiles for step in profile.steps]
    return TimelineEvidence(
        gradients=_gradients(steps, profiles[0].parameter_bytes, gradient_bytes(header)),
        work_seconds=np.array([_own_work(step) for step in steps]),
        schedule=schedule,
        links=links,
        assumption=_assumptions(profiles),
    )


def _gradients(steps: Sequence[ComputeStep], parameter_bytes: Sequence[int], sent_bytes: float) -> Gradients:
    """Return when each gradient of these steps was ready; compressed ones are smaller than parameters."""
    sizes = np.array(parameter_bytes, dtype=np.float64)
    ready = np.array([step.ready_seconds for step in steps])
    return Gradients(ready, sizes * (sent_bytes / sizes.sum()))


def _assumptions(profiles: Sequence[ComputeProfile]) -> str:
    return "; ".join(dict.fromkeys(profile.assumption for profile in profiles if profile.assumption))


def _own_work(step: ComputeStep) -> float:
    return step.data_seconds + step.forward_seconds + step.backward_seconds + step.optimizer_seconds


def _profiles(study: Study, runs: pd.DataFrame) -> list[ComputeProfile]:
    """Return the profiles of one framework's runs that compute the same, their own ones first."""
    alike = study.runs[study.runs["options"] == runs["options"].iloc[0]]
    for candidates in (runs, alike):
        found = [study.profiles[run].profile for run in candidates["run"] if run in study.profiles]
        if found:
            return [profile for profile in found if profile.parameters == found[0].parameters]
    return []


def _is_of(profile: ComputeProfile, config: RunConfig) -> bool:
    recorded = (profile.batch_per_worker, profile.image_height, profile.image_width)
    return recorded == (config.training.batch_per_worker, config.data.image_height, config.data.image_width)


def _schedule(config: RunConfig) -> Schedule:
    if config.framework != "horovod":  # all others wrap DDP
        return Buckets(_bucket_caps(getattr(config, config.framework) or NativeKnobs()))
    knobs = config.horovod or HorovodKnobs()
    return Cycles(
        period_seconds=_or(knobs.cycle_time_ms, MILLISECOND_SECONDS, CYCLE_SECONDS),
        fusion_bytes=_or(knobs.fusion_threshold_mb, MEBIBYTE_BYTES, FUSION_BYTES),
        groups=knobs.groups,
    )


def _bucket_caps(knobs: NativeKnobs) -> tuple[float, ...]:
    """Return what torch makes of the option: named, it is the size of the first bucket too."""
    if knobs.bucket_cap_mb is None:
        return FIRST_BUCKET_BYTES, BUCKET_BYTES
    return (knobs.bucket_cap_mb * MEBIBYTE_BYTES,)


def _or(value: float | None, unit: float, default: float) -> float:
    return default if value is None else value * unit


def _probed_links(study: Study, runs: pd.DataFrame, schedule: Schedule) -> Iterator[TimedLink]:
    probed = study.probes.merge(runs[["run", "workers", "nodes"]], on="run")
    for run, probe in probed[probed["workers"] > 1].groupby("run", observed=True):
        columns = ("bytes", "median_seconds", "workers", "nodes")
        sizes, seconds, workers, nodes = (probe[name].to_numpy(dtype=np.float64) for name in columns)
        if reaches(gradient_bytes(study.headers[str(run)]), sizes):
            link = link_of_probe(schedule, int(workers[0]), sizes, seconds)
            yield TimedLink(link, int(workers[0]), bool(nodes[0] > 1), is_probe=True)


def link_of_probe(schedule: Schedule, workers: int, sizes: Array, seconds: Array) -> Link:
    """Return the link that makes a single all-reduce as long as probed, at the shortest and largest size."""
    short, pace = latency_and_pace(sizes, seconds)
    long = pace * sizes[-1]
    # A clock that saw no difference leaves the bandwidth as if the latency were none.
    moving = long - short if long > short else long
    sent_bytes = 2 * (workers - 1) / workers * float(sizes[-1])
    return Link(schedule.latency_of_probe(workers, short), sent_bytes / moving)


def _ping_pong_links(study: Study) -> Iterator[TimedLink]:
    for pair in study.ping_pongs.to_dict("records"):
        link = Link(float(pair["latency_seconds"]), float(pair["bytes_per_second"]))
        yield TimedLink(link, 2, pair["medium"] == "network", is_probe=False)


def median_link(links: Sequence[Link]) -> Link:
    """Return the link of the median latency and bandwidth."""
    return Link(
        float(np.median([link.latency_seconds for link in links])),
        float(np.median([link.bytes_per_second for link in links])),
    )
