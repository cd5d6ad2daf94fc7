"""Reports of own tasks, of scripts and of further frameworks: their words, and what they must not say."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.figures.catalogue import FIGURES
from analysis.report.column_lists import taken_names
from analysis.report.columns import TABLES
from analysis.report.tables import COMPARE_LINES
from analysis.score import TAKEN_NAMES_FILE, Score
from tests.evidence import evidence
from tests.own_task_records import OTHER_SCORE, SCORE, as_own_task
from tests.played_runs import near, write_all_played, write_real
from tests.records import make_workers, write_run
from tests.report_studies import START
from tests.reports import Compared, Row, Told, report_of, reported
from tests.script_records import write_script_run
from unet_scaling.study.config import ALL_FRAMEWORKS, FRAMEWORKS, PROJECT, Framework
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.record_lines import End

NATIVE: Framework = "pytorch_native"
NAMES = {"lightning": "Lightning Fabric", "accelerate": "Accelerate"}
# In sentences and names, but not in words such as "previous", in names that the user gave, nor in the columns
# that all tasks have (images, test_images, joules_per_image) and "image/svg+xml".
FOREIGN = re.compile(r"(?i)(?<![a-z])iou(?!_weight)(?![a-z])|(?<![\w/,])images?(?![\w/])")
TEXTS = (".csv", ".html", ".json", ".md", ".svg", ".tex", ".toml")


def measured(folder: Path) -> Path:
    """Both frameworks on 1 to 4 workers; 4 lose more than the margin."""
    for framework in FRAMEWORKS:
        for workers in (1, 2, 4):
            for repeat, score in enumerate(near(0.8 - 0.05 * (workers == 4)), start=1):
                speed = 100.0 * workers + repeat
                write_run(folder, framework, workers, repeat, images_per_second=speed, iou=score)
    return as_own_task(folder, iou_weight=2)


def played(folder: Path) -> Path:
    return as_own_task(write_all_played(folder, {1: near(0.8), 8: near(0.7)}))


def both(folder: Path) -> Path:
    write_real(folder, 1, near(0.8), 100.0)
    return as_own_task(write_all_played(folder, {1: near(0.8), 8: near(0.799)}))


def foreign_words(files: Mapping[str, str]) -> set[str]:
    """Texts of the built-in task, with the name of their file."""
    return {
        f"{name}: {word[0]}" for name, text in files.items() for word in FOREIGN.finditer(f"{name} {text}")
    }


@pytest.mark.parametrize("write", [measured, played, both])
def test_a_task_is_told_in_its_own_words(
    tmp_path: Path, write: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reported(write(tmp_path / "mine"))
    files = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in TEXTS}
    assert len(files) > 10
    printed = capsys.readouterr().out
    assert foreign_words(files | {"console": printed.replace(str(tmp_path), "")}) == set()
    assert "top accuracy" in printed.lower()
    content = json.loads(files["summary.json"])
    assert content["criteria"]["score_margin"] == 0.01
    if write is measured:
        assert {f"{SCORE}_low", SCORE} <= {*content["points"][0]}
        assert "Top accuracy" in {tile["title"] for tile in content["answers"][0]["tiles"]}


def test_every_score_has_its_interval_and_only_the_first_is_judged(tmp_path: Path) -> None:
    found = report_of(measured(tmp_path / "mine"))
    scores = found.rows("task_scores")
    assert len(scores) == 2 * 6
    assert {(row["score"], row["judged"]) for row in scores} == {(SCORE, True), (OTHER_SCORE, False)}
    judged = [row["value_low"] for row in scores if row["judged"]]
    assert judged == pytest.approx([row[f"{SCORE}_low"] for row in found.rows("summary")])
    assert all(row["value_low"] < row["value"] < row["value_high"] for row in scores)
    run = found.rows("runs")[0]
    assert run["scores"].startswith(f"{SCORE}={run[SCORE]:.6g}, {OTHER_SCORE}=")
    assert {row["run"] for row in found.rows("evaluation_scores")} == {
        row["run"] for row in found.rows("runs")
    }


def test_a_comparison_is_told_in_the_words_of_the_task(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a"), tmp_path / "b"
    for repeat, score in enumerate(near(0.7), start=1):
        write_run(b, NATIVE, 1, repeat, images_per_second=100.0 + repeat, iou=score)
    files = Compared(a, as_own_task(b, iou_weight=2)).files
    assert foreign_words({name: content.decode() for name, content in files.items() if content}) == set()
    assert f"{SCORE}_difference" in files["compare.csv"].decode()


@pytest.mark.parametrize(
    ("score", "column"), [("dice", "dice"), ("loss", "loss_score"), ("workers", "workers_score")]
)
def test_a_score_may_have_any_name(score: str, column: str, tmp_path: Path) -> None:
    write_run(tmp_path / "mine", iou=0.8)
    found = report_of(as_own_task(tmp_path / "mine", score=score))
    for file in ("runs.csv", "evaluations.csv", "summary.csv"):
        header = found.files[file].decode().splitlines()[0].split(",")
        assert len(set(header)) == len(header), file
    assert found.row("runs")[column] == pytest.approx(0.8, abs=1e-4)
    point = found.summary["points"][0]
    assert (point["workers"], point[column]) == (1, pytest.approx(0.8, abs=1e-4))


def test_no_name_of_a_score_is_that_of_another_column() -> None:
    """Every column that there is, and what it begins with, may be the name of a score."""
    assert TAKEN_NAMES_FILE.read_text() == taken_names(), "make docs"
    tables = [[name for name in table.names if Score("x").has(name)] for table in TABLES]
    compared = [name for line in COMPARE_LINES for name in line.names]
    tables += [compared, [table.file.partition(".")[0] for table in TABLES], [*FIGURES]]
    for name in {part for names in tables for column in names for part in beginnings(column)}:
        for names in tables:
            written = [Score(name).key(column) for column in names]
            assert len(set(written)) == len(written), f"{name}: make docs"


def beginnings(column: str) -> set[str]:
    """The parts of a name up to each "_"; of names for IoU none, which a task may use as its own."""
    words = column.split("_")
    return set() if "iou" in words else {"_".join(words[: end + 1]) for end in range(len(words))}


def test_a_name_that_the_user_gave_is_no_word_of_ours(tmp_path: Path) -> None:
    """A study called iou, and a task with two values of an option called iou_weight."""
    study = tmp_path / "iou"
    study.mkdir()
    for weight, label in ((1, "-a"), (2, "-b")):
        part = tmp_path / f"weight{weight}"
        write_run(part, label=label)
        for run in as_own_task(part, iou_weight=weight).iterdir():
            run.rename(study / run.name)
    found = report_of(study)
    assert {row["options"] for row in found.rows("runs")} == {"iou_weight=1", "iou_weight=2"}
    assert found.summary["study"] == "iou"
    assert "task.options.iou_weight" in found.table("runs")


ARMS: tuple[Framework, ...] = (NATIVE, "horovod", "lightning")


def test_scripts_have_each_their_own_speed_up_and_no_verdict(tmp_path: Path) -> None:
    """Three arms on 1 and 2 workers, five launches each, of which Horovod's are twice as slow."""
    for framework in ARMS:
        for workers in (1, 2):
            for repeat in range(1, 6):
                speed = (50.0 if framework == "horovod" else 100.0) * workers**0.9 * (1 + repeat / 1000)
                write_script_run(tmp_path / "arms", framework, workers, repeat, images_per_second=speed)
    folder = reported(tmp_path / "arms")
    found = report_of(tmp_path / "arms")
    summary = found.summary
    assert summary["verdicts"] == summary["recommendations"] == summary["comparisons"] == []
    assert found.report.request_sentences == []
    assert found.rows("difference") == found.rows("diagnosis") == []
    assert [answer["kind"] for answer in summary["answers"]] == ["script"] * len(ARMS)
    assert (summary["checks"][0]["mark"], summary["checks"][0]["withholds"]) == ("no", True)
    for row in found.rows("summary", workers=2):
        # The faster arm on 1 worker is no baseline of another arm.
        assert row["speedup"] == pytest.approx(row["speedup_common"]) == pytest.approx(2**0.9)
    for path in folder.iterdir():
        if path.suffix in (".html", ".md", ".tex", ".json"):
            text = path.read_text()
            assert "arms not proven equal" in text, path.name
            claims = ("Native DDP is faster", "Horovod is faster", "significant", "Train with", "Use native")
            assert [claim for claim in claims if claim in text] == [], path.name
    for command in (
        ["compare", *[str(tmp_path / "arms")] * 2],
        ["predict", str(tmp_path / "arms"), "--for", "4"],
    ):
        with pytest.raises(UserError) as refused:
            main(command)
        assert refused.value.exit_code == EXIT_BAD_DATA


