"""Columns of the page's tables on saliency maps."""

import pandas as pd

from analysis.report.assemble import Report
from analysis.report.page_columns import point_keys
from analysis.report.view import Column, integer_column, number_column, run_column, text_column

_BYTES_PER_MIB = 2**20
# Phases of making maps, the longest first.
_PHASES = ("forward", "masks", "weighting", "sum", "files", "other")


def of_saliency(report: Report) -> list[Column]:
    """Return how fast maps are made, and where the workers' time goes."""
    return [
        *point_keys(report),
        integer_column("repeats", "repeats"),
        text_column("split", "split"),
        integer_column("masks", "masks"),
        number_column("maps / s", "maps_per_second", "~3"),
        number_column("speed-up", "speedup", ".2f"),
        number_column("efficiency", "efficiency", ".1%"),
        *(number_column(phase, f"{phase}_share", ".0%", bounded=False) for phase in _PHASES),
        number_column("peak memory, MiB", "peak_bytes", ",.0f", scale=_BYTES_PER_MIB, bounded=False),
    ]


def each_training(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the first run of each set of weights: the others have the same maps."""
    return rows.drop_duplicates(["weights_sha256", "score"])


def of_faithfulness(_report: Report) -> list[Column]:
    """Return on how many images the maps of a run beat random order."""
    return [
        run_column("run", "run"),
        text_column("score", "score"),
        integer_column("images", "images"),
        number_column("deletion better than random", "deletion_share", ".0%"),
        number_column("insertion better than random", "insertion_share", ".0%"),
        integer_column("images with fresh weights", "untrained_maps"),
        number_column("deletion better, fresh weights", "untrained_share", ".0%"),
        number_column("rank correlation with fresh weights", "untrained_correlation", ".2f", bounded=False),
    ]
