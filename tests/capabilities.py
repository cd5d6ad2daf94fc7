"""What a checkout can do without: each capability is folders and files that nothing else needs.

    python -m tests.capabilities            a table of them: for whom, which folders, how many lines
    python -m tests.capabilities NAME DIR   a copy of the committed project in DIR, without that capability

Whoever takes one away deletes its paths: its commands are gone, and what asks for it says what it needs.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.line_budget import CODE
from unet_scaling.study.config import PROJECT


@dataclass(frozen=True)
class Capability:
    """A capability: who wants it, all that is of it alone, and its commands."""

    about: str
    paths: tuple[str, ...]
    commands: tuple[str, ...] = ()

    @property
    def modules(self) -> list[str]:
        """Return its packages and modules, as imports write them."""
        code = [
            path for path in self.paths if (PROJECT / path / "__init__.py").exists() or path.endswith(".py")
        ]
        return [path.removesuffix(".py").replace("/", ".") for path in code]

    @property
    def lines(self) -> int:
        """Return the lines of its code."""
        files = (path for name in self.paths for path in [PROJECT / name, *(PROJECT / name).rglob("*")])
        return sum(path.read_text().count("\n") for path in files if path.suffix in CODE)


CAPABILITIES = {
    "new": Capability(
        "who begins: a study and a cluster file, from questions about the machine",
        ("slurm/commands/new.py",),
        ("new",),
    ),
    "profile": Capability(
        "who waits for data: what limits the input of a study, and how long its runs take",
        ("unet_scaling/profile",),
        ("profile",),
    ),
    "doctor": Capability(
        "who supports a cluster: launcher and network, before a study is submitted",
        ("unet_scaling/doctor", "slurm/commands/doctor.py"),
        ("doctor",),
    ),
    "virtual cluster": Capability(
        "who develops, or learns Slurm: hosts, links and workers that one machine emulates",
        ("slurm/virtual", "slurm/virtual_cluster", "slurm/clusters/virtual.toml", "slurm/emulation.sh",
         "slurm/profiles", "unet_scaling/emulation"),
    ),
    "inference": Capability(
        "who uses the trained network: masks of their images, or a server that makes them",
        ("unet_scaling/inference", "slurm/commands/segment.py", "analysis/figures/serving.py"),
        ("segment", "serve"),
    ),
    "saliency": Capability(
        "who asks what a network looks at, and whether frameworks differ in it",
        ("unet_scaling/saliency", "analysis/saliency"),
    ),
    "strategies": Capability(
        "who may average gradients less often than at every step",
        ("unet_scaling/strategies", "analysis/strategies"),
    ),
    "script recorder": Capability(
        "who has a training script of their own, and wants it measured",
        ("unet_scaling/script_recorder", "unet_scaling/record.py"),
    ),
    "played": Capability(
        "who plans: up to how many workers the score is kept, before there are so many",
        ("analysis/played",),
    ),
    "predict": Capability(
        "who plans: speed and cost at worker counts that were not measured",
        ("analysis/predict",),
        ("predict",),
    ),
    "compare": Capability(
        "who changed something: two studies, before and after",
        ("analysis/compare",),
        ("compare",),
    ),
    "tables of others": Capability(
        "who has measured already: a table of workers and seconds", ("analysis/tables_of_others",)
    ),
    "older logs": Capability(
        "who has logs of the older study: CSV files of its layout", ("analysis/older_logs",)
    ),
}  # fmt: skip


def copy_without(name: str, folder: Path) -> None:
    """Copy the project as git has it, and what is not committed yet, without one capability."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    taken = tuple(Path(path) for path in CAPABILITIES[name].paths)
    for file in map(Path, listed.splitlines()):
        is_taken = any(file.is_relative_to(path) for path in taken)
        if not is_taken and (PROJECT / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / file, folder / file)


def main() -> None:
    if len(sys.argv) == 3:
        copy_without(sys.argv[1], Path(sys.argv[2]))
        return
    print("| capability | for | folders | lines |\n|---|---|---|--:|")
    for name, each in CAPABILITIES.items():
        print(f"| {name} | {each.about} | {', '.join(f'`{path}`' for path in each.paths)} | {each.lines:,} |")


if __name__ == "__main__":
    main()
