"""nvidia-smi: prints what the real one prints, from the state of the simulated host.

Models: nvidia-smi 580.159.04 on an H100; failures and exit codes as measured with 535 and 580.
"""

from __future__ import annotations

import glob
import os
import string
import sys
import time

from . import nvidia, state

# CUDA version that nvidia-smi of a branch shows (source: NVIDIA's CUDA release notes, as of 2026-11).
CUDA = {
    450: "11.0",
    455: "11.1",
    460: "11.2",
    465: "11.3",
    470: "11.4",
    495: "11.5",
    510: "11.6",
    515: "11.7",
    520: "11.8",
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
    610: "13.3",
    615: "13.4",
    620: "13.5",
}
PERSISTENCE = state.RUN + "/persistence"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver "
    "is properly installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so "
    "to your system PATH."
)


def library_version():
    """Version of libnvidia-ml.so.1 as the loader finds it; None without one."""
    for folder in ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64"):
        link = folder + "/libnvidia-ml.so.1"
        if os.path.exists(link):
            return os.path.basename(os.path.realpath(link)).split(".so.", 1)[1]
    return None


def gpus():
    """Working GPUs in index order, with what nvidia-smi says of each."""
    known = {gpu["slot"]: gpu for gpu in state.host()["gpus"]}
    driver = state.loaded()["nvidia"]
    shown = []
    persistent = (state.read(PERSISTENCE, "") or "").split()
    fabric = "N/A", "N/A"
    if state.host().get("nvswitch") or state.host().get("nvlink5"):
        fabric = ("Completed", "Success") if os.path.exists(state.RUN + "/fabric") else ("In Progress", "N/A")
    for slot, device in sorted(state.devices().items(), key=lambda item: item[1]["index"]):
        if device["works"] and not known[slot].get("lost"):
            gpu = known[slot]
            shown.append(
                {
                    "index": len(shown),
                    "slot": slot,
                    "name": gpu["name"],
                    "uuid": gpu["uuid"],
                    "serial": gpu["serial"],
                    "bus_id": "0000" + slot.upper(),
                    "memory": gpu["memory_mib"],
                    "compute": gpu["compute"],
                    "architecture": gpu["architecture"],
                    "device": gpu["device"].upper(),
                    "subsystem": "".join(reversed(gpu["subsystem"].split(":"))).upper(),
                    "persistence": slot in persistent or "all" in persistent,
                    "ecc": gpu.get("ecc"),
                    "mig": "Disabled" if gpu.get("mig") else "N/A",
                    "gsp": driver["version"] if driver["flavour"] == "open" or gpu.get("gsp") else "N/A",
                    "fabric_state": fabric[0],
                    "fabric_status": fabric[1],
                    "driver": driver["version"],
                }
            )
    return shown


def processes():
    """Compute processes: [(pid, name, [indices])]; the persistence daemon and fabric manager are none."""
    found = []
    for pid, paths in sorted(nvidia.users().items()):
        name = (state.read("/proc/%d/cmdline" % pid) or "").replace("\0", " ").strip()
        if "persistenced" in name or "fabricmanager" in name or pid == os.getpid():
            continue
        indices = sorted({int(path[11:]) for path in paths if path[11:].isdigit()})
        if indices:
            found.append((pid, name.split(" ")[0], indices))
    return found


def main(argv):
    version = library_version()
    if version is None:
        print(NO_LIBRARY)
        return 12
    loaded = state.loaded().get("nvidia")
    if loaded is None:
        print(NO_DRIVER)
        return 9
    if loaded["version"] != version:
        state.log(
            "NVRM: API mismatch: the client has the version %s, but" % version,
            "NVRM: this kernel module has the version %s.  Please" % loaded["version"],
            "NVRM: make sure that this kernel module and all NVIDIA driver",
            "NVRM: components have the same version.",
        )
        print("Failed to initialize NVML: Driver/library version mismatch")
        print("NVML library version: " + ".".join(version.split(".")[:2]))
        return 18
    shown = gpus()
    options = dict(word.partition("=")[::2] for word in argv if word.startswith("-"))
    wanted = options.get("-i") or options.get("--id") or (argv[argv.index("-i") + 1] if "-i" in argv[:-1] else "")
    if wanted:
        shown = [gpu for gpu in shown if wanted in (str(gpu["index"]), gpu["uuid"], gpu["bus_id"], gpu["slot"])]
    if "-L" in options or "--list-gpus" in options:
        if not shown:
            print("No devices found.")
        for gpu in shown:
            print("GPU %(index)d: %(name)s (UUID: %(uuid)s)" % gpu)
        return 0
    if not shown:
        print("No devices were found")
        return 6
    if "-pm" in options or "--persistence-mode" in options:
        return _persistence(shown, argv)
    for option, table in (("--query-gpu", _gpu_field), ("--query-compute-apps", _process_field)):
        if option in options:
            return _query(option, options, argv, shown, table)
    if argv[:1] == ["topo"]:
        _topology(shown)
    elif argv[:1] == ["nvlink"]:
        pass
    elif "-x" in options or "--xml-format" in options:
        _xml(shown, version)
    elif "-q" in options or "--query" in options:
        _text(shown, version)
    elif not argv or "-i" in options or "--id" in options:
        _table(shown, version)
    else:
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
        return 2
    return 0


