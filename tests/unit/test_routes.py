"""A new route can't forget its guard: who is let in where is compared with the page that says so."""

from tests.routes import PAGE, table


async def test_every_route_lets_in_whom_the_page_says() -> None:
    now = await table()
    kept = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    different = sorted(set(now.splitlines()) ^ set(kept.splitlines()))
    assert now == kept, (
        "Who may call what has changed. Read these lines; if they are meant, run: python -m tests.routes\n"
        + "\n".join(different)
    )
