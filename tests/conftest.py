"""
Property tests draw the same examples in every run, so that a red run is a change's doing and is red again.

`HYPOTHESIS_PROFILE=explore` draws others each time; what it finds becomes a test of its own.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
