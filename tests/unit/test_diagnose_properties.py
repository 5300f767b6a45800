"""diagnose on any facts: it never raises, loses nothing, and keeps the order that the rules ask for."""

from hypothesis import example, given
from hypothesis import strategies as st

from provision.catalog import load_catalog
from provision.diagnose import diagnose, judge, pages
from provision.diagnose.finding import Cause
from provision.facts.diagnostics import Diagnosed
from tests.unit.brokenhosts import flat

VERSIONS = st.sampled_from(["580.126.20", "580.105.08", "550.107.02", "470.256.02", "620.70.06", "", "x", None])
KERNELS = st.sampled_from(["6.8.0-45-generic", "6.8.0-50-generic", "6.11.0-26-generic", "5.15.0-1051-aws", "", "odd"])
FLAVOURS = st.sampled_from(["open", "proprietary", None])
DRIVERS = st.sampled_from(["nvidia", "nouveau", "vfio-pci", "nova_core", None])
STATUS = st.sampled_from(["ii", "hi", "iF", "iU", "iHR", "rc", "hn", "un"])
NAMES = st.sampled_from(
    [
        "nvidia-dkms-580-open",
        "nvidia-dkms-550",
        "libnvidia-compute-580",
        "libnvidia-compute-550:i386",
        "nvidia-utils-580-server",
        "linux-modules-nvidia-580-open-6.8.0-45-generic",
        "nvidia-fabricmanager-580",
        "cuda-drivers",
        "linux-image-generic",
        "gdm3",
        "libnvidia-gl-580",
        "nvidia-firmware-580-580.126.20",
        "nvidia-driver-pinning-580",
        "dkms",
        "linux-image-6.8.0-45-generic",
    ]
)
LINES = st.sampled_from(
    [
        "NVRM: API mismatch: the client has the version 1, but",
        "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:zz): 48, x",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62)",
        "Loading of unsigned module is rejected",
        "NVRM: installed in this system is not supported by open",
        "NVRM: RmFetchGspRmImages: No firmware image found",
        "NVRM:",
        "",
    ]
)


def either(strategy):
    return st.one_of(st.none(), strategy)


def few(strategy, most=3):
    return st.lists(strategy, max_size=most)


