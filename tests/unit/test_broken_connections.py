"""A connection that breaks between two packets: what paramiko raises then is an end, not a defect of ours."""

import paramiko
import pytest

from provision.remote.client import ChannelStream


class _Broken:
    def __init__(self, error):
        self.error = error

    def settimeout(self, seconds):
        pass

    def send(self, data):
        raise self.error

    recv = send

    def close(self):
        raise self.error


# packet.py, write_all: EOFError where the socket takes nothing more
@pytest.mark.parametrize("error", [EOFError(), paramiko.SSHException("x")], ids=["end", "ssh"])
def test_a_connection_that_breaks_is_the_end_of_its_stream(error):
    stream = ChannelStream.__new__(ChannelStream)
    stream._channel = _Broken(error)
    with pytest.raises(OSError):
        stream.send(memoryview(b"x"), 1)
    assert stream.recv(1) == b""
    stream.close()


def test_a_stream_that_is_only_slow_is_not_at_its_end():
    stream = ChannelStream.__new__(ChannelStream)
    stream._channel = _Broken(TimeoutError())
    with pytest.raises(TimeoutError):
        stream.recv(1)
    with pytest.raises(TimeoutError):
        stream.send(memoryview(b"x"), 1)
