"""The README is true: its diff, its links and its commands."""

import re
import subprocess

from tests.readme import README, twins_diff, with_diff
from unet_scaling.study.config import PROJECT

TEXT = README.read_text()


def test_shows_the_twins_as_they_are() -> None:
    assert "```diff" in TEXT
    assert with_diff(TEXT) == TEXT, "run make twins"
    assert twins_diff() in TEXT


def test_every_link_into_the_project_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (PROJECT / link).exists()] == []


def test_every_make_command_it_names_exists() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    named = set(re.findall(r"make ([a-z]+)", TEXT))
    assert {"demo", "test"} <= named
    assert [name for name in named if f"\n{name}:" not in makefile] == []


def test_every_place_on_its_map_exists() -> None:
    block = TEXT.split("## Layout", 1)[1].split("```")[1]
    paths = re.findall(r"^([A-Za-z_.]+/?[a-z_.]*)", block, flags=re.MULTILINE)
    assert len(paths) > 8
    assert [path for path in paths if not (PROJECT / path).exists()] == []


def test_the_shell_scripts_are_sound() -> None:
    scripts = subprocess.run(
        ["git", "ls-files", "*.sh", "slurm/virtual_cluster", ".ci/run"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert scripts
    subprocess.run([PROJECT / ".venv" / "bin" / "shellcheck", *scripts], cwd=PROJECT, check=True)
