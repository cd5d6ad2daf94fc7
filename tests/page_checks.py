"""A page in a real browser, and what a test asks of it: sizes, broken words, overprinted texts, contrast."""

from pathlib import Path
from typing import Any

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
