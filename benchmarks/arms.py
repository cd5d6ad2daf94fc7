"""The arms of a comparison: each a process of its own that works when asked to, all in turn.

A process because what is compared may be its environment: an allocator reads its settings before Python
starts. An arm that waits for its turn uses no processor. The unit is the round: every arm once, in an order
that turns, so that a drift of the machine meets all of them alike, and ratios are taken within rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats  # type: ignore[import-untyped]

from benchmarks.scenes import SIZES
from unet_scaling.group.allocator import keep_memory
from unet_scaling.study.config import PROJECT, RunConfig

REFERENCE = "reference mode"
PEAK = "peak_memory_bytes"
# No interval from fewer: even all of five values, from the least to the largest, miss the median of what they
# are drawn from once in 16 times (2 / 2**5), and an interval of 95 % may miss it once in 20.
FEWEST_ROUNDS = 6
Measured = dict[str, float]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Arm:
    """One of the things compared: its module, the kind of work, its run configuration and environment.

    `checkout`: whose code it is.
    """

    name: str
    module: str
    kind: str
    config: RunConfig
    environment: Mapping[str, str] = field(default_factory=dict)
    checkout: Path = PROJECT

    def arguments(self) -> str:
        """Return what its process is started with, in JSON; an older checkout knows fewer options."""
        config = self.config.model_dump(exclude_defaults=True)
        return json.dumps({"kind": self.kind, "config": config})


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval: a percentile bootstrap over the rounds.

    Both bounds are None where there are fewer rounds than an interval needs.
    """

    median: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float] | Numbers) -> "Estimate":
        numbers = np.asarray(values, dtype=np.float64)
        middle = float(np.median(numbers))
        if len(numbers) < FEWEST_ROUNDS:
            return cls(middle, None, None)
        interval = stats.bootstrap((numbers,), np.median, method="percentile", rng=1).confidence_interval
        return cls(middle, float(interval.low), float(interval.high))

    def __format__(self, spec: str) -> str:
        if self.low is None:
            return f"{self.median:{spec}} [no interval]"
        return f"{self.median:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def options_parser(description: str | None, size: str, rounds: int) -> argparse.ArgumentParser:
    """Return the options of every comparison of arms; with `--arm` the process of an arm is started."""
    parser = parser_of(description)
    parser.add_argument("--size", choices=SIZES, default=size)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    return parser


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a module's docstring."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def serve_arm(arguments: str, work_of: Callable[..., Callable[[], Measured]]) -> None:
    """Say that this process of an arm is ready, then work once for every line that comes in.

    Memory is kept once it has worked, as a worker keeps it from its warm-up step on.
    """
    parsed = json.loads(arguments)
    work = work_of(parsed["kind"], RunConfig.model_validate(parsed["config"]))
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(work()), flush=True)
        keep_memory()


def timed(work: Callable[[], object]) -> Measured:
    """Return the seconds of this work, and the processor seconds of all threads of this process."""
    begin = time.perf_counter()
    processor = time.process_time()
    work()
    return {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - processor}


def with_peak_memory(measured: Measured) -> Measured:
    """Return the same with the most memory that this process ever held (Linux)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return measured | {PEAK: 1024 * float(status["VmHWM"].split()[0])}


class ArmProcess:
    """The process of an arm, `python -m PROGRAM...` that calls `serve`; its stderr is this program's own."""

    def __init__(
        self, name: str, program: Sequence[str], environment: Mapping[str, str], checkout: Path = PROJECT
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *program], cwd=checkout, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._name = name

    def wait_until_ready(self) -> None:
        self._answer()

    def work(self) -> Measured:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Measured:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._name} ended with code {self._process.wait()}")
        measured: Measured = json.loads(line)
        return measured

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.communicate()


def in_turn(arms: Sequence[Arm], rounds: int, warmups: int = 1) -> dict[str, list[Measured]]:
    """Return the measurements of every arm in every round, without rounds that only warm up."""
    processes = {arm.name: _process_of(arm) for arm in arms}
    try:
        for process in processes.values():
            process.wait_until_ready()
        return in_rounds({name: process.work for name, process in processes.items()}, rounds, warmups)
    finally:
        for process in processes.values():
            process.end()


def _process_of(arm: Arm) -> ArmProcess:
    program = [arm.module, "--arm", arm.arguments()]
    return ArmProcess(arm.name, program, os.environ | dict(arm.environment), arm.checkout)


def in_rounds(
    works: Mapping[str, Callable[[], Measured]], rounds: int, warmups: int = 1
) -> dict[str, list[Measured]]:
    """Return the measurements of every round, in an order that turns, without those that only warm up."""
    names = list(works)
    samples: dict[str, list[Measured]] = {name: [] for name in names}
    for number in range(-warmups, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            measured = works[name]()
            if number >= 0:
                samples[name].append(measured)
    return samples


def column(measured: Sequence[Measured], key: str) -> Numbers:
    return np.array([one[key] for one in measured])


def times_as_fast(samples: Mapping[str, Sequence[Measured]], baseline: str, key: str) -> dict[str, Estimate]:
    """Return for every arm the baseline's `key` over its own, round by round."""
    base = column(samples[baseline], key)
    return {name: Estimate.of(base / column(measured, key)) for name, measured in samples.items()}


def table(samples: Mapping[str, Sequence[Measured]], baseline: str, per: float, unit: str) -> str:
    """Return one line per arm: its median time divided by `per`, how much faster it is, and its memory."""
    has_peak = all(PEAK in one for measured in samples.values() for one in measured)
    head = f"{'':>34}  {unit:>26}  {'times as fast':>20}  {'by processor seconds':>20}"
    by_wall = times_as_fast(samples, baseline, "seconds")
    by_processor = times_as_fast(samples, baseline, "processor_seconds")
    lines = [head + (f"  {'peak memory':>11}" if has_peak else "")]
    for name, measured in samples.items():
        times = Estimate.of(1000 * column(measured, "seconds") / per)
        memory = f"  {max(column(measured, PEAK)) / 1e9:8.2f} GB" if has_peak else ""
        lines.append(f"{name:>34}  {times:>.2f}  {by_wall[name]:>.2f}  {by_processor[name]:>.2f}{memory}")
    return "\n".join(lines)