def test_arms_of_scripts_are_told_by_script_framework_and_options_that_vary(tmp_path: Path) -> None:
    same: dict[str, Any] = {"script": "train.py", "script_sha256": None}
    scores = End(status="complete", scores={"accuracy": 0.9375, "f1": 0.5})
    write_script_run(tmp_path / "one", NATIVE, **same)
    write_script_run(tmp_path / "one", "horovod", end=scores, **same)
    rows = report_of(tmp_path / "one").rows("runs")
    assert [row["options"] for row in rows] == [f"train.py, framework={name}" for name in ("horovod", NATIVE)]
    assert rows[0]["scores"] == "accuracy=0.9375, f1=0.5"
    for batch in (8, 16):
        write_script_run(tmp_path / "two", options={"batch": batch, "optimizer": "sgd"})
    options = [row["options"] for row in report_of(tmp_path / "two").rows("runs")]
    assert options == ["train_pytorch_native.py, batch=16", "train_pytorch_native.py, batch=8"]


def differing(change: Mapping[str, Any]) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        write_script_run(folder, "horovod", **change)
        write_script_run(folder, repeat=3, **change)

    return write


def beside_the_projects(folder: Path) -> None:
    for run in folder.iterdir():
        run.rename(folder / run.name.replace("-r", "-s"))
    write_run(folder)


