"""The report for other programs and papers: JSON, LaTeX and BibTeX."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.report.assemble import Report, make_report
from analysis.report.citation import citation_bibtex
from analysis.report.latex import latex_escaped, summary_latex
from analysis.report.summary_json import summary_json
from analysis.report.tables import table_files
from analysis.study import NAMES
from tests.records import write_run
from tests.report_studies import write_study
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.study_file import OLDER_LOG_HEADER

HOSTILE = r"50 % & $x_1$ #2 {a} ~^\ [b] | <c>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Both frameworks on 1 and 2 workers, three times each."""
    return make_report(load_study(write_study(tmp_path_factory.mktemp("logs") / "full", (1, 2), 3)))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Logs in the older layout, one launch of each framework on 1 and 2 workers."""
    folder = tmp_path_factory.mktemp("older")
    for kind in ("", "hvd_"):
        for workers in (1, 2):
            seconds = 10 / workers
            rows = [f"{epoch},{seconds},0.5,0.001,{3 * seconds + 0.05},1.0,0.8" for epoch in range(3)]
            text = "\n".join([OLDER_LOG_HEADER, *rows]) + "\n"
            (folder / f"log_{kind}{workers}.csv").write_text(text)
    return make_report(load_reference(folder))


def read(report: Report) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    loaded: dict[str, Any] = json.loads(summary_json(report), parse_constant=refuse)
    return loaded


def rows_of(report: Report, file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(table_files(report)[file].decode().splitlines()))


def test_the_json_holds_the_numbers_of_the_tables(report: Report) -> None:
    found = read(report)
    for key, file in (("points", "summary.csv"), ("comparisons", "comparison.csv"), ("iou", "iou.csv")):
        rows = rows_of(report, file)
        assert len(found[key]) == len(rows) > 0
        for row, shown in zip(rows, found[key], strict=True):
            assert {name: as_text(value) for name, value in shown.items()} == {
                name: as_text(row[name]) for name in shown
            }


def as_text(value: object) -> str:
    """A cell as CSV or JSON have it, in one way."""
    if value in (None, ""):
        return ""
    try:
        return format(float(str(value)), ".9g")
    except ValueError:
        return str(value)


def test_the_json_holds_answers_verdicts_criteria_and_provenance(report: Report) -> None:
    found = read(report)
    (answer,) = report.answers
    assert found["schema_version"] == 1
    assert found["answers"][0]["headline"] == answer.headline
    assert [tile["title"] for tile in found["answers"][0]["tiles"]] == [tile.title for tile in answer.tiles]
    assert found["verdicts"][0]["sentence"] == report.verdicts[0].sentence
    assert found["recommendations"][0]["sentence"] == answer.headline
    assert found["criteria"] == {"iou_margin": 0.01, "efficiency_floor": 0.7, "target_iou": None}
    assert found["provenance"]["version of torch"] == ["2.13.0"]
    assert found["checks"] == [
        {name: row[name] for name in found["checks"][0]} for row in report.fairness.to_dict("records")
    ]


def test_what_is_not_known_is_null(older: Report) -> None:
    found = read(older)
    assert "NaN" not in summary_json(older)
    assert [point["images_per_second"] for point in found["points"]] == [None] * 4
    assert [point["speedup"] for point in found["points"]] == [1, 2, 1, 2]
    assert [point["speedup_low"] for point in found["points"]] == [None] * 4
    assert found["provenance"] == {}
    assert found["left_out"] == []


def test_every_key_of_the_json_is_documented(report: Report) -> None:
    page = (PROJECT / "docs" / "report.md").read_text()
    section = page[page.index("## `summary.json`") : page.index("## The tables")]
    cells = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    # Of a study with saliency maps only.
    assert set(read(report)) == documented - {"saliency"}


def test_the_json_is_the_same_for_the_same_runs(report: Report) -> None:
    assert summary_json(report) == summary_json(make_report(report.study))


def test_infinite_and_missing_numbers_become_null(report: Report) -> None:
    points = report.points.assign(speedup=np.inf, efficiency=-np.inf, deviation=np.nan)
    (first, *_) = read(replace(report, points=points))["points"]
    assert [first[name] for name in ("speedup", "efficiency", "deviation")] == [None, None, None]


def latex_rows(text: str) -> list[list[str]]:
    """The cells of the rows between \\midrule and \\bottomrule, at columns that are not escaped."""
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    lines = [line.strip() for line in body.splitlines() if line.strip() not in ("", r"\midrule")]
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in lines]


def unbalanced(text: str) -> list[str]:
    """What LaTeX would stumble over: braces that do not match, and characters that mean something."""
    bare = re.sub(r"\\[&%$#_{}\\]", "", text)
    environments = re.findall(r"\\(begin|end)\{(\w+)\}", bare)
    stack: list[str] = []
    for kind, name in environments:
        if kind == "begin":
            stack.append(name)
        elif not stack or stack.pop() != name:
            return [f"\\end{{{name}}}"]
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            return ["}"]
    content = "\n".join(line for line in bare.splitlines() if not line.startswith("%"))
    return [*stack, *(["{"] if depth else []), *re.findall(r"[$#_~^%]", content)]


def test_the_latex_table_has_one_row_per_point_with_its_intervals(report: Report) -> None:
    text = summary_latex(report)
    assert unbalanced(text) == []
    rows = latex_rows(text)
    assert len(rows) == len(report.points)
    assert {len(row) for row in rows} == {6}
    assert rows[0][:4] == ["native DDP", "1", "3", "1.00"]
    assert re.fullmatch(r"1\.\d\d \{\[\}1\.\d\d, \d\.\d\d\{\]\}", rows[1][3])
    assert re.fullmatch(r"\d+\.\d \\% \{\[\}\d+\.\d, \d+\.\d\{\]\}", rows[1][4])
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrrrr}"):
        assert text.count(rule) == 1


def test_what_means_something_to_latex_is_escaped(report: Report) -> None:
    names = dict(zip(FRAMEWORKS, (HOSTILE, "Horovod"), strict=True))
    study = replace(report.study, name=HOSTILE, names=names)
    text = summary_latex(replace(report, study=study, points=report.points.assign(options=HOSTILE)))
    assert unbalanced(text) == []
    assert latex_escaped(HOSTILE) in text
    assert r"50 \% \& \$x\_1\$ \#2 \textbraceleft{}a\textbraceright{}" in text
    assert r" \textasciitilde{}\textasciicircum{}\textbackslash{} " in text
    assert r"\label{tab:50-x-1-2-a-b-c}" in text
    assert text.count(r"\multicolumn{6}{l}{") == 1


def test_numbers_that_are_not_known_are_dashes_in_latex(tmp_path: Path) -> None:
    write_run(tmp_path / "s", workers=2, iou=None)
    rows = latex_rows(summary_latex(make_report(load_study(tmp_path / "s"))))
    assert rows == [["native DDP", "2", "1", "--", "--", "--"]]


def test_the_software_is_cited_as_citation_cff_says_with_the_commit_recorded(report: Report) -> None:
    text = citation_bibtex(report.study)
    assert text.count("@misc{") == 1
    assert "title = {{unet-scaling: native DDP and Horovod compared fairly}}" in text
    assert "author = {{The unet-scaling maintainers}}" in text
    assert "note = {Version 0.1.0, commit 0123456789, Apache-2.0}" in text
    assert unbalanced(text) == []


def test_the_published_study_is_cited_where_its_logs_are_redrawn(older: Report) -> None:
    text = citation_bibtex(older.study)
    assert re.findall(r"@misc\{([\w-]+),", text) == ["unet-scaling", "pytorch-unet-scaling"]
    assert "author = {{oekosheri}}" in text
    assert "url = {https://github.com/oekosheri/pytorch_unet_scaling}" in text
    assert "commit" not in text


def test_uncommitted_changes_are_part_of_the_citation(tmp_path: Path) -> None:
    write_run(tmp_path / "s", header={"dirty": True})
    assert "commit 0123456789 with uncommitted changes" in citation_bibtex(load_study(tmp_path / "s"))


def test_names_of_the_arms_are_those_that_a_user_gave(older: Report) -> None:
    names = {**NAMES, "pytorch_native": "MirroredStrategy"}
    study = replace(older.study, names=names)
    assert "MirroredStrategy" in summary_latex(replace(older, study=study))
