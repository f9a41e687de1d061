"""multipart/form-data, read as it comes: the file goes straight to the disk, and of it no more than a part is ever in memory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic.alias_generators import to_camel
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from yamchi.errors import InvalidJob
from yamchi.media.files import Files, remove
from yamchi.media.uploads import save

FILE = "file"
MOST_FIELDS = 10
LONGEST_FIELD = 65_536
UNREADABLE = "The body is not multipart/form-data, or it is not whole."


class Form:
    """The fields of a form, by their names in camelCase, and its file once that has been written."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.filename = ""
        self.has_file = False

    def get(self, name: str) -> str | None:
        """A field; None if it is empty or not there."""
        return self.fields.get(name) or None


LONGEST_BOUNDARY = 70
"""Characters, as RFC 2046 has it."""


async def receive_form(request: Request, files: Files, target: Path, most: int) -> Form:
    """Read a form whose `file` is written to `target`, as far as it has at most so many bytes."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not 0 < len(options.get(b"boundary", b"")) <= LONGEST_BOUNDARY:
        raise InvalidJob("file: send the picture as a part named file of multipart/form-data.")
    reader = _Reader(options[b"boundary"])
    await save(reader.file_parts(request.stream()), files, target, most)
    if not reader.form.has_file:
        remove(target)
        raise InvalidJob("file: send the picture as a part named file of multipart/form-data.")
    return reader.form


class _Reader:
    """Takes a body apart. What belongs to the file is given on, the rest is kept as fields. The parser bounds the headers."""

    def __init__(self, boundary: bytes) -> None:
        self.form = Form()
        self._fields = 0
        """How many came, those of the same name, too."""
        self._waiting: list[bytes] = []
        self._field: bytes | None = None
        self._is_whole = False
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._header, self._header_value = bytearray(), bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_data,
                "on_part_data": lambda data, start, end: self._take(data[start:end]),
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    async def file_parts(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The bytes of the file, as they come."""
        try:
            async for chunk in body:
                await asyncio.to_thread(self._parser.write, chunk)
                if self._waiting:
                    part, self._waiting = b"".join(self._waiting), []
                    yield part
        except FormParserError:
            raise InvalidJob(UNREADABLE) from None
        if not self._is_whole:
            raise InvalidJob(UNREADABLE)

    def _begin_part(self) -> None:
        self._headers, self._value = {}, bytearray()

    def _end_header(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._header_value)
        self._header, self._header_value = bytearray(), bytearray()

    def _begin_data(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"")
        if b"filename" not in options:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise InvalidJob(f"A form has at most {MOST_FIELDS} fields.")
            self._field = name
            return
        if name != FILE.encode() or self.form.has_file:
            raise InvalidJob("file: send one file, as a part of this name.")
        self._field = None
        self.form.has_file = True
        self.form.filename = options[b"filename"].decode("utf-8", "replace")

    def _take(self, data: bytes) -> None:
        if self._field is None:
            self._waiting.append(data)
            return
        self._value += data
        if len(self._value) > LONGEST_FIELD:
            raise InvalidJob(f"A field of the form has more than {LONGEST_FIELD:,} bytes.")

    def _end(self) -> None:
        self._is_whole = True

    def _end_part(self) -> None:
        if self._field is not None:
            name = self._field.decode("utf-8", "replace")
            self.form.fields[to_camel(name)] = bytes(self._value).decode("utf-8", "replace")
