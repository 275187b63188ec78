"""A laboratory for the training dynamics of shallow Transformers.

Everything here is a call one can make by hand in a notebook::

    problem ─┐
    model ───┼─> risk ─┐
    init ────┴─> params0 ─> run(method, risk, params0) ─> trajectory ─> certificate

Import what you need from the modules, e.g. ``from shoal.training import run``. Nothing heavy
is imported here, so that ``shoal --help`` answers at once.
"""

__version__ = "0.1.0"

import os

# LAPACK's threads spin for tens of milliseconds after each small call, on cores that training needs
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
