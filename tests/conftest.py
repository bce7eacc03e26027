"""For all tests: costs are measured, not read from, and never written to, the user's cache."""

import os

os.environ["RANNC_PROFILE_CACHE"] = "off"