def damaged(folder: Path) -> None:
    path = write_script_run(folder, repeat=3) / RECORD_NAME
    path.write_bytes(path.read_bytes().replace(b'"images":4800', b'"images":4900', 1))


THIRD = "script-pytorch_native-w01-r3"
# What is written beside two runs of a script; which runs are left out, and words of the reason.
LEFT_OUT: Mapping[str, tuple[Callable[[Path], object], set[str], str]] = {
    "another script": (differing({"script_sha256": "0" * 64}), {THIRD}, "refused: SHA-256 of the script"),
    "another torch": (
        differing({"versions": {"python": "3.11.7", "torch": "2.12.0"}}), {THIRD},
        "refused: version of torch",
    ),
    "another transport": (
        differing({"transport": {"backend": "nccl"}}), {THIRD}, "refused: transport of native DDP",
    ),
    "the project's own": (
        beside_the_projects, {f"script-{NATIVE}-w01-s{n}" for n in (1, 2)}, "the project's own in",
    ),
    "no end": (
        lambda folder: write_script_run(folder, repeat=3, end=None), {THIRD}, "failed: no end line after 3",
    ),
    "damaged": (damaged, {THIRD}, "invalid: "),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_run_of_a_script_that_does_not_belong_is_left_out(case: str, tmp_path: Path) -> None:
    write, runs, words = LEFT_OUT[case]
    for repeat in (1, 2):
        write_script_run(tmp_path, repeat=repeat)
    write(tmp_path)
    found = report_of(tmp_path)
    assert set(found.left_out) == runs, found.left_out
    assert all(words in reason for reason in found.left_out.values()), found.left_out
    assert found.study.kind.compares == (case == "the project's own")


# Seconds of a step of each framework over those of native DDP, on 2 workers.
SLOWER = {NATIVE: 1.0, "horovod": 1.05, "lightning": 1.001, "accelerate": 1.03}


def write_arms(
    folder: Path,
    frameworks: Sequence[Framework] = ALL_FRAMEWORKS,
    repeats: int = 5,
    header_of: Callable[[Framework, int], Mapping[str, object]] = lambda *_: {},
) -> Path:
    """Runs on 1 and 2 workers, one after the other; `header_of` returns what differs in a header."""
    random = np.random.default_rng(5)
    begun = 0
    for repeat in range(1, repeats + 1):
        for framework in ALL_FRAMEWORKS:
            for workers in (1, 2):
                noise = 1 + 0.0005 * random.standard_normal()
                speed = 100 * workers / SLOWER[framework] ** (workers - 1) * noise
                header = {"started_utc": f"{START + timedelta(minutes=begun):%Y-%m-%dT%H:%M:%SZ}"}
                own = header | dict(header_of(framework, workers))
                begun += 1
                if framework in frameworks:
                    write_run(
                        folder, framework, workers, repeat, images_per_second=speed, iou=0.85, header=own
                    )
    return folder


def checks_of(found: Told, framework: Framework) -> dict[str, Row]:
    """The rows of the fairness table that compare native DDP with this framework, by what they check."""
    ending = f" ({NAMES[framework]})"
    rows = [row for row in found.rows("fairness") if row["check"].endswith(ending)]
    return {row["check"].removesuffix(ending): row for row in rows}


def test_each_framework_is_compared_with_native_ddp(tmp_path: Path) -> None:
    four, two = report_of(write_arms(tmp_path / "four")), report_of(write_arms(tmp_path / "two", FRAMEWORKS))
    rows = {row["framework"]: row for row in four.rows("frameworks", workers=2)}
    equal, slower = ("no significant difference", "native DDP faster")
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "horovod": slower, "lightning": equal, "accelerate": slower,
    }  # fmt: skip
    for name, row in rows.items():
        assert row["ratio"] == pytest.approx(SLOWER[name], rel=0.002)
        assert row["cost_ms"] == pytest.approx(row["step_ms"] * (row["ratio"] - 1))
        assert (row["costs"] != "not shown") == (name == "lightning")
    # One correction covers all comparisons of the study.
    assert {row["comparisons"] for row in four.rows("comparison")} == {6}
    assert {row["comparisons"] for row in two.rows("comparison")} == {2}
    ratios = [[row["ratio"] for row in found.rows("comparison")] for found in (four, two)]
    assert ratios[0] == ratios[1]
    # The report of the pair has neither the table nor the rows of further frameworks.
    assert set(four.files) - set(two.files) == {"frameworks.csv"}
    assert [*two.summary["frameworks"]] == [*FRAMEWORKS]
    assert not any("(" in row["check"] for row in two.rows("fairness"))
    said = {verdict.knobs: verdict.sentence for verdict in four.report.verdicts}
    assert {"Lightning Fabric", "Accelerate", "leaving Horovod"} <= set(said)
    for framework in ("lightning", "accelerate"):
        checks = checks_of(four, framework)
        assert {"same software", "same nodes", "order interleaved in time", "machine quiet"} <= set(checks)
        assert not any(row["withholds"] for row in checks.values())