def _persistence(shown, argv):
    if os.geteuid():
        print("Unable to set persistence mode for GPU %s: Insufficient Permissions" % shown[0]["bus_id"])
        print("Terminating early due to previous error.")
        return 4
    value = next(word for word in argv if word in ("0", "1", "DISABLED", "ENABLED"))
    kept = set((state.read(PERSISTENCE, "") or "").split())
    for gpu in shown:
        old = gpu["slot"] in kept
        (kept.add if value in ("1", "ENABLED") else kept.discard)(gpu["slot"])
        word = "Enabled" if gpu["slot"] in kept else "Disabled"
        if old == (gpu["slot"] in kept):
            print("Persistence mode is already %s for GPU %s." % (word, gpu["bus_id"]))
        else:
            print("%s persistence mode for GPU %s." % (word, gpu["bus_id"]))
    state.write(PERSISTENCE, "\n".join(sorted(kept)))
    print("All done.")
    return 0


def _gpu_field(gpu, field, units):
    mib = " MiB" if units else ""
    values = {
        "index": gpu["index"],
        "name": gpu["name"],
        "gpu_name": gpu["name"],
        "uuid": gpu["uuid"],
        "gpu_uuid": gpu["uuid"],
        "serial": gpu["serial"],
        "gpu_serial": gpu["serial"],
        "driver_version": gpu["driver"],
        "count": gpu["count"],
        "compute_cap": gpu["compute"],
        "memory.total": "%d%s" % (gpu["memory"], mib),
        "memory.used": "0" + mib,
        "memory.free": "%d%s" % (gpu["memory"] - 480, mib),
        "pci.bus_id": gpu["bus_id"],
        "gpu_bus_id": gpu["bus_id"],
        "pci.device_id": "0x%s10DE" % gpu["device"],
        "pci.sub_device_id": "0x" + gpu["subsystem"],
        "persistence_mode": "Enabled" if gpu["persistence"] else "Disabled",
        "ecc.mode.current": gpu["ecc"] or "[N/A]",
        "mig.mode.current": gpu["mig"] if gpu["mig"] != "N/A" else "[N/A]",
        "temperature.gpu": "42",
        "utilization.gpu": "0 %" if units else "0",
        "power.draw": "128.71 W" if units else "128.71",
        "pstate": "P0",
        "fabric.state": gpu["fabric_state"],
        "fabric.status": gpu["fabric_status"],
        "vbios_version": "96.00.DA.00.0C",
        "compute_mode": "Default",
        "display_active": "Disabled",
    }
    return values.get(field)


def _process_field(process, field, units):
    values = {
        "pid": process[0],
        "process_name": process[1],
        "name": process[1],
        "gpu_uuid": process[2],
        "gpu_bus_id": process[3],
        "used_memory": "512 MiB" if units else "512",
        "used_gpu_memory": "512 MiB" if units else "512",
    }
    return values.get(field)


def _query(option, options, argv, shown, value_of):
    fields = options[option].split(",")
    form = options.get("--format", "csv").split(",")
    units = "nounits" not in form
    for gpu in shown:
        gpu["count"] = len(shown)
    rows = shown
    if option == "--query-compute-apps":
        by_index = {gpu["index"]: gpu for gpu in shown}
        rows = [
            (pid, name, by_index[n]["uuid"], by_index[n]["bus_id"])
            for pid, name, indices in processes()
            for n in indices
            if n in by_index
        ]
    probe = rows[0] if rows else (0, "", "", "") if option != "--query-gpu" else None
    for field in fields:
        if value_of(probe, field.strip(), units) is None:
            print('Field "%s" is not a valid field to query.\n' % field)
            return 2
    if "noheader" not in form:
        unit = {
            "memory.total": " [MiB]",
            "memory.used": " [MiB]",
            "memory.free": " [MiB]",
            "utilization.gpu": " [%]",
            "power.draw": " [W]",
            "used_memory": " [MiB]",
            "used_gpu_memory": " [MiB]",
        }
        print(", ".join(field.strip() + unit.get(field.strip(), "") for field in fields))
    for row in rows:
        print(", ".join(str(value_of(row, field.strip(), units)) for field in fields))
    return 0


def _cuda(version):
    return CUDA.get(int(version.split(".")[0]), "N/A")


def _now():
    return time.strftime("%a %b %e %H:%M:%S %Y")


