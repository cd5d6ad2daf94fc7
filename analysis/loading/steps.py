"""Contradictions between a record and the file of single steps beside it."""

import io
from collections.abc import Iterator, Sequence

import pandas as pd

from unet_scaling.study.files import read_verified
from unet_scaling.study.measurements import PHASE_COLUMNS, STEPS_NAME, TOLERANCE
from unet_scaling.study.record import Record
from unet_scaling.study.record_lines import Epoch

# Of a long run the file has a sample of the steps. Of so many, whose times differ as much as they are long,
# the mean is known to 10 %; half of these seconds, or twice as many, are no matter of chance.
FEWEST_SAMPLED_STEPS = 100
LARGEST_SAMPLING_ERROR = 1.5


def step_faults(record: Record) -> tuple[tuple[str, ...], str]:
    """Return where the file of single steps contradicts the record beside it, and why it cannot be read."""
    path = record.path.with_name(STEPS_NAME)
    if not path.exists():
        return (), ""
    try:
        steps = pd.read_parquet(io.BytesIO(read_verified(path)))
        seconds = steps[list(PHASE_COLUMNS)].sum(axis="columns", skipna=False)
        kept = seconds.groupby([steps["epoch"], steps["worker"]]).agg(["size", "sum"]).reset_index()
    except (OSError, ValueError, KeyError) as error:
        return (), f"{STEPS_NAME} cannot be read: {str(error).splitlines()[0]}"
    # The phases of an epoch are NaN where they could not be told apart.
    kept = kept[~kept["epoch"].isin(steps.loc[seconds.isna(), "epoch"])]
    from_the_start = record.header is None or record.header.resumed is None
    faults = _faults(kept, record.epochs, from_the_start)
    return tuple(f"{path}: {fault} in {record.path.name}" for fault in faults), ""


def _faults(kept: pd.DataFrame, epochs: Sequence[Epoch], from_the_start: bool) -> Iterator[str]:
    """Yield where kept steps cannot be of what the record says of their epochs, by epoch and worker."""
    told = [
        (epoch.epoch, worker, epoch.steps, seconds, longest.seconds if longest else 0.0)
        for epoch in epochs
        for longest in [epoch.budget.longest_step if epoch.budget else None]
        for worker, seconds in enumerate(epoch.worker_seconds)
    ]
    recorded = pd.DataFrame(told, columns=["epoch", "worker", "steps", "whole", "longest"])
    table = kept.merge(recorded, on=["epoch", "worker"], how="left")
    sampled = table["size"] < table["steps"]
    beyond = table["sum"] - table["whole"]
    rounding = TOLERANCE * table["whole"]
    other = ~(table["size"] <= table["steps"]) | (beyond > rounding) | (~sampled & (beyond < -rounding))
    for row in table[other].to_dict("records"):
        where = f"steps of worker {row['worker']} in epoch {row['epoch']} took {row['sum']:.9g} s"
        yield f"{row['size']} {where}, {row['steps']:.0f} {row['whole']:.9g} s"
    missing = {epoch.epoch for epoch in epochs if epoch.budget} - set(kept["epoch"])
    if missing and from_the_start and not sampled.any():
        yield f"no step of epoch {min(missing)}, {epochs[min(missing)].steps} steps"
    for worker, rows in table[sampled].groupby("worker"):
        # The longest step may be half of an epoch, and be kept or not: the means are without it.
        usual = (rows["whole"] - rows["longest"]).sum() / (rows["steps"] - 1).sum()
        mean = rows["sum"].sum() / rows["size"].sum()
        most = LARGEST_SAMPLING_ERROR * usual + rows["longest"].sum() / rows["size"].sum()
        if rows["size"].sum() >= FEWEST_SAMPLED_STEPS and not usual / LARGEST_SAMPLING_ERROR <= mean <= most:
            yield f"the steps of worker {worker} take {mean:.6g} s in the mean, {usual:.6g} s"
