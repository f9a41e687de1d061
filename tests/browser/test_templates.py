"""Every shipped letter in a real Chromium: it fits phone and desk, light and dark, and is easy to read."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser

from yamchi.notifications.templates import FileTemplates, render

ALMOST = 2  # pixels that rounding may take

MEASURE = """
() => {
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = numbers(getComputedStyle(e).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const words = [...document.querySelectorAll("h1, p, li, a, td")].filter(e =>
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.getClientRects().length);
  const contrast = e => {
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return {
    width: document.documentElement.scrollWidth,
    contrast: Math.min(...words.map(contrast)),
    small: Math.min(...words.map(e => parseFloat(getComputedStyle(e).fontSize))),
    background: light(behind(document.querySelector(".card"))),
    buttons: [...document.querySelectorAll(".action a")].map(e => e.getBoundingClientRect().height),
    preheader: document.querySelector(".preheader").getClientRects().length,
  };
}
"""


@pytest.fixture(scope="module")
def letters() -> dict[str, str]:
    async def load() -> dict[str, str]:
        found = [template for template in await FileTemplates().list() if template.channel == "email"]
        url = "https://example.com/unsubscribe/1"
        return {str(t): render(t, t.sample or {}, unsubscribe_url=url).html or "" for t in found}

    with ThreadPoolExecutor(1) as thread:  # Playwright keeps an event loop in this one
        return thread.submit(lambda: asyncio.run(load())).result()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [640, 375])
def test_letters_are_good_to_read(browser: Browser, letters: dict[str, str], scheme: str, width: int) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})  # type: ignore[arg-type]
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name, html in letters.items():
        page.set_content(html)
        seen = page.evaluate(MEASURE)
        assert seen["width"] <= width + ALMOST, f"{name} is wider than the screen"
        assert seen["contrast"] >= 4.5, f"{name} is hard to read: {seen['contrast']:.1f}"
        assert seen["small"] >= 13, name
        assert all(height >= 44 for height in seen["buttons"]), f"{name} has a button too small for a thumb"
        assert seen["preheader"] == 0, f"{name} shows its preheader"
        assert (seen["background"] > 0.5) == (scheme == "light"), f"{name} is not {scheme}"
    context.close()
    assert asked == []