def test_four_repeats_do_not_show_that_a_wrapper_costs_nothing_and_without_horovod_none_is_named(
    tmp_path: Path,
) -> None:
    found = report_of(write_arms(tmp_path, (NATIVE, "lightning"), repeats=4))
    row = found.row("frameworks", workers=2)
    assert (row["framework"], row["pairs"], row["costs"]) == ("lightning", 4, "not shown")
    assert found.rows("comparison") == []
    said = [*map(str, found.report.verdicts), *(answer["headline"] for answer in found.summary["answers"])]
    assert not any("Horovod" in sentence for sentence in said)
    titles = {row["check"] for row in found.rows("fairness")}
    assert "same nodes (Lightning Fabric)" in titles
    assert "same nodes" not in titles


def elsewhere(framework: Framework, workers: int) -> Mapping[str, object]:
    return {"workers": make_workers(workers, host="node9")} if framework == "accelerate" else {}


def packages(framework: Framework, workers: int) -> Mapping[str, object]:
    own = {"lightning": {"lightning": "2.6.6", "strange": "1.0"}, "accelerate": {"accelerate": "1.15.0"}}
    return {"versions": {"python": "3.11.2", "torch": "2.13.0"} | own.get(framework, {})}


def unknown(framework: Framework, workers: int) -> Mapping[str, object]:
    silent = [each.model_copy(update={"environment": None}) for each in make_workers(workers)]
    return {"workers": silent} if framework == "lightning" else {}


