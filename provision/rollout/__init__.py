"""A few hosts at a time: waves, how many may fail, what was agreed to, hooks, and the state of a run on disk.

``waves``, ``options`` and ``agreed`` are pure. ``loop`` is the order of things, separate from how they are done
(``commands/apply.py``); ``state`` is what ``apply --resume`` goes on from; ``observers`` is where others hook in.
"""