CONF = st.fixed_dictionaries(
    {
        "file": st.sampled_from(["/etc/modprobe.d/a.conf", "/lib/modprobe.d/b.conf"]),
        "line": st.integers(0, 9),
        "text": st.sampled_from(
            ["blacklist nvidia", "blacklist nouveau", "options nvidia X=1", "install nvidia /bin/false", ""]
        ),
    }
)
BOOT = st.fixed_dictionaries(
    {
        "log": few(LINES, 5),
        "log_from": few(st.just("dmesg"), 1),
        "errors": st.fixed_dictionaries(
            {
                "now": either(st.floats(0, 2e9)),
                "lines": few(
                    st.fixed_dictionaries(
                        {"boot": st.integers(-2, 0), "when": either(st.floats(0, 2e9)), "text": LINES}
                    ),
                    5,
                ),
            }
        ),
        "modules": few(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["nvidia", "nvidia_drm", "nouveau"]),
                    "uses": either(st.integers(0, 9)),
                    "holders": few(st.just("nvidia_drm")),
                }
            )
        ),
        "dkms": few(
            st.fixed_dictionaries(
                {
                    "version": st.sampled_from(["580.126.20", "550.107.02", "x", ""]),
                    "source_missing": st.booleans(),
                    "make_kernel": either(KERNELS),
                    "make_log": either(st.just("/var/lib/dkms/nvidia/x/build/make.log")),
                    "make_error": either(st.just("error: x")),
                    "builds": few(st.fixed_dictionaries({"kernel": KERNELS, "installed": st.booleans()})),
                }
            ),
            2,
        ),
        "modprobe": few(CONF),
        "cron": few(CONF, 1),
        "firmware": st.dictionaries(st.sampled_from(["580.126.20", "1"]), few(st.just("gsp"))),
        "initrds": st.dictionaries(KERNELS, st.integers(0, 90_000_000), max_size=3),
        "boot_leftovers": few(st.just("/boot/x.new"), 1),
        "mig_instances": either(st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 7))),
        "failed_units": either(
            few(st.sampled_from(["nvidia-persistenced.service", "nvidia-fabricmanager.service", "x.mount"]))
        ),
        "xorg": few(
            st.fixed_dictionaries(
                {
                    "file": st.just("/etc/X11/xorg.conf"),
                    "line": st.integers(1, 9),
                    "driver": st.sampled_from(["nvidia", "nouveau", "x"]),
                    "bus": either(st.sampled_from(["PCI:1:0:0", "x"])),
                }
            )
        ),
        "xorg_errors": few(st.just("(EE) no screens found"), 1),
        "default_target": either(st.just("graphical.target")),
        "cmdline": st.sampled_from(["", "module.sig_enforce=1 modprobe.blacklist=nvidia", "vfio-pci.ids=10de:1"]),
        "lockdown": either(st.sampled_from(["none", "integrity"])),
        "sig_enforce": st.booleans(),
    }
)
FACTS = st.fixed_dictionaries(
    {
        "host": st.fixed_dictionaries({"container": either(st.just("docker")), "systemd": st.booleans()}),
        "gpus": few(
            st.fixed_dictionaries(
                {
                    "slot": st.sampled_from(["0000:1b:00.0", "0000:43:00.0", "x"]),
                    "device": st.sampled_from(["20b0", "1bb3", "2b85", "128b", "3fff", "0000"]),
                    "driver": DRIVERS,
                }
            )
        ),
        "nvswitches": few(st.just("0000:05:00.0"), 1),
        "nvlink5_switch": st.booleans(),
        "module": st.fixed_dictionaries(
            {
                "loaded": either(
                    st.fixed_dictionaries(
                        {"version": st.sampled_from(["580.126.20", "550.107.02", ""]), "flavour": FLAVOURS}
                    )
                ),
                "nouveau_loaded": st.booleans(),
                "on_disk": few(
                    st.fixed_dictionaries(
                        {
                            "kernel": KERNELS,
                            "path": st.sampled_from(["/lib/modules/k/updates/dkms/nvidia.ko", "/x"]),
                            "version": VERSIONS,
                            "flavour": FLAVOURS,
                            "signed": st.booleans(),
                            "origin": st.sampled_from(["prebuilt", "dkms", "other"]),
                        }
                    )
                ),
            }
        ),
        "kernels": st.fixed_dictionaries(
            {
                "running": KERNELS,
                "next": either(KERNELS),
                "installed": few(
                    st.fixed_dictionaries(
                        {
                            "release": KERNELS,
                            "image": st.booleans(),
                            "headers": st.booleans(),
                            "initrd": st.booleans(),
                            "package": either(st.just("linux-image-6.8.0-45-generic")),
                        }
                    )
                ),
                "metapackages": few(st.sampled_from(["linux-image-generic", "linux-headers-generic", "linux-aws"])),
            }
        ),
        "packages": st.dictionaries(
            NAMES,
            st.fixed_dictionaries(
                {
                    # A new package whose unpacking was cut off has none.
                    "version": st.sampled_from(["580.126.20-0ubuntu1", "550.107.02-1", "1", ""]),
                    "status": STATUS,
                    "depends": either(st.just("nvidia-kernel-common-470 (<= 1)")),
                }
            ),
            max_size=6,
        ),
        "package_problems": few(st.just("nvidia-dkms-580-open: half-configured"), 1),
        "libraries": few(
            st.fixed_dictionaries(
                {
                    "soname": st.sampled_from(["libcuda.so.1", "libnvidia-ml.so.1"]),
                    "path": st.just("/usr/lib/x"),
                    "version": VERSIONS,
                    "package": either(st.just("libnvidia-compute-580")),
                }
            )
        ),
        "smi": st.fixed_dictionaries(
            {
                "path": either(st.just("/usr/bin/nvidia-smi")),
                "ran": st.booleans(),
                "rc": either(st.sampled_from([0, 6, 9, 18, 255])),
                "timed_out": st.booleans(),
                "error": either(st.sampled_from(["No devices were found", "", "x\ny"])),
                "gpus": few(
                    st.fixed_dictionaries(
                        {
                            "index": st.integers(0, 3),
                            "name": st.just("x"),
                            "bus_id": either(st.sampled_from(["00000000:1B:00.0", "x"])),
                            "mig": either(st.sampled_from(["Enabled", "Disabled"])),
                            "persistence": either(st.booleans()),
                        }
                    ),
                    2,
                ),
            }
        ),
        "runfile": st.fixed_dictionaries(
            {
                "uninstaller": either(st.just("/usr/bin/nvidia-uninstall")),
                "traces": few(st.sampled_from(["/usr/bin/nvidia-installer", "/var/log/nvidia-installer.log"])),
            }
        ),
        "secure_boot": st.fixed_dictionaries(
            {"efi": st.booleans(), "enabled": either(st.booleans()), "mok_enrolled": either(st.booleans())}
        ),
        "reboot_required": st.fixed_dictionaries({"required": st.booleans(), "packages": few(st.just("linux-base"))}),
        "services": st.dictionaries(
            st.sampled_from(["nvidia-persistenced", "nvidia-fabricmanager"]),
            st.fixed_dictionaries({"present": st.booleans(), "running": st.booleans()}),
        ),
        "initrds": few(st.fixed_dictionaries({"kernel": KERNELS, "newer_than_blacklist": either(st.booleans())})),
        "modprobe": st.fixed_dictionaries({"blacklisted": few(st.sampled_from(["nouveau", "nvidia"]))}),
        "devices": few(st.sampled_from(["/dev/nvidia0", "/dev/nvidiactl"])),
        "desktop": st.booleans(),
        "disks": few(
            st.fixed_dictionaries(
                {"path": st.sampled_from(["/", "/boot"]), "free": st.integers(0, 10**9), "size": st.integers(0, 10**9)}
            )
        ),
        "trouble": either(st.fixed_dictionaries({"boot": BOOT})),
    }
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "nvidia_driver_manage": st.booleans(),
        "nvidia_driver_hold": st.booleans(),
        "gpu_verify_expect": st.sampled_from(["", "2", "1x H100 + 2x T4"]),
        "nvidia_driver_variant": st.sampled_from(["auto", "headless", "desktop"]),
        "nvidia_driver_build": st.sampled_from(["auto", "dkms"]),
    },
)
CATALOG = load_catalog()


