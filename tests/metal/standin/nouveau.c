// SIMULATED: takes the display functions of vendor 10de before nvidia can, as the kernel's own nouveau does.
#include <linux/module.h>
#include <linux/pci.h>

static int nouveau_probe(struct pci_dev *card, const struct pci_device_id *id)
{
	dev_info(&card->dev, "nouveau: SIMULATED stand-in took the card\n");
	return 0;
}

static const struct pci_device_id ids[] = {
	{PCI_DEVICE(0x10de, PCI_ANY_ID), .class = 0x030000, .class_mask = 0xff0000},
	{},
};
MODULE_DEVICE_TABLE(pci, ids);
static struct pci_driver nouveau_driver = {.name = "nouveau", .id_table = ids, .probe = nouveau_probe};
module_pci_driver(nouveau_driver);
MODULE_LICENSE("GPL");
