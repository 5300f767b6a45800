"""Rules by theme; see provision.diagnose.rule."""

import provision.collection  # noqa: F401  (makes the collection importable for every module here)
