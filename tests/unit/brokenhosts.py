"""Hosts of tests/cases/diagnose*.yml: from a few lines to what the host program ``trouble`` reads of them.

A file has ``hosts``, trees by name that several cases begin with, and ``cases``:

    host: name of the tree to begin with · tree: keys of tests/unit/trees.py over it (mappings are merged, lists replaced;
    ``KEY+`` adds to a list, ``KEY-`` takes out of it what begins with one of these words)
    smi: works | no_driver | mismatch | no_devices | no_library | {rc, out, err}
    gpus: ["slot name [persistence=off] [mig=Enabled] [pending=Enabled] [virtual=VGPU] [license=Unlicensed]"] that nvidia-smi
    lists where it works
    driver: {version, series, revision, flavour: open|proprietary, build: signed|dkms|none, variant: headless|desktop, kernels:
    [built for], status: dpkg's letters, loaded: version or false, extra: [packages], firmware: false, modules: version}
    kernels: [releases with image, initramfs, module folder], ``headers`` of them · running: the last of them by default
    os: "24.04" · programs: {dmesg: text, …} what other programs answer
    facts: what no folder can hold (disks, gpu_users), over the facts
    values: role variables that are no defaults
    exported: path of a file of ``diagnose --export``, which is replayed in place of host and tree; ``facts`` are laid over it
"""

import copy
from functools import cache
from pathlib import Path

from ansible_collections.gpu.provision.plugins.module_utils.probe import diagnostics as probe_diagnostics
from provision import bundles
from provision.catalog import load_catalog
from provision.diagnose import diagnose
from provision.facts.diagnostics import Diagnosed
from provision.inventory import variables
from provision.lib import yaml_reader
from tests.unit import trees

