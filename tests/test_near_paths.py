"""A wrong level of folder, a study file or a slip in a name, for a study or a run: what is meant is named."""

from pathlib import Path

import pytest

import slurm.commands.cancel
import slurm.commands.segment
import slurm.commands.status
from analysis.__main__ import main as report
from slurm.launch.study_folder import StudyFolder
from tests.records import make_study
from unet_scaling.base.errors import UserError
from unet_scaling.inference import serve

# Command, what it is given, what it says. S: the study logs/tiles_a; R: its first run.
CASES = [
    (command, given, said)
    for command in ("status", "cancel", "report", "compare")
    for given, said in (
        ("logs/tiles_b", "did you mean S?"),
        ("logs/none_like_it", "studies there: tiles_a"),
        ("logs", "holds several studies; give one of them: tiles_a"),
        ("R", "is one run; give its study, S"),
        ("S/report", "is a folder inside a study; give the study, S"),
        ("R/config.json", "is a file inside a study; give the study, S"),
        ("logs/kept.tar.xz", "tar -xf logs/kept.tar.xz -C logs, then give logs/kept"),
        ("logs/kept", "tar -xf logs/kept.tar.xz -C logs, then give logs/kept"),
        ("logs/empty", "has no run folders"),
        ("models", "has no run folders"),
    )
] + [
    ("status", "tiles_a.toml", "did you mean S?"),
    ("status", "new.toml", "run new.toml begins them"),
    ("cancel", "tiles_a.toml", "did you mean S?"),
    ("cancel", "new.toml", "without runs in logs; there is nothing to cancel"),
    ("cancel", "logs/empty", "has no run folders; there is nothing to cancel"),
    ("cancel", "nowhere/nothing", "is no folder of a study; there is nothing to cancel"),
    ("report", "new.toml", "run new.toml begins them"),
    ("report", "models/bert", "has no run folders"),
    ("segment", "S", "is a study; give one of its runs, such as R"),
    ("segment", "S/horovod-w1-r1", "did you mean horovod-w01-r1?"),
    ("segment", "S/x", "is no run of S; its runs: horovod-w01-r1, "),
    ("segment", "R/config.json", "is a file of a run; give the run, R"),
    ("segment", "logs", "is no run; give the folder of a complete one"),
    ("segment", "models/bert", "config.json is no run's: it has no study, run and framework"),
    ("serve", "models/bert", "config.json is no run's: it has no study, run and framework"),
    ("serve", "S", "is a study; give one of its runs, such as R"),
    ("serve", "none", "is no run; give the folder of a complete one"),
]  # fmt: skip


def call(command: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a command in this process."""
    further = {
        "status": ["--logs", "logs"],
        "cancel": ["--logs", "logs"],
        "segment": ["images", "--output", "masks"],
        "compare": ["logs/tiles_a"],
    }
    words = [given, *further.get(command, [])]
    if command in ("report", "compare"):
        report(["compare", *words] if command == "compare" else words)
        return
    module = {"status": slurm.commands.status, "cancel": slurm.commands.cancel, "serve": serve}.get(
        command, slurm.commands.segment
    )
    monkeypatch.setattr("sys.argv", [command, *words])
    module.main()


@pytest.mark.parametrize(("command", "given", "said"), CASES)
def test_what_is_meant_is_named(
    command: str, given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = Path("logs", "tiles_a")
    StudyFolder(study, make_study("tiles_a", tmp_path)).prepare()
    for folder in (study / "report", Path("logs", "empty"), Path("images"), Path("models", "bert")):
        folder.mkdir(parents=True)
    Path("models", "bert", "config.json").write_text('{"architectures": ["BertModel"]}')
    for name in ("tiles_a.toml", "new.toml", "logs/kept.tar.xz"):
        Path(name).touch()

    def path(text: str) -> str:
        run = f"{study}/horovod-w01-r1"
        return text.replace("S", f"{study}").replace("R", run) if text[:1] in "SR" else text

    with pytest.raises(UserError) as error:
        call(command, path(given), monkeypatch)
    told = str(error.value)
    assert said.replace(" S", f" {study}").replace(" R", f" {study}/horovod-w01-r1") in told, told
    assert path(given).removesuffix(".tar.xz") in told
    assert "\n" not in told
