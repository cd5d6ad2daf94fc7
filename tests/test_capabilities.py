"""Each capability can be taken away, and the rest works; tests/test_wheel.py takes all away at once."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.capabilities import CAPABILITIES, copy_without
from tests.evidence import evidence
from tests.studies import make_images, tiny_study
from unet_scaling.subcommands import SUBCOMMANDS

# A committed study that has what a capability is about; else its kind is not among the committed ones.
STUDIES = {
    "saliency": "saliency_nuclei", "strategies": "strategies_fast", "predict": "emulated_scaling",
    "virtual cluster": "emulated_scaling",
}  # fmt: skip
# What else than its commands asks for a capability.
ASKS = {
    "profile": ("run", "STUDY", "--dry-run", "--probe"),
    "tables of others": ("report", "--csv", "-"),
    "older logs": ("report", "--reference", "."),
    "played": ("report", "PLAYED"),
}
IMPORT_ALL = """
import importlib
from pathlib import Path
for path in sorted(Path().glob("[aus]*/**/*.py")):
    if path.parts[0] in ("analysis", "slurm", "unet_scaling") and path.name != "__main__.py":
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
"""
OF_THE_CORE = (
    "tests/test_files.py", "tests/test_metrics.py", "tests/test_record.py", "tests/test_run_state.py",
)  # fmt: skip


@pytest.mark.verify
@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_rest_imports_helps_reports_plans_and_passes_its_tests_without(name: str, tmp_path: Path) -> None:
    rest = tmp_path / "rest"
    copy_without(name, rest)
    packages = os.pathsep.join([str(rest), sysconfig.get_path("purelib")])

    def python(*words: object, code: int = 0) -> str:
        """Run Python by these folders alone: -S leaves out .pth files, and so the clone."""
        done = subprocess.run(
            [sys.executable, "-S", *map(str, words)],
            cwd=rest,
            env=os.environ | {"PYTHONPATH": packages},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def command(*words: object, code: int = 0) -> str:
        return python("-m", "unet_scaling", *words, code=code)

    python("-c", IMPORT_ALL)
    offered = command("--help")
    for gone in CAPABILITIES[name].commands:
        assert f"\n  {gone} " not in offered
        assert "which this checkout lacks" in command(gone, code=2)
    kept = [each for each in SUBCOMMANDS if each not in CAPABILITIES[name].commands]
    assert all(f"\n  {each} " in offered for each in kept)
    report = tmp_path / "report"
    command("report", evidence(STUDIES.get(name, "published_gap_intel")), "--output", report)
    assert (report / "report.html").stat().st_size
    study = tiny_study(tmp_path, make_images(tmp_path / "data", 12))
    assert "horovod-w02-r1" in command("run", study, "--dry-run", "--logs", tmp_path)
    places = {"STUDY": study, "PLAYED": evidence("plan_nuclei_settled")}
    if asked := [places.get(word, word) for word in ASKS.get(name, ())]:
        assert "which this checkout lacks" in command(*asked, code=2)
    cluster = "slurm/clusters/generic_srun.toml"
    assert "#SBATCH" in command("submit", study, "--dry-run", "--cluster", cluster, "--logs", tmp_path)
    python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *OF_THE_CORE)
