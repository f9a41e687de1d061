"""Who may do what: loopback only without a token, bearer tokens and a strict cookie with one."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from yamchi.errors import ConfigurationError
from yamchi.settings import Settings
from yamchi.testing import TestApp
from yamchi.web import check_address, create_app

ADMIN, SENDER = "admin-token-ключ", "sender-token"
JOBS = "/api/queues/letters/jobs"


async def _client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    app.define("letters")
    transport = httpx2.ASGITransport(app=create_app(app))
    async with app, httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        yield client


@pytest.fixture
async def open_client() -> AsyncIterator[httpx2.AsyncClient]:
    async for client in _client(TestApp()):
        yield client


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async for client in _client(TestApp(admin_token=ADMIN, api_tokens=(SENDER,))):
        yield client


def bearer(token: str) -> dict[str, bytes]:
    return {"authorization": f"Bearer {token}".encode()}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_another_address_needs_a_token(host):
    with pytest.raises(ConfigurationError, match="ADMIN_TOKEN must be set"):
        check_address(Settings(), host)
    with pytest.raises(ConfigurationError, match="fewer than 16 characters"):
        check_address(Settings(admin_token="0123456789abcde"), host)
    check_address(Settings(admin_token="0123456789abcdef"), host)


def test_tokens_that_may_only_send_need_one_that_may_do_the_rest():
    with pytest.raises(ConfigurationError, match="API_TOKENS is set but ADMIN_TOKEN is not"):
        check_address(Settings(api_tokens=("sender-token",)), "127.0.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_a_loopback_address_needs_none(host):
    check_address(Settings(), host)


@pytest.mark.parametrize("host", ["localhost:3030", "127.0.0.1:3030", "[::1]:3030", "board.localhost"])
async def test_without_a_token_this_machine_may_do_everything(open_client, host):
    assert (await open_client.get("/api/queues", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:3030", "", "[::1"]
)
async def test_a_name_that_was_rebound_to_this_machine_is_refused(open_client, host):
    answer = await open_client.get("/api/queues", headers={"host": host})
    assert answer.status_code == 403
    assert "is not this machine" in answer.json()["detail"]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:8080", "null"])
async def test_a_page_of_another_site_may_not_act(open_client, origin):
    answer = await open_client.post(JOBS, json={"data": 1}, headers={"origin": origin})
    assert answer.status_code == 403
    no_origin = {"sec-fetch-site": "cross-site"}
    assert (await open_client.post(JOBS, json={"data": 1}, headers=no_origin)).status_code == 403


async def test_our_own_page_may_act(open_client):
    headers = {"origin": "http://localhost:3030", "sec-fetch-site": "same-origin"}
    assert (await open_client.post(JOBS, json={"data": 1}, headers=headers)).status_code == 201


@pytest.mark.parametrize("path", ["/api/queues", "/metrics", "/api/nope"])
async def test_with_a_token_strangers_are_kept_out(client, path):
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert (await client.get(path, headers=bearer("wrong"))).status_code == 401


async def test_probes_need_no_token(client):
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 200


async def test_the_admin_may_do_everything(client):
    assert (await client.get("/api/queues", headers=bearer(ADMIN))).status_code == 200
    assert (await client.get("/metrics", headers=bearer(ADMIN))).status_code == 200


async def test_a_sender_may_only_send(client):
    assert (await client.post(JOBS, json={"data": 1}, headers=bearer(SENDER))).status_code == 201
    for method, path in (("GET", "/api/queues"), ("GET", JOBS), ("POST", "/api/queues/letters/pause")):
        answer = await client.request(method, path, headers=bearer(SENDER))
        assert (answer.status_code, "needs the scope" in answer.json()["detail"]) == (403, True)


@pytest.mark.parametrize("path", ["/", "/mailbox", "/scenarios"])
async def test_pages_of_the_board_ask_strangers_to_sign_in(client, path):
    answer = await client.get(path)
    assert (answer.status_code, answer.headers.get("location")) == (303, "/sign-in")


@pytest.mark.parametrize("path", ["/notifications/mailbox.html", "/scenario-board/scenarios.html"])
async def test_pages_of_the_board_are_no_static_files(client, path):
    assert (await client.get(path)).status_code == 404


async def test_signing_in_gives_a_strict_cookie_that_is_not_the_token(client):
    assert (await client.get("/")).headers["location"] == "/sign-in"
    wrong = await client.post("/sign-in", data={"token": "wrong"})
    assert (wrong.status_code, "neither the admin token nor a key" in wrong.text) == (401, True)
    signed_in = await client.post("/sign-in", data={"token": ADMIN})
    cookie = signed_in.headers["set-cookie"]
    assert signed_in.headers["location"] == "/"
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert ADMIN not in cookie
    assert (await client.get("/api/queues")).status_code == 200
    await client.post("/sign-out")
    assert (await client.get("/api/queues")).status_code == 401


@pytest.mark.parametrize("cookie", ["", "x", "99999999999999.abc", "99999999999999.", ".", "٣.abc", "1.é"])
async def test_a_forged_cookie_opens_nothing(client, cookie):
    headers = {"cookie": f"yamchi_session={cookie}".encode()}
    assert (await client.get("/api/queues", headers=headers)).status_code == 401


async def test_a_session_ends():
    app = TestApp(admin_token=ADMIN)
    async for client in _client(app):
        await client.post("/sign-in", data={"token": ADMIN})
        cookie = {"cookie": f"yamchi_session={client.cookies['yamchi_session']}"}
        await app.clock.advance("8d")
        assert (await client.get("/api/queues", headers=cookie)).status_code == 401


@pytest.mark.parametrize("path", ["/", "/api/queues", "/board/main.js", "/nope"])
async def test_every_answer_has_the_security_headers(open_client, path):
    headers = (await open_client.get(path)).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
