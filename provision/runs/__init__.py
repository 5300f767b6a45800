"""Runs: ansible-playbook as the engine, its events, history, going back, the lock against two runs."""
