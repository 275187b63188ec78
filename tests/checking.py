"""The type checker of the tests: beartype, an int being a float as everywhere in Python.

It cannot check ``Self`` in single methods, and leaves that to mypy.
"""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict
from beartype import beartype as check

beartype = check(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any}), is_pep484_tower=True))
