"""The pages are true: the diff, links, commands and what they print, and the example reports."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.assembly.assemble import make_report
from analysis.read.load import load_study
from slurm.cluster import Cluster
from slurm.commands import run as run_command
from slurm.commands import submit as submit_command
from slurm.virtual import plan as virtual
from tests.evidence import evidence
from tests.readme import PART, README, twins_diff, with_diffs
from tests.studies import make_images, tiny_study
from unet_scaling.study.config import PROJECT
from unet_scaling.study.options import Data
from unet_scaling.subcommands import module_of

TEXT = README.read_text()
PAGES = [
    README,
    *(PROJECT / name / "README.md" for name in ("logs", "benchmarks")),
    *sorted((PROJECT / "docs").rglob("*.md")),
]
EXAMPLES = PROJECT / "docs" / "examples"
# Above this a clone is slow and a browser, too.
MOST_EXAMPLE_BYTES = 500_000
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAM = re.compile(
    r"(\$ )?(?:\.venv/bin/|sudo |eval |python3? |slurm/\w|environment/\w|make |cp |curl |torchrun )"
)
# In the text of a page, within backticks; a command without options is only named.
INLINE = re.compile(
    r"`((?:\.venv/bin/unet-scaling|sudo|slurm/virtual_cluster|environment/install\.sh) [^`\n]+)`"
)
CLI = ".venv/bin/unet-scaling"
# The commands of pages that are not run here, by how they begin, and why not, or which test runs such.
NOT_RUN: Mapping[str, str] = {
    "make ": "test_demo.py, test_make_gpu.py and CI: it installs",
    "environment/install.sh": "test_environment.py and CI: it installs",
    ".venv/bin/python environment/check.py": "CI: of a clone's own .venv",
    ".venv/bin/python -m unet_scaling.data make": "test_data_fetch.py: hundreds of images",
    "python3 -m benchmarks.gpu": "test_make_gpu.py: 8 minutes on a GPU",
    f"{CLI} check": "test_command.py: it starts workers",
    f"{CLI} run": "test_local.py: it trains",
    f"{CLI} report logs/": "test_report.py: of runs that are not made here",
    f"{CLI} segment": "test_segment.py: needs a run",
    f"{CLI} serve": "test_serving.py: needs a run",
    f"{CLI} profile": "test_profile.py: needs a study of one's own",
    f"{CLI} doctor": "test_cluster_doctor.py, test_doctor.py: needs workers and Slurm",
    f"{CLI} submit": "test_cluster.py: needs Slurm",
    f"{CLI} status": "test_command.py: needs runs; --watch stays until they are over",
    f"{CLI} cancel": "test_cluster.py: needs Slurm",
    f"{CLI} new m": "test_new.py: needs images or a task of one's own",
    f"{CLI} data check": "test_data_folder.py: needs images of one's own",
    "slurm/virtual_cluster ": "test_virtual_cluster.py: needs root",
    "sudo ": "test_virtual_cluster.py: needs root",
    "eval ": "test_virtual_cluster.py: needs its cluster",
    "cp ": "whoever reads the page",
    "curl ": "test_serving.py: needs the server",
    "torchrun ": "test_recorder.py: needs a script of one's own",
}


def commands(page: Path) -> list[str]:
    """Return the commands of a page's blocks, without the comments behind them."""
    lines = [line for _, block in FENCED.findall(page.read_text()) for line in block.splitlines()]
    return [re.sub(r"\s+# .*", "", line.removeprefix("$ ")) for line in lines if PROGRAM.match(line)]


def reason_not_to_run(command: str) -> str:
    """Return why a command of a page is not run here; a dry run starts nothing, and records need no runs."""
    if command.endswith("--dry-run") or command.startswith(f"{CLI} report logs/evidence/"):
        return ""
    return elsewhere(command)


def elsewhere(command: str) -> str:
    """Return which test runs a command like this one, or why none does."""
    return next((reason for begin, reason in NOT_RUN.items() if command.startswith(begin)), "")


GPU_SITE = PROJECT / "docs" / "gpu_site.md"
MY_REPORT = PROJECT / "docs" / "my_report_says.md"
SITE: Mapping[str, Any] = {"launcher": "srun", "gpus_per_node": 4, "cores_per_worker": 1, "time": "30"}
MOST_WORDS_OF_GPU_SITE = 650


