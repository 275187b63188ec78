"""The papers. This list is the only index."""

from shoal.errors import InputError, nearest
from shoal.experiments import Paper
from shoal.papers import arda2026, qin2025, song2024, wu2023

PAPERS: dict[str, Paper] = {
    module.PAPER.key: module.PAPER for module in (wu2023, song2024, arda2026, qin2025)
}


def paper_of(key: str) -> Paper:
    """A paper by its key."""
    if key not in PAPERS:
        msg = f"no paper is called {key!r}; {nearest(key, PAPERS)}"
        raise InputError(msg)
    return PAPERS[key]
