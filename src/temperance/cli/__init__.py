"""The command line: one thin file per verb, each calling the function of the same name.

Exit codes: 0 done; 1 the work ended without a usable result; 2 wrong usage; 3 input that cannot be
used; 4 a name that is not there; 5 a missing package; 130 interrupted.
"""

from temperance.cli.app import main

__all__ = ["main"]
