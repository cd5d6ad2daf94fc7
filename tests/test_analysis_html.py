"""The page of the report in a real browser: it needs nothing, and lets nothing of others out."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.report.assemble import make_report
from analysis.report.figure_files import draw_figures
from analysis.report.html import page
from analysis.study import LeftOut, Study, left_out_table
from tests.records import make_workers, write_run
from tests.report_studies import write_study

pytestmark = pytest.mark.slow
playwright = pytest.importorskip(
    "playwright.sync_api", reason="the Python package playwright is not installed"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("no chromium on PATH; Debian's package chromium has it", allow_module_level=True)

HOSTILE = '<script>window.owned=1</script><img src=x onerror="window.owned=1"> {{ 7*7 }} \'"&amp; $x^2$'
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM)
        yield chromium
        chromium.close()


def write_page(study: Study, folder: Path) -> Path:
    report = make_report(study)
    path = folder / "report.html"
    path.write_text(page(report, draw_figures(report)))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an ordinary study with some runs left out."""
    folder = tmp_path_factory.mktemp("plain")
    study = load_study(write_study(folder / "study"))
    lost = [LeftOut(f"run-{number}", "failed", "no end line") for number in range(20)]
    return write_page(replace(study, left_out=left_out_table(lost)), folder)


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
    lost = left_out_table([LeftOut(HOSTILE, HOSTILE, HOSTILE)])
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_requested_and_nothing_complains(browser: Any, plain: Path, scheme: str) -> None:
    opened = open_page(browser, plain, DESK, scheme)
    own = [plain.as_uri(), "data:,"]
    assert [heard for heard in opened.heard if heard not in own] == []
    assert opened.locator("script, link[rel=stylesheet], iframe, object").count() == 0


def test_verdict_recommendation_and_main_figures_are_on_the_first_screen(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, DESK)
    for place in (".verdict >> nth=0", ".advice >> nth=0", "#figure-speedup", "#figure-efficiency"):
        box = opened.locator(place).bounding_box()
        assert box["height"] > 0, place
        assert box["y"] + 0.8 * box["height"] < DESK["height"], place
    assert opened.locator("#figure-speedup path").count() > 10


def test_a_phone_scrolls_down_only_and_sees_the_figure_whole(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, PHONE)
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    box = opened.locator("#figure-speedup").bounding_box()
    assert box["width"] > 300
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    wide = opened.locator(".scroll").first
    assert wide.evaluate("each => each.scrollWidth > each.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["plain", "older"])
def test_texts_stand_out_from_what_is_behind_them(
    browser: Any, request: pytest.FixtureRequest, name: str, scheme: str
) -> None:
    """WCAG 2.2, 1.4.3: 4.5. The bold labels of figures have the colour of their line, at least 2.8."""
    opened = open_page(browser, request.getfixturevalue(name), DESK, scheme)
    found = opened.evaluate(CONTRAST)
    assert len(found) > 50
    faint = [each for each in found if each[0] < (2.8 if each[1] else 4.5)]
    assert faint == []


def test_dark_and_light_differ(browser: Any, plain: Path) -> None:
    papers = {
        open_page(browser, plain, DESK, scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
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


def test_a_reader_without_sight_finds_the_way(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, DESK)
    ids = opened.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    labelled = opened.locator("[aria-labelledby]")
    labels = labelled.evaluate_all("all => all.map(each => each.getAttribute('aria-labelledby'))")
    assert set(labels) <= set(ids)
    links = opened.evaluate("[...document.querySelectorAll('a')].map(each => each.hash.slice(1))")
    assert set(links) <= set(ids)
    marks = opened.locator("use").evaluate_all("all => all.map(each => each.getAttribute('href').slice(1))")
    assert marks
    assert set(marks) <= set(ids)
    assert opened.locator("h1").count() == 1
    assert opened.locator("table").count() == opened.locator("table > caption").count() > 5
    assert opened.locator("thead th:not([scope=col]), tbody th:not([scope=row])").count() == 0
    figures = opened.locator("figure svg")
    assert all(len(figures.nth(n).get_attribute("aria-label")) > 20 for n in range(figures.count()))
    assert opened.evaluate("document.documentElement.lang") == "en"


def test_paper_shows_what_is_folded_on_the_screen(browser: Any, plain: Path) -> None:
    opened = open_page(browser, plain, DESK)
    folded = opened.locator("#left-out table")
    assert not folded.is_visible()
    opened.emulate_media(media="print")
    assert folded.bounding_box()["height"] > 100
    assert opened.pdf(prefer_css_page_size=True)[:5] == b"%PDF-"


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
