"""What the server remembers for every page, so that it never waits for a slow one.

Of each kind of message only the newest is kept, and of a run its records: a page that is slow, or
comes back, is sent what it missed, and however slow it is, the board does not grow.
"""

import asyncio
from collections import OrderedDict

MOST_PAGES = 16
"""Pages that are remembered; a page that nobody reads is forgotten first."""
MOST_BYTES = 24 * 2**20
"""Of the records of one run; what comes after is refused (the worker's own limit is lower)."""


class Page:
    """Messages for one page. ``seen`` numbers grow; a reader remembers how far it came."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, str]] = {}
        self.records: list[tuple[int, str]] = []
        self.size = self.count = self.readers = 0
        self.changed = asyncio.Event()

    def put(self, kind: str, slot: str, text: str) -> None:
        """Keep a message (JSON), and wake the readers."""
        self.count += 1
        if kind == "run":  # a new run: records of the old one are of no use
            self.records, self.size = [], 0
        if kind == "records":
            if self.size + len(text) <= MOST_BYTES:
                self.records.append((self.count, text))
                self.size += len(text)
        else:
            key = f"{kind}:{slot}"[:80]
            self.latest.pop(key, None)
            self.latest[key] = self.count, text
        while len(self.latest) > 64:
            self.latest.pop(next(iter(self.latest)))
        self.changed.set()
        self.changed = asyncio.Event()

    def after(self, seen: int) -> tuple[list[str], int]:
        """Messages that came after one, in their order, and the number of the last."""
        some = [pair for pair in (*self.latest.values(), *self.records) if pair[0] > seen]
        return [text for _, text in sorted(some)], self.count


class Board:
    """All pages."""

    def __init__(self) -> None:
        self.pages: OrderedDict[str, Page] = OrderedDict()

    def page(self, name: str) -> Page | None:
        """The page of that name, new if need be; None if there are too many that are read."""
        if name not in self.pages:
            idle = [k for k, page in self.pages.items() if not page.readers]
            if len(self.pages) >= MOST_PAGES:
                if not idle:
                    return None
                del self.pages[idle[0]]
            self.pages[name] = Page()
        self.pages.move_to_end(name)
        return self.pages[name]

    def put(self, name: str, kind: str, slot: str, text: str) -> None:
        """Keep a message for its page, or for all pages if it names none."""
        if not name:
            for page in self.pages.values():
                page.put(kind, slot, text)
        elif name in self.pages:
            self.pages[name].put(kind, slot, text)
