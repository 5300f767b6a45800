# ruff: noqa: E501 - lines of programs
"""diagnose --bundle: logs of nvidia-bug-report.sh and sosreports, as hosts; and what is neither, or does harm."""

import bz2
import gzip
import io
import lzma
import tarfile

import pytest

from provision import bundles
from provision.commands import diagnose as command
from provision.diagnose import judge
from provision.errors import UsageError
from provision.facts.diagnostics import Diagnosed
from tests.unit import brokenhosts

LINE = "_" * 44
LSPCI = (
    "0000:00:02.0 VGA compatible controller [0300]: Intel Corporation Raptor Lake-P [8086:a7a0]\n"
    "1b:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 40GB] [10de:20b0] (rev a1)\n"
)
VERBOSE = (
    "1b:00.0 3D controller: NVIDIA Corporation GA100 (rev a1)\n\tFlags: bus master\n\tKernel driver in use: nvidia\n"
)
SMI = (
    "==============NVSMI LOG==============\n\nTimestamp : x\nDriver Version                            : 580.126.20\n"
    "CUDA Version                              : 13.0\n\nAttached GPUs                             : 1\n"
    "GPU 00000000:1B:00.0\n    Product Name                          : NVIDIA A100-SXM4-40GB\n"
    "    Persistence Mode                      : Enabled\n    MIG Mode\n        Current                           : Disabled\n"
    "        Pending                           : Disabled\n    FB Memory Usage\n        Total                             : 40960 MiB\n"
)
NO_DRIVER = brokenhosts.SMI["no_driver"][1]


def report(dmesg="", smi=SMI, files=(), verbose=VERBOSE):
    """A log of nvidia-bug-report.sh, section by section as it writes them."""
    sections = [
        "Start of NVIDIA bug report log file.  Please include this file\n\nnvidia-bug-report.sh Version: 38461000\n\n"
        "Date: Thu Nov 27 10:00:00 UTC 2026\nuname: Linux gpu01 6.8.0-45-generic #45-Ubuntu SMP x86_64 GNU/Linux\n"
        "command line flags: ",
        "*** /etc/issue\n*** ls: -rw-r--r-- 1 root root 26 2026-01-01 00:00:00.0 +0000 /etc/issue\nUbuntu 24.04.1 LTS \\n \\l\n",
        "*** /var/log/nvidia-installer.log does not exist",
        *(
            f"*** {path}\n*** ls: -rw-r--r-- 1 root root 9 2026-01-01 00:00:00.0 +0000 {path}\n{text}"
            for path, text in files
        ),
        f'/usr/bin/lspci -d "10de:*" -v -xxx\n\n{verbose}',
        f"/usr/bin/lspci -nn\n\n{LSPCI}",
        f"dmesg:\n\n{dmesg}",
        "*** /proc/cmdline\n*** ls: -r--r--r-- 1 root root 0 2026-01-01 00:00:00.0 +0000 /proc/cmdline\nBOOT_IMAGE=/vmlinuz ro\n",
        f"/usr/bin/nvidia-smi --query\n\n{smi}\n\n/usr/bin/nvidia-smi --query --unit\n\nAttached Units : 0\n",
        "End of NVIDIA bug report log file.",
    ]
    return "".join(f"{LINE}\n\n{section}\n\n" for section in sections)


VERSION = (
    "/proc/driver/nvidia/./version",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.20  Release Build\n",
)
MAKE_LOG = (
    "/var/lib/dkms/nvidia/580.126.20/build/make.log",
    "DKMS make.log for nvidia-580.126.20 for kernel 6.8.0-45-generic (x86_64)\n"
    "/var/lib/dkms/nvidia/580.126.20/build/nvidia/nv.c:1:1: error: implicit declaration of function 'follow_pfn'\n",
)


def told(data, tmp_path, pack=bytes):
    path = tmp_path / "bundle"
    path.write_bytes(pack(data if isinstance(data, bytes) else data.encode()))
    document = command.of_bundle(path, brokenhosts.values_of({}))
    (host,) = document.hosts.values()
    return document, host, [finding.code for finding in brokenhosts.flat(host.findings)]


def _zstd(data):
    """A frame of raw blocks (RFC 8878, 3.1.1): needs no program, and reads as any other."""
    blocks = [data[at : at + (1 << 17)] for at in range(0, len(data), 1 << 17)]
    rows = [
        ((len(block) << 3) | (number == len(blocks))).to_bytes(3, "little") + block
        for number, block in enumerate(blocks, 1)
    ]
    return b"\x28\xb5\x2f\xfd" + b"\x00\x38" + b"".join(rows)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, _zstd])
def test_a_report_of_a_host_that_works_has_no_finding_and_says_what_it_lacks(pack, tmp_path):
    document, host, codes = told(report(files=[VERSION]), tmp_path, pack)
    assert list(document.hosts) == ["gpu01"] and document.exit_code == 0
    assert not codes and host.status == "well" and host.gpus == ["1 x A100 SXM4 40GB"], (codes, host.unknown)
    assert any(row.startswith("packages: not in the bundle") for row in host.unread), host.unread


