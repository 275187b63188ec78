"""Sweeps: many runs from one file, none of them lost.

``grid`` reads the file and lists the runs, ``batches`` does them (runs of equal shape in one
compiled call), ``folder`` keeps them, ``cluster`` sends them to other machines, ``planner`` asks
how wide a model must be.
"""

from shoal.sweeps.folder import frame
from shoal.sweeps.grid import Sweep, from_text, read

__all__ = ["Sweep", "frame", "from_text", "read"]
