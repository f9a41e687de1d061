"""Tables on a terminal of eighty columns: nothing that somebody would paste is cut."""

import io

import pytest
from rich.console import Console

from yamchi.console import output

ID = "d1fc7b30-d5c9-51b6-9be3-6447068138a9"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    to = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=to, width=80, highlight=False))
    return to


def test_what_fits_is_a_row_a_line(printed: io.StringIO) -> None:
    made = output.table("id", "state", "data")
    made.add_row(ID, output.state("failed"), "short")
    output.print_table(made)
    assert [line.split() for line in printed.getvalue().splitlines()] == [
        ["id", "state", "data"],
        [ID, "failed", "short"],
    ]


def test_what_does_not_fit_goes_on_below(printed: io.StringIO) -> None:
    made = output.table("queue", "id", "name", "state", "tries", "data", right=["tries"])
    made.add_row("notifications", ID, "payments-reconcile", output.state("completed"), "12", "x" * 90)
    made.add_row("cron", "short", "send", output.state("failed"), "1", "")
    output.print_table(made)
    lines = printed.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split() for line in lines] == [
        ["queue", "id", "name"],
        ["state", "tries", "data"],
        ["notifications", ID, "payments-reconcile"],
        ["completed", "12", f"{'x' * (len(lines[3].split()[-1]) - 1)}…"],
        ["cron", "short", "send"],
        ["failed", "1"],
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 4, 0, 4, 0, 4]
    assert lines[3].index("12") == lines[5].index("1") - 1, "numbers end in one column"


def test_what_just_fits_is_not_cut(printed: io.StringIO) -> None:
    made = output.table("id", "name", "kind", "data")
    made.add_row(ID, "x" * 36, "mail", "y" * 90)
    output.print_table(made)
    assert printed.getvalue().splitlines()[2] == f"{ID}  {'x' * 36}  mail"
