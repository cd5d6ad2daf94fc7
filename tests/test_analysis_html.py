"""The page of the report in a real browser: it needs nothing, and lets nothing of others out."""

import re
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

import pytest

from analysis.findings.answer import Answer
from analysis.findings.headline import Kind
from analysis.findings.tiles import Light, Tile
from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.report.assemble import make_report
from analysis.report.figure_files import FigureFiles, draw_figures
from analysis.report.files import write_report
from analysis.report.html import page
from analysis.study import LeftOut, Study, left_out_table
from tests.page_checks import (
    BROKEN_WORDS,
    CONTRAST,
    DESK,
    OVERPRINTED,
    PAPER,
    PHONE,
    SIZES,
    ZOOMED,
    open_page,
)
from tests.records import make_workers, write_run
from tests.report_studies import START, write_study
from unet_scaling.study.config import FRAMEWORKS

pytestmark = pytest.mark.slow

HOSTILE = '<script>window.owned=1</script><img src=x onerror="window.owned=1"> {{ 7*7 }} \'"&amp; $x^2$'
PDF_PAGE = re.compile(rb"/Type\s*/Page\b(?!s)")
# Pixels: the type scale of report.css, which the figures share.
TYPE_SCALE = {12, 13, 14, 20, 28}


def write_page(study: Study, folder: Path) -> Path:
    report = make_report(study)
    path = folder / "report.html"
    path.write_text(page(report, draw_figures(report)))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study with two sets of options, and with more runs left out than are shown unfolded."""
    folder = write_study(tmp_path_factory.mktemp("plain") / "study")
    points = product((1, 2, 3), FRAMEWORKS, (1, 2))
    for begun, (repeat, framework, workers) in enumerate(points):
        write_run(
            folder,
            framework,
            workers,
            repeat,
            images_per_second=150.0 * workers + repeat,
            options={"training": {"precision": "bf16"}},
            label="-precision=bf16",
            header={"started_utc": f"{START + timedelta(hours=2, minutes=begun):%Y-%m-%dT%H:%M:%SZ}"},
        )
    for repeat in range(6, 20):
        write_run(folder, repeat=repeat, end=None)
    write_report(make_report(load_study(folder)), folder / "report")
    return folder / "report" / "report.html"


@pytest.fixture(scope="module")
def desk(browser: Any, plain: Path) -> Any:
    """The page of `plain`, opened once for the tests that only read it."""
    return open_page(browser, plain, DESK)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study that carries markup wherever a text of others can stand."""
    folder = tmp_path_factory.mktemp("hostile")
    header = {
        "workers": make_workers(1, host=HOSTILE, device="cpu"),
        "transport": {"backend": HOSTILE},
        "versions": {HOSTILE: HOSTILE},
        "commit": HOSTILE,
    }
    for framework in ("pytorch_native", "horovod"):
        write_run(folder / "study", framework, header=header)
    study = load_study(folder / "study")
    runs = study.runs.assign(options=HOSTILE)
    lost = left_out_table([LeftOut(HOSTILE, HOSTILE, HOSTILE)])  # type: ignore[arg-type]
    return write_page(replace(study, name=HOSTILE, runs=runs, left_out=lost, notes=(HOSTILE,)), folder)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of logs in the older layout."""
    folder = tmp_path_factory.mktemp("older")
    for framework in ("", "hvd_"):
        for workers in (1, 2):
            seconds = [30.0] + [20.0 / workers] * 9
            rows = [
                f"{n},{each},{0.5 / (n + 1)},0.001,{sum(seconds)},1.0,0.9" for n, each in enumerate(seconds)
            ]
            lines = [",time_per_epoch,loss,lr,training_time,test_time,iou", *rows, ""]
            (folder / f"log_{framework}{workers}.csv").write_text("\n".join(lines))
    return write_page(load_reference(folder), folder)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_requested_and_nothing_complains(browser: Any, plain: Path, scheme: str) -> None:
    opened = open_page(browser, plain, DESK, scheme)
    own = [plain.as_uri(), "data:,"]
    assert [heard for heard in opened.heard if heard not in own] == []
    assert opened.locator("script, link[rel=stylesheet], iframe, object").count() == 0


def test_headline_iou_and_trust_are_on_the_first_screen(desk: Any) -> None:
    for place in ("h1", ".answer > .tiles .tile:nth-child(2)", ".answer > .tiles .tile:nth-child(4)"):
        box = desk.locator(place).bounding_box()
        assert box["height"] > 0, place
        assert box["y"] + box["height"] < DESK["height"], place
    assert desk.locator(".answer > .tiles h2").all_inner_texts()[1::2] == ["IoU", "Trust"]
    compared = desk.locator(".headline .next").first.inner_text()
    assert re.match(r"DDP or Horovod\?\s+Of 5 comparisons: .* faster at \d", compared), compared
    panels = desk.locator(".first .panel")
    left, right = (panels.nth(number).bounding_box() for number in (0, 1))
    assert left["y"] == right["y"] < DESK["height"]
    assert left["x"] + left["width"] < right["x"]


def test_further_answers_are_folded_and_counted_in_words_that_agree(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, DESK)
    assert opened.locator(".more-answers > summary").inner_text() == "1 more answer"
    assert not opened.locator(".more-answers .tiles").is_visible()
    opened.locator(".more-answers > summary").press("Enter")
    assert opened.locator(".more-answers .tiles").is_visible()
    options = opened.locator(".kind .options").all_inner_texts()
    assert sorted(options) == ["precision=bf16", "precision=fp32"]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with one answer of each kind, and a tile of each light in each."""
    folder = tmp_path_factory.mktemp("kinds")
    for framework in FRAMEWORKS:
        write_run(folder / "study", framework)
    report = make_report(load_study(folder / "study"))
    tiles = tuple(Tile("Speed", "1x", "Detail", light) for light in get_args(Light))
    answers = [Answer("", kind, "Headline", tiles, ("a next step",)) for kind in get_args(Kind)]
    report.__dict__["answers"] = answers  # a cached property; no study gives all of them
    path = folder / "report.html"
    path.write_text(page(report, FigureFiles({}, {})))
    return path


