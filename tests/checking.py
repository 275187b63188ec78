"""The type checker of the tests: beartype, which cannot check ``Self`` in single methods."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict
from beartype import beartype as check

beartype = check(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any})))
