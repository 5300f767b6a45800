"""The kernel that the next boot starts (tests/cases/probe_boot.yml)."""

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.probe import boot
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.collection import ROOT
from provision.lib import yaml_reader
from tests.unit import trees

CASES = yaml_reader.load((ROOT / "tests/cases/probe_boot.yml").read_text(encoding="utf-8"))
LOADER_GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

# As grub-mkconfig of Ubuntu 24.04 writes it, shortened.
HEAD = """\
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default=DEFAULT
fi
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
"""
MENU = """\
menuentry 'Ubuntu' --class ubuntu --class gnu-linux $menuentry_id_option 'gnulinux-simple-ID' {
\trecordfail
\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
\tlinux\t/boot/vmlinuz-6.8.0-45-generic root=UUID=x ro  quiet
\tinitrd\t/boot/initrd.img-6.8.0-45-generic
}
submenu 'Advanced options for Ubuntu' $menuentry_id_option 'gnulinux-advanced-ID' {
\tmenuentry 'Ubuntu, with Linux 6.8.0-45-generic' --class os $menuentry_id_option 'gnulinux-6.8.0-45-generic-advanced-ID' {
\t\tlinux\t/boot/vmlinuz-6.8.0-45-generic root=UUID=x ro
\t}
\tmenuentry 'Ubuntu, with Linux 6.8.0-45-generic (recovery mode)' --class os $menuentry_id_option 'gnulinux-6.8.0-45-generic-recovery-ID' {
\t\tlinux\t/boot/vmlinuz-6.8.0-45-generic root=UUID=x ro recovery
\t}
\tmenuentry 'Ubuntu, with Linux 6.5.0-44-generic' --class os $menuentry_id_option 'gnulinux-6.5.0-44-generic-advanced-ID' {
\t\tlinux\t/boot/vmlinuz-6.5.0-44-generic root=UUID=x ro
\t}
}
menuentry "UEFI Firmware Settings" $menuentry_id_option 'uefi-firmware' {
\tfwsetup
}
"""  # noqa: E501


def _tree(tree):
    """Put the menu of this file where the case asks for it."""
    files = dict(tree.get("files", {}))
    text = files.get("/boot/grub/grub.cfg", "")
    if text == "MENU":
        files["/boot/grub/grub.cfg"] = MENU
    elif text.startswith("DEFAULT "):
        files["/boot/grub/grub.cfg"] = HEAD.replace("DEFAULT", text[8:]) + MENU
    for name, value in tree.get("loader", {}).items():
        files[f"/sys/firmware/efi/efivars/{name}-{LOADER_GUID}"] = b"\x06\0\0\0" + (value + "\0").encode("utf-16-le")
    return dict(tree, files=files)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_next_kernel(case, tmp_path):
    root = trees.build(tmp_path, _tree(case["tree"]))
    kernels = probe_facts.collect(root=str(root))["kernels"]
    assert kernels["next"] == case["next"], kernels["next_because"]
    assert case.get("because", "") in kernels["next_because"]


def test_menu_is_nested():
    menu = boot.grub_menu(HEAD + MENU)
    assert [entry["id"] for entry in menu] == ["gnulinux-simple-ID", "gnulinux-advanced-ID", "uefi-firmware"]
    assert [entry["title"] for entry in menu[1]["entries"]][2] == "Ubuntu, with Linux 6.5.0-44-generic"


@pytest.mark.parametrize(("title", "default"), [("a > b", "a >> b"), ("it's", "it's"), ("two  spaces", "two  spaces")])
def test_titles_with_marks(title, default):
    text = "menuentry 'first' {\n\tlinux /vmlinuz-1.0-a\n}\nmenuentry '%s' {\n\tlinux /vmlinuz-2.0-b\n}\n"
    entry, exact = boot.grub_pick(boot.grub_menu(text % title.replace("'", "'\\''")), default)
    assert exact and entry["kernel"] == "/vmlinuz-2.0-b"
