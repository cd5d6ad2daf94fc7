"""Wrong inputs of a first hour: one line names the cause, and the cure that it names works when followed."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from slurm.commands import check
from slurm.launch.study_folder import StudyFolder
from tests.data_folders import Array
from tests.records import make_study, write_run
from tests.studies import CPU_SITE, OWN_STUDY, TINY_STUDY, make_images
from tests.tasks import POINTS
from unet_scaling import subcommands
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, run_program
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.verify_task import task_facts_of

CHECK = "check study.toml --only-files"
OF_FILE = {
    "study.toml": CHECK,
    "site.toml": f"{CHECK} --cluster site.toml",
    "own.toml": "check own.toml --only-files",
    "my_task.py": "check own.toml --only-files",
}
CORES = 2


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that commands need, with nothing wrong in it."""
    folder = tmp_path_factory.mktemp("sound")
    make_images(folder / "tiles", 24)
    texts = {
        "study.toml": 'frameworks = ["pytorch_native", "horovod"]'
        + TINY_STUDY.format(data="GROUND/tiles", workers=[1, 2], epochs=2),
        "site.toml": CPU_SITE,
        "own.toml": OWN_STUDY.format(task="my_task.py") + "options = { width = 4 }\n",
        "my_task.py": POINTS,
        "table.csv": "workers,seconds\n1,10\n2,6\n4,3\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    StudyFolder(folder / "logs" / "open", make_study("open", folder)).prepare()
    for workers in (1, 2, 4):
        write_run(folder / "logs" / "done", workers=workers, images_per_second=90.0 * workers)
    return folder


@pytest.fixture
def ground(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in which commands are called, on a machine of two cores without Slurm."""
    folder = tmp_path / "ground"
    shutil.copytree(sound, folder)
    replace(folder / "study.toml", "GROUND", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))

    def verify(config: RunConfig) -> tuple[int, int]:
        task_facts_of(config, "")
        return 48, 13

    monkeypatch.setattr(check, "verify_in_processes", verify)
    return folder


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


@dataclass(frozen=True)
class Called:
    """A command in this process, and how it ended."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, command: str) -> tuple[int, str]:
        """Return its exit code, and its standard error."""
        self.monkeypatch.setattr(sys, "argv", ["unet-scaling", *shlex.split(command)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            run_program(subcommands.main)
        return int(left.value.code or 0), self.capsys.readouterr().err

    def refuses(self, command: str, said: str) -> None:
        code, errors = self(command)
        assert code in (EXIT_USAGE, EXIT_BAD_DATA), errors
        lines = errors.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[:1]
        assert said.replace("GROUND", str(Path.cwd())) in errors, errors

    def accepts(self, command: str) -> None:
        code, errors = self(command)
        assert code == 0, errors


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    return Called(monkeypatch, capsys)


# By a file and what stands in it: what is written instead, what is said of that, and what then works
# ("": what was there before).
EDITS: dict[tuple[str, str], list[tuple[str, str, str]]] = {
    ("study.toml", "epochs = 2"): [
        ("num_epochs = 2", "num_epochs: unknown key; did you mean epochs?", ""),
        ("epochs = 2\nlr = 0.1", "did you mean learning_rate?", "epochs = 2\nlearning_rate = 0.1"),
        ('epochs = 2\nlearning_rate = "1e-3"', "found '1e-3'; write 1e-3;",
         "epochs = 2\nlearning_rate = 1e-3"),
        ('epochs = "2"', "training.epochs: found '2'; write 2;", ""),
        ("epochs = 2.5", "found 2.5; allowed: an integer", ""),
        ('epochs = 2\nprecision = "bfloat16"', "did you mean bf16?", 'epochs = 2\nprecision = "bf16"'),
        ('epochs = 2\nprecision = "float32"', "did you mean fp32?", 'epochs = 2\nprecision = "fp32"'),
        ('epochs = 2\noptimizer = "sgd"', "trained by Adam; a task of your own", ""),
        ("epochs = 2\ncompile = True", "true and false in lower case", "epochs = 2\ncompile = true"),
        ("epochs = 2\nschedule = constant", "texts stand in quotes", 'epochs = 2\nschedule = "constant"'),
        ("epochs = 2\nepochs = 3", "the key is there twice", "epochs = 3"),
        ("epochs: 2", "write key = value", ""),
        ('epochs = 2\ntimeout_seconds = "2h"', "timeout_seconds: found '2h'; allowed: an integer",
         "epochs = 2\ntimeout_seconds = 7200"),
    ],
    ("study.toml", "batch_per_worker = 2"): [
        ("batch_size = 2", "did you mean batch_per_worker?", ""),
        ("batch = 2", "did you mean batch_per_worker?", ""),
        ("batch_per_worker = 1000", "training.batch_per_worker of at most 9", "batch_per_worker = 9"),
    ],
    ("study.toml", '"horovod"]'): [
        ('"Horovod"]', "did you mean horovod?", ""),
        ('"horovod"', "close it with ]", ""),
    ],
    ("study.toml", '"pytorch_native", '): [
        ('"DDP", ', "did you mean pytorch_native?", ""),
    ],
    ("study.toml", 'frameworks = ["pytorch_native", "horovod"]'): [
        ('frameworks = "horovod"', 'write ["horovod"]', 'frameworks = ["horovod"]'),
    ],
    ("study.toml", "workers = [1, 2]"): [
        ("workers = 2", "workers: found 2; write [2]", "workers = [2]"),
        ('workers = ["1", 2]', "workers[0]: found '1'; write 1;", ""),
        ('workers = "1,2"', "found '1,2'; write [1, 2];", ""),
        ('workers = ","', "workers: found ','; allowed: a list of integers", ""),
    ],
    ("study.toml", "repeats = 1"): [
        ("repeats = 0", "repeats: found 0; allowed: a number such as 5", "repeats = 5"),
    ],
    ("study.toml", "image_height = 32"): [
        ("image_height = 32\nchannels = 4", "found 4; allowed: 1 or 3", "image_height = 32\nchannels = 3"),
        ("image_height = 32\ntest_share = 20", "less than 1", "image_height = 32\ntest_share = 0.2"),
    ],
    ("study.toml", 'foreground = "255"'): [
        ("foreground = 255", 'write "255"', ""),
    ],
    ("study.toml", "/tiles"): [
        ("/tile", "which does not exist; did you mean GROUND/tiles?", ""),
    ],
    ("study.toml", "[training]"): [
        ("[trainning]", "did you mean training?", ""),
    ],
    ("study.toml", "[data]"): [
        ("[data", "write [table]", ""),
    ],
    ("study.toml", "[model]"): [
        ("[pytorch]\nbucket_cap_mb = 5\n[model]", "did you mean pytorch_native?",
         "[pytorch_native]\nbucket_cap_mb = 5\n[model]"),
        ("[horovod]\ncycle_time = 5\n[model]", "did you mean cycle_time_ms?",
         "[horovod]\ncycle_time_ms = 5\n[model]"),
    ],
    ("site.toml", '"01:00:00"'): [
        ('"12h"', 'such as "30" minutes, "02:00:00"', '"12:00:00"'),
        ("120", 'such as "30" minutes', '"120"'),
    ],
    ("site.toml", "time ="): [
        ("walltime =", "did you mean time?", ""),
    ],
    ("site.toml", '"srun"'): [
        ('"mpirun"', "did you mean mpiexec?", '"mpiexec"'),
    ],
    ("site.toml", "gpus_per_node = 4"): [
        ("gpus = 4", "did you mean gpus_per_node?", ""),
        ('gpus_per_node = "4"', "found '4'; write 4;", ""),
    ],
    ("site.toml", 'gres = ""'): [
        ('gres = ""\nqueue = "gpu"', "did you mean partition?", 'gres = ""\npartition = "gpu"'),
        ('gres = ""\npartitions = "gpu"', "did you mean partition?", 'gres = ""\npartition = "gpu"'),
        ('gres = ""\nqos = "long"', "did you mean options?", 'gres = ""\noptions = ["--qos=long"]'),
        ('gres = ""\noptions = "--exclusive"', 'write ["--exclusive"]',
         'gres = ""\noptions = ["--exclusive"]'),
    ],
    ("own.toml", "my_task.py"): [
        ("my_tsk.py", "did you mean GROUND/my_task.py?", ""),
    ],
    ("own.toml", "width = 4"): [
        ("wdth = 4", "has no width; it has wdth: write width there", ""),
    ],
    ("own.toml", "batch_per_worker = 2"): [
        ("batch_per_worker = 100", "training.batch_per_worker of at most 48", "batch_per_worker = 48"),
    ],
    ("my_task.py", "def datasets"): [
        ("def dataset", "defines no function datasets; did you mean dataset?", ""),
    ],
    ("my_task.py", "batch[1])"): [
        ("batch[1], reduction='none')", "gives [4], not a scalar; return the mean",
         "batch[1], reduction='none').mean()"),
    ],
    ("my_task.py", "torch.stack([right.sum(), torch.tensor(len(right))])"): [
        ("right.float().mean()", "a tensor of int64 [k] is needed", ""),
    ],
    ("my_task.py", "nn.Linear(width, 2)"): [
        ("nn.Linear(7, 2)", "in head, Linear(in_features=7,", ""),
    ],
    ("my_task.py", '"accuracy"'): [
        ('"Accuracy"', "names are of lower-case letters", ""),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "right", "wrong", "said", "cured"),
    [(*place, *case) for place, cases in EDITS.items() for case in cases],
    ids=[case[0].split("\n")[-1] for cases in EDITS.values() for case in cases],
)
def test_a_wrong_file_is_mended_as_it_is_said(
    file: str, right: str, wrong: str, said: str, cured: str, ground: Path, called: Called
) -> None:
    replace(ground / file, right, wrong)
    called.refuses(OF_FILE[file], said)
    replace(ground / file, wrong, cured or right)
    called.accepts(OF_FILE[file])


DRY = "run study.toml --dry-run --logs logs"
SUBMIT = "submit study.toml --cluster site.toml --dry-run --logs logs"
NEW = "new mine --no-probe"
# What is called, what is said of that, and what is called then.
COMMANDS = [
    ("stauts done --logs logs", "did you mean status?", "status done --logs logs"),
    ("help", "did you mean --help?", "--help"),
    ("study.toml", "did you mean unet-scaling run study.toml", DRY),
    ("run study.toml --dryrun", "did you mean --dry-run?", DRY),
    ("run logs/done", "is where the study's runs are; name its file, done.toml", DRY),
    ("report --index logs --output page", "--output: not with --index", "report --index logs"),
    (f"{DRY} --repeat 3", "unrecognized arguments: --repeat 3", f"{DRY} --set repeats=3"),
    (f"{CHECK} --set training.epochs", "is not TABLE.KEY=VALUE", f"{CHECK} --set training.epochs=3"),
    (f"{CHECK} --set epochs=3", "did you mean training.epochs?", f"{CHECK} --set training.epochs=3"),
    (f"{CHECK} --set repeats=1,workers=2", "repeat the option for each key",
     f"{CHECK} --set repeats=1 --set workers=[2]"),
    (f"{CHECK} --set repeats=1 --set repeats=2", "repeats is given twice", f"{CHECK} --set repeats=2"),
    (f"{CHECK} --set frameworks=[horovod]", """a shell takes quotes away: 'frameworks=["horovod"]'""",
     f"""{CHECK} --set 'frameworks=["horovod"]'"""),
    ("check stdy.toml --only-files", "did you mean study.toml?", CHECK),
    ("check site.toml --only-files", "is a cluster file, which --cluster names",
     f"{CHECK} --cluster site.toml"),
    (f"{CHECK} --cluster study.toml", "is a study file; --cluster names a cluster file",
     f"{CHECK} --cluster site.toml"),
    (f"{DRY} --set workers=[1,64]", "the largest worker count here is 2", f"{DRY} --set workers=[1,2]"),
    (f"{DRY} --set training.cores_per_worker=4", "cores_per_worker of at most 1",
     f"{DRY} --set training.cores_per_worker=1"),
    (f"{DRY} --name a/b", "letters, digits and . _ + = -", f"{DRY} --name a_b"),
    ("run study.toml --more-repeats x", "a number of at least 1", DRY),
    ("run study.toml --more-repeats 2 --logs logs", "the same command without --more-repeats", DRY),
    (f"{SUBMIT} --budget 1h", "a number of node-hours above 0", f"{SUBMIT} --budget 40"),
    ("submit study.toml --dry-run", "required: --cluster", SUBMIT),
    ("predict logs/done --for 0 --output out", "different numbers of at least 1",
     "predict logs/done --for 8 --output out"),
    ("predict logs/done --for 2 --output out", "name counts that are not measured yet",
     "predict logs/done --for 8 --output out"),
    ("report logs/dine --output out", "did you mean logs/done?", "report logs/done --output out"),
    ("explain training.epoch", "did you mean training.epochs?", "explain training.epochs"),
    ("completion fish", "choose from 'bash', 'zsh'", "completion zsh"),
    ("data check tile", "did you mean tiles?", "data check tiles"),
    ("data check tiles/images", "did you mean tiles?", "data check tiles"),
    ("data check tiles --names '*_image:*_mask'", "pairs no image with a mask",
     "data check tiles --names '*:*'"),
    ("data check tiles --foreground 1", "use --foreground 'nonzero'",
     "data check tiles --foreground nonzero"),
    ("data check tiles --foreground white", "a threshold such as '>127'",
     "data check tiles --foreground '>127'"),
    ("data make made --count 0", "a number of at least 1", "data make made --count 1 --height 32 --width 32"),
    (NEW, "name the folder that holds images/ and masks/", f"{NEW} --data tiles"),
    (f"{NEW} --data tile", "did you mean tiles?", f"{NEW} --data tiles"),
    (f"{NEW} --data tiles --workers 1;2", "such as 1,2,8", f"{NEW} --data tiles --workers 1,2"),
    (f"{NEW} --data tiles --into nowhere", "--into names another folder", f"{NEW} --data tiles --into logs"),
    (f"{NEW} --task my_tsk.py --option width=4", "did you mean my_task.py?",
     f"{NEW} --task my_task.py --option width=4"),
    ("new a/b --no-probe --data tiles", "--into names another folder", f"{NEW} --data tiles --into logs"),
    ("new mine.toml --no-probe --data tiles", "without .toml: mine", f"{NEW} --data tiles"),
    ("new study --no-probe --data tiles", "choose another name", f"{NEW} --data tiles"),
    ("segment logs/open/horovod-w01-r1 tiles --output out", "status logs/open says how it goes on",
     "status logs/open"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "said", "cured"), COMMANDS, ids=[each[0] for each in COMMANDS])
def test_a_wrong_command_is_called_as_it_is_said(
    wrong: str, said: str, cured: str, ground: Path, called: Called
) -> None:
    called.refuses(wrong.replace(";", r"\;"), said)
    called.accepts(cured)


def test_a_folder_of_others_configurations_is_no_study(ground: Path, called: Called) -> None:
    (ground / "models" / "first").mkdir(parents=True)
    (ground / "models" / "first" / "config.json").write_text("{}")
    called.refuses("run models", "models is a folder; name a TOML file in it: none")


def grey(height: int = 32, width: int = 32, value: float = 90, dtype: type = np.uint8) -> Array:
    return np.full((height, width), value, dtype)


def saved(name: str, pixels: Array) -> Callable[[Path], None]:
    """Put pixels in place of the first image or mask, whatever its kind."""

    def save(folder: Path) -> None:
        for path in (folder / name).parent.glob("000.*"):
            path.unlink()
        if name.endswith(".tif"):
            tifffile.imwrite(folder / name, pixels, photometric="minisblack")
        else:
            Image.fromarray(pixels).save(folder / name)

    return save


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


MASK = np.pad(grey(16, 16, 255), 8)
# What is done to a folder of images, what is said, and what is done then.
IMAGES: dict[str, tuple[Callable[[Path], object], str, Callable[[Path], object]]] = {
    "mask of another size": (
        saved("masks/000.png", grey(16, 16, 255)), "has 16 x 16 pixels, its image 32 x 32; export",
        saved("masks/000.png", MASK),
    ),
    "mask in colours": (
        saved("masks/000.png", np.stack([MASK] * 2 + [MASK * 0], axis=2)), "save the mask as grey",
        saved("masks/000.png", MASK),
    ),
    "mask of floats": (
        saved("masks/000.tif", grey(value=0.5, dtype=np.float32)), "mask values are whole numbers",
        saved("masks/000.tif", MASK),
    ),
    "alpha": (
        saved("images/000.png", np.full((32, 32, 4), 100, np.uint8)), "save it as grey or RGB without alpha",
        saved("images/000.png", np.full((32, 32, 3), 100, np.uint8)),
    ),
    "pages": (
        saved("images/000.tif", np.zeros((3, 32, 32), np.uint8)), "save the one that you mean as a file",
        saved("images/000.tif", grey()),
    ),
    "no mask": (
        removed("masks/000.png"), "images/000.png: has no mask; add it, or keep this file elsewhere",
        removed("images/000.png"),
    ),
    "foreign file": (
        lambda folder: (folder / "images" / "notes.txt").touch(), "convert it, or keep it elsewhere",
        removed("images/notes.txt"),
    ),
    "cut off": (
        lambda folder: os.truncate(folder / "images" / "000.png", 200), "copy or export it again",
        saved("images/000.png", grey()),
    ),
    "empty": (
        emptied, "holds images/ and masks/", lambda folder: make_images(folder, 24),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_wrong_images_are_mended_as_it_is_said(name: str, ground: Path, called: Called) -> None:
    spoil, said, mend = IMAGES[name]
    spoil(ground / "tiles")
    called.refuses("data check tiles", said)
    mend(ground / "tiles")
    called.accepts("data check tiles --foreground 255")
    called.accepts(CHECK)


def test_float_images_are_taken_with_the_option_that_is_named(ground: Path, called: Called) -> None:
    saved("images/000.tif", grey(value=0.5, dtype=np.float32))(ground / "tiles")
    called.refuses(CHECK, "run ")
    called.accepts("data check tiles --foreground 255")
    called.refuses(CHECK, "data.intensity")
    called.accepts(f"{CHECK} --set data.intensity=image")


# A table, what is said of it, options that help, and the table that is right.
TABLES = [
    ("workers:seconds\n1:10\n2:6\n", "separate them by , ; tab or |", "", "workers;seconds\n1;10\n2;6\n"),
    ("nodes,seconds\n1,10\n2,6\n", "--column workers=NAME", "--column workers=nodes", ""),
    ("workers,cost\n1,10\n2,6\n", "--column seconds=NAME", "--column seconds=cost", ""),
    ("workers,seconds\n1,ten\n", "csv:2: seconds is 'ten'; a number", "", "workers,seconds\n1,10\n2,6\n"),
    ("", "a header and at least one row are needed", "", "workers,seconds\n1,10\n2,6\n"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "said", "options", "cured"), TABLES, ids=[each[0][:16] for each in TABLES])
def test_a_wrong_table_is_read_as_it_is_said(
    wrong: str, said: str, options: str, cured: str, ground: Path, called: Called
) -> None:
    (ground / "table.csv").write_text(wrong)
    called.refuses("report --csv table.csv --output out", said)
    (ground / "table.csv").write_text(cured or wrong)
    called.accepts(f"report --csv table.csv --output out {options}")


def test_blanks_and_umlauts_in_paths_are_taken(ground: Path, called: Called) -> None:
    place = ground / "Bilder für Prüfung"
    (ground / "tiles").rename(place)
    called.accepts(f"data check '{place.name}' --foreground 255")
    called.accepts(f"new eigene --no-probe --data '{place}' --workers 1")
    called.accepts("check eigene.toml --only-files")


def test_another_study_in_a_folder_is_refused_and_another_name_is_the_cure(
    ground: Path, called: Called
) -> None:
    called.refuses("run study.toml --dry-run --logs logs --name done", "another name")
    called.accepts(f"{DRY} --name done_too")


def test_a_study_that_the_report_names_is_found_from_any_folder(ground: Path, called: Called) -> None:
    supplied = os.path.relpath(PROJECT / "slurm" / "studies" / "why_work.toml", ground)
    called.refuses("check why_work.toml --only-files", f"did you mean {supplied}?")
