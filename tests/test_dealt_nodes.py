"""What a scheduler deals out, nodes, hours and neighbours: noise by chance, else refused."""

import html
import json
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.judge.chance import PERMUTATIONS, by_chance, shuffled, unequal_use
from slurm.launch.preflight import USUAL_NOISE, describe_interval
from tests.honest import START, Honest, Lines, write_honest
from tests.records import make_study
from tests.reports import all_said, report_of, reported
from tests.tampering import Runs, config, header, in_turn, processors, slower, started, workers
from unet_scaling.study.config import RunConfig

PLACES = "same nodes"
ORDER = "order interleaved in time"
BASELINE = "same baseline"
TIMES = "baseline of the same days and clock"
OUT_OF_ORDER = "launches in the study's order"
QUIET = "machine quiet"
OWN = "options of one framework"
Of = Callable[[RunConfig], Any]


def as_jobs(folder: Path, host: Of, hours: Of | None = None) -> Path:
    """Make each run a job of its own, on the host of its configuration, begun so many hours later."""

    def change(lines: Lines) -> Lines:
        run = lines.config
        job = {"SLURM_JOB_ID": str(100 + JOBS.index((run.repeat, run.workers, run.framework)))}
        lines = in_turn(header(job=job), workers(host=host(run)))(lines)
        later = timedelta(hours=hours(run)) if hours else timedelta(0)
        return started(lambda _, at: at + later)(lines)

    Runs(folder).change(change)
    return folder


JOBS = sorted(
    (repeat, count, name)
    for repeat in range(1, 6)
    for count in (1, 2, 4)
    for name in ("pytorch_native", "horovod", "lightning", "accelerate")
)


def drawn(seed: int, hosts: int) -> Of:
    """Return hosts drawn at random for each run."""
    dealt = random.Random(seed)
    return lambda _: f"n{dealt.randrange(hosts)}"


def of_arm(native: str, other: str) -> Of:
    return lambda run: native if run.framework == "pytorch_native" else other


# The last one's are as unequal as in 6 % of studies: of hosts that somebody chose that is no chance.
@pytest.mark.parametrize(("hosts", "seed"), [(1, 1), (2, 2), (16, 16), (100, 100), (4, 13)])
def test_nodes_that_were_dealt_by_chance_refuse_nothing(hosts: int, seed: int, tmp_path: Path) -> None:
    found = report_of(as_jobs(write_honest(tmp_path / "study"), drawn(seed, hosts)))
    assert found.check(PLACES)[0] == "yes"
    assert found.check(BASELINE)[0] == "yes"
    assert "native DDP faster" in found.outcomes
    assert not found.left_out
    (answer,) = found.report.answers
    assert answer.kind == "scale"
    assert "No fair comparison" not in answer.said


ONE_SIDED: Sequence[tuple[str, Of]] = (
    ("disjoint nodes", of_arm("n1", "n2")),
    (
        "one node served one framework alone",
        lambda run: "n1" if run.framework == "horovod" else f"n{run.repeat}",
    ),
    ("nodes of one framework", lambda run: f"{run.framework[0]}{run.repeat % 2}"),
)


@pytest.mark.parametrize(("name", "host"), ONE_SIDED, ids=[name for name, _ in ONE_SIDED])
def test_nodes_that_chance_does_not_deal_are_refused_with_the_node_and_the_cure(
    name: str, host: Of, tmp_path: Path
) -> None:
    found = report_of(as_jobs(write_honest(tmp_path / "study"), host))
    mark, withholds, fact = found.check(PLACES)
    assert (mark, withholds) == ("no", True), name
    assert "--one-allocation" in fact
    assert "launches n1 in Horovod" in fact or "launches h" in fact or "launches n2 in Horovod" in fact
    assert set(found.outcomes) <= {"withheld", "cannot tell"}


def test_launches_too_few_to_tell_say_that_no_node_served_both(tmp_path: Path) -> None:
    """Three launches of each framework on one count: chance deals them other nodes in a tenth of studies."""
    study = write_honest(tmp_path / "study", Honest(workers=(4,), repeats=3))
    found = report_of(as_jobs(study, of_arm("n1", "n2")))
    assert found.check(PLACES)[:2] == ("yes", False)
    assert "no node served both frameworks" in found.report.verdicts[0].sentence
    (answer,) = found.report.answers
    assert "no node served both frameworks" in answer.said


