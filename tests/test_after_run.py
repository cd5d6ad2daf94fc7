"""What the last line of a job script says and does, with a scontrol of this test's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.after_run import MOST_FRUITLESS, list_gains, may_be_tried_again
from tests.records import make_header, make_point, write_all, write_run
from unet_scaling.format.record import RECORD_NAME, set_record_aside
from unet_scaling.format.record_lines import End, Resumed
from unet_scaling.run.run_folder import reporting_errors
from unet_scaling.study.config import PROJECT


def stopped(
    folder: Path, position: tuple[int, int], resumed: tuple[int, int] = (0, 0), explained: int | None = None
) -> None:
    """Write the record of an attempt that stopped in order at this position; the one before it is kept."""
    folder.mkdir(exist_ok=True)
    point = make_point()
    (folder / "config.json").write_text(point.model_dump_json())
    if (folder / RECORD_NAME).exists():
        set_record_aside(folder)
    begun = Resumed(epoch=resumed[0], step=resumed[1]) if resumed != (0, 0) else None
    end = End(status="stopped", reason="for this test", position=position, explained=explained)
    earlier = [make_header(point)] if begun else []
    write_all(folder / RECORD_NAME, [make_header(point, resumed=begun, earlier=earlier), end])


def after_run(
    folder: Path, *options: str, scontrol: str = "exit 0", restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the program; `scontrol` is the shell text of the one it finds."""
    tools = folder.parent / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{tools}/calls\n{scontrol}\n')
    (tools / "scontrol").chmod(0o755)
    return subprocess.run(
        [sys.executable, "-m", "slurm.after_run", str(folder), *options],
        cwd=PROJECT,
        env=os.environ
        | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "77",
            "SLURM_RESTART_COUNT": str(restarts),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def calls(folder: Path) -> list[str]:
    path = folder.parent / "tools" / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_an_attempt_that_died_before_its_record_is_named_beside_the_stop(tmp_path: Path) -> None:
    """It may have met a passing fault: the run is still one that stopped, and is started again."""
    folder = tmp_path / "run"
    stopped(folder, (2, 5))
    with pytest.raises(RuntimeError), reporting_errors(folder, make_point(), attempt=2):
        raise RuntimeError("no way to the others")
    done = after_run(folder, "--requeue", restarts=1)
    assert "run run: resumable for this test; a later attempt failed: worker 0 on" in done.stdout
    assert "no way to the others\njob 77 is requeued\n" in done.stdout
    assert (calls(folder), done.returncode) == (["requeue 77"], 75)


def test_where_slurm_refuses_to_requeue_its_words_are_told(tmp_path: Path) -> None:
    stopped(tmp_path / "run", (2, 5))
    done = after_run(tmp_path / "run", "--requeue", scontrol="echo 'Requeue is disabled' >&2; exit 1")
    assert "not requeued: Requeue is disabled" in done.stdout
    assert done.returncode == 75


@pytest.mark.parametrize("words", ["Unable to contact slurm controller", "Unexpected message received"])
def test_a_controller_that_is_away_is_asked_again(words: str, tmp_path: Path) -> None:
    stopped(tmp_path / "run", (2, 5))
    once = tmp_path / "once"
    done = after_run(
        tmp_path / "run",
        "--requeue",
        scontrol=f"[ -e {once} ] || {{ touch {once}; echo '{words}' >&2; exit 1; }}",
    )
    assert calls(tmp_path / "run") == ["requeue 77", "requeue 77"]
    assert done.stdout.endswith("job 77 is requeued\n")


@pytest.mark.parametrize(
    ("end", "code"), [(End(status="complete"), 0), (End(status="diverged", reason="x"), 70), (None, 1)]
)
def test_other_ends_have_their_codes_and_are_not_started_again(
    end: End | None, code: int, tmp_path: Path
) -> None:
    folder = write_run(tmp_path, end=end)
    assert after_run(folder, "--requeue").returncode == code
    assert calls(folder) == []


def test_a_run_that_gains_goes_on_and_one_that_does_not_is_given_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for step in range(1, 8):
        stopped(folder, (0, step))
        assert may_be_tried_again(folder)
    for _ in range(MOST_FRUITLESS):
        assert may_be_tried_again(folder)
        stopped(folder, (0, 7))
    assert not may_be_tried_again(folder)
    assert after_run(folder, "--requeue").returncode == 75
    assert calls(folder) == []


def test_a_run_that_stops_among_its_maps_gains_by_each_further_map(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for explained in (None, 2, 4, 4, 3, 5):
        stopped(folder, (3, 0), explained=explained)
    assert list_gains(folder) == [True, True, True, False, False, True]


@pytest.mark.parametrize("fruitless", [MOST_FRUITLESS - 1, MOST_FRUITLESS])
def test_restarts_that_left_no_record_count_as_fruitless(fruitless: int, tmp_path: Path) -> None:
    """Two attempts stopped in order; those after them died before they had a record."""
    folder = tmp_path / "run"
    for position in ((0, 1), (0, 2)):
        stopped(folder, position)
    after_run(folder, "--requeue", restarts=1 + fruitless)
    assert calls(folder) == (["requeue 77"] if fruitless < MOST_FRUITLESS else [])
