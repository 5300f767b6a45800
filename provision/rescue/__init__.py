"""rescue: from a diagnosis to the smallest repair, round by round.

``rounds`` chooses (pure), ``narrow`` keeps a repair from changing what nobody named (pure), ``host`` reads one host and
plans its next round, ``model`` is what a rescue says of itself. The command is provision.commands.rescue; plain Ansible
has the same rounds through plugins/action/rescue_round.py.
"""
