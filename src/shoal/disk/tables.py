"""Parquet tables from outside: how large they become is read from their footer first.

A few kilobytes can hold a billion equal numbers. The footer counts the values of every column; it
is a struct in Thrift's compact form, of which only what Parquet uses is read here.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.files import LARGEST, read_regular
from shoal.runtime import available_memory

if TYPE_CHECKING:
    import polars as pl

MAGIC = b"PAR1"
ROW_GROUPS, COLUMNS, ABOUT, VALUES = 4, 1, 3, 5
"""Numbers of the fields that lead to the number of values of a column."""


def read_table(path: Path, *, follow: bool = True, content: bytes = b"") -> "pl.DataFrame":
    """A table; an OSError if it would not fit into memory, or is not a regular file.

    ``content`` are the bytes of the file, if they were read before.
    """
    import polars as pl  # changes the environment, so only where a table is read

    content = content or read_regular(path, follow=follow)
    size, most = 8.0 * num_values(content), min(LARGEST, available_memory() / 2)
    if size > most:
        raise OSError(f"its table takes {size / 2**30:.3g} GiB; at most {most / 2**30:.3g} is read")
    return pl.read_parquet(io.BytesIO(content))


def num_values(content: bytes) -> int:
    """How many values the columns of a Parquet file hold, by its footer.

    >>> import polars as pl
    >>> pl.DataFrame({"a": [1, 1, 1], "b": [[1, 2], [3], []]}).write_parquet(file := io.BytesIO())
    >>> num_values(file.getvalue())
    7
    """
    if content[-4:] != MAGIC or len(content) < 12:
        raise OSError("it is not a Parquet file")
    length = int.from_bytes(content[-8:-4], "little")
    try:
        footer = _Compact(content[-8 - length : -8]).struct()
        groups = [group[COLUMNS] for group in footer[ROW_GROUPS]]
        counts = [column[ABOUT][VALUES] for columns in groups for column in columns]
        return sum(max(0, int(count)) for count in counts)
    except (LookupError, TypeError, ValueError, RecursionError):
        raise OSError("its footer cannot be read") from None


class _Compact:
    """Reads Thrift's compact form; structs become dicts by the numbers of their fields."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while (byte := self.byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def whole(self) -> int:
        """A whole number, in zigzag order."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> dict[int, Any]:
        """Fields until the end of a struct."""
        found, number = {}, 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.whole()
            found[number] = self.value(head & 0x0F)
        return found

    def value(self, kind: int) -> Any:
        """A value of a kind: 1 and 2 are true and false, without bytes of their own."""
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self.byte()
            case 4 | 5 | 6:
                return self.whole()
            case 7 | 8:
                length = 8 if kind == 7 else self.varint()  # moves on, too
                self.at += length
                return None
            case 9 | 10:
                head = self.byte()
                count = head >> 4 if head >> 4 < 15 else self.varint()
                if count > len(self.content):
                    raise ValueError("more elements than bytes")
                return [self.element(head & 0x0F) for _ in range(count)]
            case 12:
                return self.struct()
        raise ValueError(f"a value of kind {kind}")

    def element(self, kind: int) -> Any:
        """A value in a list, where true and false take a byte."""
        return self.byte() == 1 if kind in (1, 2) else self.value(kind)
