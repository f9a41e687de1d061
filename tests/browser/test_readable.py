"""Every page can be read by everybody: contrast of WCAG AA, one heading, a name for every control, nothing wider than the screen."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Board

PAGES = (
    "/",
    "/#/workers",
    "/#/access",
    "/#/queues/thumbnails",
    "/#/queues/thumbnails/dlq",
    "/#/queues/thumbnails/jobs/failed-once",
    "/#/queues/thumbnails/jobs/no-such-job",
    "/#/activity",
    "/#/campaigns",
    "/#/leads",
    "/#/payments",
    "/#/reports",
    "/mailbox",
    "/media",
    "/scenarios",
    "/docs",
)

FAULTS = """() => {
  const paint = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = color;
    paint.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = paint.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => below.map((value, i) => (i === 3 ? 1 : top[i] * top[3] + value * (1 - top[3])));
  const line = (element) => (element ? [element, ...line(element.parentElement)] : []);
  const ground = (element) => line(element).map((one) => rgba(getComputedStyle(one).backgroundColor)).reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  const linear = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const faults = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest(":disabled, noscript") || !size) continue;
    const color = rgba(style.color);
    color[3] *= line(element).reduce((all, one) => all * getComputedStyle(one).opacity, 1);
    const below = ground(element);
    const [dark, bright] = [light(over(color, below)), light(below)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (contrast < (isLarge ? 3 : 4.5)) faults.push(`${contrast.toFixed(2)}: ${element.className || element.tagName} “${texts.currentNode.data.trim()}”`);
  }
  for (const control of document.querySelectorAll("input, select, textarea, button, a[href]")) {
    if (!control.checkVisibility()) continue;
    const name = control.getAttribute("aria-label") || control.title || control.innerText || control.labels?.[0]?.innerText;
    if (!name?.trim()) faults.push(`no name: ${control.outerHTML}`);
  }
  const headings = document.querySelectorAll("h1").length;
  if (headings !== 1) faults.push(`${headings} headings of the first level`);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) faults.push(`${wide} pixels wider than the screen`);
  return [...new Set(faults)];
}"""


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_every_page_can_be_read(page: Page, board: Board) -> None:
    board.add("thumbnails", {"url": "bad"}, id="failed-once")
    board.add("thumbnails", {"url": "later.jpg"}, delay="1h")
    faults = {}
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for path in PAGES:
            page.goto("about:blank")
            page.goto(f"{board.url}{path}", wait_until="networkidle")
            expect(page.get_by_text("Loading…")).to_have_count(0)
            if found := page.evaluate(FAULTS):
                faults[f"{path} at {width}"] = found
    assert faults == {}, json.dumps(faults, indent=1, ensure_ascii=False)


def test_a_page_without_anything_says_so(page: Page, board: Board) -> None:
    page.goto(f"{board.url}/scenarios")
    expect(page.locator("#none")).to_have_text("No runs yet.")
    page.get_by_label("Key").fill("nobody")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#none")).to_have_text("No run matches.")
    page.goto(f"{board.url}/media")
    expect(page.locator("#none")).to_have_text("No pictures yet.")
    page.goto(f"{board.url}/mailbox")
    expect(page.locator("main")).to_contain_text("No letters yet.")


def test_copying_says_how_it_went(page: Page, board: Board) -> None:
    job_id = board.add("letters", {"n": 1}, delay="1h")
    page.goto(f"{board.url}/#/queues/letters/jobs/{job_id}")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").first.click()
    expect(page.locator(".toast")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == '{\n  "n": 1\n}'
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Copy").first.click()
    expect(page.locator(".toast.bad")).to_have_text(re.compile("^The browser lets only pages"))
    board.remove("letters", job_id)
