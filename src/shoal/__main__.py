"""``python -m shoal`` is ``shoal``."""

from shoal.cli import entry

if __name__ == "__main__":
    entry()
