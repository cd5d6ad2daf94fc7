"""The committed records of 1 to 14 emulated workers, held against docs/{emulation,dilation,prediction}.md."""

import pandas as pd
import pytest

from analysis.loading.load import load_study
from analysis.prediction.scoring import score_notes, score_table
from analysis.report.assemble import Report, make_report
from tests.committed import assert_page_tells_predictions
from tests.evidence import evidence
from unet_scaling.study.config import PROJECT

EMULATED = evidence("emulated_scaling")


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(load_study(EMULATED))


def page(name: str) -> str:
    return (PROJECT / "docs" / f"{name}.md").read_text()


def efficiencies(row: "pd.Series[float]") -> str:
    return f"{row['efficiency']:.2f} [{row['efficiency_low']:.2f}, {row['efficiency_high']:.2f}]"


def test_the_table_of_the_curve_is_that_of_the_records(report: Report) -> None:
    assert (len(report.study.runs), len(report.study.left_out)) == (30, 0)
    for workers, points in report.points.groupby("workers"):
        native, horovod = (
            points[points["framework"] == name].iloc[0] for name in ("pytorch_native", "horovod")
        )
        cells = [
            cell
            for point in (native, horovod)
            for cell in (
                f"{point['images_per_second']:.0f}",
                efficiencies(point) if workers != 1 else "1.00",
            )
        ]
        assert f"| {workers} | {' | '.join(cells)} |" in page("emulation")


def test_predictions_were_written_before_the_runs_and_their_intervals_hold(report: Report) -> None:
    assert_page_tells_predictions(report.study, page("prediction"), counted=4, digits=0)
    scores = score_table(report.study)
    assert "8.5 % without the sign" in "\n".join(score_notes(scores))
