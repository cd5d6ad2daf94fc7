"""Read a study, predict it and print what was written: what the command line asks for, once understood."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.loading.load import load_study
from analysis.loading.prediction_files import (
    PREDICTIONS_FOLDER,
    Estimate,
    PredictionFile,
    write_prediction,
)
from analysis.prediction.forecast import predict_study
from analysis.study import NAMES
from analysis.text import count
from unet_scaling.study.errors import EXIT_OK, UserError


def write_forecast(folder: Path, workers: Sequence[int], output: Path | None) -> int:
    """Predict these worker counts from the records in a folder, write the file and print it."""
    prediction = predict_study(folder, load_study(folder), workers)
    target = output or folder / PREDICTIONS_FOLDER
    try:
        path = write_prediction(target, prediction)
    except OSError as error:
        raise UserError(f"the prediction cannot be written to {target}: {error}; try --output") from None
    print(*_lines(prediction), f"\nwritten: {path}", sep="\n")
    return EXIT_OK


def _lines(prediction: PredictionFile) -> Iterator[str]:
    for point in prediction.points:
        name = ", ".join(filter(None, (NAMES[point.framework], point.options, point.knobs)))
        yield f"{name} on {count(point.workers, 'worker')}, from {', '.join(map(str, point.fitted_on))}:"
        yield f"  step time   {_with_ends(point.step_seconds)} s"
        yield f"  throughput  {_with_ends(point.throughput)} {prediction.unit}"
        yield from (f"  {remark}" for remark in point.remarks)


def _with_ends(estimate: Estimate) -> str:
    """Return "1.87 [1.83, 1.91]" with four significant digits of each; no interval says so."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.median:.4g} (no interval)"
    return f"{estimate.median:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"
