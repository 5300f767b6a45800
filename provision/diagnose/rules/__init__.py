"""Rules by theme; see provision.diagnose.rule."""
