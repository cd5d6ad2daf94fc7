"""A Slurm of files for tests: sbatch, squeue, sacct and scancel that do what a plan says.

Started as a program under those names. It keeps its jobs in $FAKE_SLURM/jobs.json, does the next
thing in $FAKE_SLURM/plan.json at each sbatch, and ends with code 99 at any call it does not know,
so that a test fails where the submission does something new.
"""

import json
import os
import re
import sys
from pathlib import Path

HOME = Path(os.environ.get("FAKE_SLURM", "."))
SQUEUE_ALL = ["--noheader", "--me", "--states=all", "--format=%i|%T|%r"]
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
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
    path = HOME / name
    return json.loads(path.read_text()) if path.exists() else default


def save(name: str, content: object) -> None:
    (HOME / name).write_text(json.dumps(content))


def refuse(program: str, arguments: list[str]) -> int:
    print(f"fake {program}: a call that no real test was made for: {arguments}", file=sys.stderr)
    return 99


def fail(message: str, code: int = 1) -> int:
    print(message, file=sys.stderr)
    return code


def sbatch(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("--parsable", "--test-only"):
        return refuse("sbatch", arguments)
    script = Path(arguments[1]).read_text()
    save("environment.json", dict(os.environ))
    if arguments[0] == "--test-only":
        rejected = load("reject.json", {})
        nodes = re.search(r"--nodes=(\d+)", script)
        assert isinstance(rejected, dict)
        assert nodes is not None
        kind = rejected.get(nodes.group(1))
        return fail(REJECTIONS[kind]) if kind else fail("sbatch: Job 1 to start at 2026-01-01T00:00:00", 0)
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
    if action == "time-out":
        return fail(TIMED_OUT)
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    name = re.search(r"--job-name=(\S+)", script)
    assert name is not None
    job = str(1000 + len(jobs))
    jobs[job] = {"name": name.group(1), "state": "PENDING", "reason": "Priority", "nodes": ""}
    save("jobs.json", jobs)
    if action == "time-out after accepting":
        return fail(TIMED_OUT)
    assert action == "accept", action
    print(job)
    return 0


def squeue(arguments: list[str]) -> int:
    if (HOME / "silent").exists():
        return fail("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    if arguments == SQUEUE_ALL:
        for job, facts in jobs.items():
            print(f"{job}|{facts['state']}|{facts['reason']}")
        return 0
    if arguments[:4] == ["--noheader", "--me", "--states=all", "--format=%i"] and len(arguments) == 5:
        name = arguments[4].removeprefix("--name=")
        print("\n".join(job for job, facts in jobs.items() if facts["name"] == name))
        return 0
    return refuse("squeue", arguments)


def sacct(arguments: list[str]) -> int:
    if arguments[:3] != ["--noheader", "--parsable2", "--allocations"]:
        return refuse("sacct", arguments)
    return fail("Slurm accounting storage is disabled")


def scancel(arguments: list[str]) -> int:
    if (HOME / "silent").exists():
        return fail("scancel: error: Unable to contact slurm controller (connect failure)")
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    if not arguments or not set(arguments) <= set(jobs):
        return refuse("scancel", arguments)
    for job in arguments:
        jobs[job]["state"] = "CANCELLED"
    save("jobs.json", jobs)
    return 0


if __name__ == "__main__":
    programs = {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel}
    sys.exit(programs[sys.argv[1]](sys.argv[2:]))