def _table(shown, version):
    bar = "+-----------------------------------------------------------------------------------------+"
    row = "+-----------------------------------------+------------------------+----------------------+"
    print("%-31s" % (_now() + "       "))
    print(bar)
    print("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-9s|" % (version, version, _cuda(version)))
    print(row)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print("|=========================================+========================+======================|")
    for gpu in shown:
        state_ = "On" if gpu["persistence"] else "Off"
        ecc = "0" if gpu["ecc"] == "Enabled" else "Off" if gpu["ecc"] else "N/A"
        memory = "0MiB / %6dMiB" % gpu["memory"]
        print("|%4d  %-26s %6s  |   %s Off |%21s |" % (gpu["index"], gpu["name"][:26], state_, gpu["bus_id"], ecc))
        print("| N/A   42C    P0            128W /  700W |%23s |      0%%      Default |" % memory)
        print("|                                         |                        |%21s |" % gpu["mig"])
        print(row)
    print()
    print(bar)
    print("| Processes:                                                                              |")
    print("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
    print("|        ID   ID                                                               Usage      |")
    print("|=========================================================================================|")
    running = processes()
    for pid, name, indices in running:
        for index in indices:
            print("|%5d   N/A  N/A %16d      C   %-38s 512MiB |" % (index, pid, name[:36]))
    if not running:
        print("|  No running processes found                                                             |")
    print(bar)


def _xml(shown, version):
    template = string.Template(state.read(os.path.dirname(os.path.abspath(__file__)) + "/gpu.xml"))
    print('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>')
    print("\t<timestamp>%s</timestamp>\n\t<driver_version>%s</driver_version>" % (_now(), version))
    print("\t<cuda_version>%s</cuda_version>\n\t<attached_gpus>%d</attached_gpus>" % (_cuda(version), len(shown)))
    running = processes()
    for gpu in shown:
        text = template.substitute(
            gpu,
            free=gpu["memory"] - 480,
            bus=gpu["bus_id"][9:11],
            slot=gpu["bus_id"][12:14],
            ecc=gpu["ecc"] or "N/A",
            persistence="Enabled" if gpu["persistence"] else "Disabled",
        )
        entries = "".join(
            "\t\t\t<process_info>\n\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>\n\t\t\t\t<compute_instance_id>N/A"
            "</compute_instance_id>\n\t\t\t\t<pid>%d</pid>\n\t\t\t\t<type>C</type>\n\t\t\t\t<process_name>%s"
            "</process_name>\n\t\t\t\t<used_memory>512 MiB</used_memory>\n\t\t\t</process_info>\n" % (pid, name)
            for pid, name, indices in running
            if gpu["index"] in indices
        )
        start = text.index("\t\t<processes>\n") + len("\t\t<processes>\n")
        print(text[:start] + entries + text[start:].rstrip("\n"))
    print("</nvidia_smi_log>\n")


def _text(shown, version):
    print("\n==============NVSMI LOG==============\n")
    print("Timestamp                                              : " + _now())
    print("Driver Version                                         : " + version)
    print("CUDA Version                                           : " + _cuda(version))
    print("\nAttached GPUs                                          : %d" % len(shown))
    for gpu in shown:
        print("GPU " + gpu["bus_id"])
        for label, value in (
            ("Product Name", gpu["name"]),
            ("Product Brand", "NVIDIA"),
            ("Product Architecture", gpu["architecture"]),
            ("Display Mode", "Disabled"),
            ("Display Active", "Disabled"),
            ("Persistence Mode", "Enabled" if gpu["persistence"] else "Disabled"),
        ):
            print("    %-50s : %s" % (label, value))
        print("    MIG Mode\n        %-46s : %s\n        %-46s : %s" % ("Current", gpu["mig"], "Pending", gpu["mig"]))
        print("    %-50s : %s" % ("Serial Number", gpu["serial"]))
        print("    %-50s : %s" % ("GPU UUID", gpu["uuid"]))
        print("    %-50s : %d" % ("Minor Number", gpu["index"]))
        print("    %-50s : %s" % ("GSP Firmware Version", gpu["gsp"]))
        print("    FB Memory Usage\n        %-46s : %d MiB" % ("Total", gpu["memory"]))
        ecc = gpu["ecc"] or "N/A"
        print("    ECC Mode\n        %-46s : %s\n        %-46s : %s" % ("Current", ecc, "Pending", ecc))
        print("    Fabric\n        %-46s : %s" % ("State", gpu["fabric_state"]))
        print("        %-46s : %s" % ("Status", gpu["fabric_status"]))
    print()


def _topology(shown):
    link = "NV18" if state.host().get("nvswitch") else "SYS"
    names = ["GPU%d" % gpu["index"] for gpu in shown]
    print("\t\x1b[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m")
    cpus = "0-%d" % (len(glob.glob("/sys/devices/system/cpu/cpu[0-9]*")) - 1)
    for name in names:
        cells = [" X " if other == name else link for other in names]
        print("\t".join([name, *cells, cpus, "0\t", "N/A"]))
    print(
        "\nLegend:\n\n  X    = Self\n"
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
        "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
        "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
        "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
        "  PIX  = Connection traversing at most a single PCIe bridge\n"
        "  NV#  = Connection traversing a bonded set of # NVLinks"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
