"""The progress of a study on this machine: epochs read as they are written, the time that is left."""

import io
import json
from pathlib import Path

from rich.console import Console

from slurm.estimate import KnownSeconds, recorded_seconds
from slurm.local_progress import RecordTail, StudyProgress
from tests.records import write_record
from tests.studies import make_point
from unet_scaling.study.config import RunConfig
from unet_scaling.study.run_state import recorded_run


def some_points(repeats: int) -> list[RunConfig]:
    point = make_point(Path("/data"), epochs=4)
    runs = [{"run": f"pytorch_native-w1-r{number}", "repeat": number} for number in range(1, repeats + 1)]
    return [point.model_copy(update=run) for run in runs]


def epoch_line(seconds: float, images: int) -> str:
    return json.dumps({"kind": "epoch", "seconds": seconds, "images": images}) + "\n"


def test_epochs_are_counted_as_they_are_written_and_a_torn_line_later(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    tail = RecordTail(record)
    tail.read()
    assert tail.seconds_left(10) is None
    record.write_text('{"kind":"header"}\n' + epoch_line(2.0, 30) + epoch_line(3.0, 30)[:9])
    tail.read()
    assert (tail.epochs, tail.images, tail.seconds_left(10)) == (1, 30, 18.0)
    with record.open("a") as file:
        file.write(epoch_line(3.0, 30)[9:])
    tail.read()
    assert (tail.epochs, tail.seconds, tail.seconds_left(10)) == (2, 5.0, 20.0)


def test_a_terminal_shows_epoch_speed_and_the_time_left_of_all_runs(tmp_path: Path) -> None:
    points = some_points(2)
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True)
    with StudyProgress(console, KnownSeconds()) as progress:
        progress.begin(points, 0, tmp_path)
        assert "time left not known yet" in text.getvalue()
        (tmp_path / "run.jsonl").write_text(epoch_line(600.0, 30) * 2)
        progress.show()
        progress.end("complete in 40 min")
    assert "[1/2] pytorch_native-w1-r1" in text.getvalue()
    # Two epochs of 10 min are left of this run; the other takes as long as what is left of it, or longer.
    assert "epoch 2/4, 0.1 images/s, about 40 min left" in text.getvalue()


def test_a_pipe_gets_one_line_per_run(tmp_path: Path) -> None:
    points = some_points(3)
    (tmp_path / points[0].run).mkdir()
    write_record(tmp_path / points[0].run, points[0])
    known = KnownSeconds()
    run = recorded_run(tmp_path / points[0].run, points[0])
    known.learn(run)
    assert run.record is not None
    assert known.foreseen(points[1:]) == 2 * recorded_seconds(run.record)
    text = io.StringIO()
    with StudyProgress(Console(file=text, width=120), known) as progress:
        progress.begin(points, 1, tmp_path)
        progress.show()
        progress.end("complete in 3 s")
        progress.begin(points, 2, tmp_path)
        progress.end("complete in 4 s")
    first, second = text.getvalue().splitlines()
    assert first.startswith("[2/3] pytorch_native-w1-r2 ... complete in 3 s; about ")
    assert first.endswith(" left")
    assert second == "[3/3] pytorch_native-w1-r3 ... complete in 4 s"
