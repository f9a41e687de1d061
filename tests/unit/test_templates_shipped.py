"""What ships is whole: every message in three languages, rendered with the least and the most data; and what lint tells."""

from pathlib import Path

import pytest

from yamchi.notifications.templates import (
    FileTemplates,
    Finding,
    Template,
    TemplateError,
    UnknownTemplate,
    lint,
    preview,
    render,
)
from yamchi.notifications.templates.rendering import _compiled

EMAILS = (
    "welcome_email new_film_recommendation black_friday_sale email_1 email_2 remind_24h remind_5h"
    " checkup_done report_ready payment_succeeded payment_failed new_films_digest"
)
LEAST = {
    "new_film_recommendation": {"film_title": "The Matrix"},
    "new_films_digest": {"items": [{"film_title": "The Matrix"}], "count": 1},
    "black_friday_sale": {"discount": "50%", "promo_code": "BFRIDAY2025"},
    "call_needed": {"leadId": "7", "name": "", "phone": ""},
    "bot_booked": {"leadId": "7"},
    "remind_24h": {"leadId": "7", "lessonDatetime": "2026-02-25T15:00:00Z"},
    "remind_5h": {"leadId": "7", "lessonDate": "2026-02-25", "lessonTime": "15:00"},
    "payment_succeeded": {"amount": "1.00"},
    "payment_failed": {"amount": 1},
}


NULLS = {
    "payment_succeeded": {"amount": "1.00", "currency": "RUB", "description": None, "reason": None},
    "payment_failed": {"amount": "1.00", "currency": "RUB", "description": None, "reason": None},
}
"""As the events of payments have them where nothing was said."""


async def shipped() -> list[Template]:
    return list(await FileTemplates().list())


async def test_lint_finds_nothing() -> None:
    assert await lint(FileTemplates()) == []


@pytest.mark.parametrize("locale", ["ru", "en", "kk"])
async def test_every_message_is_there_in_every_language(locale: str) -> None:
    have = {(template.code, template.channel) for template in await shipped() if template.locale == locale}
    assert {(code, "email") for code in EMAILS.split()} <= have
    assert {("report_ready", "telegram"), ("report_ready", "database")} <= have
    assert {("call_needed", "telegram"), ("remind_24h", "telegram"), ("remind_5h", "telegram")} <= have
    for code in (
        "welcome_email",
        "new_film_recommendation",
        "black_friday_sale",
        "payment_succeeded",
        "payment_failed",
    ):
        assert {(code, "push"), (code, "database")} <= have


async def test_the_least_data_is_enough() -> None:
    for template in await shipped():
        rendered = render(template, LEAST.get(template.code, {}))
        assert rendered.text
        assert "None" not in rendered.text
        assert "{{" not in f"{rendered.text}{rendered.html}{rendered.subject}"


@pytest.mark.parametrize("code", NULLS)
async def test_what_is_null_is_left_out(code: str) -> None:
    for template in await shipped():
        if template.code == code:
            rendered, least = (
                render(template, NULLS[code]),
                render(template, {"amount": "1.00", "currency": "RUB"}),
            )
            assert (rendered.text, rendered.html) == (least.text, least.html)


async def test_a_letter_says_that_a_report_is_attached_if_it_is() -> None:
    for locale, said in (("en", "is attached"), ("ru", "приложен"), ("kk", "тіркелген")):
        for channel in ("email", "telegram"):
            template = await FileTemplates().find("report_ready", channel, [locale])
            assert template is not None
            assert said in render(template, {"is_attached": True}).text
            assert said not in render(template, {"is_attached": False}).text


async def test_letters_are_inlined_once_per_version_and_not_once_per_letter() -> None:
    for template in await shipped():
        if template.channel == "email":
            compiled = _compiled(template)
            assert compiled.is_inlined, f"{template} is inlined after rendering"
            assert compiled.text is not None, f"{template} is turned into text after rendering"


