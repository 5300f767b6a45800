// SIMULATED: nvidia-modeset, -drm, -uvm and -peermem: each needs nvidia (-drm needs -modeset), shows a node or nothing.
#include <linux/module.h>

void nvidia_standin_node(int minor, const char *name);
void nvidia_standin_modeset(void);

#ifdef MODESET
void nvidia_standin_modeset(void)
{
}
EXPORT_SYMBOL(nvidia_standin_modeset);
#endif

static int __init dependent_init(void)
{
#ifdef DRM
	nvidia_standin_modeset();
#endif
#ifdef MINOR_NUMBER
	nvidia_standin_node(MINOR_NUMBER, NODE);
	return 0;
#else
	return nvidia_standin_node == NULL;
#endif
}

static void __exit dependent_exit(void)
{
#ifdef MINOR_NUMBER
	nvidia_standin_node(MINOR_NUMBER, NULL);
#endif
}

module_init(dependent_init);
module_exit(dependent_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(NV_VERSION);
