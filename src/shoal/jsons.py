"""Values as JSON can hold them."""

import dataclasses
import json
import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Convert to JSON-compatible values; infinities and NaN become null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return value


def dumps(value: Any) -> str:
    """JSON text of any value of shoal."""
    return json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
