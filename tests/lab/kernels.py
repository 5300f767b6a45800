"""Kernels of the archive, the tools that go with them, and the signed NVIDIA modules built for them.

Layout of the signed modules (source: linux-restricted-modules in the Ubuntu archive): open ones ship as finished,
signed ``kernel/nvidia-X-open/*.ko``; proprietary ones are put together by the postinst from objects
(linux-objects-nvidia-X-K) and signatures (linux-signatures-nvidia-K) in ``kernel/nvidia-X/bits``.
"""

from __future__ import annotations

from . import contents
from .debfile import File, Package
from .releases import Kernel, Release
from .sim import driver_files, kofile
from .sim.standin import program


def _suites(release: Release, kernel: Kernel) -> tuple[str, ...]:
    if kernel.published or kernel.current:
        return (f"{release.codename}-updates", f"{release.codename}-security")
    return (release.codename,)


def chosen(release: Release, published: bool) -> list[Kernel]:
    """Kernels that the archive holds."""
    return [kernel for kernel in release.kernels if published or not kernel.published]


def packages(release: Release, *, published: bool) -> list[Package]:
    """Images, modules, headers and metapackages."""
    built = []
    for kernel in chosen(release, published):
        built += _kernel(release, kernel)
        if kernel.current or kernel.published:
            built += _metapackages(release, kernel)
    return built


def _kernel(release: Release, kernel: Kernel) -> list[Package]:
    name, version, suites = kernel.release, kernel.version, _suites(release, kernel)
    tree = f"/lib/modules/{name}"
    hooks = (
        "#!/bin/sh\nset -e\n"
        'if [ "$1" = configure ] && [ -d /etc/kernel/postinst.d ]; then\n'
        f"    run-parts --report --exit-on-error --arg={name} --arg=/boot/vmlinuz-{name} /etc/kernel/postinst.d\n"
        "    echo '*** System restart required ***' > /run/reboot-required\n"
        f"    echo linux-image-{name} >> /run/reboot-required.pkgs\nfi\n"
    )
    gone = (
        "#!/bin/sh\nset -e\n"
        f'if [ "$1" = remove ] && [ -d /etc/kernel/postrm.d ]; then\n'
        f"    run-parts --report --exit-on-error --arg={name} --arg=/boot/vmlinuz-{name} /etc/kernel/postrm.d\nfi\n"
    )
    depmod = f'#!/bin/sh\nset -e\nif [ "$1" = configure ]; then depmod {name}; fi\n'
    header_hooks = (
        "#!/bin/sh\nset -e\n"
        'if [ "$1" = configure ] && [ -d /etc/kernel/header_postinst.d ]; then\n'
        f"    run-parts --report --exit-on-error --arg={name} /etc/kernel/header_postinst.d\nfi\n"
    )
    common = f"linux-headers-{kernel.abi}"
    sources = f"/usr/src/linux-headers-{name}"

    def package(title: str, depends: str, files: dict, scripts: dict, arch: str = "amd64") -> Package:
        fields = {"Source": "linux", "Section": "kernel", "Depends": depends}
        return Package(
            title, version, arch, {k: v for k, v in fields.items() if v}, files, scripts, [], title, "main", suites
        )

    return [
        package(
            f"linux-image-{name}",
            f"kmod, initramfs-tools | linux-initramfs-tool, linux-modules-{name}",
            {f"/boot/vmlinuz-{name}": File(f"simulated kernel {name}\n".encode(), 0o600)},
            {"postinst": hooks, "postrm": gone},
        ),
        package(
            f"linux-modules-{name}",
            "",
            {
                f"{tree}/modules.order": "",
                f"{tree}/modules.builtin": "",
                f"{tree}/modules.builtin.modinfo": "",
                f"/boot/config-{name}": "CONFIG_MODULES=y\nCONFIG_MODULE_SIG=y\n",
                f"/boot/System.map-{name}": "",
            },
            {"postinst": depmod},
        ),
        package(
            f"linux-modules-extra-{name}",
            f"linux-image-{name}",
            {
                f"{tree}/kernel/drivers/gpu/drm/nouveau/nouveau.ko": File(driver_files.nouveau(name)),
                f"{tree}/kernel/drivers/infiniband/core/ib_umad.ko": File(driver_files.ib_umad(name)),
            },
            {"postinst": depmod},
        ),
        package(common, "", {f"/usr/src/{common}/Makefile": "# simulated\n"}, {}, "all"),
        package(
            f"linux-headers-{name}",
            common,
            {f"{sources}/Makefile": "# simulated\n", f"{tree}/build": File(link=sources)},
            {"postinst": header_hooks},
        ),
    ]