async def test_reminders_have_the_seeds_buttons() -> None:
    for code in ("remind_24h", "remind_5h"):
        rendered = await preview(FileTemplates(), code, "telegram", "ru", LEAST[code])
        texts = [(button.text, button.callback) for button in rendered.buttons[0]]
        assert texts == [("✅ Да, буду!", "confirm:7"), ("📅 Перенести", "reschedule:7")]


async def test_the_foot_of_a_letter_unsubscribes_when_there_is_a_link() -> None:
    url = "https://example.com/u?a=1&b=2"
    with_link = await preview(FileTemplates(), "email_1", "email", "kz", unsubscribe_url=url)
    without = await preview(FileTemplates(), "email_1", "email", "kz")
    assert with_link.locale == "kk"
    assert with_link.html is not None
    assert without.html is not None
    assert 'href="https://example.com/u?a=1&amp;b=2"' in with_link.html
    assert f"Жазылымнан бас тарту: {url}" in with_link.text
    assert "Жазылымнан" not in without.html + without.text


async def test_a_preview_of_nothing_says_what_to_do() -> None:
    with pytest.raises(UnknownTemplate, match="no template 'nope' for the channel 'email' in kk, ru, en"):
        await preview(FileTemplates(), "nope", "email", "kk")


# ── Lint ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def found(folder: Path, **files: str) -> list[Finding]:
    for name, text in files.items():
        code, channel, locale = name.split("__")
        path = folder / code / f"{channel}.{locale}.{'html' if channel in ('email', 'telegram') else 'txt'}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return await lint(FileTemplates([folder]), [folder], locales=["ru", "en"])


@pytest.mark.parametrize(
    ("name", "text", "level", "says"),
    [
        (
            "a__email__en",
            "---\nsubject: s\nsample: {}\n---\n<p>\n{{ x|nope }}",
            "error",
            "there is no filter named 'nope'",
        ),
        ("a__email__en", "---\nsubject: '{% if %}'\nsample: {}\n---\nx", "error", "mistake in its subject"),
        ("a__email__en", "<p>x</p>", "error", "no subject"),
        ("a__email__en", "---\nsubject: s\n---\nx", "warning", "no sample"),
        ("a__email__en", "---\nsubject: s\nsample: {y: 1}\n---\n{{ x }}", "error", "'x' is missing"),
        ("a__email__en", f"---\nsubject: {'s' * 90}\nsample: {{}}\n---\nx", "warning", "90 characters"),
        ("a__email__en", "---\nsubject: [\n---\nx", "error", "not YAML"),
        ("a__sms__en", f"---\nsample: {{}}\n---\n{'s' * 300}", "warning", "more than three SMS"),
        ("a__telegram__en", "---\nsample: {}\n---\n<p>x</p>", "warning", "Telegram refuses <p>"),
        ("a__sms__en", "---\nsample: {}\n---\nx", "warning", "ru is missing"),
    ],
)
async def test_lint_tells(tmp_path: Path, name: str, text: str, level: str, says: str) -> None:
    findings = [one for one in await found(tmp_path, **{name: text}) if says in one.message]
    assert [one.level for one in findings] == [level]
    assert findings[0].template.startswith("a/")


async def test_lint_names_the_line_of_the_file(tmp_path: Path) -> None:
    findings = await found(tmp_path, a__sms__en="---\nsample: {}\n---\nfine\n{{ x|nope }}")
    assert [one.line for one in findings if one.level == "error"] == [5]


async def test_lint_compares_the_languages(tmp_path: Path) -> None:
    findings = await found(
        tmp_path,
        a__sms__en="---\nsample: {x: 1}\n---\n{{ x }}",
        a__sms__ru="---\nsample: {x: 1, y: 2}\n---\n{{ x }}{{ y }}",
    )
    assert [(one.template, one.message) for one in findings] == [
        ("a/sms.en", "It does not use y, which ru does.")
    ]


async def test_a_broken_template_says_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "sms.en.txt").write_text("{{ x|nope }}")
    template = await FileTemplates([tmp_path]).find("a", "sms", ["en"])
    assert template is not None
    for _ in range(2):
        with pytest.raises(TemplateError, match="line 1: there is no filter named 'nope'"):
            render(template, {})
