"""What should be: from wish, facts, catalog and what apt offers to exact packages, with the reason of each choice.

Pure functions of data, no I/O. ``driver`` decides the driver; the roles that follow get a module each.
"""