def _metapackages(release: Release, kernel: Kernel) -> list[Package]:
    version, suites, name, meta = kernel.version, _suites(release, kernel), kernel.release, kernel.meta
    rows = {
        f"linux-image-{meta}": f"linux-image-{name}, linux-modules-extra-{name}, linux-firmware",
        f"linux-headers-{meta}": f"linux-headers-{name}",
        f"linux-{meta}": f"linux-image-{meta} (= {version}), linux-headers-{meta} (= {version})",
    }
    return [
        Package(
            title,
            version,
            fields={"Source": "linux-meta", "Section": "kernel", "Depends": depends},
            suites=suites,
            description=title,
        )
        for title, depends in rows.items()
    ]


def signed(
    release: Release, series_versions: list[tuple[str, str, str]], *, published_kernel: bool, respin: int
) -> list[Package]:
    """Signed module packages of every series for every kernel; respin counts driver updates of the same kernel."""
    built = []
    for kernel in chosen(release, published_kernel):
        version = kernel.version + (f"+{respin}" if respin else "")
        suites = (f"{release.codename}-updates", f"{release.codename}-security")
        signatures: dict[str, File | str] = {}
        for series, upstream, full in series_versions:
            branch = series.split("-")[0]
            if not contents.supports_kernel(branch, kernel.release):
                continue
            for flavour in ("proprietary",) if branch == "470" else ("proprietary", "open"):
                built += _modules(kernel, series, flavour, upstream, full, version, suites, signatures)
        if series_versions:
            built.append(
                _restricted(f"linux-signatures-nvidia-{kernel.release}", version, "", {}, signatures, {}, suites)
            )
    return built


def _modules(kernel, series, flavour, upstream, full, version, suites, signatures) -> list[Package]:  # type: ignore[no-untyped-def]
    suffix = "-open" if flavour == "open" else ""
    name, label = kernel.release, f"{series}{suffix}"
    tree = f"/lib/modules/{name}/kernel/nvidia-{label}"
    common = f"nvidia-kernel-common-{series} (<= {upstream}-1), nvidia-kernel-common-{series} (>= {upstream})"
    built = []
    after = f"depmod {name}\nif [ -e /boot/initrd.img-{name} ]; then update-initramfs -u -k {name}; fi\n"
    clean = ""
    if flavour == "open":
        depends = common
        files: dict[str, File | str] = {
            f"{tree}/{file}": File(data) for file, data in contents.signed_modules(upstream, flavour, name).items()
        }
    else:
        objects = f"linux-objects-nvidia-{label}-{name}"
        depends = f"{objects} (= {version}), linux-signatures-nvidia-{name} (= {version}), {common}"
        files = {f"{tree}/BUILD": f"# put together from bits/ by the postinst of {objects}\n"}
        bits: dict[str, File | str] = {}
        for file, data in driver_files.modules(upstream, flavour, name).items():
            bits[f"{tree}/bits/{file}.o"] = File(data)
            signatures[f"{tree}/bits/{file}.sig"] = File(
                kofile.signature(data, driver_files.CANONICAL, serial=0x1F00 + len(signatures))
            )
        built.append(_restricted(objects, version, common, {}, bits, {}, suites))
        after = (
            f"for bit in {tree}/bits/*.ko.o; do\n    module={tree}/$(basename $bit .o)\n"
            f"    cat $bit ${{bit%.o}}.sig > $module\ndone\n" + after
        )
        clean = f"rm -f {tree}/*.ko\n"
    scripts = contents.scripts_for(
        "linux-modules-nvidia",
        series,
        flavour,
        after,
        clean,
        f"if [ -d /lib/modules/{name} ]; then depmod {name}; fi\n",
    )
    built.append(_restricted(f"linux-modules-nvidia-{label}-{name}", version, depends, {}, files, scripts, suites))
    if kernel.current or kernel.published:
        built.append(
            _restricted(
                f"linux-modules-nvidia-{label}-{kernel.meta}",
                version,
                f"linux-modules-nvidia-{label}-{name} (= {version}), {common}",
                {"Provides": f"nvidia-dkms-{label} (= {full}), nvidia-prebuilt-kernel"},
                {},
                {},
                suites,
            )
        )
    return built


