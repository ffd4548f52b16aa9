"""Reads the body of an upload, multipart/form-data: fields are kept, the file goes to the disk as it comes.
The parser itself bounds the headers of a part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from front.errors import ProblemError
from front.files.store import Written

FILE = "file"
MOST_FIELD_BYTES = 4096
MOST_PARTS = 16


def boundary_of(content_type: str) -> bytes:
    """Raises ProblemError."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        said = "content-type: must be multipart/form-data with a boundary"
        raise ProblemError(400, said, "unsupported_content_type")
    return options[b"boundary"]


class Upload:
    """`fields` by name, and the name that the client gives its file; None: no file came."""

    def __init__(self, boundary: bytes, written: Written) -> None:
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self._written = written
        self._num_bytes = 0  # of the file
        self._num_parts = 0
        self._has_ended = False
        self._clear_part()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_header_name,
                "on_header_value": self._add_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        """Raises ProblemError."""
        try:
            async for chunk in chunks:
                self._parser.write(chunk)
            self._parser.finalize()
        except FormParserError as error:
            raise _wrong(f"the body is no multipart/form-data: {error}") from None
        if not self._has_ended:
            raise _wrong("the body ends before its last boundary")

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MOST_PARTS:
            raise _wrong(f"the body must have at most {MOST_PARTS} parts")
        self._clear_part()

    def _clear_part(self) -> None:
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._name = ""
        self._data = bytearray()
        self._is_file = False

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == FILE
        if not self._is_file:
            return
        if self.file_name is not None:
            raise _wrong("file: must be there once", FILE)
        self.file_name = options.get(b"filename", b"file").decode("utf-8", "replace")[:255]

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._data += data[start:end]
            if len(self._data) > MOST_FIELD_BYTES:
                raise _wrong(f"{self._name[:64]}: must have at most {MOST_FIELD_BYTES} bytes")
            return
        self._num_bytes += end - start
        if self._num_bytes > self._written.most_bytes:
            raise ProblemError(413, f"file: must have at most {self._written.limit}", "file_too_large", FILE)
        self._written.file.write(memoryview(data)[start:end])

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._data.decode("utf-8", "replace")

    def _end(self) -> None:
        self._has_ended = True


def _wrong(said: str, param: str | None = None) -> ProblemError:
    return ProblemError(400, said, "invalid_body", param)
