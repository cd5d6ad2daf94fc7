"""The same local study twice: on the machine as it is, and beside two busy programs that come and go.

    python -m benchmarks.quiet_and_loaded --folder FOLDER

Run it on a machine without other work; it takes about six minutes on two cores. Prints of both studies which
launches are marked as disturbed, what the report says of the machine, and whether it blames a framework.
"""

import argparse
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.budget.diagnosis import Diagnosis, diagnose
from analysis.budget.network_floor import network_table
from analysis.budget.tables import budget_table
from analysis.findings.disturbed import disturbed_notes
from analysis.findings.fairness_table import fairness_checks
from analysis.loading.load import load_study
from analysis.study import Study
from unet_scaling.study.config import PROJECT

STUDY = """
workers = [1, 2]
repeats = {repeats}
[data]
folder = "{data}"
image_height = 64
image_width = 64
[training]
epochs = {epochs}
batch_per_worker = 4
"""
SIZES = ("--count", "120", "--height", "64", "--width", "64")
BUSY_PROGRAMS = 2
# Longer than an epoch, shorter than a launch: some launches are hit in a part of them.
BUSY_SECONDS = (4.0, 12.0)
IDLE_SECONDS = (0.5, 4.0)
SEED = 13
# What is said of the machine or of the settings; every other rule blames a framework or the network.
BLAMES_NOBODY = ("machine busy", "shared cores", "shared device")


@contextmanager
def busy_programs(number: int) -> Iterator[None]:
    """Let so many programs run beside, each started and ended at random."""
    over = threading.Event()
    threads = [threading.Thread(target=_come_and_go, args=(over, SEED + each)) for each in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _come_and_go(over: threading.Event, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  (no secret depends on it)
    while not over.is_set():
        program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        over.wait(chance.uniform(*BUSY_SECONDS))
        program.kill()
        program.wait()
        over.wait(chance.uniform(*IDLE_SECONDS))


def run_study(folder: Path, name: str, repeats: int, epochs: int) -> None:
    """Run the study of this name by the command that people use; its folder is FOLDER/logs/NAME."""
    file = folder / f"{name}.toml"
    file.write_text(STUDY.format(data=folder / "data", repeats=repeats, epochs=epochs))
    command: list[str | Path] = [
        PROJECT / "slurm" / "submission.sh",
        file,
        "--local",
        "--logs",
        folder / "logs",
    ]
    subprocess.run(command, check=True)


def statements(study: Study) -> Iterator[str]:
    """Yield what is said of a study: its marks, the machine, and who is blamed."""
    marked = study.runs[study.runs["disturbed"] != ""]
    yield f"marked as disturbed: {len(marked)} of {len(study.runs)} launches"
    yield from (f"  {row['run']}: {row['disturbed']}" for row in marked.to_dict("records"))
    yield f"share of other processes: {', '.join(f'{share:.3f}' for share in study.runs['busy_share'])}"
    yield from (f"note: {note}" for note in disturbed_notes(study))
    yield from (
        f"machine quiet: {check.mark} ({check.fact}){', withholds a verdict' if check.withholds else ''}"
        for check in fairness_checks(study)
        if check.check == "machine quiet"
    )
    found = diagnose(study, budget_table(study), network_table(study))
    blamed: list[Diagnosis] = [each for each in found if each.rule not in BLAMES_NOBODY]
    yield from (f"finding: {each}" for each in found)
    yield f"findings about frameworks: {len(blamed)}"


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--folder", type=Path, required=True, help="a new one, for data and records")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make = [sys.executable, "-m", "unet_scaling.data", "make", folder / "data", *SIZES]
    subprocess.run(make, check=True, cwd=PROJECT)
    for name, programs in (("quiet", 0), ("loaded", BUSY_PROGRAMS)):
        with busy_programs(programs):
            run_study(folder, name, arguments.repeats, arguments.epochs)
    for name in ("quiet", "loaded"):
        print(f"\n== {name}")
        for line in statements(load_study(folder / "logs" / name)):
            print(line)


if __name__ == "__main__":
    main()
