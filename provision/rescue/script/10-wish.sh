# --- what the inventory says (changed here, it counts) ----------------------------------------------------------------

@SETTINGS@