def transitional_signed(release: Release, pairs: list[tuple[str, str]]) -> list[Package]:
    """Module metapackages of a branch that only leads to another one."""
    built = []
    for kernel in release.kernels:
        if not kernel.current:
            continue
        for old, new in pairs:
            for suffix in ("", "-open"):
                if old.startswith("470") and suffix:
                    continue
                if not contents.supports_kernel(new.split("-")[0], kernel.release):
                    continue
                name = f"linux-modules-nvidia-{old}{suffix}-{kernel.meta}"
                target = f"linux-modules-nvidia-{new}{suffix}-{kernel.meta}"
                suites = (f"{release.codename}-updates", f"{release.codename}-security")
                built.append(_restricted(name, kernel.version, target, {}, {}, {}, suites))
    return built


def _restricted(name, version, depends, more, files, scripts, suites) -> Package:  # type: ignore[no-untyped-def]
    fields = {"Source": "linux-restricted-modules", "Section": "restricted/kernel", "X-Lab": "derived", **more}
    if depends:
        fields["Depends"] = depends
    return Package(name, version, "amd64", fields, files, scripts, [], name, "restricted", suites)


def tools(release: Release) -> list[Package]:
    """initramfs-tools, grub, dkms and mokutil: packages whose programs are stand-ins."""

    def hook(text: str) -> File:
        return File(("#!/bin/sh\nset -e\n" + text).encode(), 0o755)

    def tool(name: str, version: str, files: dict, scripts: dict | None = None, **fields: str) -> Package:
        control = {key.replace("_", "-"): value for key, value in fields.items()}
        return Package(name, version, "all", control, files, scripts or {}, [], name, "main", (release.codename,))

    dkms_common = (
        "#!/bin/bash\n# common.postinst NAME VERSION SHARE ARCH OLD: add, build and install for every kernel\n"
        'name=$1 version=$2\ndkms add "$name/$version" >/dev/null || exit $?\n'
        "for kernel in $(ls /lib/modules | sort -V); do\n"
        '    if [ ! -e "/lib/modules/$kernel/build" ]; then\n'
        '        echo "Module build for kernel $kernel was skipped since the"\n'
        '        echo "kernel headers for this kernel do not seem to be installed."\n        continue\n    fi\n'
        '    echo "Building for $kernel"\n    dkms install "$name/$version" -k "$kernel" || exit $?\ndone\n'
    )
    return [
        tool(
            "initramfs-tools",
            "0.142ubuntu25.4",
            {
                "/usr/sbin/update-initramfs": File(program("update-initramfs").encode(), 0o755),
                "/etc/kernel/postinst.d/initramfs-tools": hook('update-initramfs -c -k "$1"\n'),
                "/etc/kernel/postrm.d/initramfs-tools": hook('update-initramfs -d -k "$1"\n'),
            },
            Provides="linux-initramfs-tool",
        ),
        tool(
            "grub2-common",
            "2.12-1ubuntu7.3",
            {
                **{
                    f"/usr/sbin/{name}": File(program(name).encode(), 0o755)
                    for name in ("update-grub", "grub-mkconfig", "grub-reboot", "grub-set-default")
                },
                "/usr/bin/grub-editenv": File(program("grub-editenv").encode(), 0o755),
                "/etc/kernel/postinst.d/zz-update-grub": hook("update-grub\n"),
                "/etc/kernel/postrm.d/zz-update-grub": hook("update-grub\n"),
            },
        ),
        tool(
            "dkms",
            "3.0.11-1ubuntu13",
            {
                "/usr/sbin/dkms": File(program("dkms").encode(), 0o755),
                "/usr/lib/dkms/common.postinst": File(dkms_common.encode(), 0o755),
                "/etc/kernel/postinst.d/dkms": hook(
                    'if [ -e "/lib/modules/$1/build" ]; then dkms autoinstall -k "$1"; fi\n'
                ),
                "/etc/kernel/header_postinst.d/dkms": hook(
                    'if [ -e "/boot/vmlinuz-$1" ]; then dkms autoinstall -k "$1"; fi\n'
                ),
            },
            Depends="kmod, gcc, make",
            Recommends="linux-headers-generic | linux-headers-generic-hwe-24.04",
        ),
        tool("mokutil", "0.6.0-2build3", {"/usr/bin/mokutil": File(program("mokutil").encode(), 0o755)}),
    ]
