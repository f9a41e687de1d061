"""A product whose pages have an inbox: its own server on another origin, with a strict policy, and a backend that mints tokens."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"

PAGE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Kino</title>
<link rel="stylesheet" href="/kino.css">
<script type="module" src="{yamchi}/inbox/yamchi-inbox.js"></script>
<header><b>Kino</b><nav>Films</nav><yamchi-inbox token-url="/me/inbox-token" {attributes}></yamchi-inbox></header>
<main><h1>Tonight</h1><p>Three films that people like you liked.</p></main>
"""

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
body { margin: 0; background: light-dark(#faf9f7, #141311); color: light-dark(#1f1d1a, #ece8e1); }
header { display: flex; align-items: center; gap: 24px; padding: 8px 24px; background: light-dark(#fff, #1e1c1a); border-bottom: 1px solid light-dark(#e5e2dc, #35322e); }
nav { flex: 1; }
main { padding: 24px; }
"""


class Product:
    """Runs in threads of the test; `yamchi` is the address of the server it uses."""

    def __init__(self) -> None:
        self.yamchi, self.api_token = "", ""
        self.life = "15m"
        self.minted = 0
        self.attributes, self.language = "", "en"
        product = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body, kind = product.answer(self.path)
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-security-policy", product.policy)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def policy(self) -> str:
        live = self.yamchi.replace("http", "ws", 1)
        return f"default-src 'self'; script-src 'self' {self.yamchi}; connect-src 'self' {self.yamchi} {live}"

    def answer(self, path: str) -> tuple[bytes, str]:
        if path == "/me/inbox-token":
            return self.mint(), "application/json"
        if path == "/kino.css":
            return STYLE.encode(), "text/css"
        if path == "/favicon.ico":
            return b"", "image/x-icon"
        page = PAGE.format(yamchi=self.yamchi, attributes=self.attributes, language=self.language)
        return page.encode(), "text/html; charset=utf-8"

    def mint(self) -> bytes:
        self.minted += 1
        answer = httpx2.post(
            f"{self.yamchi}/api/v1/users/{USER}/token",
            json={"expires_in": self.life},
            headers={"authorization": f"Bearer {self.api_token}"},
        )
        answer.raise_for_status()
        return answer.content

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
