"""
Property tests draw the same examples in every run, so that a red run is a change's doing and is red again.

`HYPOTHESIS_PROFILE=explore` draws others each time; what it finds becomes a test of its own. No example has a deadline:
machines are noisy.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