def other_work(folder: Path) -> Path:
    write_arms(folder, FRAMEWORKS, repeats=3)
    for repeat in (1, 2, 3):
        write_run(folder, "lightning", 2, repeat, images_per_epoch=20)
    return folder


def at_once(folder: Path) -> Path:
    """A run of Lightning trained beside one of Horovod."""
    write_arms(folder, repeats=3)
    hours: Mapping[Framework, int] = {"horovod": 1, "lightning": 1, NATIVE: 2, "accelerate": 3}
    for framework, hour in hours.items():
        begun = {"started_utc": f"{START + timedelta(hours=hour):%Y-%m-%dT%H:%M:%SZ}"}
        write_run(folder, framework, 2, 4, images_per_second=1.0, header=begun)
    return folder


def arms(header_of: Callable[[Framework, int], Mapping[str, object]]) -> Callable[[Path], Path]:
    return lambda folder: write_arms(folder, repeats=3, header_of=header_of)


# The study, the framework concerned, the row, its mark, words of its fact.
DIFFERS: Mapping[str, tuple[Callable[[Path], Path], Framework, str, str, str]] = {
    "hosts": (arms(elsewhere), "accelerate", "same nodes", "no", "node1 in native DDP, node9 in Accelerate"),
    "packages": (
        arms(packages),
        "lightning",
        "same software",
        "not known",
        "version of strange: not recorded",
    ),
    "variables": (
        arms(unknown),
        "lightning",
        "same environment",
        "not known",
        "not recorded in Lightning Fabric",
    ),
    "work": (other_work, "lightning", "same work per epoch", "no", "lightning-w02-r1"),
    "at once": (
        at_once,
        "lightning",
        "one run at a time on a core",
        "no",
        "horovod-w02-r4 and lightning-w02-r4",
    ),
}


@pytest.mark.parametrize("case", DIFFERS)
def test_what_differs_in_one_wrapper_alone_withholds_its_verdict_only(case: str, tmp_path: Path) -> None:
    write, framework, check, mark, words = DIFFERS[case]
    found = report_of(write(tmp_path))
    row = checks_of(found, framework)[check]
    assert (row["mark"], row["withholds"]) == (mark, True)
    assert words in row["fact"]
    others = {"lightning", "accelerate"} - {framework}
    if case != "work":
        (other,) = others
        assert checks_of(found, other)[check]["mark"] == "yes"  # type: ignore[arg-type]
        assert "withheld" not in found.row("frameworks", framework="horovod", workers=2)["outcome"]


def test_runs_that_were_not_evaluated_tell_no_weights(tmp_path: Path) -> None:
    options = {"emulation": {"compute": "slurm/profiles/v100_like.toml"}}
    for framework in (NATIVE, "lightning"):
        for repeat in range(1, 6):
            write_run(tmp_path, framework, 2, repeat, images_per_second=100 + 0.01 * repeat, options=options)
    table = report_of(tmp_path).table("frameworks")
    assert table[["same_weights", "difference"]].replace("", np.nan).isna().all(axis=None)


def test_the_page_on_leaving_horovod_says_what_the_records_say() -> None:
    """Four frameworks on two cores, of which none is shown to be faster."""
    found = report_of(evidence("leaving_horovod"))
    text = (PROJECT / "docs" / "leaving_horovod.md").read_text()
    names = found.summary["frameworks"]
    for point in found.rows("summary"):
        assert f"| {names[point['framework']]} | {point['images_per_second']:.1f} |" in text
        assert f"{point['iou']:.3f} |" in text
    said = "\n".join(verdict.sentence for verdict in found.report.verdicts)
    for words in ("0.964 [0.926, 1.003]", "adds -1.04 ms [-3.47, +2.82]", "adds +1.08 ms [-2.00, +3.29]"):
        assert words in said
        assert words in text
    assert said.count("the same weights in 5 of 5 repeats") == 3
