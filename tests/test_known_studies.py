"""Lists over all studies of a folder: how far each is, where it ran, and what its report answers."""

import os
import re
from pathlib import Path

import pytest

import slurm.commands.status
from analysis.__main__ import main as report
from slurm.launch.study_folder import StudyFolder
from tests.honest import write_honest
from tests.records import make_study
from tests.reports import without_figures
from unet_scaling.base.errors import UserError
from unet_scaling.format.known_studies import age_of, known_studies
from unet_scaling.format.record import RECORD_NAME


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A finished study with a report, one that has only begun, and a folder that is none."""
    folder = tmp_path / "logs"
    folder.mkdir()
    write_honest(folder / "done")
    with without_figures():
        report([str(folder / "done")])
    StudyFolder(folder / "begun", make_study("begun", tmp_path)).prepare()
    (folder / "notes").mkdir()
    return folder


def test_all_studies_are_listed_with_their_answers(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["status", "--logs", str(logs)])
    slurm.commands.status.main()
    printed = capsys.readouterr().out
    done, begun = (
        next(line for line in printed.splitlines() if line.startswith(name)) for name in ("done", "begun")
    )
    assert re.search(r" (\d+)/\1 .* Use ", done)
    assert re.search(r" 0/\d+ .* no report", begun)
    assert "notes" not in printed


def test_one_page_leads_to_the_report_of_each(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["--index", str(logs)]) == 0
    assert f"index: {logs}/index.html" in capsys.readouterr().out
    page = (logs / "index.html").read_text()
    (link,) = re.findall(r'<th><a href="([^"]+)">done</a>', page)
    assert (logs / link).is_file()
    assert "<th>begun</th>" in page


def test_a_report_that_is_older_than_its_records_is_said_to_be(logs: Path) -> None:
    record = next((logs / "done").glob(f"*/{RECORD_NAME}"))
    newer = (logs / "done" / "report" / "summary.json").stat().st_mtime + 10
    os.utime(record, (newer, newer))
    assert [study.answer[:28] for study in known_studies(logs) if study.complete] == [
        "older than its records: Use "
    ]


def test_damaged_files_and_other_folders_are_told_in_a_line(logs: Path, tmp_path: Path) -> None:
    for path in (logs / "done").glob(f"*/{RECORD_NAME}"):
        path.write_bytes(b"\xff\n" * 9)
    (logs / "done" / "report" / "summary.json").write_text("[]")
    (study,) = [study for study in known_studies(logs) if study.folder.name == "done"]
    assert (study.complete, study.answer, study.ran_on) == (0, "", "")
    for folder in (tmp_path / "logs" / "notes", tmp_path / "missing"):
        with pytest.raises(UserError, match=re.escape(f"{folder} ")):
            known_studies(folder)


def test_ages_have_the_unit_that_reads_best() -> None:
    assert [age_of(seconds) for seconds in (-5, 90, 7200, 1e6)] == [
        "0 min ago",
        "2 min ago",
        "2 h ago",
        "12 days ago",
    ]