# dpkg names an owner of a library that is none of the packages the probe lists
FOREIGN_OWNER = {
    "host": {"container": None, "systemd": False},
    "packages": {"nvidia-dkms-580-open": {"version": "580.126.20-0ubuntu1", "status": "ii"}},
    "libraries": [
        {"soname": "libcuda.so.1", "path": "/usr/lib/x", "version": "580.105.08", "package": "libnvidia-compute-580"}
    ],
}


@given(FACTS, VALUES)
@example(FOREIGN_OWNER, {})
def test_it_never_raises_and_says_why_and_what_to_do(facts, values):
    found = diagnose(Diagnosed.of_host(facts), values, CATALOG)
    known = pages.codes()
    for finding in flat(found.findings):
        assert finding.code in known and finding.message and finding.evidence
    for finding in found.errors:
        assert finding.repairs
    ordered(found.findings)


def ordered(findings):
    """No finding stands before one that has to be mended before it."""
    seen = set()
    for finding in findings:
        seen.add(finding.code)
        later = {other.code for other in findings} - seen
        assert not later & judge._before(finding.code) - {finding.code}


LEVELS = ["error", "warning", "note"]
CODES = st.lists(st.sampled_from(pages.codes()), max_size=12)


@given(CODES, st.randoms(use_true_random=False))
def test_folding_loses_nothing(codes, random):
    findings = [
        Cause(code=code, level=random.choice(["error", "warning", "note"]), message=str(n))
        for n, code in enumerate(codes)
    ]
    top = judge.folded(findings)
    assert sorted(f.message for f in flat(top)) == sorted(f.message for f in findings)
    result = judge.ordered(top)
    assert sorted(f.message for f in result) == sorted(f.message for f in top)
    ordered(result)
    for finding in top:
        worst = min(LEVELS.index(f.level) for f in flat([finding]))
        assert finding.level == LEVELS[worst]


def test_causes_that_name_each_other_are_not_lost(monkeypatch):
    rules = {code: _Rule(code, other) for code, other in (("a.a", "b.b"), ("b.b", "c.c"), ("c.c", "a.a"))}
    monkeypatch.setattr(pages, "page", rules.__getitem__)
    findings = [Cause(code=code, level="error", message=code) for code in rules]
    assert sorted(f.code for f in flat(judge.folded(findings))) == ["a.a", "b.b", "c.c"]
    assert len(judge.ordered(findings)) == 3


class _Rule:
    def __init__(self, code, other):
        self.code, self.symptom_of, self.after, self.beside = code, (other,), (other,), ()