CASES = Path(__file__).parents[1] / "cases"
_BASES = (
    "nvidia-utils",
    "nvidia-compute-utils",
    "nvidia-kernel-common",
    "libnvidia-compute",
    "libnvidia-cfg1",
    "libnvidia-decode",
)
_INITRD = "070701 stands for an initramfs\n"
SMI = {
    "no_driver": (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n",
    ),
    "mismatch": (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {library}\n"),
    "no_devices": (6, "No devices were found\n"),
    "no_library": (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n"),
}


def load(name):
    """Return (hosts, cases) of tests/cases/NAME.yml."""
    data = yaml_reader.load((CASES / f"{name}.yml").read_text(encoding="utf-8"))
    return data.get("hosts", {}), data["cases"]


def merged(base, over):
    """A tree with another laid over it."""
    tree = copy.deepcopy(base)
    for key, value in (over or {}).items():
        if key.endswith("+"):
            tree[key[:-1]] = [*tree.get(key[:-1], []), *value]
        elif key.endswith("-"):
            tree[key[:-1]] = [row for row in tree.get(key[:-1], []) if not str(_name(row)).startswith(tuple(value))]
        elif isinstance(value, dict) and isinstance(tree.get(key), dict):
            tree[key] = {**tree[key], **value}
            tree[key] = {name: one for name, one in tree[key].items() if one is not None}
        else:
            tree[key] = copy.deepcopy(value)
    return tree


def _name(row):
    return row["path"] if isinstance(row, dict) else row


def facts_of(case, hosts, root, collect=probe_diagnostics.collect):
    """Return provision.facts.Facts of a case, read from a folder that is written below root."""
    if "exported" in case:
        found = bundles.read(trees.ROOT / case["exported"]).facts.model_dump(mode="json")
        return Diagnosed.model_validate(_over(found, case.get("facts", {})))
    tree = merged(hosts.get(case.get("host"), {}), case.get("tree"))
    gone = tree.pop("gone", [])
    smi, gpus = case.get("smi", tree.pop("smi", None)), case.get("gpus", tree.pop("gpus", []))
    tree.pop("smi", None), tree.pop("gpus", None)
    tree = expanded(tree)
    tree = {key: value for key, value in tree.items() if value is not False and value is not None}
    if smi is not None:
        tree["smi"] = {"rc": 0}
    trees.build(root, tree)
    for release in tree.get("boot", []):
        if f"/boot/initrd.img-{release}" not in tree.get("files", {}):
            _keep_date(trees.at(root, f"/boot/initrd.img-{release}"))
    for path in gone:
        trees.at(root, path).unlink()
    found = collect(str(root), run=_runner(smi, gpus, tree, case.get("programs", {})))
    if "own" in found:
        _over(found["facts"], case.get("facts", {}))
        return found
    return Diagnosed.model_validate(_over(found, case.get("facts", {})))


def expanded(tree):
    """A tree whose short words (driver, kernels, os) are written out in those of tests/unit/trees.py."""
    tree = copy.deepcopy(tree)
    for key, empty in (("files", {}), ("links", {}), ("packages", []), ("modules", []), ("dirs", [])):
        tree.setdefault(key, empty)
    files, packages, dirs = tree["files"], tree["packages"], tree["dirs"]
    version_id = tree.pop("os", "24.04")
    files.setdefault("/etc/os-release", f'ID=ubuntu\nVERSION_ID="{version_id}"\nVERSION_CODENAME=x\n')
    kernels = tree.pop("kernels", [])
    if kernels:
        dirs += ["/run/systemd/system", "/var/lib/dpkg/info", *(f"/lib/modules/{kernel}/kernel" for kernel in kernels)]
        tree.setdefault("running", kernels[-1])
        tree.setdefault("boot", kernels)
        given = {row.split()[0] for row in packages}
        rows = [f"linux-image-{kernel}" for kernel in kernels] + [
            f"linux-headers-{kernel}" for kernel in tree.get("headers", [])
        ]
        packages += [f"{name} 1 ii" for name in rows if name not in given]
    driver = tree.pop("driver", None)
    if driver:
        _driver(tree, driver, kernels)
    return tree


def _driver(tree, driver, kernels):
    version, series = driver["version"], str(driver["series"])
    flavour, build = driver.get("flavour", "open"), driver.get("build", "signed")
    number, tail = series.split("-")[0], "-open" if flavour == "open" else ""
    debian = f"{version}-{driver.get('revision', '0ubuntu0.24.04.1')}"
    built = driver.get("kernels", kernels)
    names = [f"{base}-{series}" for base in _BASES]
    if driver.get("firmware", True) and int(number) > 510:
        names.append(f"nvidia-firmware-{series}-{version}")
        tree["files"].setdefault(f"/lib/firmware/nvidia/{version}/gsp_ga10x.bin", "firmware")
    if build == "dkms":
        names += [f"{base}-{series}{tail}" for base in ("nvidia-dkms", "nvidia-kernel-source", "nvidia-headless")]
        tree["packages"].append("dkms 3.0 ii")
    elif build == "signed":
        names.append(f"nvidia-headless-no-dkms-{series}{tail}")
        for kernel in built:
            tree["packages"].append(f"linux-modules-nvidia-{series}{tail}-{kernel} 6.8.0 {driver.get('status', 'hi')}")
    if driver.get("variant") == "desktop":
        names += [f"nvidia-driver-{series}{tail}", f"libnvidia-gl-{series}", f"xserver-xorg-video-nvidia-{series}"]
    given = {row.split()[0] for row in tree["packages"]}
    for name in [*names, *driver.get("extra", [])]:
        if name not in given:
            tree["packages"].append(f"{name} {debian} {driver.get('status', 'hi')}")
    _driver_files(tree, driver, version, built, build, flavour, series)


def _driver_files(tree, driver, version, built, build, flavour, series):
    files, links, folder = tree["files"], tree["links"], "/usr/lib/x86_64-linux-gnu"
    tree.setdefault("library", version)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        files.setdefault(f"{folder}/{name}.{version}", "")
        links.setdefault(f"{folder}/{name}.1", f"{name}.{version}")
    owns = tree.setdefault("owns", {})
    owns.setdefault(
        f"libnvidia-compute-{series}", [f"{folder}/libcuda.so.{version}", f"{folder}/libnvidia-ml.so.{version}"]
    )
    licence = "Dual MIT/GPL" if flavour == "open" else "NVIDIA"
    disk = driver.get("modules", version)
    for kernel in built:
        path = f"/lib/modules/{kernel}/updates/dkms/nvidia.ko"
        module = {"path": path, "version": disk, "license": licence}
        if build == "signed":
            path = f"/lib/modules/{kernel}/kernel/nvidia-{series}{'open' if flavour == 'open' else ''}/nvidia.ko"
            module.update(path=path, signed_by="Canonical Ltd. Kernel Module Signing")
            owns.setdefault(f"linux-modules-nvidia-{series}{'-open' if flavour == 'open' else ''}-{kernel}", [path])
        else:
            tree["dirs"].append(f"/var/lib/dkms/nvidia/{disk}/{kernel}/x86_64/module")
            links.setdefault(f"/var/lib/dkms/nvidia/kernel-{kernel}-x86_64", f"{disk}/{kernel}/x86_64")
            if driver.get("signed_by"):
                module["signed_by"] = driver["signed_by"]
        if build != "none":
            tree["modules"].append(module)
    if build == "dkms":
        links.setdefault(f"/var/lib/dkms/nvidia/{version}/source", f"/usr/src/nvidia-{version}")
        if driver.get("source", True):
            files.setdefault(f"/usr/src/nvidia-{version}/dkms.conf", "PACKAGE_NAME=nvidia\n")
    loaded = driver.get("loaded", version)
    if loaded:
        tree.setdefault("loaded", {"version": loaded, "open": flavour == "open"})
        names = ["nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(len(tree.get("pci", []))))]
        for name in names:
            files.setdefault(f"/dev/{name}", "")
        files.setdefault(
            "/proc/modules",
            "nvidia_uvm 1 0 - Live 0x0\nnvidia_modeset 1 0 - Live 0x0\n"
            "nvidia 1 2 nvidia_uvm,nvidia_modeset, Live 0x0\n",
        )


def _keep_date(path):
    import os

    before = path.stat()
    path.write_text(_INITRD)
    os.utime(path, (before.st_atime, before.st_mtime))


def _over(facts, over):
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(facts.get(key), dict):
            _over(facts[key], value)
        else:
            facts[key] = value
    return facts


def _runner(smi, gpus, tree, programs):
    def run(command, timeout):
        name = command[0].rsplit("/", 1)[-1]
        if name == "nvidia-smi":
            return answer_of(smi, gpus, tree)
        text = programs.get(name)
        return (127, "", "") if text is None else (0, text, "")

    return run


def answer_of(smi, gpus, tree):
    """(rc, stdout, stderr) of nvidia-smi -q -x."""
    if isinstance(smi, dict) and smi.get("xml"):
        return 0, (trees.FIXTURES / smi["xml"] / "nvidia-smi.xml").read_text(encoding="utf-8"), ""
    if isinstance(smi, dict):
        return smi.get("rc", 0), smi.get("out", ""), smi.get("err", "")
    if smi in SMI:
        rc, text = SMI[smi]
        return rc, text.format(library=tree.get("library", "")), ""
    rows = "".join(_gpu(line) for line in gpus)
    version = (tree.get("loaded") or {}).get("version", "")
    return (
        0,
        f"<nvidia_smi_log><driver_version>{version}</driver_version><cuda_version>13.0</cuda_version>{rows}</nvidia_smi_log>",
        "",
    )


def _gpu(line):
    slot, *words = line.split()
    settings = dict(word.split("=") for word in words if "=" in word)
    name = " ".join(word for word in words if "=" not in word)
    persistence = {"on": "Enabled", "off": "Disabled"}[settings.get("persistence", "on")]
    mig = settings.get("mig", "N/A")
    return (
        f'<gpu id="0000{slot.upper()}"><product_name>{name}</product_name><persistence_mode>{persistence}</persistence_mode>'
        f"<gpu_virtualization_mode><virtualization_mode>{settings.get('virtual', 'None')}</virtualization_mode>"
        f"</gpu_virtualization_mode><license_status>{settings.get('license', 'N/A')}</license_status>"
        f"<mig_mode><current_mig>{mig}</current_mig><pending_mig>{settings.get('pending', mig)}</pending_mig></mig_mode>"
        f"<fb_memory_usage><total>81559 MiB</total></fb_memory_usage></gpu>"
    )


@cache
def _defaults():
    return {name: variable.default for name, variable in variables.known().items()}


def values_of(case):
    """Effective role variables of a case."""
    wrong = sorted(set(case.get("values", {})) - set(_defaults()))
    assert not wrong, f"no such role variables: {wrong}"
    return {**_defaults(), **case.get("values", {})}


def diagnosed(case, hosts, root):
    """Return (facts, Diagnosis) of a case."""
    facts = facts_of(case, hosts, root)
    return facts, diagnose(facts, values_of(case), load_catalog())


def flat(findings):
    """All findings with those folded under them."""
    for finding in findings:
        yield finding
        yield from flat(finding.folded)


def check_agreement(found):
    """What is folded offers no other repair than the finding above it, and no other reboot."""
    for top in found.findings:
        actions = {repair.action for repair in top.repairs}
        for one in flat(top.folded):
            assert {repair.action for repair in one.repairs} <= actions, (top.code, one.code, one.repairs)
            assert one.reboot == top.reboot, (top.code, one.code)


def words(finding):
    """All that is said of a finding and of what is folded under it, as one text."""
    rows = []
    for one in flat([finding]):
        rows += [one.message, *one.evidence, *(repair.words for repair in one.repairs)]
    return "\n".join(rows)
