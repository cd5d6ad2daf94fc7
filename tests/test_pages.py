"""Figures and pages: every kind is drawn, hostile names stay text, and a browser shows all of it."""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.assembly.assemble import make_report
from analysis.figures.catalogue import FIGURES
from analysis.figures.frame import PANEL_WIDTH_PX, Inputs
from analysis.figures.style import text_width
from analysis.figures.svg import SVG
from analysis.older_logs.logs import load_reference
from analysis.read.load import load_study
from analysis.report.program import write_report
from analysis.study import LeftOut, left_out_table
from tests.honest import Honest, write_honest
from tests.records import near, older_log, write_all_played, write_run
from tests.saliency_records import write_explained
from tests.test_compare import OTHER_SPREAD, write_side
from unet_scaling.study.config import FRAMEWORKS, PROJECT

HOSTILE = (
    '<script>window.owned=1</script><img src=x onerror="window.owned=1"> {{ 7*7 }} \'"&amp; $x^2$ --> \x1b'
)
PDF_PAGE = re.compile(rb"/Type\s*/Page\b(?!s)")
# Pixels: the type scale of report.css, which the figures share.
TYPE_SCALE = {12, 13, 14, 20, 28}
# What each kind of study alone can draw.
OF_MAPS = {"saliency_curves"}
OF_PLAYED = {"quality"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study with budgets, probes and start-ups, and with markup wherever a text can stand."""
    folder = tmp_path_factory.mktemp("hostile")
    study = load_study(write_honest(folder / "study", Honest(repeats=3, hosts=("node1", HOSTILE))))
    lost = left_out_table([LeftOut(HOSTILE, HOSTILE, HOSTILE)])  # type: ignore[arg-type]
    runs = study.runs.assign(options=HOSTILE)
    named = replace(study, name=HOSTILE, runs=runs, left_out=lost, notes=(HOSTILE,))
    write_report(make_report(named), folder / "report")
    return folder / "report"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study with two sets of options, and with more runs left out than are shown unfolded."""
    truth = Honest(training={"precision": ["fp32", "bf16"]})
    folder = write_honest(tmp_path_factory.mktemp("plain") / "study", truth)
    for repeat in range(6, 20):
        write_run(folder, repeat=repeat, end=None)
    assert main([str(folder)]) == 0
    return folder / "report" / "report.html"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of logs in the older layout."""
    folder = tmp_path_factory.mktemp("older")
    for framework, workers in product(("", "hvd_"), (1, 2)):
        (folder / f"log_{framework}{workers}.csv").write_text(older_log([30.0, *[20.0 / workers] * 9]))
    write_report(make_report(load_reference(folder)), folder / "report")
    return folder / "report" / "report.html"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison: B is faster, with a hostile version of torch, and has a point more."""
    studies = tmp_path_factory.mktemp("studies")
    write_side(studies / "before", frameworks=FRAMEWORKS, workers=(1, 2))
    versions = {"torch": HOSTILE, "python": "3.11.2"}
    more: dict[str, Any] = {"spread": OTHER_SPREAD, "iou": 0.75, "versions": versions}
    write_side(studies / "after", 112.0, frameworks=FRAMEWORKS, workers=(1, 2, 4), **more)
    arguments = [str(studies / "before"), str(studies / "after"), "--output", str(studies / "out")]
    assert main(["compare", *arguments]) == 0
    return studies / "out" / "compare.html"


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Path:
    """The page of the fixture that is named."""
    found: Path = request.getfixturevalue(request.param)
    return found / "report.html" if found.is_dir() else found


def panels(text: str) -> list[ElementTree.Element]:
    """The drawings in a page that are figures, not marks."""
    found = re.findall(r"<svg\b[^>]*\brole=\"img\".*?</svg>", text, re.DOTALL)
    return [ElementTree.fromstring(each) for each in found]


def texts_of(svg: ElementTree.Element) -> str:
    return " ".join("".join(each.itertext()) for each in svg.iter(f"{{{SVG}}}text"))


def test_every_kind_of_figure_is_drawn_and_hostile_names_stay_text(hostile: Path) -> None:
    drawn = {path.stem for path in hostile.glob("*.svg")}
    assert drawn == set(FIGURES) - OF_MAPS - OF_PLAYED - {"strategies"}
    for name in sorted(drawn):
        assert ElementTree.fromstring((hostile / f"{name}.svg").read_text()).tag == f"{{{SVG}}}svg"
    assert any(
        "<script>window.owned=1" in texts_of(svg) for svg in panels((hostile / "report.html").read_text())
    )
    for path in hostile.iterdir():
        if path.suffix in (".html", ".svg", ".md", ".tex", ".csv", ".json"):
            text = path.read_text()
            assert not {"\x1b", "\u202e", "\x07"} & {*text}, path.name
            if path.suffix in (".html", ".svg"):
                assert "<script" not in text, path.name
                assert "<img src=x" not in text, path.name


def test_curves_show_how_loss_score_and_rate_went_on(tmp_path: Path) -> None:
    """They end where the tables do; a score that is known once has no curve, nor what nobody counted."""
    study = load_study(write_honest(tmp_path, Honest(repeats=3)))
    charts = FIGURES["training"].known(Inputs(make_report(study)))
    over = [["Loss", "images seen"], ["IoU", "images seen"], ["IoU", "seconds of training"]]
    over += [["Learning rate", "images seen"], ["Loss", "optimizer steps"], ["IoU", "optimizer steps"]]
    assert [chart.title.split(" over ") for chart in charts] == over
    largest = study.runs.query("framework == 'horovod' and workers == 4")
    rows = charts[0].rows.query("framework == 'horovod' and workers == 4 and epochs == 10")
    (last,) = rows.to_dict("records")
    assert last["images"] == study.epochs.groupby("run")["images"].sum()[largest["run"]].median()
    assert last["iou"] == largest["iou"].median()
    assert (last["iou_low"], last["iou_high"]) == (largest["iou"].min(), largest["iou"].max())
    assert f"Horovod, 4 workers {last['loss']:.3g}." in charts[0].alternative()
    once = replace(study, evaluations=study.evaluations.drop_duplicates("run", keep="last"))
    unknown = replace(once, epochs=once.epochs.assign(images=np.nan))
    for changed, left in ((once, [over[0], over[3], over[4]]), (unknown, [over[4]])):
        charts = FIGURES["training"].known(Inputs(make_report(changed)))
        assert [chart.title.split(" over ") for chart in charts] == left


def test_maps_and_played_runs_have_figures_of_their_own_and_none_of_an_earlier_report(tmp_path: Path) -> None:
    write_explained(tmp_path / "maps")
    write_explained(tmp_path / "maps", workers=2)
    assert main([str(tmp_path / "maps")]) == 0
    assert {path.stem for path in (tmp_path / "maps" / "report").glob("*.svg")} >= OF_MAPS
    write_all_played(tmp_path / "played", {1: near(0.8), 8: near(0.7)})
    (tmp_path / "played" / "report").mkdir()
    for name in ("report.html", "scaling.svg"):
        (tmp_path / "played" / "report" / name).write_text("of an earlier report")
    assert main([str(tmp_path / "played")]) == 0
    assert {path.stem for path in (tmp_path / "played" / "report").glob("*.svg")} == OF_PLAYED


def test_the_same_runs_give_the_same_pictures(tmp_path: Path) -> None:
    write_run(tmp_path / "one", workers=2, iou=None)
    both = []
    for _ in range(2):
        assert main([str(tmp_path / "one")]) == 0
        folder = tmp_path / "one" / "report"
        both.append({path.name: path.read_bytes() for path in folder.glob("*.svg")})
    assert both[0] == both[1] != {}


def box(text: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a text in an SVG."""
    style = text.attrib["style"]
    size = float(re.findall(r"([0-9.]+)px", style)[0])
    width = text_width("".join(text.itertext()), px=size, bold="font-weight:700" in style)
    x, y = (float(text.attrib.get(name, 0)) for name in ("x", "y"))
    anchor = re.search(r"text-anchor:(\w+)", style)
    start = width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor[1] if anchor else "start"]
    return x - start, y - 0.8 * size, x - start + width, y + 0.2 * size


@pytest.mark.parametrize("page", ["plain", "hostile"], indirect=True)
def test_panels_are_whole_and_speak_and_no_text_leaves_them(page: Path) -> None:
    text = page.read_text()
    found = panels(text)
    assert len(found) >= 4
    ids: list[str] = []
    for svg in found:
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        assert [float(each) for each in svg.attrib["viewBox"].split()] == [0, 0, width, height]
        assert width == PANEL_WIDTH_PX
        assert len(svg.attrib["aria-label"]) > 10
        ids += [element.attrib["id"] for element in svg.iter() if "id" in element.attrib]
        for each in svg.iter(f"{{{SVG}}}text"):
            if "rotate(-90" not in each.get("transform", ""):
                left, top, right, bottom = box(each)
                room = min(left, top, width - right, height - bottom)
                assert room >= -1, "".join(each.itertext())
        colours = re.findall(r"#[0-9a-f]{6}\b", ElementTree.tostring(svg, encoding="unicode"))
        assert colours == []
    assert len(ids) == len(set(ids))
    variables = set(re.findall(r"var\((--[a-z]+)\)", text))
    assert variables
    assert all(re.search(rf"{variable}: ?[#\w]", text) for variable in variables)


def test_marks_of_a_figure_say_what_the_tables_say(older: Path, plain: Path) -> None:
    """Every launch, and every median with its interval."""
    report = make_report(load_study(plain.parent.parent))
    titles = set(re.findall(r"<title>(.*?)</title>", plain.read_text()))
    for run in report.study.runs.to_dict("records"):
        assert any(title.startswith(f"{run['run']}, ") for title in titles), run["run"]
    for point in report.points[report.points["workers"] > 1].to_dict("records"):
        numbers = [f"{point[f'speedup_common{end}']:.3g}" for end in ("", "_low", "_high")]
        shown = f"on {point['workers']} workers: {numbers[0]} [{numbers[1]}, {numbers[2]}]"
        assert any(shown in title for title in titles), (shown, titles)


class Ids:
    """What a page refers to, and what it holds, read from its text."""

    def __init__(self, text: str) -> None:
        self.all = re.findall(r'\bid="([^"]+)"', text)
        self.links = set(re.findall(r'href="#([^"]+)"', text))
        self.labels = {
            word for each in re.findall(r'aria-labelledby="([^"]+)"', text) for word in each.split()
        }
        self.files = {unquote(each) for each in re.findall(r'<a\b[^>]*href="([^#"][^"]*)"', text)}


@pytest.mark.parametrize("page", ["plain", "older", "compared", "hostile"], indirect=True)
def test_a_page_needs_nothing_and_leads_to_what_is_there(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"<(script|iframe|object|link)\b(?![^>]*icon)", text)
    assert "default-src 'none'" in text
    ids = Ids(text)
    assert len(ids.all) == len(set(ids.all))
    assert ids.links | ids.labels <= set(ids.all)
    assert [place for place in ids.files if not (page.parent / place).exists()] == []
    assert text.count("<h1") == 1
    assert 'lang="en"' in text
    assert text.count("<table") == text.count("<caption") > 0


NO_PACKAGE = "the Python package playwright is not installed"
NO_CHROMIUM = "no chromium on PATH; Debian's package chromium has it"


# Of this module: while it is open, asyncio holds that a loop runs in this thread, and others start their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason=NO_PACKAGE)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip(NO_CHROMIUM)
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium)
        yield opened
        opened.close()


DESK = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
# What a window of DESK shows at 200 %.
ZOOMED = {"width": 640, "height": 400}
# A4 without the margins of report.css: 186 mm x 273 mm at 96 pixels an inch.
PAPER = {"width": 703, "height": 1032}
# Each gives a list: of sizes in pixels, of words and intervals broken over two lines, of texts cut or
# overprinted, of contrasts.
SIZES = """() => [...document.body.querySelectorAll('*')]
  .filter(each => [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
  .filter(each => each.checkVisibility())
  .map(each => [
    Math.round(10 * parseFloat(getComputedStyle(each).fontSize) * (each.getScreenCTM?.().a ?? 1)) / 10,
    !!each.ownerSVGElement, each.textContent.trim().slice(0, 40),
  ])"""
BROKEN_WORDS = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const broken = [];
  for (let node = texts.nextNode(); node; node = texts.nextNode())
    for (const word of node.textContent.matchAll(
        /(?<!\\S)[A-Za-z]{3,}(?!\\S)|\\[[-+0-9.,]+,\\s[-+0-9.,]+\\]/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(each => each.top)).size > 1) broken.push(word[0]);
    }
  return broken;
}"""
OVERPRINTED = """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')]
    .map(each => [each.textContent.trim(), each.getBoundingClientRect()]);
  const cut = texts.filter(([, own]) => own.left < box.left - 1 || own.right > box.right + 1
    || own.top < box.top - 1 || own.bottom > box.bottom + 1).map(([text]) => svg.id + ' cuts ' + text);
  const overlap = (one, other) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2
    && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 4;
  const over = texts.flatMap(([text, one], place) => texts.slice(place + 1)
    .filter(([name, other]) => name !== text && overlap(one, other))
    .map(([name]) => svg.id + ': ' + text + ' over ' + name));
  return [...cut, ...over];
})"""
CONTRAST = """() => {
  const luminance = ([r, g, b]) => {
    const part = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const numbers = colour => colour.match(/[0-9.]+/g).map(Number);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = numbers(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const ratio = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  return [...document.body.querySelectorAll('*')]
    .filter(each => [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
    .filter(each => each.checkVisibility())
    .map(each => {
      const style = getComputedStyle(each);
      const colour = each.ownerSVGElement ? style.fill : style.color;
      const ratioFound = ratio(numbers(colour).slice(0, 3), behind(each));
      return [ratioFound, !!each.ownerSVGElement, each.textContent.trim().slice(0, 40)];
    });
}"""


def open_page(browser: Any, path: Path, size: dict[str, int], scheme: str = "light") -> Any:
    """The page, opened; what it says to the console or asks the network for is collected in `heard`."""
    context = browser.new_context(viewport=size, color_scheme=scheme)
    opened = context.new_page()
    opened.heard = []
    opened.on("console", lambda message: opened.heard.append(message.text))
    opened.on("pageerror", lambda error: opened.heard.append(str(error)))
    opened.on("dialog", lambda dialog: opened.heard.append(dialog.message))
    opened.on("request", lambda request: opened.heard.append(request.url))
    opened.goto(path.as_uri())
    return opened


SLOW = pytest.mark.slow
PAGES: Mapping[str, tuple[str, dict[str, int]]] = {
    "desk": ("plain", DESK), "zoomed": ("plain", ZOOMED), "phone": ("plain", PHONE),
    "older": ("older", PHONE), "compared": ("compared", DESK),
    "compared, zoomed": ("compared", ZOOMED), "compared, phone": ("compared", PHONE),
}  # fmt: skip


def opened(browser: Any, page: Path, size: dict[str, int], scheme: str = "light") -> Any:
    """The page with everything unfolded."""
    found = open_page(browser, page, size, scheme)
    found.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    return found


@SLOW
@pytest.mark.parametrize("case", PAGES)
def test_a_page_scrolls_down_only_and_no_text_is_cut(browser: Any, request: Any, case: str) -> None:
    name, size = PAGES[case]
    found = opened(browser, request.getfixturevalue(name), size)
    assert found.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert found.evaluate(BROKEN_WORDS) == []
    assert found.evaluate(OVERPRINTED) == []


@SLOW
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["plain", "older", "compared", "hostile"], indirect=True)
def test_nothing_is_requested_and_texts_stand_out(browser: Any, page: Path, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: 4.5."""
    found = opened(browser, page, DESK, scheme)
    assert [heard for heard in found.heard if heard not in (page.as_uri(), "data:,")] == []
    assert found.evaluate("window.owned") is None
    assert found.locator("script, img[src=x], [onerror]").count() == 0
    contrasts = found.evaluate(CONTRAST)
    assert len(contrasts) > 40
    # What stands on the bars of a budget is not behind the page.
    has_bars = "hostile" in str(page) or "plain" in str(page)
    on_page = [each for each in contrasts if not (each[1] and has_bars)]
    assert [each for each in on_page if each[0] < 4.5] == []


@SLOW
def test_headline_iou_and_trust_are_on_the_first_screen(browser: Any, plain: Path, compared: Path) -> None:
    desk = open_page(browser, plain, DESK)
    for place in ("h1", ".answer > .tiles .tile:nth-child(2)", ".answer > .tiles .tile:nth-child(4)"):
        found = desk.locator(place).bounding_box()
        assert found["height"] > 0
        assert found["y"] + found["height"] < DESK["height"], place
    assert desk.locator(".first .panel").first.bounding_box()["y"] < DESK["height"]
    sizes = desk.evaluate(SIZES)
    assert {size for size, drawn, _ in sizes if not drawn} == TYPE_SCALE
    assert {size for size, drawn, _ in sizes if drawn} <= TYPE_SCALE
    comparison = open_page(browser, compared, DESK)
    assert comparison.locator(".first .panel").first.bounding_box()["y"] < DESK["height"]
    assert "caution" in comparison.locator(".headline").get_attribute("class")


@SLOW
def test_what_is_folded_opens_by_link_key_and_on_paper(browser: Any, plain: Path) -> None:
    desk = open_page(browser, plain, DESK)
    desk.keyboard.press("Tab")
    assert desk.evaluate("document.activeElement.className") == "skip"
    desk.keyboard.press("Enter")
    assert desk.evaluate("location.hash") == "#points"
    desk.locator(".more-answers > summary").press("Enter")
    assert desk.locator(".more-answers .tiles").is_visible()
    desk.locator("nav a[href='#cost']").click()
    assert desk.locator("#cost").is_visible()
    paper = open_page(browser, plain, PAPER)
    folded, reasons = paper.locator("#left-out table"), paper.locator(".answer > .tiles details ul").first
    assert not folded.is_visible()
    assert not reasons.is_visible()
    paper.emulate_media(media="print")
    assert reasons.bounding_box()["height"] > 10
    assert not folded.is_visible()
    assert paper.locator("#title-left-out").is_visible()
    folded.evaluate("each => each.closest('details').open = true")
    assert folded.bounding_box()["height"] > 100


MOST_PAGES = 4


@SLOW
def test_a_report_of_one_set_of_options_is_printed_on_four_pages(browser: Any) -> None:
    paper = open_page(browser, PROJECT / "docs" / "examples" / "demo.html", PAPER)
    assert len(PDF_PAGE.findall(paper.pdf(prefer_css_page_size=True))) <= MOST_PAGES


@SLOW
def test_on_a_phone_tables_scroll_inside_themselves_and_figures_fit(browser: Any, plain: Path) -> None:
    phone = open_page(browser, plain, PHONE)
    assert min(size for size, drawn, _ in phone.evaluate(SIZES) if drawn) >= 10
    scrolls = "each => each.scrollWidth > each.clientWidth"
    assert phone.locator("#against .scroll").first.evaluate(scrolls)
    assert not phone.locator(".panel").first.evaluate(scrolls)