def test_what_nobody_read_is_hidden_once_for_all_rules(tmp_path, monkeypatch):
    """Once a rule it takes seconds."""
    veiled, models = judge._veiled, []
    monkeypatch.setattr(judge, "_veiled", lambda model, unsaid: models.append(type(model)) or veiled(model, unsaid))
    told(report(), tmp_path)
    assert models.count(Diagnosed) == 1, models


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (
            {
                "dmesg": "[ 5.1] NVRM: GPU at PCI:0000:1b:00: GPU-x\n[ 9.1] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n",
                "smi": NO_DRIVER,
            },
            "gpus.fell_off_bus",
        ),
        (
            {
                "dmesg": "[ 5.1] NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x26:0x56:1474)\n",
                "smi": "No devices were found\n",
                "files": [VERSION],
            },
            "gpus.init_failed",
        ),
        (
            {
                "dmesg": "[ 5.1] NVRM: Xid (PCI:0000:1b:00): 48, pid=1, An uncorrectable double bit error\n",
                "files": [VERSION],
            },
            "gpus.xid",
        ),
        ({"files": [MAKE_LOG], "smi": NO_DRIVER}, "kernel.build_failed"),
    ],
)
def test_a_report_names_the_cause(given, code, tmp_path):
    document, host, codes = told(report(**given), tmp_path, gzip.compress)
    assert code in codes and document.exit_code == 3, (codes, host.unknown, host.unread)


def sos(files, links=(), mode="w:xz"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(
                f"sosreport-gpu01-2026-11-27-abc/{path}" if not path.startswith(("/", "..")) else path
            )
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
        for path, target in links:
            entry = tarfile.TarInfo(f"sosreport-gpu01-2026-11-27-abc/{path}")
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return out.getvalue()


SOS = {
    "etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\n',
    "run/systemd/system/x": "",
    "proc/cmdline": "ro\n",
    "proc/driver/nvidia/version": VERSION[1],
    "sos_commands/kernel/uname_-a": "Linux gpu01 6.8.0-45-generic #45 SMP x86_64\n",
    "sos_commands/pci/lspci_-nnvv": LSPCI + "\tKernel driver in use: nvidia\n",
    "sos_commands/nvidia/nvidia-smi_-q": SMI,
    "sos_commands/kernel/dmesg": "[ 1.0] nvidia: loading out-of-tree module\n",
    "sos_commands/dpkg/dpkg_-l": "ii  dpkg  1.22  amd64  x\nhi  nvidia-headless-no-dkms-580-open  580.126.20-0ubuntu1  amd64  x\n"
    "hi  libnvidia-compute-580:amd64  580.126.20-0ubuntu1  amd64  x\n",
    "sos_commands/systemd/systemctl_list-units_--failed": "  UNIT LOAD ACTIVE SUB\n● a.service loaded failed failed A\n",
}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_sosreport_of_a_host_that_works(mode, tmp_path):
    document, host, codes = told(sos(SOS, mode=mode), tmp_path)
    assert list(document.hosts) == ["gpu01"] and not codes and host.status == "well", (codes, host.unknown)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        (
            {
                "sos_commands/dpkg/dpkg_-l": SOS["sos_commands/dpkg/dpkg_-l"]
                + "iF  nvidia-dkms-580-open  580.126.20-0ubuntu1  amd64  x\n"
            },
            "dpkg.unfinished",
        ),
        (
            {
                "sos_commands/dpkg/dpkg_-l": SOS["sos_commands/dpkg/dpkg_-l"]
                + "hi  nvidia-utils-580  580.105.08-0ubuntu1  amd64  x\n"
            },
            "driver.mixed_versions",
        ),
        ({"sos_commands/kernel/dmesg": "[ 9.1] NVRM: Xid (PCI:0000:1b:00): 48, pid=1, DBE\n"}, "gpus.xid"),
    ],
)
def test_a_sosreport_names_the_cause(files, code, tmp_path):
    _, host, codes = told(sos({**SOS, **files}), tmp_path)
    assert code in codes, (codes, host.unknown, host.unread)


def test_nothing_of_a_bundle_is_written_outside_its_folder(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    links = [
        ("etc/modprobe.d", str(outside)),
        ("etc/apt", "../../../../../../" + str(outside)),
        ("etc/a", "/etc/shadow"),
    ]
    files = {**SOS, "etc/modprobe.d/x.conf": "blacklist nvidia\n", "../etc/x": "", "/etc/y": "", "etc/../../../z": "x"}
    told(sos(files, links), tmp_path)
    report_files = [("/../../../x", "x"), (f"/etc/modprobe.d/../../../..{outside}/y", "y"), ("/etc/issue", "again")]
    told(report(files=report_files), tmp_path)
    assert not list(outside.iterdir()) and {path.name for path in tmp_path.iterdir()} == {"outside", "bundle"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"some log of dmesg\n", "neither"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], ""),
        (b"\x28\xb5\x2f\xfdxx", "zstd -d FILE first"),
        (b"", "neither"),
    ],
)
def test_what_is_no_bundle_is_refused(data, words, tmp_path):
    with pytest.raises(UsageError) as error:
        told(data, tmp_path)
    assert words in " ".join(error.value.issue.because)


def test_bombs_end(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_UNPACKED", 1 << 20)
    with pytest.raises(UsageError, match="cannot be read"):
        told(report() + "x" * (4 << 20), tmp_path, gzip.compress)
    monkeypatch.setattr(bundles, "MOST_ENTRIES", 3)
    with pytest.raises(UsageError, match="cannot be read"):
        told(sos(SOS), tmp_path)
