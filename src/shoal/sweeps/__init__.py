"""Sweeps: many runs from one file, none of them lost.

``parse`` reads the file, ``grid`` lists the runs, ``batches`` trains runs of one compiled program
together, ``cluster`` sends batches to other machines, `shoal.disk.sweeps` stores finished runs,
and ``planner`` finds how wide a model must be. Nothing is imported here: a mistake in a file is
reported before JAX is loaded.
"""
