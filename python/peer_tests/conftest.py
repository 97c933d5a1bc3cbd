import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]
os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
