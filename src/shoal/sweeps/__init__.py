"""Sweeps: many runs from one file, none of them lost.

``written`` reads the file, ``grid`` lists the runs, ``batches`` does them (runs of equal shape in
one compiled call), ``folder`` keeps them, ``cluster`` sends them to other machines, ``planner``
asks how wide a model must be. Nothing is imported here, so that a file that is wrong is refused at
once.
"""
