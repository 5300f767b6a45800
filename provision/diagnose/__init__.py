"""Names the cause of what is broken: facts in, findings out. Pure; see finding (what it says) and rule (how)."""
