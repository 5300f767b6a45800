"""What a simulated GPU host runs: boot, kernel modules, initramfs, boot loader, DKMS and nvidia-smi.

Copied to /usr/local/lib/sim on the hosts and started there by the programs whose names it answers to. Standard
library only. ``state`` says where everything is kept.
"""
