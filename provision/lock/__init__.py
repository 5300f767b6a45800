"""fleet.lock.yml: the exact versions of verified hosts, for apply to install and for drift to compare with.

``model`` is the file, ``make`` builds it from hosts, ``compare`` says what changed, ``pin`` keeps a plan to it.
"""
