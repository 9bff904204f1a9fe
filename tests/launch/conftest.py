"""Tests of `launch`, which is loaded from the checkout; helpers lie in the folder above."""

import sys
from pathlib import Path

for folder in (Path(__file__).parents[2], Path(__file__).parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