def test_what_only_one_run_in_a_shared_allocation_had_is_no_chance(tmp_path: Path) -> None:
    """Not of jobs of their own: whoever chose the nodes chose them for one framework."""
    study = write_honest(tmp_path / "study", Honest(workers=(4,), repeats=3))
    Runs(study).of("horovod").change(workers(host="n2"))
    assert report_of(study).check(PLACES)[:2] == ("no", True)


def test_runs_on_1_worker_alone_on_a_node_are_a_baseline_of_their_own(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study")
    found = report_of(as_jobs(study, lambda run: "login" if run.workers == 1 else f"n{run.repeat % 3}"))
    assert found.check(BASELINE)[0] == "no"
    assert "login" in found.check(BASELINE)[2]


def test_jobs_that_waited_for_days_are_said_and_refuse_nothing(tmp_path: Path) -> None:
    """One worker starts at once, four wait for their nodes, of both frameworks alike."""
    study = write_honest(tmp_path / "study")
    found = report_of(as_jobs(study, drawn(3, 4), lambda run: 60 if run.workers == 4 else 0))
    assert found.check(BASELINE)[0] == "yes"
    assert found.check(TIMES)[:2] == ("no", False)
    assert found.report.answers[0].kind == "scale"


def by_night(run: RunConfig) -> float:
    """Native DDP runs from 22 to 2 h and Horovod at 11 h, one day the one first and one day the other."""
    day = 24 * run.repeat
    if run.framework == "pytorch_native":
        return day - 10 + run.workers
    return day + (3 if run.repeat % 2 else -21)


def test_one_framework_by_night_and_the_other_by_day_is_refused(tmp_path: Path) -> None:
    found = report_of(as_jobs(write_honest(tmp_path / "study"), drawn(1, 4), by_night))
    mark, withholds, fact = found.check(ORDER)
    assert (mark, withholds) == ("no", True)
    assert "hours of the day" in fact


def test_starts_in_any_order_are_chance_where_jobs_wait(tmp_path: Path) -> None:
    dealt = random.Random(7)
    study = as_jobs(write_honest(tmp_path / "study"), drawn(1, 4), lambda _: dealt.uniform(0, 30))
    assert report_of(study).check(ORDER)[:2] == ("yes", False)


def made_again(folder: Path, repeats: Sequence[int], framework: str = "horovod") -> None:
    """Remove these repeats of an arm on 4 workers and run them again, hours later."""

    def change(lines: Lines) -> Lines:
        return started(lambda _, at: at + timedelta(hours=5))(lines)

    Runs(folder).of(framework, workers=[4], repeats=repeats).change(change)  # type: ignore[arg-type]


def test_runs_that_were_removed_and_made_again_are_said_beside_the_claim(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study")
    assert OUT_OF_ORDER not in {check.check for check in report_of(study).report.checks}
    made_again(study, [1, 3])
    found = report_of(study)
    assert found.check(OUT_OF_ORDER)[:2] == ("no", False)
    assert OUT_OF_ORDER in found.report.verdicts[0].sentence
    made_again(study, [1, 3], "pytorch_native")
    both = report_of(study)
    assert both.check(OUT_OF_ORDER)[0] == "yes"
    assert "4 launches made later" in both.report.verdicts[0].sentence


def test_a_run_with_an_earlier_attempt_on_record_explains_itself(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study")
    made_again(study, [1, 3])
    Runs(study).of("horovod", workers=[4], repeats=[1, 3]).change(header(attempt=2))
    assert OUT_OF_ORDER not in {check.check for check in report_of(study).report.checks}


def test_options_of_one_framework_stand_beside_every_claim(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study", Honest(advantage=-0.02))
    Runs(study).of("pytorch_native").change(config(pytorch_native={"bucket_cap_mb": 0.05}))
    found = report_of(study)
    words = "native DDP with pytorch_native.bucket_cap_mb = 0.05"
    assert words in found.report.answers[0].said
    assert words in found.report.verdicts[0].sentence
    assert found.check(OWN)[0] == "yes"


def disturbed(share: float = 0.2) -> Any:
    lost = processors(other_seconds=lambda facts: share * facts.process_seconds)
    return in_turn(slower(1 + share), lost)


def test_neighbours_that_disturb_both_alike_widen_the_interval_and_refuse_nothing(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study", Honest(repeats=3))
    for framework, repeat in (("horovod", 1), ("pytorch_native", 3)):
        Runs(study).of(framework, workers=[4], repeats=[repeat]).change(disturbed())  # type: ignore[arg-type]
    found = report_of(study)
    assert found.check(QUIET)[:2] == ("no", False)
    assert "withheld" not in found.outcomes


def test_jobs_on_one_core_at_once_are_neighbours_by_chance_unless_one_framework_had_more(
    tmp_path: Path,
) -> None:
    def together(run: RunConfig, _: datetime) -> datetime:
        return START + timedelta(days=run.repeat)

    for name, framework, withholds in (("all", None, False), ("one", "horovod", True)):
        study = as_jobs(write_honest(tmp_path / name), lambda _: "n1")
        Runs(study).of(framework).change(started(together))  # type: ignore[arg-type]
        assert report_of(study).check("one run at a time on a core")[:2] == ("no", withholds)


def test_neighbours_of_one_framework_withhold(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study", Honest(repeats=3))
    Runs(study).of("horovod", workers=[4], repeats=[1, 2]).change(disturbed())
    assert report_of(study).check(QUIET)[:2] == ("no", True)


def test_without_study_json_what_was_asked_for_is_not_known_and_nothing_is_claimed(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study")
    (study / "study.json").unlink()
    found = report_of(study, asked=False)
    assert found.check("asked for and read")[:2] == ("not known", True)
    assert set(found.outcomes) <= {"withheld", "cannot tell"}
    assert "known of one framework only" not in found.report.answers[0].said


def test_every_sentence_with_a_number_says_that_a_study_is_unfair(tmp_path: Path) -> None:
    study = write_honest(tmp_path / "study")
    Runs(study).of("horovod").change(workers(host="elsewhere"))
    report = report_of(study).report
    assert report.answers[0].kind == "unfair"
    assert report.request_sentences
    assert all("caution: no fair comparison" in text for text in report.request_sentences)


def with_a_handicap(study: Path) -> None:
    Runs(study).of("pytorch_native").change(config(pytorch_native={"bucket_cap_mb": 0.05}))


def with_slow_runs_made_again(study: Path) -> None:
    made_again(study, [1, 3])


# What is done to an honest study, and what its first screen then says, in every output. That a comparison is
# not fair: tests/test_report.py.
FIRST_SCREEN: Sequence[tuple[Callable[[Path], None], str]] = (
    (with_a_handicap, "native DDP with pytorch_native.bucket_cap_mb = 0.05"),
    (with_slow_runs_made_again, OUT_OF_ORDER),
)


@pytest.mark.parametrize(("change", "words"), FIRST_SCREEN, ids=[each.__name__ for each, _ in FIRST_SCREEN])
def test_console_page_and_summaries_say_it_on_their_first_screen(
    change: Callable[[Path], None], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_honest(tmp_path / "study", Honest(advantage=-0.02))
    change(study)
    report = reported(study)
    summary = json.loads((report / "summary.json").read_text())
    assert words in all_said(summary["answers"][0])
    assert words[1:] in " ".join(capsys.readouterr().out.split("report: ")[0].split())
    for name in ("summary.md", "report.html"):
        text = html.unescape((report / name).read_text()).replace("\\", "")
        assert words[1:] in " ".join(text.split()), name


@pytest.mark.parametrize("shared", [False, True])
def test_the_probability_of_an_unequal_use_is_that_of_counting(shared: bool) -> None:
    """Two nodes, five launches of each side: all of one side on one node in 2 of 252 ways to deal them."""
    is_first = [True, False] * 5
    use = np.array([[each, not each] for each in is_first])
    if shared:
        use[:] = True
    weights = shuffled(is_first, ["4 workers"] * 10)
    probability, _ = by_chance([unequal_use(weights, use)])
    assert probability == (1.0 if shared else pytest.approx(2 / 252, abs=3 * (2 / 252 / PERMUTATIONS) ** 0.5))


def test_a_dry_run_says_what_jobs_on_nodes_of_their_own_cost_in_precision() -> None:
    """Student's t of 4 degrees of freedom is 2.776; a pair has two launches, each perhaps on its own node."""
    study = make_study("s", repeats=5)
    text = describe_interval(study)
    allocation = 100 * 2.776 * (2 / 5) ** 0.5 * USUAL_NOISE
    assert f"± {allocation * 2**0.5:.1f} %" in text
    assert f"± {allocation:.1f} % with all runs on the same nodes (--one-allocation)" in text
    assert not describe_interval(make_study("s", repeats=2))
    assert not describe_interval(make_study("s", repeats=5, frameworks=["horovod"]))
