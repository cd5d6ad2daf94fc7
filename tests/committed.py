"""What tests of committed records have in common: their launches, and predictions held against a page."""

from pathlib import Path

from analysis.loading.fidelity import infidelity
from analysis.prediction.scoring import score_table
from analysis.study import Study
from unet_scaling.study.record import Record, read_record

LAUNCHES = 3


def faithful_launches(study: Path, framework: str, workers: int) -> list[Record]:
    """Return the records of a point; each is complete, and was slowed as it should be."""
    found = [read_record(path) for path in study.glob(f"{framework}-w{workers:02d}-*/run.jsonl")]
    assert len(found) == LAUNCHES
    for record in found:
        assert record.complete
        assert not infidelity(record)
    return found


def assert_page_tells_predictions(study: Study, page: str, counted: int, digits: int) -> None:
    """See that so many intervals hold, and that the page has each prediction with so many digits."""
    scores = score_table(study)
    fair = scores[scores["counted"]]
    assert list(fair["inside"]) == ["yes"] * counted
    for row in fair.to_dict("records"):
        predicted, low, high, measured = (
            f"{row[name]:.{digits}f}" for name in ("predicted", "predicted_low", "predicted_high", "measured")
        )
        cells = f"{predicted} [{low}, {high}] | {measured} | {row['error']:+.1%} |".replace("%", " %")
        assert f"on {row['workers']} | {cells}" in page
