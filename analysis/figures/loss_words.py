"""The texts beside the figures of the loss budget."""

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.budget.network_floor import name_of_floor
from analysis.figures.looks import PART_LOOKS, plain
from analysis.figures.series import Inputs, Series

OF_LOSSES = ("budget", "waterfall", "difference", "wire")
LEAST_NAMED = 0.001


def marks_of_losses(name: str) -> Iterator[str]:
    """What the marks of one of these figures are."""
    if name == "budget":
        yield (
            "Each part: the share of the workers' time that is lost in it against 1 worker; below zero a "
            "part takes less time per image. Diamonds: 1 - efficiency, the sum of the parts."
        )
    elif name == "waterfall":
        yield "Each bar starts where the one above it ended. Parts below 0.05 % are left out."
    elif name == "difference":
        yield (
            "Above zero Horovod needs more time, below zero native DDP; in shares of native DDP's time per "
            "image. Diamonds: the sum, which is the ratio of throughputs less 1."
        )
    else:
        yield (
            "Dotted: one message of all gradients over the probed network. Wire that overlaps with backward "
            "is not seen, so it may lie below."
        )


def facts_of_losses(name: str, inputs: Inputs, series: Series) -> Iterator[str]:
    """The key numbers of a series at its most workers."""
    table = series.of(inputs.overhead.network if name == "wire" else inputs.overhead.budget)
    for row in table.tail(1).to_dict("records"):
        if name == "wire":
            wire, floor = (plain(1000 * row[f"{each}_seconds"]) for each in ("wire", "floor"))
            word = name_of_floor(row["wire_seconds"], row["floor_seconds"])
            yield f"{wire} ms, {word} {floor} ms on {row['workers']} workers"
        else:
            yield f"{_percent(row['deviation'])} on {row['workers']} workers ({_parts(row)})"


def facts_of_differences(inputs: Inputs) -> Iterator[str]:
    """The key numbers of each pair of series at its most workers."""
    for _, table in inputs.overhead.differences.groupby(
        ["options", "native_knobs", "horovod_knobs"], sort=False
    ):
        row: Mapping[Any, Any] = table.iloc[-1].to_dict()
        whole = _percent(row["difference"])
        yield f"Horovod against native DDP {whole} on {row['workers']} workers ({_parts(row)})"


def _parts(row: Mapping[Any, Any]) -> str:
    named = [(look.name, row[part]) for part, look in PART_LOOKS.items() if abs(row[part]) >= LEAST_NAMED]
    return ", ".join(f"{name} {_percent(value)}" for name, value in named) or "every part below 0.1 %"


def _percent(share: float) -> str:
    return plain(100 * share, ".1f") + " %"
