"""The notebook: it holds no outputs, reads only the tables of a report, and runs from top to bottom."""

from pathlib import Path
from typing import Any

import pytest

from analysis.assembly.assemble import make_report
from analysis.read.load import load_study
from analysis.report.columns import table_files
from analysis.study import Study
from tests.honest import Honest, write_honest
from unet_scaling.study.config import PROJECT

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

NOTEBOOK = PROJECT / "analysis" / "explore.ipynb"


def read_notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def write_tables(study: Study, folder: Path) -> Path:
    folder.mkdir()
    for name, content in table_files(make_report(study)).items():
        (folder / name).write_bytes(content)
    return folder


def run_notebook(report: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Execute it on a folder that holds tables only; returns everything it shows as text."""
    monkeypatch.setenv("REPORT", str(report))
    notebook = read_notebook()
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={})
    client.execute(cwd=str(report))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    return "\n".join(str(output.get("text") or output["data"].get("text/plain", "")) for output in outputs)


@pytest.mark.slow
def test_it_runs_on_a_report_and_shows_every_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(write_honest(tmp_path / "study", Honest(workers=(1, 2), repeats=3)))
    shown = run_notebook(write_tables(study, tmp_path / "report"), monkeypatch)
    assert "12 runs, 4 points, 120 epochs" in shown
    throughput = study.runs.set_index(["framework", "workers", "repeat"])["images_per_second"]
    native, horovod = (throughput[name, 2, 3] for name in ("pytorch_native", "horovod"))
    assert f"{native / horovod:.3f}" in shown
