"""What the reports that ship say, in Russian, English and Kazakh."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Texts:
    """Headings and labels of one language."""

    deliveries: Mapping[str, str]
    leads: Mapping[str, str]
    checkup: Mapping[str, str]
    stages: Mapping[str, str]
    total: str
    sent: str
    failed: str
    channel: str
    status: str
    count: str
    error: str
    parameter: str
    value: str
    unit: str
    norm: str
    in_norm: str
    out_of_norm: str
    at_least: str
    at_most: str


TEXTS: Mapping[str, Texts] = {
    "ru": Texts(
        deliveries={
            "title": "Что было отправлено",
            "by_day": "По дням",
            "by_channel": "По каналам",
            "errors": "Частые ошибки",
        },
        leads={"title": "Воронка лидов", "funnel": "Воронка", "by_status": "По статусам"},
        checkup={"title": "Результаты чекапа", "results": "Показатели", "conclusion": "Заключение"},
        stages={
            "created": "Оставили заявку",
            "activated": "Открыли бот",
            "booked": "Выбрали урок",
            "confirmed": "Подтвердили",
        },
        total="Всего",
        sent="Отправлено",
        failed="С ошибкой",
        channel="Канал",
        status="Статус",
        count="Сколько",
        error="Ошибка",
        parameter="Показатель",
        value="Значение",
        unit="Единица",
        norm="Норма",
        in_norm="В норме",
        out_of_norm="Вне нормы",
        at_least="от",
        at_most="до",
    ),
    "en": Texts(
        deliveries={
            "title": "What was sent",
            "by_day": "By day",
            "by_channel": "By channel",
            "errors": "Frequent errors",
        },
        leads={"title": "Lead funnel", "funnel": "Funnel", "by_status": "By status"},
        checkup={"title": "Checkup results", "results": "Results", "conclusion": "Conclusion"},
        stages={
            "created": "Signed up",
            "activated": "Opened the bot",
            "booked": "Booked a lesson",
            "confirmed": "Confirmed",
        },
        total="Total",
        sent="Sent",
        failed="Failed",
        channel="Channel",
        status="Status",
        count="Count",
        error="Error",
        parameter="Parameter",
        value="Value",
        unit="Unit",
        norm="Normal range",
        in_norm="Within range",
        out_of_norm="Out of range",
        at_least="from",
        at_most="up to",
    ),
    "kk": Texts(
        deliveries={
            "title": "Не жіберілді",
            "by_day": "Күндер бойынша",
            "by_channel": "Арналар бойынша",
            "errors": "Жиі қателер",
        },
        leads={"title": "Лидтер шұңқыры", "funnel": "Шұңқыр", "by_status": "Күйлері бойынша"},
        checkup={"title": "Чекап нәтижелері", "results": "Көрсеткіштер", "conclusion": "Қорытынды"},
        stages={
            "created": "Өтінім қалдырды",
            "activated": "Ботты ашты",
            "booked": "Сабақ таңдады",
            "confirmed": "Растады",
        },
        total="Барлығы",
        sent="Жіберілді",
        failed="Қатемен",
        channel="Арна",
        status="Күйі",
        count="Саны",
        error="Қате",
        parameter="Көрсеткіш",
        value="Мәні",
        unit="Бірлік",
        norm="Қалыпты шек",
        in_norm="Қалыпты",
        out_of_norm="Қалыптан тыс",
        at_least="кемінде",
        at_most="ең көбі",
    ),
}