def test_kinds_and_lights_differ_in_word_and_shape_not_in_colour_alone(browser: Any, kinds: Path) -> None:
    opened = open_page(browser, kinds, DESK)
    opened.locator(".more-answers > summary").click()
    for place, marks in (
        (".kind > .mark", len(get_args(Kind))),
        (".answer > .tiles .mark", len(get_args(Light))),
    ):
        words = opened.locator(place).all_inner_texts()
        paths = opened.locator(f"{place} path").evaluate_all("all => all.map(each => each.getAttribute('d'))")
        assert len(set(words)) == len(set(paths)) == len(words) == marks, place


@pytest.mark.parametrize(
    ("name", "size"), [("plain", DESK), ("plain", ZOOMED), ("plain", PHONE), ("older", PHONE)]
)
def test_the_page_scrolls_down_only_and_breaks_no_word(
    browser: Any, request: pytest.FixtureRequest, name: str, size: dict[str, int]
) -> None:
    opened = open_page(browser, request.getfixturevalue(name), size)
    opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert opened.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert opened.evaluate(BROKEN_WORDS) == []


def test_a_wide_table_scrolls_inside_itself_with_a_sign(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, PHONE)
    table = opened.locator("#against .scroll").first
    assert table.evaluate("each => each.scrollWidth > each.clientWidth")
    assert "linear-gradient" in table.evaluate("each => getComputedStyle(each).backgroundImage")


def test_one_quantity_of_the_points_is_shown_and_paper_shows_all(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, DESK)
    shown = opened.locator("#points thead th:visible")
    keys = ["framework", "workers", "repeats"]
    assert shown.all_inner_texts() == [*keys, "speed-up"]
    opened.get_by_label("efficiency", exact=True).check()
    assert shown.all_inner_texts() == [*keys, "efficiency"]
    opened.keyboard.press("ArrowRight")
    assert shown.all_inner_texts() == [*keys, "deviation"]
    opened.emulate_media(media="print")
    assert len(shown.all_inner_texts()) == len(keys) + 5
    assert not opened.locator(".choices").first.is_visible()


def test_sections_say_in_a_sentence_what_they_find(desk: Any) -> None:
    sentences = desk.locator("section .conclusion").all_inner_texts()
    assert len(sentences) > 8
    assert [text for text in sentences if text[0].islower() or not text.endswith((".", ")"))] == []
    assert re.match(r"On 4 workers the speed-up is 3\.\d\d \[.*\] with native DDP", sentences[0])
    assert desk.locator("#budget").get_attribute("class") == "empty"
    assert desk.locator("#points").is_visible()
    assert not desk.locator("#runs").is_visible()


def test_a_link_into_a_folded_section_opens_it(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, DESK)
    opened.locator("nav a[href='#runs']").click()
    assert opened.locator("#runs").is_visible()


def test_every_link_leads_to_a_file_or_the_folder_of_a_run(desk: Any, plain: Path, kinds: Path) -> None:
    places = desk.locator("a:not([href^='#'])").evaluate_all(
        "all => all.map(each => each.getAttribute('href'))"
    )
    missing = [place for place in set(places) if not (plain.parent / unquote(place)).exists()]
    assert missing == []
    assert {"../horovod-w01-r1/", "../pytorch_native-w01-r19/", "summary.csv", "scaling.svg"} <= set(places)
    assert "../" not in kinds.read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["plain", "older"])
