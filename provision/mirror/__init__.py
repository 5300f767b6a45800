"""A mirror: everything that a lock needs, in one folder, for hosts without internet.

``layout`` says where what lies, ``need`` what a lock needs, ``keys`` signs, ``make`` fetches, ``serve`` hands it out.
What runs where the internet is (the controller or a host) is ``plugins/module_utils/mirror*.py``.
"""