def test_keys_and_commands_of_the_page_for_gpu_sites_are_taken() -> None:
    text = GPU_SITE.read_text()
    assert len(text.split()) <= MOST_WORDS_OF_GPU_SITE
    keys = [tomllib.loads(code) for code in re.findall(r"`([a-z_]+ = [^`]+)`", text)]
    assert len(keys) >= 8
    for key in keys:
        Cluster.model_validate(dict(SITE) | key)
    (table,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    data = tomllib.loads(table)["data"]
    Data.model_validate(data | {"image_height": 1, "image_width": 1, "loading": "decode"})
    for option in ("--gpus-per-task", "--gpu-bind"):
        with pytest.raises(ValueError, match="hides GPUs"):
            Cluster.model_validate(dict(SITE) | {"options": [f"{option}=1"]})
    words = [shlex.split(command)[1:] for command in commands(GPU_SITE) if command.startswith(CLI)]
    assert [line[0] for line in words] == ["doctor", "submit", "submit"]
    for name, *options in words:
        importlib.import_module(f"slurm.commands.{name}").command_line().parse_args(options)


def test_check_and_a_dry_run_for_a_gpu_site_with_a_container_need_no_torch_here(tmp_path: Path) -> None:
    for name in ("torch", "horovod", "mpi4py"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    site = tmp_path / "site.toml"
    image = tmp_path / "torch.sif"
    image.write_text("")
    shipped = (PROJECT / "slurm" / "clusters" / "gpu_site.toml").read_text()
    site.write_text(f'container = "{image}"\n{shipped}')
    make_images(tmp_path / "images", 8)
    study = tiny_study(tmp_path, tmp_path / "images")
    (line,) = [command for command in commands(GPU_SITE) if command.endswith("--dry-run")]
    options = line.replace("MY_STUDY.toml", str(study)).replace("slurm/clusters/gpu_site.toml", str(site))
    checked, done = (
        subprocess.run(
            [sys.executable, "-m", "unet_scaling", *words],
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{PROJECT}"},
            cwd=PROJECT,
            capture_output=True,
            text=True,
        )
        for words in (
            ["check", str(study), "--cluster", str(site)],
            [*shlex.split(options)[1:], "--logs", str(tmp_path)],
        )
    )
    assert (checked.returncode, done.returncode) == (0, 0), checked.stderr + done.stderr
    assert f"doctor --cluster {site} tries it" in checked.stdout
    binds = f"--bind={PROJECT} --bind={tmp_path}/tiny --bind={tmp_path}/images"
    assert f" apptainer exec --nv {binds} {image} env " in done.stdout
    assert '#SBATCH "--comment=DDP and Horovod"' in done.stdout
    assert re.search(r"\d+ jobs, at most \d+\.0 node-hours, \d+\.0 GPU-hours", done.stdout)
    assert "not verified" not in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_command_of_a_page_is_taken_and_a_test_runs_it(page: Path) -> None:
    """By the program that it starts; here nothing is started but the help of shell scripts."""
    text = page.read_text()
    for command in [*commands(page), *INLINE.findall(FENCED.sub("", text))]:
        reason = elsewhere(command)
        assert reason or command in commands(README), f"{page}: no test runs {command}"
        for test in re.findall(r"test_\w+\.py", reason):
            assert (PROJECT / "tests" / test).exists(), f"{test} runs no {command}"
        words = shlex.split(command.partition(";")[0].partition(" > ")[0])
        require_taken([word for word in words if word != "sudo" and not re.match(r"[A-Z_]+=", word)])
        for path in re.findall(r"\b(?:slurm|logs/evidence)/[\w./]+", command):
            assert (PROJECT / path).exists() or "MINE" in path, f"{command}: no {path}"


def require_taken(words: list[str]) -> None:
    """Parse a command by its own program, not started; SystemExit or AssertionError where it is none."""
    match words:
        case [".venv/bin/unet-scaling", name, *options]:
            module_of(name).command_line().parse_args(options)
        case ["slurm/virtual_cluster", *options] if "--help" not in options:
            virtual.command_line().parse_args(options)
        case ["make", *targets]:
            makefile = (PROJECT / "Makefile").read_text()
            assert [target for target in targets if f"\n{target}:" not in makefile] == []
        case [_, "-m", module, *_]:
            assert importlib.util.find_spec(module), module
        case ["environment/install.sh", *options]:
            usage = (PROJECT / "environment" / "install.sh").read_text()
            assert [each for option in options for each in option.split(",") if each not in usage] == []
        case ["eval" | "cp" | "curl" | "torchrun" | "slurm/virtual_cluster" | ".venv/bin/python", *_]:
            pass
        case _:
            raise AssertionError(f"no program of these: {words}")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the root of a clone, with what the README takes for granted: images."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "logs").mkdir()
    for name in ("logs/evidence", "slurm"):
        (folder / name).symlink_to(PROJECT / name)
    make_images(folder / "images", 48)  # enough for a step of 2 workers of 16 images each
    return folder


def run(command: str, clone: Path) -> str:
    words = shlex.split(command.replace("$WORK", str(clone)))
    if words[0] == ".venv/bin/unet-scaling":  # test_command.py sees that this is what it calls
        words[:1] = [sys.executable, "-m", "unet_scaling"]
    environment = os.environ | {"WORK": str(clone), "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_their_order_as_printed(clone: Path) -> None:
    run_here = [line for line in commands(README) if not reason_not_to_run(line)]
    assert len(run_here) > 3
    for command in run_here:
        printed = run(command, clone)
        block = next(block for _, block in FENCED.findall(TEXT) if command in block)
        if block.startswith("$ "):
            shown = block.split("\n", 1)[1].removesuffix("...\n")
            assert len(shown.splitlines()) > 4
            assert printed.startswith(shown), (
                f"README.md shows another output of {command}:\n{printed[:2000]}"
            )


def test_the_example_reports_need_nothing_else() -> None:
    examples = sorted(EXAMPLES.glob("*.html"))
    listed = re.findall(r"\]\((\w+\.html)\)", (EXAMPLES / "README.md").read_text())
    assert [path.name for path in examples] == sorted(set(listed))
    for path in examples:
        page = path.read_text()
        assert len(page) < MOST_EXAMPLE_BYTES
        assert "<script" not in page
        assert not re.search(r'src="(?!data:)|@import', page), path.name
        assert not re.search(r'href="(?!#|data:|https://)', page), f"{path.name} names a file beside it"


def test_the_tutorial_shows_the_same_answer_as_the_readme() -> None:
    blocks = FENCED.findall((PROJECT / "docs" / "tutorial.md").read_text())
    (shown,) = (block for _, block in blocks if block.startswith("Do not scale out"))
    assert [line for line in shown.splitlines() if line != "  ..." and line not in TEXT] == []


@pytest.mark.slow
def test_an_example_report_holds_the_answer_of_its_records() -> None:
    report = make_report(load_study(evidence("demo")))
    page = (EXAMPLES / "demo.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    parts = [part for answer in report.answers for part in answer.headline.split("; caution: ")]
    assert all(part in page for part in parts), "run make examples"


def test_shows_the_twins_as_they_are() -> None:
    assert "```diff" in TEXT
    assert twins_diff("pytorch_native", "horovod") in TEXT
    assert len(PART.findall(TEXT)) == 1
    assert with_diffs(TEXT) == TEXT, "run make twins"


def test_every_link_into_the_project_leads_somewhere() -> None:
    links = {page: re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()) for page in PAGES}
    assert links[README]
    assert [link for page in PAGES for link in links[page] if not (page.parent / link).exists()] == []


MOST_WORDS_OF_MY_REPORT = 900


def test_what_a_report_is_quoted_to_say_stands_in_its_templates_or_code() -> None:
    page = MY_REPORT.read_text()
    assert len(page.replace("|", " ").split()) <= MOST_WORDS_OF_MY_REPORT
    files = [path for path in (PROJECT / "analysis").rglob("*") if path.suffix in (".jinja", ".py")]
    said = " ".join(" ".join(path.read_text() for path in files).split())
    quoted = re.findall(r'"([^"\n]+)"', re.sub(r"\(.*?\)", "", page))
    pieces = {piece.strip(" :,;%") for quote in quoted for piece in quote.split("...")} - {""}
    assert len(pieces) > 30
    assert [piece for piece in pieces if not re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", said)] == []
    usage = " ".join(command.command_line().format_help() for command in (run_command, submit_command))
    assert [option for option in re.findall(r"(--[a-z][a-z-]+)", page) if option not in usage] == []


def test_every_make_command_it_names_exists() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    named = set(re.findall(r"make ([a-z]+)", TEXT))
    assert {"demo", "test"} <= named
    assert [name for name in named if f"\n{name}:" not in makefile] == []
