"""The kill harness: real commands against simulated hosts, killed at chosen moments, run again, and judged.

kinds (what is run on which host), moments (when), victims (what is killed), judge (what must be true then), harness (the run).
"""
