"""Pages of HTML: those of the board that a feature has of its own, and those behind links in messages."""

from base64 import b64encode
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from yamchi.yamlfiles import load_file

STYLE = Path(__file__).with_name("linkpages.css")


def board_page(request: Request, file: Path, headers: Mapping[str, str] | None = None) -> Response:
    """A page for whoever may see the board; others are sent to where they sign in."""
    if not request.state.caller.may_look:
        return RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    return HTMLResponse(file.read_text("utf-8"), headers={"cache-control": "no-cache", **(headers or {})})


class LinkPage:
    """What a link in a message opens: `page.html` of a folder, with the words of its `texts.yaml`; it loads nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def texts(self) -> dict[str, dict[str, Any]]:
        """What the page says, by language."""
        found: dict[str, dict[str, Any]] = load_file(self._folder / "texts.yaml").data
        return found

    def show(self, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
        html, style, policy = self._looks
        shown = html.render(style=style, **values)
        return HTMLResponse(shown, status, {"content-security-policy": policy, "cache-control": "no-store"})

    @cached_property
    def _looks(self) -> tuple[Template, str, str]:
        """The page, its style, and the policy that lets in this style and nothing else."""
        html, style = (self._folder / "page.html").read_text("utf-8"), STYLE.read_text("utf-8")
        mark = b64encode(sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{mark}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        return Environment(autoescape=True).from_string(html), style, policy
