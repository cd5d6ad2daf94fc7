"""The stages of `make gpu`, first what decides what the other numbers mean; each is a process."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.setting import Setting
from unet_scaling.base.errors import EXIT_OK, EXIT_USAGE

STUDY = """\
workers = {workers}
repeats = {repeats}
frameworks = {frameworks}
[data]
folder = "{folder}"
image_height = {height}
image_width = {width}
passes_per_epoch = 2
[training]
epochs = {epochs}
batch_per_worker = {batch}
timeout_seconds = 60
{more}
"""
BOTH = ("pytorch_native", "horovod")
NATIVE = BOTH[:1]
MAPS = '[saliency]\nmethod = "rise"\nmasks = 32\nimages = 2\ncurve_steps = 4\nuntrained_check = 1\n'


@dataclass(frozen=True)
class Stage:
    """A command, the seconds that it may take on a GPU node, and the exit code that it should have."""

    name: str
    seconds: float
    command: tuple[str, ...]
    expected: int = EXIT_OK
    environment: Mapping[str, str] = field(default_factory=dict)


class Plan:
    """What the stages are called with: `output` keeps logs, `output`/work goes away."""

    def __init__(self, output: Path, dry: bool) -> None:
        self.output = output
        self.setting = Setting(output / "work", dry)
        self._dry = ("--dry",) if dry else ()

    def stages(self) -> Iterator[Stage]:
        """Yield all stages in their order."""
        published = self.output / "logs" / "gpu_published"
        yield self._check("facts", 60)
        yield self._check("horovod", 60)
        junit = f"--junitxml={self.output / 'tests.xml'}"
        yield Stage("tests", 150, (*_module("pytest"), "-n0", "-qm", "gpu", "tests/test_gpu.py", junit))
        yield self._data("small", 80)
        yield self._data("published", 240)
        yield self._run("gpu_twins", 90, "small", repeats=2)
        yield self._check("records", 30, self.output / "logs" / "gpu_twins")
        yield self._roofline("eager", 75)
        yield self._run("gpu_published", 150, "published", repeats=3, epochs=5)
        yield self._check("records", 30, published, "records_published")
        report = str(self.output / "report")
        yield Stage("report", 60, (*_module("unet_scaling"), "report", str(published), "--output", report))
        run, images = published / "pytorch_native-w01-r1", self.setting.work / "published"
        words = ("segment", str(run), str(images), "--output", str(self.setting.work / "masks"))
        yield Stage("segment", 60, (*_module("unet_scaling"), *words))
        yield self._two_on_one_gpu()
        yield self._run("gpu_saliency", 60, "small", NATIVE, more=MAPS)
        precisions = 'precision = ["bf16", "tf32"]'
        frameworks = NATIVE if self.setting.dry else BOTH
        yield self._run("gpu_precision", 100, "published", frameworks, more=precisions)
        resume = self._study("gpu_resume", "small", NATIVE, epochs=60)
        yield self._check("resume", 90, resume.with_suffix(""))
        if not self.setting.dry:
            yield self._roofline("compiled", 110)

    def _two_on_one_gpu(self) -> Stage:
        """Ask for two workers on one GPU: expected is a refusal, a sentence with the code of wrong usage."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        expected = EXIT_OK if self.setting.dry else EXIT_USAGE
        path = self._study("gpu_two", "small", NATIVE, workers=2)
        return Stage("two", 60, self._run_words(path), expected, {"CUDA_VISIBLE_DEVICES": visible})

    def _check(self, check: str, seconds: float, study: Path | None = None, name: str = "") -> Stage:
        words = (str(self.setting.work), check, *([str(study)] if study else []), *self._dry)
        return Stage(name or check, seconds, (*_module("benchmarks.gpu.checks"), *words))

    def _roofline(self, kind: str, seconds: float) -> Stage:
        name = "roofline" if kind == "eager" else kind
        words = (str(self.setting.work), kind, *self._dry)
        return Stage(name, seconds, (*_module("benchmarks.gpu.roofline"), *words))

    def _data(self, data: str, count: int) -> Stage:
        height, width = self.setting.size(data)
        words = ["data", "make", str(self.setting.work / data), "--seed=1"]
        words += [f"--count={24 if self.setting.dry else count}", f"--height={height}", f"--width={width}"]
        return Stage(f"data_{data}", 90, (*_module("unet_scaling"), *words))

    def _run(
        self, name: str, seconds: float, data: str, frameworks: tuple[str, ...] = BOTH, repeats: int = 1,
        epochs: int = 3, more: str = "",
    ) -> Stage:  # fmt: skip
        path = self._study(name, data, frameworks, repeats, epochs, more)
        return Stage(name.removeprefix("gpu_"), seconds, self._run_words(path))

    def _run_words(self, path: Path) -> tuple[str, ...]:
        return (*_module("unet_scaling"), "run", str(path), "--logs", str(self.output / "logs"))

    def _study(
        self, name: str, data: str, frameworks: tuple[str, ...] = BOTH, repeats: int = 1, epochs: int = 3,
        more: str = "", workers: int = 1,
    ) -> Path:  # fmt: skip
        """Write a study file; return its path."""
        height, width = self.setting.size(data)
        is_small = self.setting.dry
        text = STUDY.format(
            workers=[workers], repeats=1 if is_small else repeats, frameworks=list(frameworks),
            folder=self.setting.work / data, height=height, width=width, batch=self.setting.batch_size,
            epochs=min(epochs, 2) if is_small and name != "gpu_resume" else epochs, more=more,
        )  # fmt: skip
        if is_small:
            # No launch is judged as disturbed, and then made again.
            budget = "on" if name == "gpu_twins" else "off"
            text = text.replace("[training]", f'[training]\ncores_per_worker = 1\nbudget = "{budget}"')
        path = self.output / "studies" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def _module(name: str) -> tuple[str, ...]:
    return sys.executable, "-m", name
