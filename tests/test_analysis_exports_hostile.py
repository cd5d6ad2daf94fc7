"""Exports of studies at the edge: hostile names, one point, no verdict, and no run at all."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.citation import citation_bibtex
from analysis.report.latex import latex_escaped, summary_latex
from analysis.text import repeats_text
from tests.records import Measured, make_epochs, make_point, write_run
from tests.report_studies import write_study
from tests.test_analysis_exports import as_text, latex_rows, read, rows_of, unbalanced
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

HOSTILE_NAME = r"*[a]_%&#$\{~^"
HOSTILE_VERSIONS = {"python": "3.11.2", "torch": "2.13.0", r"{_%&\}": 'NaN "$~^#'}


def hostile(folder: Path) -> None:
    for repeat in (1, 2, 3):
        header = {"commit": "{%$&#_~^", "versions": HOSTILE_VERSIONS}
        write_run(folder, repeat=repeat, header=header, iou=None if repeat == 1 else 0.8)
    write_run(folder, repeat=4, end=None)


def one_point(folder: Path) -> None:
    write_run(folder, workers=2, iou=None)


def undecided(folder: Path) -> None:
    write_study(folder, (1, 2), 3)


STUDIES = {"hostile": hostile, "one point": one_point, "undecided": undecided}


@pytest.fixture(scope="module", params=STUDIES)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    write: Callable[[Path], None] = STUDIES[request.param]
    folder = tmp_path_factory.mktemp("logs") / HOSTILE_NAME
    write(folder)
    return make_report(load_study(folder))


def test_the_json_is_strict_and_equals_the_csv(report: Report) -> None:
    found = read(report)
    assert found["study"] == HOSTILE_NAME
    for key, file in (("points", "summary.csv"), ("comparisons", "comparison.csv"), ("iou", "iou.csv")):
        of_csv = [{name: as_text(value) for name, value in row.items()} for row in rows_of(report, file)]
        shown = [{name: as_text(value) for name, value in row.items()} for row in found[key]]
        assert [{name: row[name] for name in each} for row, each in zip(of_csv, shown, strict=True)] == shown


def test_the_latex_table_is_balanced_and_has_the_numbers_of_the_csv(report: Report) -> None:
    text = summary_latex(report)
    assert unbalanced(text) == []
    assert latex_escaped(HOSTILE_NAME) in text
    workers = [row[1] for row in latex_rows(text)]
    assert workers == [row["workers"] for row in rows_of(report, "summary.csv")]
    speedups = [row[3].split(" ")[0] for row in latex_rows(text)]
    known = [row["speedup"] for row in rows_of(report, "summary.csv")]
    assert speedups == [format(float(each), ".2f") if each else "--" for each in known]
    assert "nan" not in text


def test_the_braces_of_bibtex_match_as_bibtex_counts_them(report: Report) -> None:
    text = citation_bibtex(report.study)
    depth = 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0


def test_a_row_of_latex_does_not_continue_the_command_that_ends_the_row_before() -> None:
    assert latex_escaped("*a [b]") == "{*}a {[}b{]}"


def test_a_study_of_impossible_epochs_has_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Epochs of a microsecond: every run contradicts itself."""
    for repeat in (1, 2, 3):
        epochs = make_epochs(make_point(repeat=repeat), 48e6, 48)
        write_run(tmp_path / "s", repeat=repeat, measured=Measured(epochs))
    with pytest.raises(UserError, match="has no usable run") as error:
        main([str(tmp_path / "s")])
    assert error.value.exit_code == EXIT_BAD_DATA
    assert "48 images, 6 steps in 4e-06 s cannot be" in capsys.readouterr().out
    assert not (tmp_path / "s" / "report").exists()


def test_no_point_has_no_repeats() -> None:
    assert repeats_text(pd.Series([5]).iloc[:0]) == "none"
