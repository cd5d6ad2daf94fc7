"""What a newcomer meets in the first hour: interrupted runs, and the command to go on with."""

from pathlib import Path

from rich.console import Console

from slurm.disturbed import is_to_be_repeated
from tests.records import Measured, make_epochs, make_point, write_run
from unet_scaling.study.run_state import recorded_run


def test_a_run_whose_epochs_all_follow_a_start_or_resume_is_measured_again(tmp_path: Path) -> None:
    """Each warms up, and none is timed: DDP on 2 workers would be missing from the report."""
    point = make_point("pytorch_native", 2, 1)
    epochs = make_epochs(point, 100.0, 48)
    for number, warm_up in enumerate((1, len(epochs))):
        flagged = [each.model_copy(update={"warmup": place < warm_up}) for place, each in enumerate(epochs)]
        folder = write_run(tmp_path / str(number), "pytorch_native", 2, measured=Measured(flagged))
        run = recorded_run(folder, point)
        assert run.state.is_complete
        assert is_to_be_repeated(run, Console(quiet=True)) == (warm_up > 1)
