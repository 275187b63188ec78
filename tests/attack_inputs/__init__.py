"""An attack on the command line: generated inputs, most of them bad, from one seed.

``python -m attack_inputs`` (``make attack``) draws commands and files, runs each in this process
and some as real processes, and judges what came of it: an exception that escapes, an exit code that
is not documented, a message that is not one line, files left behind, a call of more than 20 s.
(`attack.py` beside this package attacks the rules of proofs, not the command line.)
"""
