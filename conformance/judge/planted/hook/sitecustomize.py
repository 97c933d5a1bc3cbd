"""Plants the fault that EQUIGRAD_PLANTED names into a rank of the engine under test, before that imports anything.

Python runs this file at its start, where its folder is on PYTHONPATH. Neither the judge nor its reference is touched: they have
no RANK, or `--reference` as an argument.
"""

import os
import sys

if os.environ.get("EQUIGRAD_PLANTED") and "RANK" in os.environ and "--reference" not in sys.orig_argv:
    sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        import planted_faults

        planted_faults.plant(os.environ["EQUIGRAD_PLANTED"])
    except BaseException:  # noqa: BLE001  Python would go on without the fault
        import traceback

        traceback.print_exc()
        os._exit(70)
