"""The page of a comparison of two studies in a real browser: one file, readable everywhere."""

from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.compare.assemble import compare_studies
from analysis.compare.headline import speed_change, study_headline
from analysis.compare.sides import read_side
from tests.compared_studies import OTHER_SPREAD, write_side
from tests.page_checks import (
    BROKEN_WORDS,
    CONTRAST,
    DESK,
    OVERPRINTED,
    PAPER,
    PHONE,
    ZOOMED,
    open_page,
)
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.errors import UserError

pytestmark = pytest.mark.slow

HOSTILE = '<script>window.owned=1</script><img src=x onerror="window.owned=1"> {{ 7*7 }} $x^2$'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a comparison: B is faster, with a hostile version of torch, and has a point more."""
    studies = tmp_path_factory.mktemp("studies")
    write_side(studies / "before", frameworks=FRAMEWORKS, workers=(1, 2))
    write_side(
        studies / "after",
        112.0,
        frameworks=FRAMEWORKS,
        workers=(1, 2, 4),
        spread=OTHER_SPREAD,
        iou=0.75,
        versions={"torch": HOSTILE, "python": "3.11.2"},
    )
    main(["compare", str(studies / "before"), str(studies / "after"), "--output", str(studies / "out")])
    return studies / "out"


@pytest.fixture(scope="module")
def desk(browser: Any, folder: Path) -> Any:
    return open_page(browser, folder / "compare.html", DESK)


def test_the_answer_is_one_sentence_on_the_first_screen_with_what_differs(desk: Any) -> None:
    (headline,) = desk.locator("h1").all_inner_texts()
    assert headline == (
        "B (after) is 12 % faster than A at 4 of 4 points; "
        "the IoU of B is lower at 4 of 4 points, by up to 0.050"
    )
    box = desk.locator(".headline").bounding_box()
    assert box["y"] + box["height"] < DESK["height"]
    assert "version of torch: 2" in desk.locator(".headline .next").inner_text()
    assert desk.locator(".first .panel").first.bounding_box()["y"] < DESK["height"]


def test_a_faster_study_that_learns_less_is_no_good_news(desk: Any) -> None:
    assert desk.locator(".kind").inner_text() == "B is faster, its IoU lower"
    assert "caution" in desk.locator(".headline").get_attribute("class")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_requested_and_hostile_texts_stay_texts(browser: Any, folder: Path, scheme: str) -> None:
    path = folder / "compare.html"
    opened = open_page(browser, path, DESK, scheme)
    assert [heard for heard in opened.heard if heard not in (path.as_uri(), "data:,")] == []
    assert opened.evaluate("window.owned") is None
    assert opened.locator("script, img, link[rel=stylesheet], iframe").count() == 0
    assert HOSTILE in opened.locator("#differs tbody").inner_text()
    assert "default-src 'none'" in opened.locator("meta[http-equiv]").get_attribute("content")


def test_the_forest_plot_has_a_row_for_each_point_and_names_its_marks(desk: Any) -> None:
    panels = desk.locator(".first .panel svg")
    assert panels.count() == 2
    assert panels.locator("text", has_text="Ratio of throughputs, B / A").count() == 1
    titles = panels.first.locator("title").evaluate_all("all => all.map(each => each.textContent)")
    assert sorted(text.rpartition("] ")[2] for text in titles) == [
        "on 1 worker (Horovod)",
        "on 1 worker (native DDP)",
        "on 2 workers (Horovod)",
        "on 2 workers (native DDP)",
    ]


@pytest.mark.parametrize("size", [DESK, ZOOMED, PHONE])
def test_the_page_scrolls_down_only_and_no_text_is_cut(
    browser: Any, folder: Path, size: dict[str, int]
) -> None:
    opened = open_page(browser, folder / "compare.html", size)
    opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert opened.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert opened.evaluate(BROKEN_WORDS) == []
    assert opened.evaluate(OVERPRINTED) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(browser: Any, folder: Path, scheme: str) -> None:
    opened = open_page(browser, folder / "compare.html", DESK, scheme)
    found = opened.evaluate(CONTRAST)
    assert len(found) > 40
    assert [each for each in found if each[0] < 4.5] == []


def test_paper_shows_what_is_folded(browser: Any, folder: Path) -> None:
    opened = open_page(browser, folder / "compare.html", PAPER)
    assert not opened.locator("#only").is_visible()
    opened.emulate_media(media="print")
    assert opened.locator("#only").bounding_box()["height"] > 10


def test_every_link_leads_to_a_file_beside_the_page(desk: Any, folder: Path) -> None:
    places = desk.locator("a:not([href^='#'])").evaluate_all(
        "all => all.map(each => each.getAttribute('href'))"
    )
    assert set(places) == {path.name for path in folder.iterdir()} - {"compare.html"}


def test_without_a_common_point_the_page_says_so(browser: Any, folder: Path, tmp_path: Path) -> None:
    after = write_side(tmp_path / "after", workers=(8,))
    with pytest.raises(UserError, match="no point in common"):
        main(["compare", str(folder.parent / "before"), str(after)])
    opened = open_page(browser, after / "compare" / "compare.html", DESK)
    assert opened.locator("h1").inner_text().startswith("Nothing to compare")
    assert opened.locator("svg.mark, .first").count() == 0


@pytest.mark.parametrize(
    ("speed", "change", "answer"),
    [
        (112.0, "faster", "B (b) is 12 % faster than A with native DDP on 1 worker"),
        (50.0, "slower", "A (a) is 100 % faster than B with native DDP on 1 worker"),
        (
            100.2,
            "equal",
            "no significant difference in speed between A (a) and B (b) with native DDP on 1 worker",
        ),
    ],
)
def test_the_headline_names_the_faster_study_and_the_point(
    tmp_path: Path, speed: float, change: str, answer: str
) -> None:
    a = write_side(tmp_path / "a")
    b = write_side(tmp_path / "b", speed, spread=OTHER_SPREAD)
    comparison = compare_studies(read_side("A", a), read_side("B", b))
    assert speed_change(comparison) == change
    assert study_headline(comparison) == answer


def test_too_few_launches_leave_it_undecided(tmp_path: Path) -> None:
    a, b = (write_side(tmp_path / name, spread=(0.0,)) for name in "ab")
    comparison = compare_studies(read_side("A", a), read_side("B", b))
    assert speed_change(comparison) == "unclear"
    assert study_headline(comparison) == "the launches do not show which of A (a) and B (b) is faster"