def test_texts_stand_out_from_what_is_behind_them(
    browser: Any, request: pytest.FixtureRequest, name: str, scheme: str
) -> None:
    """WCAG 2.2, 1.4.3: 4.5."""
    opened = open_page(browser, request.getfixturevalue(name), DESK, scheme)
    found = opened.evaluate(CONTRAST)
    assert len(found) > 50
    assert [each for each in found if each[0] < 4.5] == []


def test_dark_and_light_differ(desk: Any) -> None:
    papers = set()
    for scheme in ("dark", "light"):
        desk.emulate_media(color_scheme=scheme)
        papers.add(desk.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2


def test_texts_of_others_stay_texts(browser: Any, hostile: Path) -> None:
    opened = open_page(browser, hostile, DESK)
    assert [heard for heard in opened.heard if heard not in (hostile.as_uri(), "data:,")] == []
    assert opened.evaluate("window.owned") is None
    assert opened.locator("script, img, [onerror]").count() == 0
    assert opened.title().startswith(HOSTILE)
    opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    for place in ("header .study", "#left-out tbody", "#notes", "#provenance dl", "#fairness tbody"):
        assert HOSTILE in opened.locator(place).inner_text(), place


def test_a_reader_without_sight_finds_the_way(desk: Any) -> None:
    ids = desk.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    labelled = desk.locator("[aria-labelledby]")
    labels = labelled.evaluate_all("all => all.map(each => each.getAttribute('aria-labelledby'))")
    assert set(labels) <= set(ids)
    links = desk.locator("a[href^='#']").evaluate_all("all => all.map(each => each.hash.slice(1))")
    assert set(links) <= set(ids)
    marks = desk.locator("use").evaluate_all("all => all.map(each => each.getAttribute('href').slice(1))")
    assert marks
    assert set(marks) <= set(ids)
    assert desk.locator("h1").count() == 1
    assert desk.locator("table").count() == desk.locator("table > caption").count() > 5
    assert desk.locator("thead th:not([scope=col]), tbody th:not([scope=row], [scope=rowgroup])").count() == 0
    figures = desk.locator("figure svg")
    assert all(len(figures.nth(n).get_attribute("aria-label")) > 20 for n in range(figures.count()))
    assert desk.evaluate("document.documentElement.lang") == "en"


def test_keys_reach_the_evidence(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, DESK)
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    assert opened.locator(".skip").bounding_box()["x"] >= 0
    opened.keyboard.press("Enter")
    assert opened.evaluate("location.hash") == "#points"
    assert opened.locator(".scroll:not([tabindex='0'])").count() == 0


def test_texts_have_the_sizes_of_one_scale(desk: Any) -> None:
    sizes = desk.evaluate(SIZES)
    assert {size for size, drawn, _ in sizes if not drawn} == TYPE_SCALE
    assert {size for size, drawn, _ in sizes if drawn} <= TYPE_SCALE


@pytest.mark.parametrize(("name", "size"), [("plain", DESK), ("plain", PHONE), ("older", DESK)])
def test_no_text_of_a_figure_is_cut_or_overprinted(
    browser: Any, request: pytest.FixtureRequest, name: str, size: dict[str, int]
) -> None:
    opened = open_page(browser, request.getfixturevalue(name), size)
    opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert opened.locator("figure svg text").count() > 50
    assert opened.evaluate(OVERPRINTED) == []


def test_a_figure_on_a_phone_scrolls_rather_than_shrinking_its_texts_below_10_pixels(
    browser: Any, plain: Path
) -> None:
    opened = open_page(browser, plain, PHONE)
    sizes = opened.evaluate(SIZES)
    assert min(size for size, drawn, _ in sizes if drawn) >= 10
    panel = opened.locator(".panel").first
    assert panel.evaluate("each => each.scrollWidth > each.clientWidth")


def test_paper_shows_what_is_folded_on_the_screen_and_no_empty_pages(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, PAPER)
    folded = opened.locator("#left-out table")
    assert not folded.is_visible()
    opened.emulate_media(media="print")
    assert folded.bounding_box()["height"] > 100
    assert [text for text in opened.evaluate(BROKEN_WORDS) if text.startswith("[")] == []
    assert (
        opened.locator(".swatch").first.evaluate("each => getComputedStyle(each).printColorAdjust") == "exact"
    )
    height = opened.evaluate("document.documentElement.scrollHeight")
    assert opened.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    pages = len(PDF_PAGE.findall(opened.pdf(prefer_css_page_size=True)))
    assert height / PAPER["height"] - 1 < pages < 1.3 * height / PAPER["height"] + 1


def test_what_older_logs_cannot_say_stands_beside_the_verdict(browser: Any, older: Path) -> None:
    opened = open_page(browser, older, DESK)
    caveats = opened.locator("aside")
    text = caveats.inner_text()
    assert "provenance" in text
    assert "IoU" in text
    box = caveats.bounding_box()
    assert box["y"] + box["height"] < DESK["height"]
    assert "[" not in opened.locator("#points tbody").inner_text()
    assert opened.locator("#fairness td.yes").count() == 1
