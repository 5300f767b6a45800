"""SIMULATED cards: PCI functions of any vendor and class for a stock QEMU, whose configuration space a thread here answers.

QEMU's x-pci-proxy-dev hands a device to another process (docs/system/multi-process.rst, hw/remote/mpqemu-link.c): messages of
a header (command, size) and a body over a socket. A read of a register gives 0: nothing computes here.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from array import array

HEADER = struct.Struct("<iIQ")
RETURN, CONFIG_WRITE, CONFIG_READ, BAR_WRITE, BAR_READ, RESET = 1, 2, 3, 4, 5, 7
# 64-bit BARs at these offsets: size, flags (prefetchable where it is the cards' memory)
BARS = {0x10: (16 << 20, 0x4), 0x18: (32 << 20, 0xC), 0x20: (32 << 20, 0xC)}
ANSWERED = {CONFIG_WRITE, CONFIG_READ, BAR_WRITE, BAR_READ, RESET}
FIRST_SLOT = 0x10


class Card(threading.Thread):
    """One function; its end of the socket is closed when QEMU ends."""

    def __init__(self, vendor: int, device: int, device_class: int) -> None:
        super().__init__(daemon=True)
        self.socket, self.theirs = socket.socketpair()
        self.space, self.writable = bytearray(256), bytearray(256)
        header = (vendor, device, 0, 0x10, 0xA1, device_class & 0xFF, device_class >> 8)
        struct.pack_into("<HHHHBBH", self.space, 0, *header)
        struct.pack_into("<HH", self.space, 0x2C, vendor, 0x16C1)
        # the capabilities: power management, then a PCI Express endpoint (32 GT/s, 16 lanes)
        self.space[0x34], self.space[0x3D] = 0x60, 1
        struct.pack_into("<BBHH", self.space, 0x60, 0x01, 0x78, 0x0003, 0x0008)
        link = 5 | 16 << 4
        struct.pack_into("<BBHIHHIHH", self.space, 0x78, 0x10, 0, 0x0002, 0x8001, 0, 0, link, 0, link)
        struct.pack_into("<I", self.writable, 4, 0x0547)
        self.writable[0x0C] = self.writable[0x0D] = self.writable[0x3C] = 0xFF
        for offset, (size, flags) in BARS.items():
            struct.pack_into("<I", self.space, offset, flags)
            struct.pack_into("<I", self.writable, offset, 0xFFFFFFFF & ~(size - 1))

    def arguments(self, number: int) -> list[str]:
        """What QEMU is told of it."""
        return ["-device", f"x-pci-proxy-dev,id=gpu{number},fd={self.theirs.fileno()},addr={FIRST_SLOT + number:#x}"]

    def run(self) -> None:
        try:
            while True:
                command, _, size = HEADER.unpack(self._receive(HEADER.size))
                value = self._answer(command, self._receive(size))
                if command in ANSWERED:
                    self.socket.sendall(HEADER.pack(RETURN, 0, 8) + struct.pack("<Q", value))
        except (EOFError, OSError):
            # QEMU has ended
            self.socket.close()

    def _answer(self, command: int, body: bytes) -> int:
        if command == CONFIG_READ:
            at, _, size = struct.unpack("<IIi", body)
            return int.from_bytes(self.space[at : at + size], "little")
        if command == CONFIG_WRITE:
            at, value, size = struct.unpack("<IIi", body)
            for position, byte in enumerate(value.to_bytes(4, "little")[:size], at):
                if position < len(self.space):
                    mask = self.writable[position]
                    self.space[position] = (self.space[position] & ~mask) | (byte & mask)
        return 0

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part, ancillary, _, _ = self.socket.recvmsg(size - len(data), socket.CMSG_SPACE(64))
            for level, kind, content in ancillary:
                # file descriptors of the guest's memory: not wanted
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    for descriptor in array("i", content):
                        os.close(descriptor)
            if not part:
                raise EOFError
            data += part
        return data
