// SIMULATED: a stand-in of nvidia.ko for tests. It binds the display functions of vendor 10de, shows /proc/driver/nvidia
// and device nodes as the real one does, and drives nothing.
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#define MAJOR_NUMBER 195 // Documentation/admin-guide/devices.txt does not list it; NVIDIA's modules and tools use it
#define CONTROL 255

static struct proc_dir_entry *top, *cards;
static struct class *nodes;
static int count;
static const struct file_operations operations = {.owner = THIS_MODULE};

static int version_show(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " NV_VERSION
		       "  Release Build  (SIMULATED stand-in)  Thu Apr  9 02:36:58 UTC 2026\nGCC version:  gcc version 12.2.0\n");
	return 0;
}

static int information_show(struct seq_file *file, void *minor)
{
	seq_printf(file, "Model: \t\t SIMULATED\nIRQ:   \t\t 16\nDevice Minor: \t %ld\n", (long) file->private);
	return 0;
}

void nvidia_standin_node(int minor, const char *name)
{
	if (name)
		device_create(nodes, NULL, MKDEV(MAJOR_NUMBER, minor), NULL, "%s", name);
	else
		device_destroy(nodes, MKDEV(MAJOR_NUMBER, minor));
}
EXPORT_SYMBOL(nvidia_standin_node);

static int nvidia_probe(struct pci_dev *card, const struct pci_device_id *id)
{
	struct proc_dir_entry *folder = proc_mkdir(pci_name(card), cards);
	char name[16];

	snprintf(name, sizeof(name), "nvidia%d", count);
	proc_create_single_data("information", 0444, folder, information_show, (void *) (long) count);
	nvidia_standin_node(count++, name);
	pci_set_drvdata(card, folder);
	return 0;
}

static void nvidia_remove(struct pci_dev *card)
{
	proc_remove(pci_get_drvdata(card));
	nvidia_standin_node(--count, NULL);
}

static const struct pci_device_id ids[] = {
	{PCI_DEVICE(0x10de, PCI_ANY_ID), .class = 0x030000, .class_mask = 0xff0000},
	{},
};
MODULE_DEVICE_TABLE(pci, ids);
static struct pci_driver driver = {.name = "nvidia", .id_table = ids, .probe = nvidia_probe, .remove = nvidia_remove};

static char *mode(struct device *device, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static int __init nvidia_init(void)
{
	int rc = register_chrdev(MAJOR_NUMBER, "nvidia", &operations);

	if (rc)
		return rc;
	nodes = class_create(THIS_MODULE, "nvidia");
	nodes->devnode = mode;
	top = proc_mkdir("driver/nvidia", NULL);
	cards = proc_mkdir("gpus", top);
	proc_create_single("version", 0444, top, version_show);
	nvidia_standin_node(CONTROL, "nvidiactl");
	rc = pci_register_driver(&driver);
	if (!rc && !count) {
		pr_info("NVRM: No NVIDIA GPU found.\n");
		pci_unregister_driver(&driver);
		rc = -ENODEV;
	}
	if (rc) {
		nvidia_standin_node(CONTROL, NULL);
		proc_remove(top);
		class_destroy(nodes);
		unregister_chrdev(MAJOR_NUMBER, "nvidia");
		return rc;
	}
	pr_info("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  " NV_VERSION "  (SIMULATED stand-in)\n");
	return 0;
}

static void __exit nvidia_exit(void)
{
	pci_unregister_driver(&driver);
	nvidia_standin_node(CONTROL, NULL);
	proc_remove(top);
	class_destroy(nodes);
	unregister_chrdev(MAJOR_NUMBER, "nvidia");
}

module_init(nvidia_init);
module_exit(nvidia_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(NV_VERSION);
MODULE_ALIAS_CHARDEV_MAJOR(MAJOR_NUMBER);
