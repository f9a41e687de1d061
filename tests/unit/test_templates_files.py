"""Templates in folders: whose file wins, which language comes next, and what a file may say about itself."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yamchi.notifications.templates import SHIPPED, FileTemplates, TemplateError, locale_chain, render

WELCOME = """---
subject: Hello
sample: {name: Ann}
---
<p>Mine</p>
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("locale", "chain"),
    [
        ("kk", ("kk", "ru", "en")),
        ("kz", ("kk", "ru", "en")),
        ("KZ", ("kk", "ru", "en")),
        ("kk_KZ", ("kk-KZ", "kk", "ru", "en")),
        ("ru", ("ru", "en")),
        ("ru-KZ", ("ru-KZ", "ru", "en")),
        ("en", ("en",)),
        ("en-GB", ("en-GB", "en")),
        ("de", ("de", "en")),
        ("zh_hant_tw", ("zh-Hant-TW", "zh-Hant", "zh", "en")),
        ("", ("en",)),
        ("../../etc", ("en",)),
    ],
)
def test_a_language_falls_back_to_the_next(locale: str, chain: tuple[str, ...]) -> None:
    assert locale_chain(locale) == chain


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_text_has_a_chain_that_ends_in_english(locale: str) -> None:
    assert locale_chain(locale)[-1] == "en"


async def test_the_users_folder_comes_before_what_ships(tmp_path: Path) -> None:
    write(tmp_path, "welcome_email/email.en.html", WELCOME)
    store = FileTemplates([tmp_path])
    mine = await store.find("welcome_email", "email", ["en"])
    shipped = await store.find("welcome_email", "email", ["ru"])
    assert mine is not None
    assert mine.source == str(tmp_path / "welcome_email" / "email.en.html")
    assert shipped is not None
    assert shipped.source.startswith(str(SHIPPED))


async def test_the_best_language_wins_over_the_first_folder(tmp_path: Path) -> None:
    write(tmp_path, "welcome_email/email.en.html", WELCOME)
    found = await FileTemplates([tmp_path]).find("welcome_email", "email", locale_chain("kz"))
    assert found is not None
    assert found.locale == "kk"


async def test_push_and_browser_are_one_channel_and_ws_says_what_the_inbox_says() -> None:
    store = FileTemplates()
    browser = await store.find("welcome_email", "browser", ["ru"])
    ws = await store.find("welcome_email", "ws", ["ru"])
    assert browser is not None
    assert browser.channel == "push"
    assert ws is not None
    assert ws.channel == "database"


@pytest.mark.parametrize("code", ["nothing", "../secrets", "/etc/passwd", "a/b", "", ".", "welcome_email\0"])
async def test_what_is_not_there_is_not_found(code: str) -> None:
    assert await FileTemplates().find(code, "email", ["ru"]) is None


async def test_a_change_of_a_file_is_seen(tmp_path: Path) -> None:
    path = write(tmp_path, "note/sms.en.txt", "one")
    store = FileTemplates([tmp_path], look_every=0)
    before = await store.find("note", "sms", ["en"])
    path.write_text("two, longer")
    after = await store.find("note", "sms", ["en"])
    write(tmp_path, "note/sms.ru.txt", "три")
    os.utime(tmp_path / "note", ns=(1, 1))
    added = await store.find("note", "sms", ["ru", "en"])
    assert before is not None
    assert after is not None
    assert added is not None
    assert (before.body, after.body, added.body) == ("one", "two, longer", "три")
    assert before.version != after.version


async def test_an_unchanged_file_is_the_same_template(tmp_path: Path) -> None:
    write(tmp_path, "note/sms.en.txt", "one")
    store = FileTemplates([tmp_path], look_every=0)
    assert await store.find("note", "sms", ["en"]) is await store.find("note", "sms", ["en"])


async def test_the_users_layout_and_brand_stand_around_what_ships(tmp_path: Path) -> None:
    write(tmp_path, "layout.html", "<main>{{ content }}</main><b>{{ brand.name }}</b>")
    write(tmp_path, "brand.yaml", "name: Cinema")
    template = await FileTemplates([tmp_path]).find("email_1", "email", ["en"])
    assert template is not None
    html = render(template, {}).html
    assert html is not None
    assert "<main>" not in template.body
    assert "<main>" in html
    assert "<b>Cinema</b>" in html


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("---\nsubject: [a\n---\nx", "not YAML"),
        ("---\nsubjct: a\n---\nx", "'subjct' is wrong"),
        ("---\nsubject: 5\n---\nx", "'subject' is wrong"),
        ("---\n- a\n---\nx", "settings"),
        ("---\nbuttons: [{url: x}]\n---\nx", "'buttons"),
        ("---\nsample: 1\n---\nx", "'sample' is wrong"),
        ("x" * 300_000, "longer than 256 KB"),
    ],
)
async def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path, "note/email.en.html", text)
    store = FileTemplates([tmp_path])
    with pytest.raises(TemplateError, match=r"note \(email, en\)") as raised:
        await store.find("note", "email", ["en"])
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [path.name for path, _ in store.broken()] == ["email.en.html"]
    assert all(template.code != "note" for template in await store.list())


async def test_a_file_that_is_not_text_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, "note/email.en.html", "").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TemplateError, match="not UTF-8"):
        await FileTemplates([tmp_path]).find("note", "email", ["en"])


async def test_of_two_files_for_one_message_html_wins(tmp_path: Path) -> None:
    write(tmp_path, "note/email.en.txt", "---\nsubject: a\n---\ntext")
    write(tmp_path, "note/email.en.html", "---\nsubject: a\n---\n<p>html</p>")
    found = await FileTemplates([tmp_path]).find("note", "email", ["en"])
    assert found is not None
    assert found.format == "html"
