"""What runs cost on a cluster or this machine: an estimate in words, and the budget it must keep to."""

from collections.abc import Sequence
from dataclasses import dataclass

from slurm.cluster import Cluster, geometry
from slurm.estimate import (
    NOTHING,
    Basis,
    Images,
    Range,
    estimable,
    estimable_with_maps,
    run_seconds,
    source_text,
    time_text,
)
from slurm.estimate_basis import images_of_all
from slurm.known_seconds import BY_ITS_OWN_RUNS, point_of
from slurm.preflight import estimate, limit_node_hours
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.texts import duration


@dataclass(frozen=True)
class Cost:
    """Node-hours that runs may take at most, and what is to be said about them."""

    node_hours: float
    text: str


def cluster_cost(
    cluster: Cluster, configs: Sequence[RunConfig], one_allocation: bool, basis: Basis | None
) -> Cost:
    """Return what these runs cost: the upper end of the estimate, or without one what the limit allows."""
    limit_text = estimate(cluster, configs, one_allocation)
    seconds, why_not = _all_seconds(configs, basis)
    if basis is None or not seconds:
        return Cost(limit_node_hours(cluster, configs, one_allocation), f"{limit_text}{why_not}")
    hours = _node_hours(cluster, configs, seconds, one_allocation)
    lines = [
        f"about {_hours(hours)}, {source_text(configs, basis)}",
        limit_text,
        *_beyond_limit(cluster, seconds, one_allocation),
    ]
    return Cost(hours.high, "\n".join(lines))


def _node_hours(
    cluster: Cluster, configs: Sequence[RunConfig], seconds: Sequence[Range], one_allocation: bool
) -> Range:
    """Return the node-hours of runs of these seconds; one allocation holds its nodes during all of them."""
    nodes = [geometry(cluster, config.workers).nodes for config in configs]
    held = [max(nodes)] * len(nodes) if one_allocation else nodes
    return sum((each.times(share / 3600) for each, share in zip(seconds, held, strict=True)), NOTHING)


def _hours(hours: Range) -> str:
    return f"{hours.expected:.2g} node-hours ({hours.low:.2g} to {hours.high:.2g})"


def local_time(configs: Sequence[RunConfig], basis: Basis) -> str:
    """Return how long these runs take on this machine, one after the other."""
    seconds, why_not = _all_seconds(configs, basis)
    return time_text(configs, sum(seconds, NOTHING), basis) if seconds else f"no estimate{why_not}"


def require_within(budget_hours: float | None, cost: Cost) -> None:
    """Raise UserError where the runs may cost more than the budget."""
    if budget_hours is not None and cost.node_hours > budget_hours:
        raise UserError(
            f"--budget {budget_hours:g}: these runs may take {cost.node_hours:.3g} node-hours, the budget is "
            f"{budget_hours:g}; nothing was submitted ({cost.text.splitlines()[0]}). Use fewer repeats, "
            "worker counts or epochs, or --probe or --estimate-from for a closer estimate"
        )


def _all_seconds(configs: Sequence[RunConfig], basis: Basis | None) -> tuple[list[Range], str]:
    """Return the seconds of each run; where these are not known none, and why as the end of a sentence."""
    if basis is None or not configs:
        return [], ""
    if any(config.has_own_task for config in configs):
        return [], f"; not estimated: {BY_ITS_OWN_RUNS}"
    if not estimable(configs, basis):
        return [], f"; not estimated: {basis.source} is of another network (model.width, model.depth)"
    if not estimable_with_maps(configs, basis):
        return [], f"; not estimated: saliency maps, since {basis.source} made none with these options"
    images: dict[str, Images] | None = images_of_all(configs)
    if images is None:
        return [], "; not estimated: the number of images is not known, since they are not checked"
    by_point: dict[str, Range] = {}
    for config in configs:
        point = point_of(config)
        if point not in by_point:
            by_point[point] = run_seconds(config, basis, images[config.run])
    return [by_point[point_of(config)] for config in configs], ""


def _beyond_limit(cluster: Cluster, seconds: Sequence[Range], one_allocation: bool) -> list[str]:
    """Return a remark where jobs are expected to need longer than their limit."""
    expected = [each.expected for each in seconds]
    longest = sum(expected) if one_allocation else max(expected)
    if longest + cluster.stop_seconds <= cluster.limit_seconds:
        return []
    what = "the job" if one_allocation else "the longest run"
    return [f"{what} takes about {duration(longest)}, and is continued after its limit of {cluster.time}"]
