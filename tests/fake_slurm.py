"""A Slurm of files for tests: sbatch, squeue, sacct and scancel that do what a plan says.

Started as a program under those names, or called in the process of a test by `answer`. It keeps its jobs in
$FAKE_SLURM/jobs.json, does the next thing in $FAKE_SLURM/plan.json at each sbatch, and ends with code 99 at
any call it does not know, so that a test fails where the submission does something new.
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SQUEUE = ["--all", "--me", "--states=all", "--format=%i|%T|%r|%j|."]
REJECTIONS = {
    "partition": "sbatch: error: invalid partition specified: nosuch\n"
    "allocation failure: Invalid partition name specified",
    "time": "allocation failure: Requested time limit is invalid (missing or exceeds some limit)",
}
LIMIT = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
)


def load(name: str, default: object) -> object:
    path = Path(os.environ["FAKE_SLURM"], name)
    return json.loads(path.read_text()) if path.exists() else default


def save(name: str, content: object) -> None:
    Path(os.environ["FAKE_SLURM"], name).write_text(json.dumps(content))


def refuse(program: str, arguments: list[str]) -> int:
    print(f"fake {program}: a call that no real test was made for: {arguments}", file=sys.stderr)
    return 99


def fail(message: str, code: int = 1) -> int:
    print(message, file=sys.stderr)
    return code


def is_silent() -> bool:
    return Path(os.environ["FAKE_SLURM"], "silent").exists()


def sbatch(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("--parsable", "--test-only"):
        return refuse("sbatch", arguments)
    script = Path(arguments[1]).read_text()
    if arguments[0] == "--test-only":
        rejected = load("reject.json", {})
        nodes = re.search(r"--nodes=(\d+)", script)
        assert isinstance(rejected, dict)
        assert nodes is not None
        kind = rejected.get(nodes.group(1))
        return (
            fail((REJECTIONS | {"limit": LIMIT})[kind])
            if kind
            else fail("sbatch: Job 1 to start at 2026-01-01T00:00:00", 0)
        )
    plan = load("plan.json", [])
    assert isinstance(plan, list)
    action = plan.pop(0) if plan else "accept"
    save("plan.json", plan)
    return submit(action, script)


def submit(action: str, script: str) -> int:
    if action == "limit":
        return fail(LIMIT)
    if action in REJECTIONS:
        return fail(REJECTIONS[action])
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    name = re.search(r"--job-name=(\S+)", script)
    assert name is not None
    job = str(1000 + len(jobs))
    jobs[job] = {"name": name.group(1), "state": "PENDING", "reason": "Priority", "nodes": ""}
    save("jobs.json", jobs)
    assert action == "accept", action
    print(job)
    return 0


def squeue(arguments: list[str]) -> int:
    if is_silent():
        return fail("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    if arguments != SQUEUE:
        return refuse("squeue", arguments)
    print("JOBID|STATE|REASON|NAME|.")
    for job, facts in jobs.items():
        print(f"{job}|{facts['state']}|{facts['reason']}|{facts['name']}|.")
    return 0


def scontrol(arguments: list[str]) -> int:
    if is_silent():
        return fail("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    if arguments[:3] != ["--oneliner", "show", "job"] or len(arguments) != 4:
        return refuse("scontrol", arguments)
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    if arguments[3] not in jobs:
        return fail("slurm_load_jobs error: Invalid job id specified")
    facts = jobs[arguments[3]]
    named = f"JobId={arguments[3]} JobName={facts['name']}"
    print(f"{named} UserId=me(1) JobState={facts['state']} Reason=None End=x")
    return 0


def sacct(arguments: list[str]) -> int:
    if arguments[:3] != ["--noheader", "--parsable2", "--allocations"]:
        return refuse("sacct", arguments)
    return fail("Slurm accounting storage is disabled")


def scancel(arguments: list[str]) -> int:
    if is_silent():
        return fail("scancel: error: Unable to contact slurm controller (connect failure)")
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    if len(arguments) != 1 or not arguments[0].startswith("--name="):
        return refuse("scancel", arguments)
    for facts in jobs.values():
        if f"--name={facts['name']}" == arguments[0] and facts["state"] in ("PENDING", "RUNNING"):
            facts["state"] = "CANCELLED"
    save("jobs.json", jobs)
    return 0


PROGRAMS = {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel, "scontrol": scontrol}


def answer(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None, stop_at: str
) -> tuple[int | None, bytes, bytes]:
    """In place of `slurm.scheduler.call_program`, which takes 0.1 s and more to start a program."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(command[0])
    out, error = io.StringIO(), io.StringIO()
    arguments = [str(folder / word) if folder and word.endswith(".sbatch") else word for word in command[1:]]
    if command[0] == "sbatch":
        save("environment.json", dict(environment))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = PROGRAMS[command[0]](arguments)
    return code, out.getvalue().encode(), error.getvalue().encode()


if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
