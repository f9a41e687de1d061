// What the inbox says, in three languages, and how long ago something was.

const TEXTS = {
  en: {
    title: "Notifications", unread: (n) => `${n} unread`, readAll: "Mark all as read", archive: "Archive",
    empty: "Nothing new. What happens will be here.", more: "Show more", now: "just now", arrived: "New notification",
    offline: "Connecting…", refused: "Notifications can't be shown now.", failed: "That did not work. Try again.",
    loading: "Loading…", close: "Close", isUnread: "unread",
  },
  ru: {
    title: "Уведомления", unread: (n) => `непрочитанных: ${n}`, readAll: "Прочитать все", archive: "В архив",
    empty: "Пока ничего нового. Всё важное появится здесь.", more: "Показать ещё", now: "только что",
    arrived: "Новое уведомление", offline: "Соединяемся…", refused: "Сейчас уведомления недоступны.",
    failed: "Не получилось. Попробуйте ещё раз.", loading: "Загружаем…", close: "Закрыть", isUnread: "не прочитано",
  },
  kk: {
    title: "Хабарландырулар", unread: (n) => `оқылмаған: ${n}`, readAll: "Бәрін оқылды деу", archive: "Мұрағатқа",
    empty: "Әзірге жаңалық жоқ. Маңыздысы осында шығады.", more: "Тағы көрсету", now: "жаңа ғана",
    arrived: "Жаңа хабарландыру", offline: "Байланысудамыз…", refused: "Қазір хабарландырулар қолжетімсіз.",
    failed: "Болмады. Қайталап көріңіз.", loading: "Жүктелуде…", close: "Жабу", isUnread: "оқылмаған",
  },
};
const ALIASES = { kz: "kk" };
// Browsers do not know Kazakh; its nouns have no plural after a number.
const KAZAKH = { year: "жыл", month: "ай", week: "апта", day: "күн", hour: "сағат", minute: "минут" };
const SPANS = [["year", 31_536_000], ["month", 2_592_000], ["week", 604_800], ["day", 86_400], ["hour", 3_600], ["minute", 60]];

/** The language to speak: "kk-KZ" and "kz" are "kk"; one that is not here is English. */
export function languageOf(text) {
  const short = (text || "").toLowerCase().split(/[-_]/)[0];
  const language = ALIASES[short] ?? short;
  return language in TEXTS ? language : "en";
}

export const textsIn = (language) => TEXTS[language];

export function ago(moment, language, now = Date.now()) {
  const seconds = Math.max(0, (now - moment) / 1000);
  const [unit, size] = SPANS.find(([, span]) => seconds >= span) ?? [];
  if (!unit) return TEXTS[language].now;
  const count = Math.floor(seconds / size);
  if (language === "kk") return `${count} ${KAZAKH[unit]} бұрын`;
  return new Intl.RelativeTimeFormat(language, { numeric: "auto" }).format(-count, unit);
}

export const inFull = (moment, language) =>
  new Intl.DateTimeFormat([language, "ru"], { dateStyle: "long", timeStyle: "short" }).format(moment);
