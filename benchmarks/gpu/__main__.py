"""Show that the GPU path works: `make gpu` on a GPU node, or python -m benchmarks.gpu where all is there.

Runs one stage after the other, each a process with a limit of its own: a failure stops none of the others.
Writes into the folder: summary.txt (a line for each stage), results.json (all that the stages told), output/
(what each printed), logs/ (records), report/ (with its figures), studies/. docs/gpu.md says how to read them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.setting import RESULT
from benchmarks.gpu.stages import Plan, Stage
from unet_scaling.base.command_line import CommandLine
from unet_scaling.study.config import PROJECT

OK = "ok"
# A trial runs on a machine that others use.
DRY_FACTOR = 4
LEAST_SECONDS = 10.0
KILL_AFTER_SECONDS = 2.0
MOST_SAID_CHARACTERS = 160
LARGEST_KEPT_BYTES = 2**20
NOT_KEPT = ("checkpoint*", "weights.pt*", "*.npy")


class Bench:
    """Runs stages, and keeps the table and the results up to date after each."""

    def __init__(self, output: Path, seconds: float, dry: bool) -> None:
        self.output = output
        self.dry = dry
        self._end = time.monotonic() + seconds
        self._rows: list[tuple[str, str, float, str]] = []
        self._results: dict[str, Any] = {}
        work = output / "work"
        (output / "output").mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg",
            "UNET_SCALING_CACHE": str(work / "cache"),
        }  # fmt: skip
        if dry:
            self._environment["CUDA_VISIBLE_DEVICES"] = ""

    @property
    def states(self) -> dict[str, str]:
        """Return the state of every stage by its name."""
        return {name: state for name, state, _, _ in self._rows}

    def run(self, stage: Stage) -> None:
        """Run a stage for at most its seconds and those that are left."""
        left = self._end - time.monotonic()
        if left < LEAST_SECONDS:
            self._note(stage.name, "not begun: out of time", 0.0, "")
            return
        limit = min(stage.seconds * (DRY_FACTOR if self.dry else 1), left)
        path = self.output / "output" / f"{stage.name}.txt"
        begin = time.monotonic()
        environment = self._environment | dict(stage.environment if not self.dry else {})
        with path.open("w") as sink:
            process = subprocess.Popen(
                stage.command, cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit)
                state = OK if code == stage.expected else f"FAILED: code {code}, expected {stage.expected}"
            except subprocess.TimeoutExpired:
                state = f"FAILED: not done after {limit:.0f} s"
                _end_group(process)
        text = path.read_text(errors="replace")
        self._keep(stage.name, text)
        self._note(stage.name, state, time.monotonic() - begin, _said(text, state))

    def _keep(self, name: str, text: str) -> None:
        """Keep what a stage told, and what the tests measured."""
        told: dict[str, Any] = {}
        for line in text.splitlines():
            if line.startswith(RESULT):
                with suppress(json.JSONDecodeError):  # two processes wrote at once
                    told |= json.loads(line.removeprefix(RESULT))
        tests = self.output / "tests.xml"
        if name == "tests" and tests.exists():
            found = ElementTree.parse(tests).iter("testcase")  # noqa: S314, written by our own pytest
            told = {case.get("name", ""): _measured(case) for case in found}
        if told:
            self._results[name] = told
            (self.output / "results.json").write_text(json.dumps(self._results, indent=1))

    def _note(self, name: str, state: str, seconds: float, said: str) -> None:
        self._rows.append((name, state, seconds, said))
        rows = [f"{row[0]:18} {row[2]:6.1f} s  {row[1]}  {row[3]}".rstrip() for row in self._rows]
        (self.output / "summary.txt").write_text("\n".join(rows) + "\n")
        print(rows[-1], flush=True)

    def tidy(self) -> None:
        """Remove data, weights and whatever is large."""
        shutil.rmtree(self.output / "work", ignore_errors=True)
        for path in (self.output / "logs").rglob("*"):
            unwanted = any(path.match(pattern) for pattern in NOT_KEPT)
            if path.is_file() and (unwanted or path.stat().st_size > LARGEST_KEPT_BYTES):
                path.unlink()


def _measured(case: ElementTree.Element) -> dict[str, Any]:
    """Return how a test ended, and the properties that it recorded."""
    ends = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
    properties = {each.get("name", ""): each.get("value") for each in case.iter("property")}
    return {"state": ends[0] if ends else OK} | properties


def _said(text: str, state: str) -> str:
    """Return the line that says most: the last error of a failure, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(RESULT)]
    errors = [line for line in lines if line.startswith(("error", "E  ")) or "Error" in line]
    chosen = errors if errors and state != OK else lines
    return chosen[-1][:MOST_SAID_CHARACTERS] if chosen else ""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_AFTER_SECONDS)


def main() -> int:
    parser = CommandLine("python -m benchmarks.gpu", __doc__)
    output = Path(os.environ.get("OUT", PROJECT / "build" / "gpu"))
    parser.add_argument("--output", type=Path, default=output, help="default: $OUT, or build/gpu")
    parser.add_argument("--stages", type=lambda text: text.split(","), metavar="A,B", help="only these")
    parser.add_argument("--seconds", type=float, default=480.0, help="in all (default: %(default)s)")
    parser.add_argument("--dry", action="store_true", help="on CPUs, with small sizes")
    options = parser.parse_args()
    stages = list(Plan(options.output.resolve(), options.dry).stages())
    unknown = {*(options.stages or [])} - {stage.name for stage in stages}
    if unknown:
        names = ", ".join(stage.name for stage in stages)
        parser.error(f"--stages: found {', '.join(unknown)}; allowed: {names}")
    bench = Bench(options.output.resolve(), options.seconds, options.dry)
    for stage in stages:
        if not options.stages or stage.name in options.stages:
            bench.run(stage)
    if not options.stages:
        bench.tidy()
    print(f"results: {options.output}/summary.txt, results.json, report/report.html")
    return int(any(state != OK for state in bench.states.values()))


if __name__ == "__main__":
    sys.exit(main())
